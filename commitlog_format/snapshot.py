"""Where a store ends at one moment: the one physical offset that bounds every answer.

The end E is found from the largest end of a queue unit whose record verifies; from there the
log is walked, checksums on, to the first record that does not check. Queues may be behind the
log (then the records between are its tail) and, after a crash, ahead of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rmqlog.commitlog_format.batch_consume_queue import BatchConsumeQueue
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.consume_queue import ConsumeQueue
from rmqlog.commitlog_format.consume_queue_ext import ConsumeQueueExt
from rmqlog.commitlog_format.errors import SegmentExpiredError, StoreError
from rmqlog.commitlog_format.files import FileAccess
from rmqlog.commitlog_format.limits import Limits
from rmqlog.commitlog_format.log_walk import LogEnd, LogWalk
from rmqlog.commitlog_format.message import Record, to_message
from rmqlog.commitlog_format.message_reader import dispatched_names
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.commitlog_format.store_files import QueueFolder, QueueKey, QueueKind
from rmqlog.commitlog_format.text import decode_text
from rmqlog.commitlog_format.unit_queue import UnitQueue


@dataclass(frozen=True, slots=True)
class QueueEnd:
    """The units of a queue's files that are there, and the log offset behind the last one."""

    files: UnitQueue
    stop_index: int
    log_end: int


def open_queue_files(access: FileAccess, folder: QueueFolder, limits: Limits) -> UnitQueue:
    """The unit files of one queue."""
    files = FileQueue.open(access, [folder.path])
    if folder.kind is QueueKind.BATCH:
        return BatchConsumeQueue(files, limits)
    ext = None
    if folder.ext_path:
        try:
            ext = ConsumeQueueExt(FileQueue.open(access, [folder.ext_path]), limits)
        except SegmentExpiredError:
            ext = None
    return ConsumeQueue(files, ext, limits)


def find_queue_end(log: CommitLog, key: QueueKey, files: UnitQueue) -> QueueEnd:
    """How many units of a queue are really there."""

    def verify(unit: np.void, index: int) -> bool:
        offset, size = int(unit["commit_log_offset"]), int(unit["size"])
        if offset < 0 or size <= 0 or offset + size > log.end:
            return False
        try:
            record = log.record(offset)
        except StoreError:
            return False
        return record.total_size == size and belongs_to(record, key)

    stop = files.find_end(verify, log.start)
    log_end = log.start
    if stop > files.first_index:
        last = files.unit(stop - 1)
        log_end = max(log_end, int(last["commit_log_offset"]) + int(last["size"]))
        if not verify(last, stop - 1):  # retention took its record, or it is a pre-blank unit
            log_end = log.start
    return QueueEnd(files, stop, log_end)


def belongs_to(record: Record, key: QueueKey) -> bool:
    """Whether a record is a message of a queue, by its own topic or by multi dispatch."""
    if decode_text(record.topic) == key.topic and record.queue_id == key.queue_id:
        return True
    try:
        return key.topic in dispatched_names(to_message(record, check_crc=False))
    except StoreError:
        return False


def find_log_end(log: CommitLog, dispatched_end: int | None) -> LogEnd:
    """The end of the log: walk on from the last dispatched record, checksums on.

    Without queues the walk starts at the last segment whose first record is sound; that the
    segments before it are whole is checked when they are read.
    """
    start = _last_sound_segment(log) if dispatched_end is None else dispatched_end
    if start >= log.end:
        return LogEnd(start)
    walk = LogWalk(log, start, check_crc=True)
    for _ in walk:
        pass
    return walk.end


def _last_sound_segment(log: CommitLog) -> int:
    for file in reversed(log.files.files):
        try:
            log.record(file.start + log.entry_header_size(file.start))
        except StoreError:
            continue
        return file.start
    return log.start
