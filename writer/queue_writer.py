"""ConsumeQueue files as a broker fills them (ConsumeQueue.putMessagePositionInfo)."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import CorruptQueueError
from rmqlog.commitlog_format.layout import CONSUME_QUEUE_UNIT
from rmqlog.writer.segments import FileSet, MappedFile, offset_name

_UNIT_SIZE = CONSUME_QUEUE_UNIT.itemsize
#: Queue files are reserved in steps of this size: most queues of a store stay small.
_RESERVE_STEP = 256 * 1024


class QueueWriter:
    """The end of one queue: units are appended behind ``end``, a position in bytes.

    ``max_physical_offset`` is the end of the last record that has a unit; a record at or below
    it was dispatched before and is skipped. ``first_file`` says whether files exist already.
    """

    def __init__(
        self,
        files: FileSet,
        directory: str,
        file_size: int,
        end: int = 0,
        max_physical_offset: int = 0,
        *,
        is_new: bool = True,
    ) -> None:
        self.files = files
        self.directory = directory
        self.file_size = file_size
        self.end = end
        self.flushed = end
        self.max_physical_offset = max_physical_offset
        self._is_new = is_new
        self._last: MappedFile | None = None
        #: Files with unflushed bytes, oldest first.
        self._dirty: list[tuple[int, MappedFile]] = []

    @property
    def next_offset(self) -> int:
        """The queue offset that the next message gets."""
        return self.end // _UNIT_SIZE

    def append(self, units: NDArray[np.void], queue_offsets: NDArray[np.int64]) -> int:
        """Append the units of records in log order; returns how many were not skipped."""
        if not len(units):
            return 0
        if self._is_new:
            self._begin(int(queue_offsets[0]))
        if not self._follow(units, queue_offsets):
            units = units[self._accepted(units, queue_offsets)]
        if len(units):
            self._write(units)
            last = units[-1]
            self.max_physical_offset = int(last["commit_log_offset"]) + int(last["size"])
        return len(units)

    def _begin(self, queue_offset: int) -> None:
        """The first file of a queue begins at its file's start; what lies below is pre-blank."""
        position = queue_offset * _UNIT_SIZE
        self._is_new = False
        self.end = position - position % self.file_size
        self.flushed = self.end
        if position > self.end:
            blank = np.zeros((position - self.end) // _UNIT_SIZE, CONSUME_QUEUE_UNIT)
            blank["size"] = layout.PRE_BLANK_SIZE
            self._write(blank)

    def _follow(self, units: NDArray[np.void], queue_offsets: NDArray[np.int64]) -> bool:
        """Whether the units simply follow what is there: no rule can refuse one of them."""
        first = units[0]
        return bool(
            int(first["commit_log_offset"]) + int(first["size"]) > self.max_physical_offset
            and int(queue_offsets[0]) == self.next_offset
            and int(queue_offsets[-1]) - int(queue_offsets[0]) == len(units) - 1
            and (np.diff(queue_offsets) == 1).all()
        )

    def _accepted(
        self, units: NDArray[np.void], queue_offsets: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which units a broker appends, one after another.

        One that lies too far ahead is appended all the same, at the wrong queue offset; the
        broker only logs it.
        """
        ends = (units["commit_log_offset"] + units["size"]).tolist()
        accepted = np.zeros(len(units), np.bool_)
        next_offset, reached = self.next_offset, self.max_physical_offset
        for row, (end, queue_offset) in enumerate(zip(ends, queue_offsets.tolist(), strict=True)):
            repeated = queue_offset != 0 and queue_offset < next_offset
            if end > reached and not repeated:
                accepted[row] = True
                next_offset += 1
                reached = end
        return accepted

    def _write(self, units: NDArray[np.void]) -> None:
        content = np.ascontiguousarray(units).view(np.uint8)
        done = 0
        while done < len(content):
            file, position = self._file()
            size = min(len(content) - done, self.file_size - position)
            file.store(position, content[done : done + size], size)
            self.end += size
            done += size

    def _file(self) -> tuple[MappedFile, int]:
        """The file that holds ``end``, and where in it."""
        position = self.end % self.file_size
        start = self.end - position
        path = f"{self.directory}/{offset_name(start)}"
        if self._last is None or self._last.path != path:
            step = min(_RESERVE_STEP, self.file_size)
            self._last = MappedFile(self.files, path, self.file_size, step)
            if not os.path.exists(path):
                self._last.create()
            elif os.path.getsize(path) != self.file_size:
                raise CorruptQueueError(
                    "queue file has another size than configured", path,
                    found=os.path.getsize(path), expected=self.file_size,
                )
        if not self._dirty or self._dirty[-1][1] is not self._last:
            self._dirty.append((start, self._last))
        return self._last, position

    def flush(self) -> None:
        """All units are on disk when it returns (names of new files aside)."""
        end = self.end
        dirty, self._dirty = self._dirty, []
        for start, file in dirty:
            first = max(self.flushed - start, 0)
            file.sync(first, min(end - start, self.file_size))
        self.flushed = end
