"""Where a store ends at one moment: the one physical offset that bounds every answer.

The end E is found from the largest end of a queue unit whose record verifies; from there the
log is walked, checksums on, to the first record that does not check or is not all there.
Queues may be behind the log (then the records between are its tail) and, after a crash or in a
copy, ahead of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np

from rmqlog.commitlog_format.batch_consume_queue import BatchConsumeQueue
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.consume_queue import ConsumeQueue
from rmqlog.commitlog_format.consume_queue_ext import ConsumeQueueExt
from rmqlog.commitlog_format.errors import LimitExceededError, SegmentExpiredError, StoreError
from rmqlog.commitlog_format.files import FileAccess
from rmqlog.commitlog_format.layout import I64, RECORD_HEADERS
from rmqlog.commitlog_format.limits import Limits
from rmqlog.commitlog_format.log_walk import LogEnd, LogWalk
from rmqlog.commitlog_format.message import Record, to_message
from rmqlog.commitlog_format.message_reader import dispatched_names
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.commitlog_format.store_files import QueueFolder, QueueKey, QueueKind
from rmqlog.commitlog_format.text import decode_text
from rmqlog.commitlog_format.torn_records import why_not_whole, why_torn
from rmqlog.commitlog_format.unit_queue import UnitQueue

_PHYSICAL_OFFSET_PLACE = RECORD_HEADERS[0].fields["physical_offset"][1]  # type: ignore[index]
#: More records in a row that are not whole are damage, which is named when they are read.
_TORN_COUNT = 16


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
        except LimitExceededError as error:
            if error.found == size:  # it is there: the limit is too low for this store
                raise
            return False
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


def last_whole_end(log: CommitLog, ends: Sequence[QueueEnd], *, check_crc: bool) -> int:
    """The largest log offset behind a record that has a queue unit and is all there.

    The queues of a copy may be newer than its log, so the last record that a unit points to may
    be there only in part.
    """
    heap = [(-end.log_end, number, end.stop_index - 1) for number, end in enumerate(ends)]
    heapify(heap)
    largest = -heap[0][0]
    torn: set[int] = set()
    while len(torn) <= _TORN_COUNT:
        log_end, number, index = -heap[0][0], *heap[0][1:]
        if log_end <= log.start:
            return log.start
        files = ends[number].files
        offset, size = _place(files.unit(index))
        # Many queues may have units for one record.
        if offset not in torn:
            if why_not_whole(log, offset, size, check_crc=check_crc) is None:
                return log_end
            torn.add(offset)
        previous = sum(_place(files.unit(index - 1))) if index > files.first_index else log.start
        # A pre-blank unit, or a damaged one, does not lead on.
        heapreplace(heap, (-previous if previous <= offset else -log.start, number, index - 1))
    return largest


def _place(unit: np.void) -> tuple[int, int]:
    return int(unit["commit_log_offset"]), int(unit["size"])


def find_log_end(log: CommitLog, dispatched_end: int | None) -> LogEnd:
    """The end of the log: walk on from the last dispatched record, checksums on.

    Without queues the walk starts at the last segment whose first record is sound; that the
    segments before it are whole is checked when they are read.
    """
    start = _last_sound_segment(log) if dispatched_end is None else dispatched_end
    if start >= log.end:
        return LogEnd(start)
    walk = LogWalk(log, start, check_crc=True)
    last = None
    for run in walk:
        last = int(run.offsets[-1])
    if isinstance(walk.end.reason, LimitExceededError):
        _check_too_large(log, walk.end.reason)
    error = None if last is None else why_torn(log, log.record(last))
    if error is None:
        return walk.end
    return LogEnd(error.offset - log.entry_header_size(error.offset), error)


def _check_too_large(log: CommitLog, error: LimitExceededError) -> None:
    """Raise the error if it is about a record and not about bytes behind the last one."""
    offset, size = error.offset, error.found
    if not isinstance(size, int) or offset + size > log.files.file_of(offset).end:
        return
    (place,) = I64.unpack(log.files.read(offset + _PHYSICAL_OFFSET_PLACE, I64.size))
    if place == offset:
        raise error


def _last_sound_segment(log: CommitLog) -> int:
    for file in reversed(log.files.files):
        try:
            log.record(file.start + log.entry_header_size(file.start))
        except StoreError:
            continue
        return file.start
    return log.start
