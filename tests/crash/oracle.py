"""What must be true of a store after any crash, checked with the reading side alone."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from crash.workloads import SETTINGS, Message, open_writer, to_arrow
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.consume_queue_ext import ConsumeQueueExt
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.hashing import index_hash
from rmqlog.commitlog_format.index_file import IndexFile
from rmqlog.commitlog_format.log_walk import LogWalk
from rmqlog.commitlog_format.message import Message as StoredMessage
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.writer.index_notes import read_notes
from rmqlog.writer.posix import Posix
from rmqlog.writer.recovery import RecoveryReport
from rmqlog.writer.settings import StoreSettings

#: Appended after a recovery, to see that the store can be written again.
PROBE = Message(9999, 50, "probe")


def check_store(
    path: Path,
    appended: Sequence[Message],
    durable_count: int,
    settings: StoreSettings = SETTINGS,
) -> RecoveryReport:
    """Open a crashed store and see that nothing was lost.

    What was acknowledged as flushed is there; what is there is a prefix of what was appended;
    queues and index agree with the log; the next append works; opening it again changes nothing.
    """
    with open_writer(str(path), Posix(), settings) as writer:
        report = writer.recovery
        writer.append(to_arrow([PROBE]))
    messages = read_log(path)
    found = len(messages) - 1
    expected = [*appended[:found], PROBE]
    assert list(map(content_of, messages)) == [
        (each.topic, each.queue_id, each.keys, each.tags, each.uniq_key, each.body)
        for each in expected
    ], "not a prefix of what was appended"
    assert found >= durable_count, f"{found} messages are there, {durable_count} were flushed"
    check_tail(path, messages)
    check_queues(path, messages)
    check_index(path, messages, settings)
    assert not (path / "abort").exists()
    before = tree_digest(path)
    with open_writer(str(path), Posix(), settings) as writer:
        assert writer.recovery.was_clean
        assert not writer.recovery.cuts
    assert tree_digest(path) == before, "a second recovery changed something"
    return report


def content_of(message: StoredMessage) -> tuple[object, ...]:
    """What a workload chose of a message."""
    return (
        message.topic, message.queue_id, message.keys, message.tags, message.uniq_key,
        message.body,
    )


def read_log(path: Path) -> list[StoredMessage]:
    """All messages in the order of the log."""
    log = open_log(path)
    runs = LogWalk(log, log.start, check_crc=True)
    return [log.message(offset) for run in runs for offset in run.offsets.tolist()]


def open_log(path: Path) -> CommitLog:
    """The log of a store."""
    return CommitLog(FileQueue.open(LocalFiles(), [str(path / "commitlog")]))


def check_tail(path: Path, messages: list[StoredMessage]) -> None:
    """Behind the last record there is nothing, so that nothing can come back to life."""
    log = open_log(path)
    last = messages[-1]
    end = last.commit_log_offset + (last.store_size or 0)
    tail = log.files.window(end, log.end - end).data
    assert not tail.any(), f"bytes behind the end of the log at {end}"
    assert all(file.start <= end for file in log.files.files)


def check_queues(path: Path, messages: list[StoredMessage]) -> None:
    """Each queue has exactly one unit for each of its messages, in order, and then zeros."""
    wanted: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for message in messages:
        units = wanted[message.topic, message.queue_id]
        assert message.queue_offset == len(units), "queue offsets have a hole"
        units.append((message.commit_log_offset, message.store_size or 0, message.tags_code))
    root = path / "consumequeue"
    folders = {
        (folder.parent.name, int(folder.name)): folder
        for folder in root.glob("*/*")
        if any(folder.iterdir())
    }
    assert set(folders) == set(wanted)
    for key, folder in folders.items():
        files = sorted(folder.iterdir())
        sizes = {file.stat().st_size for file in files}
        assert sizes == {SETTINGS.mappedFileSizeConsumeQueue}
        content = b"".join(file.read_bytes() for file in files)
        units = np.frombuffer(content, layout.CONSUME_QUEUE_UNIT).copy()
        ext = path / "consumequeue_ext" / key[0] / str(key[1])
        if ext.is_dir():
            check_ext(ext, units[: len(wanted[key])])
        expected = np.zeros(len(units), layout.CONSUME_QUEUE_UNIT)
        expected[: len(wanted[key])] = wanted[key]
        assert (units == expected).all(), f"queue {key} does not agree with the log"


def check_ext(folder: Path, units: NDArray[np.void]) -> None:
    """Each unit leads to the next unit of the ext files, and behind the last one are zeros; put
    the tags codes into the units."""
    ext = ConsumeQueueExt(FileQueue.open(LocalFiles(), [str(folder)]))
    size = layout.CONSUME_QUEUE_EXT_HEADER.itemsize
    addresses = units["tags_code"] - layout.EXT_ADDRESS_BASE
    steps = addresses[1:] - addresses[:-1]
    assert ((steps == size) | (addresses[1:] % ext.files.file_size == 0)).all()
    units["tags_code"], _ = ext.resolve(units["tags_code"].astype(np.int64))
    tail = ext.files.window(int(addresses[-1]) + size, ext.files.file_size).data
    assert not tail.any(), "bytes behind the end of an ext file"
    assert ext.files.files[-1].start <= addresses[-1]


def check_index(path: Path, messages: list[StoredMessage], settings: StoreSettings) -> None:
    """Every key of every message is found, and nothing else is in the index."""
    wanted: dict[int, set[int]] = defaultdict(set)
    for message in messages:
        keys = [message.uniq_key or "", *(message.keys or "").split()]
        if settings.indexes_tags and message.tags:
            keys.append(layout.INDEX_TAG_PREFIX + message.tags)
        for key in keys:
            wanted[index_hash(message.topic, key)].add(message.commit_log_offset)
    found: dict[int, set[int]] = defaultdict(set)
    entry_count = 0
    for file in sorted((path / "index").iterdir()):
        index = IndexFile(LocalFiles(), str(file), settings.maxHashSlotNum)
        entry_count += index.header.index_count - 1
        for key_hash in wanted:
            found[key_hash].update(index.lookup(key_hash))
    assert {key: offsets for key, offsets in found.items() if offsets} == wanted
    # A record may be indexed twice, when a file became full within it or at a restart.
    assert entry_count <= sum(map(len, wanted.values())) + 3 * len(messages)


def tree_digest(path: Path) -> str:
    """A hash of the store's files, but for what differs from run to run: process numbers, and
    the times at which a file of ``config`` or ``index`` was made (which notes repeat)."""
    digest = hashlib.sha256()
    for number, file in enumerate(sorted(path.rglob("*"))):
        if file.name in ("owner.json", "owner.json.new") or not file.is_file():
            continue
        name = number if file.parent.name == "index" else file.relative_to(path)
        content = b"" if file.name == "abort" else file.read_bytes()
        if file.name == layout.INDEX_NOTES_FILE:
            notes = read_notes(LocalFiles(), str(file))
            content = repr([replace(note, file_name="") for note in notes]).encode()
        if file.parent.name == "config":
            content = re.sub(rb'"timestamp":[0-9]+', b"", content)
        digest.update(f"{name}:{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


class CheckedStores:
    """Checks stores, but each content only once: many crashes leave the same bytes."""

    def __init__(self, appended: Sequence[Message], settings: StoreSettings = SETTINGS) -> None:
        self._appended = appended
        self._settings = settings
        self._found: dict[str, int] = {}

    def check(self, path: Path, durable: int, what: object) -> None:
        """As :func:`check_store`; ``what`` is named by a failure."""
        digest = tree_digest(path)
        try:
            if digest not in self._found:
                check_store(path, self._appended, durable, self._settings)
                self._found[digest] = len(read_log(path)) - 1
            assert self._found[digest] >= durable, f"{self._found[digest]} of {durable} are there"
        except Exception as error:
            raise AssertionError(f"{what}: {error!r}") from error


def durable_count(notes: Sequence[object], least: int) -> int:
    """How many messages had been acknowledged as flushed."""
    flushed = [
        note[1] for note in notes if isinstance(note, list | tuple) and note[0] == "flushed"
    ]
    return max([least, *flushed])
