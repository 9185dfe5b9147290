"""The segments of the log that is written: the current one, the next one, and what is unflushed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.encoding import filler
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.writer.placement import Placement
from rmqlog.writer.posix import Buffer, Mapping
from rmqlog.writer.segments import (
    CommitLogSegment,
    FileSet,
    LogPositions,
    MappedFile,
    offset_name,
    warm_up,
)
from rmqlog.writer.settings import StoreSettings

#: The log is reserved in steps of this size.
_RESERVE_STEP = 64 * 1024 * 1024


class BufferPool(Protocol):
    """The transient store pool: memory that a segment is written to before its file."""

    def borrow(self, path: str, size: int) -> Mapping | None:
        """A buffer for a segment; ``None`` when all are in use: the segment is then mapped."""

    def give_back(self, buffer: Mapping) -> None:
        """Return a buffer whose bytes are all in the file."""


@dataclass(slots=True)
class _Gate:
    """The place of a magic number that is written last of all, and the number."""

    offset: int
    magic: bytes = b""

    def shut(self, data: Buffer) -> Buffer:
        """The record or filler without its magic number, which is remembered."""
        content = np.frombuffer(data, np.uint8).copy()
        magic = content[layout.MAGIC_POSITION : layout.PREFIX.size]
        self.magic = magic.tobytes()
        magic[:] = 0
        return content


class LogFiles:
    """The end of a log: appends behind ``end``, rolls to new segments, commits and flushes.

    One thread appends; another may commit and flush meanwhile. With ``make_ahead`` a thread of
    its own makes the next segment when the current one is half full.
    """

    def __init__(
        self,
        files: FileSet,
        directory: str,
        settings: StoreSettings,
        end: int,
        *,
        buffers: BufferPool | None = None,
        make_ahead: bool = True,
    ) -> None:
        self.files = files
        self.directory = directory
        self.segment_size = settings.mappedFileSizeCommitLog
        self._warm = settings.warmMapedFileEnable
        self._buffers = buffers
        self._end = end
        #: Segments with unflushed bytes, oldest first; the last one is the current one.
        self._segments: list[CommitLogSegment] = []
        self._ready: dict[int, MappedFile] = {}
        self._executor = ThreadPoolExecutor(1, "rmqlog-segment") if make_ahead else None
        self._ahead: tuple[int, Future[MappedFile]] | None = None
        self._flush_mutex = threading.Lock()
        self._gate: _Gate | None = None

    # --- appending --------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The physical offset behind the last record."""
        return self._end

    def left(self, offset: int) -> int:
        """Bytes between a physical offset and the end of its segment."""
        return self.segment_size - offset % self.segment_size

    def reserve(self, placements: Iterable[Placement]) -> None:
        """Make the files and give the bytes their place on disk, before anything is written."""
        for placement in placements:
            position = placement.physical_offset % self.segment_size
            file = self._file_of(placement.physical_offset - position)
            end = position + placement.size + layout.SEGMENT_END_RESERVE
            file.reserve(position, min(end, self.segment_size))

    def write(self, placement: Placement, data: Buffer) -> None:
        """Append the bytes of a placement that was reserved; fills the segment before it."""
        start = placement.physical_offset - placement.physical_offset % self.segment_size
        segment = self._segments[-1] if self._segments else None
        if segment is None or segment.start != start:
            if placement.physical_offset == start and self._end < start:
                self._fill(start)
            segment = self._open_segment(start, placement.physical_offset - start)
        self._append(segment, data, placement.size)
        self._end = placement.physical_offset + placement.size
        if segment.left < self.segment_size // 2:
            self._make_ahead(start + self.segment_size)

    def _fill(self, next_start: int) -> None:
        """End the segment in front of ``next_start`` with a filler."""
        left = next_start - self._end
        if not self._segments:
            before = next_start - self.segment_size
            self._open_segment(before, self._end - before)
        self._append(self._segments[-1], filler(left), layout.FILLER_HEADER_SIZE)
        self._end = next_start

    def _append(self, segment: CommitLogSegment, data: Buffer, size: int) -> None:
        gate = self._gate
        if gate is not None and gate.offset == segment.start + segment.written:
            data = gate.shut(data)
        segment.append(data, size)

    # --- the gate ---------------------------------------------------------------------------

    def shut_gate(self) -> None:
        """Leave out the magic number of what is written next, a record or a filler.

        Nobody takes anything behind it for a part of the log until :meth:`open_gate`.
        """
        self._gate = _Gate(self._end)

    def open_gate(self) -> None:
        """Write the magic number that was left out; it is on disk when it returns."""
        gate = self._gate
        assert gate is not None
        assert gate.magic
        position = gate.offset % self.segment_size
        path = f"{self.directory}/{offset_name(gate.offset - position)}"
        file = MappedFile(self.files, path, self.segment_size, self.segment_size)
        position += layout.MAGIC_POSITION
        file.store(position, gate.magic, len(gate.magic))
        file.sync(position, position + len(gate.magic))
        self._gate = None

    def _open_segment(self, start: int, written: int) -> CommitLogSegment:
        file = self._file_of(start)
        buffer = None
        if self._buffers is not None:
            buffer = self._buffers.borrow(file.path, file.size)
        segment = CommitLogSegment(file, start, written, buffer)
        self._ready.pop(start, None)
        self._segments.append(segment)
        return segment

    def _file_of(self, start: int) -> MappedFile:
        for segment in reversed(list(self._segments)):
            if segment.start == start:
                return segment.file
        if start not in self._ready:
            if self._ahead is not None and self._ahead[0] == start:
                future = self._ahead[1]
                self._ahead = None
                self._ready[start] = future.result()
            else:
                self._ready[start] = self._make(start)
        return self._ready[start]

    def _make(self, start: int) -> MappedFile:
        """The file of a segment, made unless it is there."""
        path = f"{self.directory}/{offset_name(start)}"
        step = min(_RESERVE_STEP, self.segment_size)
        file = MappedFile(self.files, path, self.segment_size, step)
        if not os.path.exists(path):
            # On disk before a later one is made: a log that lacks its first segment after a
            # power cut would look like one whose first segment has expired.
            file.create(durable=True)
        if self._warm:
            warm_up(file)
        return file

    def _make_ahead(self, start: int) -> None:
        if self._executor is not None and self._ahead is None and start not in self._ready:
            self._ahead = (start, self._executor.submit(self._make, start))

    # --- durability -------------------------------------------------------------------------

    @property
    def positions(self) -> LogPositions:
        """How far the log is written, committed and flushed."""
        written = self._end
        segments = list(self._segments)
        committed = min(
            (s.start + s.committed for s in segments if s.committed < s.written), default=written
        )
        flushed = min(
            (s.start + s.flushed for s in segments if s.flushed < s.written), default=written
        )
        return LogPositions(written, min(committed, written), min(flushed, written))

    def commit(self) -> None:
        """Write what is only in the pool's buffers to the files."""
        with self._flush_mutex:
            self._commit()

    def _commit(self) -> None:
        for segment in list(self._segments):
            segment.commit()

    def flush(self) -> int:
        """What was written before is on disk when it returns; the offset it reaches to."""
        with self._flush_mutex:
            written = self._end
            segments = list(self._segments)
            self.files.sync_names()
            self._commit()
            for segment in segments:
                segment.flush()
            # The current segment stays; older ones are on disk as a whole.
            for segment in segments[:-1]:
                self._retire(segment)
            return written

    def _retire(self, segment: CommitLogSegment) -> None:
        self._segments.remove(segment)
        if segment.buffer is not None and self._buffers is not None:
            self._buffers.give_back(segment.buffer)
        self.files.release(segment.file.path)

    def close(self) -> None:
        """Remove the segment that was made ahead and stop its thread. Does not flush."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)
            self._executor = None
        if self._ahead is not None:
            start, future = self._ahead
            self._ahead = None
            if future.exception() is None:
                self._ready[start] = future.result()
            elif not isinstance(future.exception(), StoreError):
                future.result()
        for start in sorted(self._ready, reverse=True):
            if start >= self._end:
                self._ready.pop(start).remove()
