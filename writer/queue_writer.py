"""ConsumeQueue files as a broker fills them (ConsumeQueue.putMessagePositionInfo)."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import CorruptQueueError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.layout import BATCH_CONSUME_QUEUE_UNIT, CONSUME_QUEUE_UNIT
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.commitlog_format.unit_queue import UnitQueue
from rmqlog.writer.segments import FileSet, MappedFile, offset_name

#: Queue files are reserved in steps of this size: most queues of a store stay small.
_RESERVE_STEP = 256 * 1024


class UnitFiles:
    """The files of one queue as one space of bytes that grows at ``end``."""

    def __init__(self, files: FileSet, directory: str, file_size: int, end: int = 0) -> None:
        self.files = files
        self.directory = directory
        self.file_size = file_size
        self.end = end
        self.flushed = end
        self._last: MappedFile | None = None
        self._last_start = -1

    def start_at(self, position: int) -> None:
        """Begin an empty queue at the start of a file that is not the first one."""
        self.end = self.flushed = position

    def append(self, units: NDArray[np.void]) -> None:
        """Copy units behind the end, into new files where the last one is full."""
        content = np.ascontiguousarray(units).view(np.uint8)
        done = 0
        while done < len(content):
            position = self.end % self.file_size
            size = min(len(content) - done, self.file_size - position)
            file = self._file(self.end - position, content[done : done + size])
            file.store(position, content[done : done + size], size)
            self.end += size
            done += size

    def _file(self, start: int, first_units: NDArray[np.uint8]) -> MappedFile:
        """The file that begins at a position of the queue, made where it is missing."""
        if self._last is None or self._last_start != start:
            self._last = self._open(f"{self.directory}/{offset_name(start)}", first_units)
            self._last_start = start
        return self._last

    def _open(self, path: str, first_units: NDArray[np.uint8]) -> MappedFile:
        file = self._mapped(path)
        if not os.path.exists(path):
            # A further file never appears empty: a broker that recovers looks at the last file
            # only, and would keep units behind the log's end in the one before it.
            is_further = bool(self.end)
            file.create(content=first_units if is_further else b"")
        elif os.path.getsize(path) != self.file_size:
            raise CorruptQueueError(
                "queue file has another size than configured", path,
                found=os.path.getsize(path), expected=self.file_size,
            )
        return file

    def flush(self) -> None:
        """All units are on disk when it returns (names of new files aside).

        Another thread may append meanwhile: everything below ``end`` is in the files already.
        """
        end = self.end
        while self.flushed < end:
            position = self.flushed % self.file_size
            start = self.flushed - position
            stop = min(end - start, self.file_size)
            path = f"{self.directory}/{offset_name(start)}"
            self._mapped(path).sync(position, stop)
            self.flushed = start + stop

    def _mapped(self, path: str) -> MappedFile:
        step = min(_RESERVE_STEP, self.file_size)
        return MappedFile(self.files, path, self.file_size, step, read_ahead=False)


class QueueWriter:
    """The end of one queue. ``max_physical_offset`` is the end of the last record that has a
    unit: a record at or below it was dispatched before and is skipped."""

    def __init__(
        self,
        units: UnitFiles,
        max_physical_offset: int = 0,
        *,
        is_new: bool = True,
    ) -> None:
        """``is_new`` says that the queue has no file yet."""
        self.units = units
        self.max_physical_offset = max_physical_offset
        self._is_new = is_new

    @property
    def next_offset(self) -> int:
        """The queue offset that the next message gets."""
        return self.units.end // CONSUME_QUEUE_UNIT.itemsize

    def append(self, units: NDArray[np.void], queue_offsets: NDArray[np.int64]) -> int:
        """Append the units of records in log order; returns how many were not skipped."""
        if not len(units):
            return 0
        if self._is_new:
            self._begin(int(queue_offsets[0]))
        if not self._follow(units, queue_offsets):
            units = units[self._accepted(units, queue_offsets)]
        if len(units):
            self.units.append(units)
            last = units[-1]
            self.max_physical_offset = int(last["commit_log_offset"]) + int(last["size"])
        return len(units)

    def _begin(self, queue_offset: int) -> None:
        """The first file of a queue begins at its file's start; what lies below is pre-blank."""
        position = queue_offset * CONSUME_QUEUE_UNIT.itemsize
        blank_size = position % self.units.file_size
        self._is_new = False
        self.units.start_at(position - blank_size)
        if blank_size:
            blank = np.zeros(blank_size // CONSUME_QUEUE_UNIT.itemsize, CONSUME_QUEUE_UNIT)
            blank["size"] = layout.PRE_BLANK_SIZE
            self.units.append(blank)

    def _follow(self, units: NDArray[np.void], queue_offsets: NDArray[np.int64]) -> bool:
        """Whether the units simply follow what is there: no rule can refuse one of them."""
        first = units[0]
        return bool(
            int(first["commit_log_offset"]) + int(first["size"]) > self.max_physical_offset
            and int(queue_offsets[0]) == self.next_offset
            and int(queue_offsets[-1]) - int(queue_offsets[0]) == len(units) - 1
            and (queue_offsets[1:] - queue_offsets[:-1] == 1).all()
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


class BatchQueueWriter:
    """The end of one BatchConsumeQueue; its last unit is found when the queue is opened."""

    def __init__(self, files: FileSet, directory: str, file_size: int) -> None:
        self.units = UnitFiles(files, directory, file_size)
        self.max_physical_offset = -1
        if os.path.isdir(directory):
            self._open_existing(directory)

    def _open_existing(self, directory: str) -> None:
        found = FileQueue.open(LocalFiles(), [directory])
        if not found.files:
            return
        queue = UnitQueue(found, BATCH_CONSUME_QUEUE_UNIT)
        count = queue.find_end(lambda unit, _: bool(unit["size"] > 0 and unit["batch_count"] > 0))
        self.units.start_at(count * BATCH_CONSUME_QUEUE_UNIT.itemsize)
        if count > queue.first_index:
            self.max_physical_offset = int(queue.unit(count - 1)["commit_log_offset"])

    def append(self, units: NDArray[np.void]) -> int:
        """Append the units of records in log order; a record that has one already is skipped."""
        new = units[units["commit_log_offset"] > self.max_physical_offset]
        if len(new):
            self.units.append(new)
            self.max_physical_offset = int(new[-1]["commit_log_offset"])
        return len(new)
