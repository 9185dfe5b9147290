"""Fixed-size mapped files: how they are made, written, flushed and released.

A mapped write to a hole of a sparse file is SIGBUS when the disk is full, so bytes are
reserved (``posix_fallocate``) before they are touched. Files get their full size at once, as a
broker insists on, and are reserved step by step, so that many small queues stay small on disk.
"""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.writer.posix import Buffer, Mapping, Posix

#: From this size on, bytes are written past the map: the kernel then makes many pages at a time,
#: and large writes take a third of the time of a copy through the map.
_PWRITE_SIZE_MIN = 32 * 1024
_OPEN_FILES_MAX = 256
#: Descriptors that are left to everybody else in the process.
_SPARE_DESCRIPTORS = 40


def offset_name(offset: int) -> str:
    """The name of the file that begins at an offset of its space."""
    return f"{offset:0{layout.OFFSET_NAME_DIGITS}d}"


class FileSet:
    """The files that a writer has open: a bounded number of maps, and names to be synced.

    A map that falls out is unmapped with its last user; its dirty pages stay with the kernel,
    and a later sync maps the file again.
    """

    def __init__(
        self, posix: Posix, store_path: str, open_files: int | None = None
    ) -> None:
        self.posix = posix
        self.store_path = store_path
        self._scratch_directory = f"{store_path}/{layout.RMQLOG_DIRECTORY}"
        self.open_files = _open_files_limit() if open_files is None else open_files
        self._maps: OrderedDict[str, Mapping] = OrderedDict()
        self._unsynced_directories: dict[str, None] = {}
        self._mutex = threading.Lock()
        #: Whether the kernel shall begin at once to write out what is written past a map: for
        #: much that is synced soon.
        self.starts_writeback = False

    def create(
        self, path: str, size: int, *, content: Buffer = b"", durable: bool = False
    ) -> None:
        """Make a file of ``size`` bytes, zeros behind its content, and the directories above it.

        It is on disk when it returns if ``durable``, else with the next :meth:`sync_names`.
        """
        self.make_directory(os.path.dirname(path))
        self.posix.mkdir(self._scratch_directory)
        self.posix.create_file(
            path, size, self._scratch_directory, content=content, durable=durable
        )
        if not durable:
            self._note_changed(os.path.dirname(path))

    def make_directory(self, path: str) -> None:
        """Make a directory and what is missing above it."""
        missing = path
        while missing and not os.path.isdir(missing):
            missing = os.path.dirname(missing)
            self._note_changed(missing or ".")
        self.posix.mkdir(path)

    def mapping(self, path: str, size: int, *, read_ahead: bool = True) -> Mapping:
        """The map of a file, made anew if it fell out."""
        with self._mutex:
            known = self._maps.get(path)
            if known is not None:
                self._maps.move_to_end(path)
                return known
        descriptor = self.posix.open(path)
        try:
            mapped = self.posix.map(descriptor, size, read_ahead=read_ahead)
        finally:
            self.posix.close(descriptor)
        with self._mutex:
            mapped = self._maps.setdefault(path, mapped)
            while len(self._maps) > self.open_files:
                self._maps.popitem(last=False)
        return mapped

    def reserve(self, path: str, start: int, end: int) -> None:
        """Give bytes of a file their place on disk; a full disk raises here."""
        descriptor = self.posix.open(path)
        try:
            self.posix.allocate(descriptor, start, end - start)
        finally:
            self.posix.close(descriptor)

    def write(self, path: str, position: int, data: Buffer) -> None:
        """Write bytes to a file past its map, which shows them at once."""
        descriptor = self.posix.open(path)
        try:
            self.posix.pwrite(descriptor, data, position)
            if self.starts_writeback:
                self.posix.start_writeback(descriptor, position, len(data))
        finally:
            self.posix.close(descriptor)

    def release(self, path: str) -> None:
        """Forget the map of a file, before its name is removed or when it is full."""
        with self._mutex:
            self._maps.pop(path, None)

    def release_pages(self) -> None:
        """Give the pages of all maps back to the kernel, which keeps what they hold.

        Else a process that writes much would seem to use as much memory.
        """
        with self._mutex:
            mapped = list(self._maps.values())
        for mapping in mapped:
            mapping.release_pages()

    def sync_names(self) -> None:
        """Make the names of all new files and directories durable."""
        with self._mutex:
            unsynced = list(self._unsynced_directories)
            self._unsynced_directories.clear()
        for directory in unsynced:
            if os.path.isdir(directory):
                self.posix.fsync_directory(directory)

    def close(self) -> None:
        """Release every map."""
        with self._mutex:
            for mapping in self._maps.values():
                mapping.close()
            self._maps.clear()

    def _note_changed(self, directory: str) -> None:
        with self._mutex:
            self._unsynced_directories[directory] = None


def _open_files_limit() -> int:
    """Python keeps a descriptor for each map, and other parts of the process hold theirs."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    already_open = len(os.listdir("/dev/fd"))
    return max(4, min(_OPEN_FILES_MAX, allowed - already_open - _SPARE_DESCRIPTORS))


class MappedFile:
    """One file of a fixed size whose bytes are read and changed through a map.

    ``step`` is how much is reserved at a time. With ``read_ahead`` the first byte that is
    touched brings everything near it into memory, megabytes on some machines: good for a log
    that is filled from end to end, but not for thousands of files with a few bytes in each.
    """

    def __init__(
        self, files: FileSet, path: str, size: int, step: int, *, read_ahead: bool = True
    ) -> None:
        self.files = files
        self.path = path
        self.size = size
        self.step = step
        self.read_ahead = read_ahead
        self._reserved_end = 0

    @property
    def array(self) -> NDArray[np.uint8]:
        """The bytes, to be read; do not keep it."""
        return self._mapping().array

    def create(self, *, content: Buffer = b"", durable: bool = False) -> None:
        """Make the file, all zero behind its content."""
        self.files.create(self.path, self.size, content=content, durable=durable)

    def reserve(self, start: int, end: int) -> None:
        """See that the bytes from ``start`` to ``end`` can be written; raises on a full disk."""
        if end <= self._reserved_end:
            return
        first = max(start, self._reserved_end)
        stop = min(self.size, -(-end // self.step) * self.step)
        self.files.reserve(self.path, first, stop)
        self._reserved_end = stop

    def store(self, position: int, data: Buffer, size: int) -> None:
        """Copy ``size`` bytes into the file, reserved first."""
        self.reserve(position, position + size)
        if size >= _PWRITE_SIZE_MIN:
            self.files.write(self.path, position, data)
        else:
            self.files.posix.store(self._mapping(), position, data)

    def scatter(self, positions: NDArray[np.int64], item_size: int, values: Buffer) -> None:
        """Copy items to positions that were reserved before."""
        self.files.posix.scatter(self._mapping(), positions, item_size, values)

    def sync(self, start: int, end: int) -> None:
        """The bytes from ``start`` to ``end`` are on disk when it returns."""
        if start < end:
            self.files.posix.sync(self._mapping(), start, end - start)

    def remove(self) -> None:
        """Release the file, then remove its name."""
        self.files.release(self.path)
        self.files.posix.unlink(self.path)

    def populate(self) -> None:
        """Make all pages now."""
        self._mapping().populate(0, self.size)

    def _mapping(self) -> Mapping:
        return self.files.mapping(self.path, self.size, read_ahead=self.read_ahead)


@dataclass(frozen=True, slots=True)
class LogPositions:
    """How far the log has come: written by appends, committed to files, flushed to disk.

    Physical offsets. Without the transient store pool, what is written is committed.
    """

    written: int
    committed: int
    flushed: int


class CommitLogSegment:
    """One segment of the log being written; positions count from its own start.

    With a ``buffer`` (of the transient store pool) appends go there, and :meth:`commit` writes
    them to the file; without, they go to the map.
    """

    def __init__(
        self, file: MappedFile, start: int, written: int, buffer: Mapping | None = None
    ) -> None:
        self.file = file
        self.start = start
        self.written = written
        self.committed = written
        self.flushed = written
        self.buffer = buffer

    @property
    def left(self) -> int:
        """Bytes between the last record and the end of the file."""
        return self.file.size - self.written

    def append(self, data: Buffer, size: int) -> None:
        """Copy bytes behind what is written."""
        if self.buffer is None:
            self.file.store(self.written, data, size)
            self.committed = self.written + size
        else:
            self.file.reserve(self.written, self.written + size)
            self.file.files.posix.store(self.buffer, self.written, data)
        self.written += size

    def commit(self) -> None:
        """Write what is only in the buffer to the file."""
        written = self.written
        if self.buffer is None or self.committed == written:
            return
        posix = self.file.files.posix
        descriptor = posix.open(self.file.path)
        try:
            posix.pwrite(descriptor, self.buffer.array[self.committed : written], self.committed)
        finally:
            posix.close(descriptor)
        self.committed = written

    def flush(self) -> None:
        """What is committed is on disk when it returns."""
        committed = self.committed
        self.file.sync(self.flushed, committed)
        self.flushed = committed


def warm_up(file: MappedFile) -> None:
    """Reserve a whole file and make its pages now (``warmMapedFileEnable``)."""
    file.reserve(0, file.size)
    file.populate()
