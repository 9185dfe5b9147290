"""Walking the log from record to record: how records without queue units are found.

A walk believes a record only when its structure adds up and it says that it lies where it was
found: behind the true end there may be well-formed records of an earlier life of the file, so
a walk never goes on with the next magic number behind a gap, it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.binary_columns import items_at
from rmqlog.commitlog_format.commit_log import CommitLog, RecordRun
from rmqlog.commitlog_format.compiled import kernels
from rmqlog.commitlog_format.errors import (
    CorruptRecordError,
    LimitExceededError,
    SegmentExpiredError,
    StoreError,
    TruncatedRecordError,
)
from rmqlog.commitlog_format.layout import PREFIX, RECORD_PREFIX
from rmqlog.commitlog_format.mapped_windows import intact
from rmqlog.commitlog_format.record_checks import first_malformed
from rmqlog.commitlog_format.segment import SegmentFile, Window

#: Records are handed on in runs of at most this many: fewer lose to the cost of calls, the
#: columns of more fall out of the processor's cache.
RUN_RECORD_COUNT = 12_288
_WINDOW_SIZE = 8 * 1024 * 1024
#: Magic numbers are looked for in blocks that stay in the processor's cache.
_BLOCK_SIZE = 512 * 1024
_MAGIC_POSITION = RECORD_PREFIX["total_size"].itemsize
#: The first bytes of both magic numbers.
_MAGIC = layout.MAGIC_V1.to_bytes(4, "big")[:2]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a walk ended, and why; ``reason`` is ``None`` at unused space and at ``stop``."""

    offset: int
    reason: StoreError | None = None


class LogWalk:
    """The records of a log from one physical offset on, in runs; ``end`` is known afterwards.

    ``start`` must be the place of a record, of a filler, or the start of a segment. Records at
    or behind ``stop`` are not returned. With ``check_crc`` a record whose body does not match
    its checksum ends the walk too, as it ends a broker's recovery.
    """

    def __init__(
        self, log: CommitLog, start: int, stop: int | None = None, *, check_crc: bool = False
    ) -> None:
        self.log = log
        self.start = start
        self.stop = log.end if stop is None else min(stop, log.end)
        self.end = LogEnd(start)
        self._check_crc = check_crc

    def __iter__(self) -> Iterator[RecordRun]:
        position = self.start
        while position < self.stop:
            try:
                file = self.log.files.file_of(position)
            except SegmentExpiredError as error:
                self.end = LogEnd(position, error)
                return
            yield from self._walk_file(file, position)
            if self.end.offset < file.end or self.end.reason is not None:
                return
            position = file.end

    def _walk_file(self, file: SegmentFile, position: int) -> Iterator[RecordRun]:
        """The runs of one file; ``end`` is the file's end when its filler was reached."""
        stop = min(self.stop, file.end)
        while position < stop:
            size = min(_WINDOW_SIZE, file.end - position)
            window = self.log.files.window(position, size, sequential=True)
            with intact(window.data):
                step = _collect(self.log, window, file, stop)
            if step.larger_than_window:
                window = self.log.files.window(position, step.larger_than_window)
                with intact(window.data):
                    step = _collect(self.log, window, file, stop)
            run, bad = self._verified(window, step)
            if len(run.offsets):
                yield run
            if bad is not None:
                self.end = bad
                return
            self.end = LogEnd(step.next_offset, step.reason)
            if step.finished:
                return
            position = step.next_offset
        self.end = LogEnd(min(position, self.stop))

    def _verified(self, window: Window, step: _Step) -> tuple[RecordRun, LogEnd | None]:
        """The records of a step up to the first one that does not check."""
        error = first_malformed(
            window.data, window.start, step.offsets, check_crc=self._check_crc,
            path=window.path, limits=self.log.limits,
        )
        if error is None:
            return RecordRun(window, step.offsets, step.sizes), None
        good = slice(0, int(np.searchsorted(step.offsets, error.offset)))
        end = LogEnd(error.offset - self.log.entry_header_size(error.offset), error)
        return RecordRun(window, step.offsets[good], step.sizes[good]), end


@dataclass(frozen=True, slots=True)
class _Step:
    """What one window gave: records, where to go on, and whether this file is finished."""

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    next_offset: int
    finished: bool = False
    reason: StoreError | None = None
    #: The size of a record that begins at the window's start and is larger than the window.
    larger_than_window: int = 0


def _collect(log: CommitLog, window: Window, file: SegmentFile, stop: int) -> _Step:
    """Follow the records of one window, then see why that ended."""
    header = log.entry_header_size(window.start)
    data = window.data.data
    if header:
        bounds = _follow_entries(data, stop - window.start)
    else:
        bounds = _follow_records(window.data, stop - window.start)
    offsets = bounds[:-1] + (window.start + header)
    sizes = bounds[1:] - bounds[:-1] - header
    position = int(bounds[-1])
    offset = window.start + position
    if offset >= stop or len(offsets) >= RUN_RECORD_COUNT:
        return _Step(offsets, sizes, offset)
    if position + header + PREFIX.size > len(data):
        # No record fits into the last bytes of a file; else the next window goes on here.
        at_end = window.end >= file.end
        return _Step(offsets, sizes, file.end if at_end else offset, finished=at_end)
    if _is_filler(data, position, header):
        return _Step(offsets, sizes, file.end, finished=True)
    reason, size = _why_not_a_record(log, data, position, window, file)
    if size and position:
        return _Step(offsets, sizes, offset)
    return _Step(offsets, sizes, offset, not size, reason, size)


def _follow_records(data: NDArray[np.uint8], stop: int) -> NDArray[np.int64]:
    """Where records begin in a plain log, and at last where no whole record follows."""
    loops = kernels(RUN_RECORD_COUNT)
    if loops is not None:
        bounds = np.empty(RUN_RECORD_COUNT + 1, np.int64)
        return bounds[: loops.follow_records(loops.read_only(data), stop, bounds) + 1]
    last = min(stop, len(data) - PREFIX.size + 1)
    found: list[NDArray[np.int64]] = []
    count = position = 0
    while position < last and count < RUN_RECORD_COUNT:
        starts, end = _chain_of_records(data, position, min(position + _BLOCK_SIZE, last))
        if not len(starts):
            break
        found.append(starts)
        count += len(starts)
        position = end
    bounds = np.concatenate([*found, np.array([position])])
    return bounds[: RUN_RECORD_COUNT + 1]


def _chain_of_records(
    data: NDArray[np.uint8], start: int, stop: int
) -> tuple[NDArray[np.int64], int]:
    """The records that follow one another from ``start`` on and begin in front of ``stop``.

    Going from each to the next in Python takes longer than all that is done with them then. So
    magic numbers are looked for, in bodies they occur too, and of the places with one those are
    kept that the chain of sizes reaches.
    """
    magics = data[start + _MAGIC_POSITION : stop + _MAGIC_POSITION + 1]
    places = start + np.flatnonzero((magics[:-1] == _MAGIC[0]) & (magics[1:] == _MAGIC[1]))
    prefixes = items_at(data, places, RECORD_PREFIX.itemsize).view(RECORD_PREFIX)
    sizes = prefixes["total_size"].astype(np.int64)
    is_record = (prefixes["magic"] == layout.MAGIC_V1) | (prefixes["magic"] == layout.MAGIC_V2)
    is_record &= (sizes >= layout.MIN_RECORD_SIZE) & (places + sizes <= len(data))
    starts, ends = places[is_record], (places + sizes)[is_record]
    if not len(starts) or starts[0] != start:
        return starts[:0], start
    if not (starts[1:] == ends[:-1]).all():
        reached = _reached(starts.tolist(), ends.tolist())
        starts, ends = starts[reached], ends[reached]
    return starts, int(ends[-1])


def _reached(starts: list[int], ends: list[int]) -> list[int]:
    """Which places are reached from the first one, each beginning where the one before ends."""
    reached, end = [0], ends[0]
    for index in range(1, len(starts)):
        if starts[index] == end:
            reached.append(index)
            end = ends[index]
    return reached


def _follow_entries(data: memoryview, stop: int) -> NDArray[np.int64]:
    """Like :func:`_follow_records`, for the entries of a DLedger log."""
    header = layout.DLEDGER_ENTRY_HEADER.itemsize
    bounds = [0]
    while bounds[-1] < stop and len(bounds) <= RUN_RECORD_COUNT:
        position = bounds[-1]
        if position + header + PREFIX.size > len(data):
            break
        kind, entry_size = layout.DLEDGER_PREFIX.unpack_from(data, position)
        size, magic = PREFIX.unpack_from(data, position + header)
        is_message = magic in (layout.MAGIC_V1, layout.MAGIC_V2)
        if kind != layout.DLEDGER_MAGIC or not is_message or entry_size != header + size:
            break
        if size < layout.MIN_RECORD_SIZE or position + entry_size > len(data):
            break
        bounds.append(position + entry_size)
    return np.array(bounds, np.int64)


def _is_filler(data: memoryview, position: int, header: int) -> bool:
    if header:
        kind, _ = layout.DLEDGER_PREFIX.unpack_from(data, position)
        return bool(kind == layout.DLEDGER_MAGIC_BLANK)
    return bool(PREFIX.unpack_from(data, position)[1] == layout.MAGIC_BLANK)


def _why_not_a_record(
    log: CommitLog, data: memoryview, position: int, window: Window, file: SegmentFile
) -> tuple[StoreError | None, int]:
    """The reason why the log ends here, or the size of what only does not fit into the window."""
    offset = window.start + position
    header = log.entry_header_size(offset)
    entry_size = 0
    if header:
        kind, entry_size = layout.DLEDGER_PREFIX.unpack_from(data, position)
        if kind != layout.DLEDGER_MAGIC:
            return _not_an_entry(kind, window.path, offset), 0
    size, magic = PREFIX.unpack_from(data, position + header)
    if magic not in (layout.MAGIC_V1, layout.MAGIC_V2):
        return _not_a_record(size, magic, window.path, offset + header), 0
    if header and entry_size != header + size:
        return CorruptRecordError(
            "DLedger entry and its record disagree on their size", window.path, offset,
            entry_size, header + size,
        ), 0
    reason = _check_size(log, size, file, offset + header)
    return reason, 0 if reason else header + size


def _not_a_record(size: int, magic: int, path: str, offset: int) -> StoreError | None:
    """Why the walk ends here; unused space is all zero and no reason at all."""
    if size == 0 and magic == 0:
        return None
    return CorruptRecordError(
        "not a record", path, offset, f"magic {magic:#010x}",
        f"{layout.MAGIC_V1:#010x}, {layout.MAGIC_V2:#010x} or {layout.MAGIC_BLANK:#010x}",
    )


def _not_an_entry(magic: int, path: str, offset: int) -> StoreError | None:
    if magic == 0:
        return None
    return CorruptRecordError(
        "not a DLedger entry", path, offset, f"magic {magic}", f"magic {layout.DLEDGER_MAGIC}"
    )


def _check_size(log: CommitLog, size: int, file: SegmentFile, offset: int) -> StoreError | None:
    """Why a record of this size cannot lie here; ``None`` when it only leaves the window."""
    if size < layout.MIN_RECORD_SIZE:
        return CorruptRecordError(
            "record is too small", file.path, offset, size, f">= {layout.MIN_RECORD_SIZE}"
        )
    if size > log.limits.record_size:
        return LimitExceededError(
            "record is larger than allowed", file.path, offset, size, log.limits.record_size
        )
    if offset + size > file.end:
        return TruncatedRecordError(
            "record does not fit into its segment", file.path, offset, size, file.end - offset
        )
    return None
