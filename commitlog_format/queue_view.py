"""One queue of a snapshot: the units of its files, and those that were not dispatched yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.batch_consume_queue import BatchConsumeQueue
from rmqlog.commitlog_format.consume_queue import ConsumeQueue
from rmqlog.commitlog_format.errors import CorruptQueueError
from rmqlog.commitlog_format.gather import gather_from_queue
from rmqlog.commitlog_format.store_files import QueueKey, QueueKind
from rmqlog.commitlog_format.unit_queue import UnitQueue
from rmqlog.commitlog_format.units import NO_UNITS, Units, concatenate

#: Units that are looked at in one step: 20 bytes each, a few megabytes together.
STEP_COUNT = 262_144

#: Takes what is wrong with units that are left out, and how many they are.
DropUnits = Callable[[CorruptQueueError, int], None]


class QueueView:
    """The messages ``[min_offset, max_offset)`` of one queue; immutable.

    The files hold the units with indexes ``[start_index, stop_index)``; ``tail`` are those of
    records behind the last dispatched one.
    """

    def __init__(
        self,
        key: QueueKey,
        kind: QueueKind,
        files: UnitQueue | None,
        start_index: int,
        stop_index: int,
        tail: Units = NO_UNITS,
    ) -> None:
        self.key = key
        self.kind = kind
        self.files = files
        self.start_index = start_index
        self.stop_index = stop_index
        self.tail = tail

    @property
    def topic(self) -> str:
        """The queue's topic."""
        return self.key.topic

    @property
    def queue_id(self) -> int:
        """The queue's number in its topic."""
        return self.key.queue_id

    @cached_property
    def dispatched_range(self) -> tuple[int, int]:
        """The queue offsets ``[min, max)`` that the files hold."""
        if isinstance(self.files, BatchConsumeQueue):
            return self.files.offset_range(self.start_index, self.stop_index)
        return self.start_index, self.stop_index

    @property
    def min_offset(self) -> int:
        """The first queue offset whose record is still there."""
        first, stop = self.dispatched_range
        if first == stop and len(self.tail):
            return int(self.tail.queue_offsets[0])
        return first

    @property
    def max_offset(self) -> int:
        """The queue offset behind the last message."""
        if not len(self.tail):
            return self.dispatched_range[1]
        last = int(self.tail.queue_offsets[-1])
        return last + (1 if self.tail.counts is None else int(self.tail.counts[-1]))

    def __len__(self) -> int:
        return self.max_offset - self.min_offset

    def scan(
        self,
        start: int | None = None,
        stop: int | None = None,
        tags_codes: Collection[int] | None = None,
        drop: DropUnits | None = None,
        step_count: int = STEP_COUNT,
    ) -> Iterator[Units]:
        """The units of the queue offsets ``[start, stop)``, ascending, in steps.

        With ``tags_codes`` only those with one of the codes; a batch queue's units carry no
        tags of their messages, so all of them are returned. The log is not touched. Units that
        point nowhere raise, or are told to ``drop`` and left out.
        """
        start = self.min_offset if start is None else max(start, self.min_offset)
        stop = self.max_offset if stop is None else min(stop, self.max_offset)
        if isinstance(self.files, ConsumeQueue):
            yield from self._scan_simple(self.files, start, stop, tags_codes, drop, step_count)
        elif isinstance(self.files, BatchConsumeQueue):
            yield from self._scan_batch(self.files, start, stop, drop)
        tail = _within(self.tail, start, stop)
        if tags_codes is not None and self.kind is QueueKind.SIMPLE:
            tail = tail.take(np.isin(tail.tags_codes, list(tags_codes)))
        if len(tail):
            yield tail

    def log_range(self, start: int, stop: int) -> tuple[int, int]:
        """The queue offsets ``[first, last)`` of records that begin in ``[start, stop)``."""
        first = self._place(start)
        return first, max(first, self._place(stop))

    def _place(self, physical_offset: int) -> int:
        """The first queue offset whose record begins at or behind a physical offset."""
        files = self.files
        if files is not None:
            index = files.first_at_or_after(physical_offset, self.start_index, self.stop_index)
            if index < self.stop_index:
                is_batch = isinstance(files, BatchConsumeQueue)
                return int(files.unit(index)["base_offset"]) if is_batch else index
        row = int(np.searchsorted(self.tail.offsets, physical_offset))
        return int(self.tail.queue_offsets[row]) if row < len(self.tail) else self.max_offset

    def units_at(self, queue_offsets: NDArray[np.int64]) -> Units:
        """The units of a simple queue at single places, ascending; places outside are left out."""
        places = np.unique(queue_offsets)
        inside = places[(places >= self.start_index) & (places < self.stop_index)]
        parts = [self.tail.take(np.isin(self.tail.queue_offsets, places))]
        if isinstance(self.files, ConsumeQueue) and len(inside):
            unit = self.files.unit_dtype
            units = gather_from_queue(self.files.files, inside * unit.itemsize, unit)
            parts.insert(0, self._simple_units(self.files, inside, units))
        return concatenate(parts)

    def units(self, start: int, stop: int) -> Units:
        """All units of the queue offsets ``[start, stop)`` at once."""
        return concatenate(list(self.scan(start, stop)))

    def _scan_simple(
        self, files: ConsumeQueue, start: int, stop: int,
        tags_codes: Collection[int] | None, drop: DropUnits | None, step_count: int,
    ) -> Iterator[Units]:
        stop = min(stop, self.stop_index)
        for first in range(start, stop, step_count):
            end = min(first + step_count, stop)
            if tags_codes is None:
                units = files.units(first, end)
                queue_offsets = np.arange(first, end, dtype=np.int64)
            else:
                queue_offsets, units = files.matching_units(first, end, tags_codes)
            if len(units):
                yield self._simple_units(files, queue_offsets, units, drop)

    @staticmethod
    def _simple_units(
        files: ConsumeQueue, queue_offsets: NDArray[np.int64], units: NDArray[np.void],
        drop: DropUnits | None = None,
    ) -> Units:
        found = Units(
            queue_offsets,
            units["commit_log_offset"].astype(np.int64),
            units["size"].astype(np.int64),
            files.tags_codes(units),
        )
        return _checked(found, files, drop)

    def _scan_batch(
        self, files: BatchConsumeQueue, start: int, stop: int, drop: DropUnits | None
    ) -> Iterator[Units]:
        first_offset, stop_offset = self.dispatched_range
        if max(start, first_offset) >= min(stop, stop_offset):
            return
        first = files.find(max(start, first_offset), self.start_index, self.stop_index)
        last = files.find(min(stop, stop_offset) - 1, self.start_index, self.stop_index)
        for begin in range(first, last + 1, STEP_COUNT):
            units = files.units(begin, min(begin + STEP_COUNT, last + 1))
            found = Units(
                units["base_offset"].astype(np.int64),
                units["commit_log_offset"].astype(np.int64),
                units["size"].astype(np.int64),
                units["tags_code"].astype(np.int64),
                units["batch_count"].astype(np.int64),
            )
            yield _checked(found, files, drop)


def _within(units: Units, start: int, stop: int) -> Units:
    counts = np.ones(len(units), np.int64) if units.counts is None else units.counts
    last = units.queue_offsets + counts - 1
    return units.take((last >= start) & (units.queue_offsets < stop))


def _checked(units: Units, files: UnitQueue, drop: DropUnits | None) -> Units:
    """The units without those that point nowhere: holes and wild bytes within a queue's bounds."""
    is_bad = (units.offsets < 0) | (units.sizes <= 0)
    if not is_bad.any():
        return units
    first = int(np.argmax(is_bad))
    error = CorruptQueueError(
        f"unit of queue offset {units.queue_offsets[first]} points nowhere",
        files.files.files[0].path if files.files.files else "",
        found=f"offset {units.offsets[first]}, size {units.sizes[first]}",
        expected="an offset of the log and a size",
    )
    if drop is None:
        raise error
    drop(error, int(is_bad.sum()))
    return units.take(~is_bad)
