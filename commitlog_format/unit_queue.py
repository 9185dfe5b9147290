"""Units of one size in a run of files: what ConsumeQueue and BatchConsumeQueue share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.errors import CorruptQueueError, InvalidNameError
from rmqlog.commitlog_format.layout import PRE_BLANK_SIZE
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits
from rmqlog.commitlog_format.segment import FileQueue

#: Says whether the record that a unit (at this index of its queue) points to is really there.
VerifyUnit = Callable[[np.void, int], bool]

#: A probe for the end looks at so many neighbours before it calls a place stale, so that a few
#: damaged records do not end a queue whose later records are sound.
_PROBE_COUNT = 8
#: So many units in front of the end are searched for a drop of the commit log offset.
_NEIGHBOURHOOD_COUNT = 64


class UnitQueue:
    """Units of one queue by index: unit ``i`` begins at byte ``i * unit size`` of the run.

    ``first_index`` and ``stop_index`` are what the files have room for; how many units are
    really there, :meth:`find_end` tells.
    """

    def __init__(
        self, files: FileQueue, unit: np.dtype[np.void], limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self.files = files
        self.unit_dtype = unit
        self.limits = limits
        size = unit.itemsize
        for found, what in ((files.file_size, "file size"), (files.start, "first offset")):
            if found % size:
                raise CorruptQueueError(
                    f"the {what} of a queue is no multiple of its unit",
                    files.files[0].path, found=found, expected=f"a multiple of {size}",
                )
        self.first_index = files.start // size
        # The last file of a copy may be cut within a unit.
        self.stop_index = files.end // size

    def unit(self, index: int) -> np.void:
        """One unit."""
        size = self.unit_dtype.itemsize
        found: np.void = np.frombuffer(self.files.read(index * size, size), self.unit_dtype)[0]
        return found

    def units(self, start: int, stop: int) -> NDArray[np.void]:
        """The units with ``start <= index < stop``, copied."""
        found = np.empty(self._checked_count(start, stop), self.unit_dtype)
        # As bytes: numpy would copy a structured array field by field.
        content = found.view(np.uint8)
        size = self.unit_dtype.itemsize
        for first, last in self._runs(start, stop, stop - start):
            self._read_into(first, content[(first - start) * size : (last - start) * size])
        return found

    def find_end(self, verify: VerifyUnit, log_start: int = 0) -> int:
        """The index behind the last unit that is really there, in O(log n) reads.

        A broker that cuts a queue off (after a crash, when the log turned out shorter) only
        moves its position back: the units behind it stay, and new ones overwrite them one by
        one. So the units that are not blank are a true run and then, perhaps, a stale one. In
        each run commit log offsets strictly increase. Records of stale units were cut off the
        log and mostly overwritten, so they fail ``verify``: the end is found by galloping back
        from the last unit to one that verifies, then by bisection. Units below ``log_start``
        are there although retention took their records.

        A stale unit can verify when the bytes of its record survived behind the log's end. Its
        offset then mostly lies below that of the last true unit, which was appended to the
        shortened log later. So the queue ends at a drop among the last units, if the unit
        before the drop verifies and the units behind it never rise above it again. (If they
        do, it is not told from one damaged unit: nothing is cut, reading it is an error.)
        """

        def is_there(index: int) -> bool:
            unit = self.unit(index)
            # A negative offset is no offset, not an expired one.
            gone = 0 <= unit["commit_log_offset"] < log_start
            return bool(gone or is_pre_blank(unit) or verify(unit, index))

        written = self._written_end()
        end = _end_of_true_run(is_there, self.first_index, written)
        return self._cut_at_drop(end, is_there)

    def first_at_or_after(self, physical_offset: int, start: int, stop: int) -> int:
        """The first index whose record begins at or behind a physical offset, else ``stop``.

        Pre-blank units point nowhere and count as smaller than everything.
        """

        def is_behind(index: int) -> bool:
            unit = self.unit(index)
            return bool(unit["commit_log_offset"] >= physical_offset and not is_pre_blank(unit))

        # Mostly nothing expired. And a bisection could take one wild unit for the place.
        if start < stop and is_behind(start):
            return start
        return start + bisect_left(range(start, stop), True, key=is_behind)

    def find_start(self, log_start: int, end: int) -> int:
        """The true minimum: the first index below ``end`` whose record is still in the log.

        All files are searched: retention may have left whole files without a live unit, for
        which a broker reports a minimum that is too small.
        """
        return self.first_at_or_after(log_start, self.first_index, end)

    def _is_written(self, unit: np.void) -> bool:
        """Whether a broker's recovery would take this for a unit; blank space is zero."""
        return bool(unit["commit_log_offset"] >= 0 and unit["size"] > 0)

    def _written_end(self) -> int:
        """The index behind the last unit that is not blank, stale ones included."""
        size = self.unit_dtype.itemsize

        def is_blank(index: int) -> bool:
            return not self._is_written(self.unit(index))

        # Only the last file that is not empty is bisected: a hole of zeros in an older one is
        # damage, and must not look like the end.
        for file in reversed(self.files.files):
            first, stop = file.start // size, file.end // size
            if first < stop and not is_blank(first):
                return first + bisect_left(range(first, stop), True, key=is_blank)
        return self.first_index

    def _cut_at_drop(self, end: int, is_there: Callable[[int], bool]) -> int:
        start = max(self.first_index, end - _NEIGHBOURHOOD_COUNT)
        units = self.units(start, end)
        offsets = units["commit_log_offset"].astype(np.int64)
        drops = (offsets[1:] <= offsets[:-1]) & (units["size"][:-1] != PRE_BLANK_SIZE)
        for before in np.flatnonzero(drops).tolist():
            if offsets[-1] <= offsets[before] and is_there(start + before):
                return int(start + before + 1)
        return end

    def _runs(self, start: int, stop: int, count_max: int) -> Iterator[tuple[int, int]]:
        """The indexes ``[start, stop)`` in runs of at most so many, each of one file."""
        size = self.unit_dtype.itemsize
        while start < stop:
            file = self.files.file_of(start * size)
            last = min(start + count_max, stop, file.end // size)
            if last == start:
                raise CorruptQueueError(
                    "a queue file ends within a unit", file.path, file.end,
                    file.end % size, f"a multiple of {size}",
                )
            yield start, last
            start = last

    def _read_into(self, first: int, content: NDArray[np.uint8]) -> None:
        """Copy the units of a run, from the index ``first`` on."""
        offset = first * self.unit_dtype.itemsize
        file = self.files.file_of(offset)
        self.files.handle(file).read_into(offset - file.start, content)

    def _checked_count(self, start: int, stop: int) -> int:
        if not self.first_index <= start <= stop <= self.stop_index:
            raise InvalidNameError(
                "no such range of units", self.files.files[0].path if self.files.files else "",
                found=f"[{start}, {stop})", expected=f"[{self.first_index}, {self.stop_index})",
            )
        return stop - start


def is_pre_blank(unit: np.void) -> bool:
    """Whether a unit only fills the space below a queue's first offset."""
    return bool(unit["size"] == PRE_BLANK_SIZE and unit["commit_log_offset"] == 0)


def _end_of_true_run(is_there: Callable[[int], bool], first: int, stop: int) -> int:
    """The index behind the last of ``[first, stop)`` that is there."""

    def is_stale(index: int) -> bool:
        return not any(map(is_there, range(index, min(index + _PROBE_COUNT, stop))))

    if first == stop or is_there(stop - 1):
        return stop
    low, high, distance = stop - 1, stop - 1, _PROBE_COUNT
    while low > first:
        low = max(first, stop - distance)
        if not is_stale(low):
            return low + bisect_left(range(low, high), True, key=is_stale)
        high = low
        distance *= 2
    return first
