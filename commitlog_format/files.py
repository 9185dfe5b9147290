"""All file access of readers: list, size, read a range, map a window. Nothing else opens a file.

A remote file system is added by implementing :class:`FileAccess`; no codec changes.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.errors import (
    FileUnavailableError,
    InvalidNameError,
    SegmentExpiredError,
    StoreError,
    TruncatedFileError,
    UnsafeFileError,
)
from rmqlog.commitlog_format.mapped_windows import GRANULARITY, map_window

_T = TypeVar("_T")

_NO_SUCH_FILE = frozenset({errno.ENOENT, errno.ESTALE, errno.ENOTDIR})
_TOO_MANY_FILES = frozenset({errno.EMFILE, errno.ENFILE})
#: Up to this size a copy takes no longer than a mapping, and nobody can shrink it under us.
COPIED_SIZE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One name in a directory; ``size`` is 0 for what is not a plain file."""

    name: str
    size: int
    is_file: bool
    is_directory: bool
    modified_ms: int


class ReadableFile(Protocol):
    """One open file. It stays readable when it is unlinked."""

    path: str

    def size(self) -> int:
        """Bytes in the file now."""

    def read(self, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes; fewer raise ``TruncatedFileError``."""

    def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
        """Fill an array with bytes of a sequential scan; fewer raise ``TruncatedFileError``."""

    def window(self, offset: int, size: int, *, sequential: bool = False) -> NDArray[np.uint8]:
        """A read-only view of ``size`` bytes, which lives as long as somebody holds it.

        What is made from it counts only within ``mapped_windows.intact``.
        """


class FileAccess(Protocol):
    """A file system that holds stores."""

    def list(self, directory: str) -> list[DirectoryEntry]:
        """The names in a directory, sorted; a missing one raises ``SegmentExpiredError``."""

    def open(self, path: str) -> ReadableFile:
        """Open a plain file for reading."""


class LocalFile:
    """A file of this machine: ranges and small windows by ``pread``, large ones by ``mmap``."""

    def __init__(self, path: str, *, keep_page_cache: bool = True) -> None:
        self.path = path
        self._keep_page_cache = keep_page_cache
        # O_NONBLOCK: opening a pipe that somebody put into a store must not wait for a writer.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, flags)
            mode = os.fstat(self._descriptor).st_mode
        except (OSError, ValueError) as error:
            raise _translate(error, path) from error
        if not stat.S_ISREG(mode):
            raise UnsafeFileError("not a plain file", path, found=stat.filemode(mode))

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def size(self) -> int:
        """Bytes in the file now."""
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            raise _translate(error, self.path) from error

    def read(self, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes; fewer raise ``TruncatedFileError``."""
        try:
            found = os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise _translate(error, self.path, offset) from error
        if len(found) != size:
            raise TruncatedFileError(
                "file is too short", self.path, offset, f"{len(found)} bytes", f"{size} bytes"
            )
        return found

    def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
        """Fill an array with bytes of a sequential scan; fewer raise ``TruncatedFileError``.

        In memory that is used again, a copy is faster than a mapping of what is looked at once.
        """
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self._descriptor, [target[done:].data], offset + done)
            except OSError as error:
                raise _translate(error, self.path, offset + done) from error
            if not count:
                raise TruncatedFileError(
                    "file is too short", self.path, offset, f"{done} bytes",
                    f"{len(target)} bytes",
                )
            done += count
        self._forget(offset - offset % GRANULARITY)

    def window(self, offset: int, size: int, *, sequential: bool = False) -> NDArray[np.uint8]:
        """A read-only view of ``size`` bytes, which lives as long as somebody holds it.

        Only large ones are mapped. The file's size is compared first; if it shrinks later,
        ``mapped_windows.intact`` raises, and ``bus_guard`` keeps the process alive.
        """
        if size <= COPIED_SIZE:
            found = self._copied(offset, size)
        else:
            found = self._mapped(offset, size, sequential=sequential)
        if sequential:
            self._forget(offset - offset % GRANULARITY)
        return found

    def _copied(self, offset: int, size: int) -> NDArray[np.uint8]:
        found = np.frombuffer(self.read(offset, size), np.uint8)
        self._forget(offset + size, offset - offset % GRANULARITY)
        return found

    def _mapped(self, offset: int, size: int, *, sequential: bool) -> NDArray[np.uint8]:
        available = self.size()
        if offset + size > available:
            raise TruncatedFileError(
                "file is too short", self.path, offset, f"{available} bytes", f"{offset + size}"
            )
        start = offset - offset % GRANULARITY

        def forget() -> None:
            self._forget(offset + size, start)

        # Not before it is released: the kernel keeps what is mapped.
        released = None if self._keep_page_cache else forget
        try:
            return map_window(
                self._descriptor, self.path, offset, size, sequential=sequential,
                released=released,
            )
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _TOO_MANY_FILES:
                # A mapping needs a descriptor of its own, a copy does not.
                return self._copied(offset, size)
            raise FileUnavailableError(
                "cannot be mapped", self.path, offset, str(error)
            ) from error

    def _forget(self, end: int, start: int = 0) -> None:
        """Ask the kernel to drop what a reader has left behind, when so configured.

        It keeps the page in which the range ends, where the next window begins, and every page
        that somebody has mapped: a broker, or another window.
        """
        if not self._keep_page_cache and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


class CopiedFile(LocalFile):
    """A local file whose windows are copies, for systems without a :mod:`bus_guard`."""

    def window(self, offset: int, size: int, *, sequential: bool = False) -> NDArray[np.uint8]:
        """A copy of ``size`` bytes."""
        return self._copied(offset, size)


class LocalFiles:
    """The file system of this machine, with a bounded number of files kept open.

    ``keep_page_cache=False`` asks the kernel to forget the windows that scans and readers of
    queues are done with, so that they do not push out the pages that a live broker on the same
    host needs.
    ``map_windows=False`` copies instead of mapping: slower, but nobody can change a copy.
    """

    def __init__(
        self, *, keep_page_cache: bool = True, map_windows: bool = True, open_files: int = 64
    ) -> None:
        self.keep_page_cache = keep_page_cache
        self.map_windows = map_windows
        self.open_files = open_files
        self._open: OrderedDict[str, LocalFile] = OrderedDict()
        self._mutex = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {
            "keep_page_cache": self.keep_page_cache,
            "map_windows": self.map_windows,
            "open_files": self.open_files,
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._open = OrderedDict()
        self._mutex = threading.Lock()

    def list(self, directory: str) -> list[DirectoryEntry]:
        """The names in a directory, sorted; links are neither files nor directories."""
        with self._mutex:
            return self._with_descriptors(lambda: _list_directory(directory))

    def open(self, path: str) -> ReadableFile:
        """Open a plain file, or return the one that is open already."""
        with self._mutex:
            known = self._open.get(path)
            if known is not None:
                self._open.move_to_end(path)
                return known
            kind = LocalFile if self.map_windows else CopiedFile
            opened = self._with_descriptors(
                lambda: kind(path, keep_page_cache=self.keep_page_cache)
            )
            self._open[path] = opened
            # Whoever still reads from an evicted file holds it; it is closed with its last user.
            while len(self._open) > min(self.open_files, _fair_share()):
                self._open.popitem(last=False)
            return opened

    def _with_descriptors(self, action: Callable[[], _T]) -> _T:
        """Do what needs a descriptor; while there is none left, close files that are kept open."""
        while True:
            try:
                return action()
            except FileUnavailableError as error:
                cause = error.__cause__
                exhausted = isinstance(cause, OSError) and cause.errno in _TOO_MANY_FILES
                if not exhausted or not self._open:
                    raise
            self._open.popitem(last=False)


def _fair_share() -> int:
    """How many files may be kept open: the rest of the process needs descriptors too."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, limit // 4) if limit != resource.RLIM_INFINITY else sys.maxsize


def _list_directory(directory: str) -> list[DirectoryEntry]:
    try:
        with os.scandir(directory) as entries:
            found = [entry for entry in map(_describe, entries) if entry is not None]
    except (OSError, ValueError) as error:
        raise _translate(error, directory) from error
    return sorted(found, key=lambda entry: entry.name)


def _describe(entry: os.DirEntry[str]) -> DirectoryEntry | None:
    """What a name is; ``None`` when it vanished since the directory was read."""
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    is_file = stat.S_ISREG(status.st_mode)
    return DirectoryEntry(
        entry.name,
        status.st_size if is_file else 0,
        is_file,
        stat.S_ISDIR(status.st_mode),
        status.st_mtime_ns // 1_000_000,
    )


def _translate(error: OSError | ValueError, path: str, offset: int = -1) -> StoreError:
    """The typed error for what the system said."""
    if not isinstance(error, OSError):  # NUL in a name, or characters that no name can have
        return InvalidNameError("no file can have this name", ascii(path), found=str(error))
    if error.errno in _NO_SUCH_FILE:
        return SegmentExpiredError("no such file or directory", path, offset)
    if error.errno == errno.ELOOP:
        return UnsafeFileError("a symbolic link where a plain file belongs", path)
    return FileUnavailableError(f"the system refuses: {error.strerror}", path, offset)
