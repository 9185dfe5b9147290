"""Stores that ``StoreWriter`` makes for brokers to open: every kind of message it can write."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rmqlog.writer.message_columns import NewMessage, batch_of
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.store_writer import StoreWriter

from .java_driver import Settings
from .java_toolchain import Line
from .traffic import ordinary_messages

SMALL_FILES: Settings = {
    "mappedFileSizeCommitLog": 1_048_576,
    "mappedFileSizeConsumeQueue": 10_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2_000,
}
ROWS_OF_AN_APPEND = 100


def settings_for(line: Line) -> StoreSettings:
    """Small files, dispatched as a broker of that line does."""
    texts = {name: str(value) for name, value in SMALL_FILES.items()}
    return StoreSettings.from_mapping({**texts, "brokerVersion": line.version})


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


def other_messages() -> Iterator[NewMessage]:
    """Compressed bodies, an empty one, IPv6 clients, delays that will not be due in a test."""
    for kind in ("zlib", "lz4", "zstd"):
        for size in (10, 20_000):
            yield NewMessage(
                *("kinds", kind.encode() * size), keys=f"{kind}-{size}", compression=kind
            )
    yield NewMessage("kinds", b"", queue_id=1, tags="EMPTY")
    for host in ("[::1]:1234", "[2001:db8::1]:65535", "10.1.2.3:45678"):
        yield NewMessage("kinds", host.encode(), queue_id=1, tags="HOST", born_host=host)
    for number in range(5):
        yield NewMessage("kinds", b"late", queue_id=0, keys=f"late-{number}", delay_level=18)


def write_everything(store: Path, line: Line) -> None:
    """Make a store of several segments with all kinds of messages, and close it."""
    ordinary = [new_message(specification) for specification in ordinary_messages()]
    with StoreWriter(store, settings_for(line)) as writer:
        for start in range(0, len(ordinary), ROWS_OF_AN_APPEND):
            writer.append(batch_of(ordinary[start : start + ROWS_OF_AN_APPEND]))
        writer.append(batch_of(list(other_messages())))
        batch = [NewMessage("batch", b"item %d" % item, queue_id=0) for item in range(20)]
        writer.append(batch_of(batch), client_batch=True)
