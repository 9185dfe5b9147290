"""Stores that ``StoreWriter`` makes for brokers to open: every kind of message it can write."""

from __future__ import annotations

import base64
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rmqlog.commitlog_format.store import Store
from rmqlog.writer.message_columns import NewMessage, batch_of
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.store_writer import StoreWriter

from .java_driver import Settings
from .java_toolchain import Line
from .reading_ways import run_command
from .traffic import ordinary_messages

SMALL_FILES: Settings = {
    "mappedFileSizeCommitLog": 1_048_576,
    "mappedFileSizeConsumeQueue": 10_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2_000,
}
ROWS_OF_AN_APPEND = 100
#: Messages that are appended by a process which is then killed; the last one is torn.
CRASHED_COUNT = 200
COMPRESSIONS = ("zlib", "lz4", "zstd")
SOON_COUNT = 3
#: Delayed by 5 s, so still pending when a broker has booted, or just due.
SOON = NewMessage("kinds", b"soon", queue_id=0, tags="SOON", delay_level=2)


def settings_for(line: Line) -> StoreSettings:
    """Small files, dispatched as a broker of that line does."""
    return StoreSettings.from_mapping(_texts_for(line))


def _texts_for(line: Line) -> dict[str, str]:
    texts = {name: str(value) for name, value in SMALL_FILES.items()}
    return {**texts, "brokerVersion": line.version}


def broker_conf(store: Path, line: Line) -> Path:
    """A file with the same settings beside a store."""
    path = store.parent / "broker.conf"
    path.write_text("".join(f"{name}={text}\n" for name, text in _texts_for(line).items()))
    return path


def new_message(specification: dict[str, Any]) -> NewMessage:
    """A message for the writer from what a client would be told to send."""
    return NewMessage(
        topic=specification["topic"],
        body=base64.b64decode(specification["bodyBase64"]),
        queue_id=specification["queueId"],
        tags=specification.get("tags"),
        keys=specification.get("keys"),
        properties=specification.get("properties", {}),
        flag=specification.get("flag", 0),
    )


def new_ordinary_messages() -> list[NewMessage]:
    """What a client would send: tags, keys, bodies, flags and properties in all mixtures."""
    return [new_message(specification) for specification in ordinary_messages()]


def compressed_messages(kind: str) -> Iterator[NewMessage]:
    """Bodies that a compression makes smaller."""
    for size in (10, 20_000):
        yield NewMessage("kinds", kind.encode() * size, keys=f"{kind}-{size}", compression=kind)


def other_messages() -> Iterator[NewMessage]:
    """An empty body, IPv6 clients, delays that will not be due in a test."""
    for queue_id in range(2):
        yield NewMessage("kinds", b"", queue_id=queue_id, tags="EMPTY")
    for host in ("[::1]:1234", "[2001:db8::1]:65535", "10.1.2.3:45678"):
        yield NewMessage("kinds", host.encode(), queue_id=1, tags="HOST", born_host=host)
    for number in range(5):
        yield NewMessage("kinds", b"late", queue_id=0, keys=f"late-{number}", delay_level=18)


def write_everything(store: Path, line: Line) -> None:
    """Make a store of several segments with all kinds of messages, and close it."""
    ordinary = new_ordinary_messages()
    with StoreWriter(store, settings_for(line)) as writer:
        for start in range(0, len(ordinary), ROWS_OF_AN_APPEND):
            writer.append(batch_of(ordinary[start : start + ROWS_OF_AN_APPEND]))
        for kind in COMPRESSIONS:
            writer.append(batch_of(list(compressed_messages(kind))))
        writer.append(batch_of(list(other_messages())))
        batch = [NewMessage("batch", b"item %d" % item, queue_id=0) for item in range(20)]
        writer.append(batch_of(batch), client_batch=True)


def crash_and_recover(store: Path, line: Line) -> None:
    """Kill a process that writes to a store, tear its last record, and ``recover``."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_append_and_die, args=(store, line))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert Store(str(store)).was_killed
    _tear_last_record(store)
    conf = broker_conf(store, line)
    (report,) = run_command("recover", store, "--yes", "--json", "--conf", conf)
    assert len(report["cuts"]) == 1


def _append_and_die(store: Path, line: Line) -> None:
    writer = StoreWriter(store, settings_for(line))
    writer.append(batch_of(list(crashed_messages())))
    os.kill(os.getpid(), signal.SIGKILL)


def crashed_messages() -> Iterator[NewMessage]:
    """What the killed process appends."""
    for number in range(CRASHED_COUNT):
        yield NewMessage("orders", b"crashed %d" % number, queue_id=0, keys=f"crashed-{number}")


def _tear_last_record(store: Path) -> None:
    """Zero the second half of the last record, as a power cut may leave it."""
    snapshot = Store(str(store))
    last = max(
        (row["commitLogOffset"], row["storeSize"])
        for batch in snapshot.scan(columns=["commitLogOffset", "storeSize"])
        for row in batch.to_pylist()
    )
    offset, size = last
    place = offset % int(SMALL_FILES["mappedFileSizeCommitLog"])
    with open(snapshot.log.path_of(offset), "r+b") as segment:
        segment.seek(place + size // 2)
        segment.write(bytes(size - size // 2))
