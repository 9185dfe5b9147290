"""Every system call that changes a store, in one place: the seam where tests inject faults.

Only this file of the package maps memory or writes, syncs, renames and removes files. Each
call becomes a :class:`Call` that passes :meth:`Posix._perform`; a test overrides that method
to count the calls, record them, fail them, do only a part of them, or kill the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.errors import CommitStateUnknownError, StoreError, WriteFailedError

#: What may be written: ``bytes`` or a contiguous array.
Buffer = bytes | memoryview | NDArray[Any]

#: Makes a system call; takes how much of ``Call.size`` it shall do, returns how much it did
#: (where that is a question) or the descriptor.
Action = Callable[[int], int | None]

#: How unfinished files of ``Posix.create_file`` are named; recovery removes them.
SCRATCH_PREFIX = "new-"

#: A call that is interrupted this often in a row is not interrupted, it is broken.
_INTERRUPTS_MAX = 100
#: So much is written by one call: the kernel keeps a larger piece in pages of 2 MiB, and looks for
#: those where nobody has been yet. On a virtual machine such memory takes ten times as long to get
#: as that of what was just dropped.
_WRITE_SIZE_MAX = 1024 * 1024
#: Linux 5.14; the mmap module does not name it yet.
_MADV_POPULATE_WRITE = 23
_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755
#: ``struct flock``: type, whence, start, length, process (0 for locks of a file description).
_FLOCK = struct.Struct("@hhqqi4x")
#: Calls after whose failure nobody knows what is on disk. They are never repeated: the kernel
#: may have dropped the dirty pages, and a second call would then succeed for nothing.
_SYNC_CALLS = frozenset({"sync", "fsync", "fdatasync", "fsync_directory"})


class Mapping:
    """A shared map of a whole file, or memory of its own; bytes change only by ``Posix.store``."""

    def __init__(self, path: str, mapped: mmap.mmap) -> None:
        self.path = path
        self._mapped = mapped
        self.array: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)

    @classmethod
    def in_memory(cls, path: str, size: int) -> Mapping:
        """Zeroed memory that no file backs; ``path`` is where its bytes will be written."""
        return cls(path, mmap.mmap(-1, size))

    @property
    def size(self) -> int:
        """Bytes in the map (0 once closed)."""
        return len(self.array)

    def flush(self, offset: int, size: int) -> None:
        """msync the pages that hold these bytes."""
        start = offset - offset % mmap.PAGESIZE
        self._mapped.flush(start, offset + size - start)

    def advise(self, advice: int) -> None:
        """madvise the whole map; a kernel that does not know the advice changes nothing."""
        with contextlib.suppress(OSError):
            self._mapped.madvise(advice)

    def release_pages(self) -> None:
        """Give the pages back; the kernel keeps their content, written or not."""
        self.advise(mmap.MADV_DONTNEED)

    def populate(self, offset: int, size: int) -> None:
        """Make the pages of these bytes now, in one call: a page fault each costs far more."""
        start = offset - offset % mmap.PAGESIZE
        with contextlib.suppress(OSError):  # before Linux 5.14 they are made one by one
            self._mapped.madvise(_MADV_POPULATE_WRITE, start, offset + size - start)

    def close(self) -> None:
        """Release the map; where a view of it lives on, it goes with that view."""
        self.array = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):
            self._mapped.close()


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One durable call: what it does, to which file, where, and with which bytes.

    ``size`` is how much there is to do: bytes, or items of a ``scatter``. ``target`` is the new
    name in a ``rename``.
    """

    name: str
    path: str
    offset: int = 0
    size: int = 0
    data: Buffer | None = None
    positions: NDArray[np.int64] | None = None
    target: str = ""


class Posix:
    """The system calls of a writer. A failed one raises an error that names file and offset.

    After a failed sync nobody knows what is on disk: it raises ``CommitStateUnknownError``, and
    so does every later call that would change or sync anything. One object serves one writer;
    threads may share it.
    """

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        self._created = 0
        self._unknown: CommitStateUnknownError | None = None
        self._mutex = threading.Lock()

    # --- files ------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> int:
        """A descriptor for reading and writing; ``create`` makes the file where it is missing."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        # Opening what is there changes nothing, but a created name is part of the store.
        call = Call("create" if create else "open", path)
        descriptor = self._do(call, lambda _: os.open(path, flags, _FILE_MODE))
        with self._mutex:
            self._paths[descriptor] = path
        return descriptor

    def create_file(
        self,
        path: str,
        size: int,
        scratch_directory: str,
        *,
        content: Buffer = b"",
        durable: bool = False,
    ) -> None:
        """Make a file that has its name only once it has its size; zeros behind its content.

        A broker refuses to start on a segment or queue file of another size, or of another
        name, so the file grows in a folder that brokers ignore (``<store>/rmqlog``). With
        ``durable``, file and name are on disk when it returns; ``content`` is before the name.
        """
        with self._mutex:
            self._created += 1
            beside = f"{scratch_directory}/{SCRATCH_PREFIX}{self._created}"
        descriptor = self.open(beside, create=True)
        try:
            self.truncate(descriptor, size)
            if len(content):
                self.pwrite(descriptor, content, 0)
            if durable or len(content):
                self.fsync(descriptor)
        finally:
            self.close(descriptor)
        self.rename(beside, path)
        if durable:
            self.fsync_directory(os.path.dirname(path))

    def close(self, descriptor: int) -> None:
        """Give a descriptor back. Never fails: what had to be durable was synced before."""
        with self._mutex:
            self._paths.pop(descriptor, None)
        with contextlib.suppress(OSError):
            os.close(descriptor)

    def allocate(self, descriptor: int, offset: int, size: int) -> None:
        """Reserve disk space, so that a mapped write meets no full disk (it would be SIGBUS)."""

        def allocate(part: int) -> int:
            os.posix_fallocate(descriptor, offset, part)
            return part

        self._do(Call("allocate", self._path(descriptor), offset, size), allocate)

    def truncate(self, descriptor: int, size: int) -> None:
        """Set a file's size; what is added is a hole."""
        self._do(
            Call("truncate", self._path(descriptor), size),
            lambda _: os.ftruncate(descriptor, size),
        )

    def pwrite(self, descriptor: int, data: Buffer, offset: int) -> None:
        """Write all the bytes at an offset."""
        view = np.frombuffer(data, np.uint8).data
        written = 0
        while written < len(view):
            piece = view[written : written + _WRITE_SIZE_MAX]
            written += self._pwrite_some(descriptor, piece, offset + written)

    def _pwrite_some(self, descriptor: int, view: memoryview, offset: int) -> int:
        """One system call; the kernel may write fewer bytes than it was given."""
        call = Call("pwrite", self._path(descriptor), offset, len(view), view)
        return self._do(call, lambda part: os.pwrite(descriptor, view[:part], offset))

    # --- mapped memory ----------------------------------------------------------------------

    def map(self, descriptor: int, size: int, *, read_ahead: bool = True) -> Mapping:
        """Map the first ``size`` bytes of a file, which must have been allocated.

        Without ``read_ahead`` the kernel makes only the pages that are touched.
        """
        path = self._path(descriptor)
        try:
            mapping = Mapping(path, mmap.mmap(descriptor, size))
        except (OSError, ValueError) as error:
            raise WriteFailedError("cannot be mapped", path, found=error) from error
        if not read_ahead:
            mapping.advise(mmap.MADV_RANDOM)
        return mapping

    def store(self, mapping: Mapping, offset: int, data: Buffer) -> None:
        """Copy bytes into a map: the only way in which mapped bytes change, with ``scatter``."""
        source = np.frombuffer(data, np.uint8)
        assert offset + len(source) <= mapping.size

        def copy(part: int) -> int:
            mapping.array[offset : offset + part] = source[:part]
            return part

        self._do(Call("store", mapping.path, offset, len(source), source), copy)

    def scatter(
        self, mapping: Mapping, positions: NDArray[np.int64], item_size: int, values: Buffer
    ) -> None:
        """Copy equally sized items, each to its own position, all in one call.

        Positions are multiples of the item size; none may come twice.
        """
        # As whole items, not byte by byte: four times faster for the slots of an index.
        item = np.dtype(f"V{item_size}")
        items = np.frombuffer(values, item)
        places = positions // item_size
        assert len(items) == len(positions)
        assert (places * item_size == positions).all()

        def copy(part: int) -> int:
            target = mapping.array[: mapping.size - mapping.size % item_size].view(item)
            target[places[:part]] = items[:part]
            return part

        self._do(Call("scatter", mapping.path, 0, len(items), items, positions), copy)

    # --- durability -------------------------------------------------------------------------

    def sync(self, mapping: Mapping, offset: int, size: int) -> None:
        """msync the pages of these bytes; they are on disk when it returns."""
        call = Call("sync", mapping.path, offset, size)
        self._do(call, lambda _: mapping.flush(offset, size))

    def fsync(self, descriptor: int) -> None:
        """Bytes and size of a file are on disk when it returns."""
        self._do(Call("fsync", self._path(descriptor)), lambda _: os.fsync(descriptor))

    def fdatasync(self, descriptor: int) -> None:
        """As ``fsync``, without the file's times."""
        call = Call("fdatasync", self._path(descriptor))
        self._do(call, lambda _: os.fdatasync(descriptor))

    def start_writeback(self, descriptor: int, offset: int, size: int) -> None:
        """Let the kernel begin to write bytes out, so that a later sync has less to wait for.

        A hint: it promises nothing, cannot fail, and is no call that a crash could tell apart.
        """
        if _sync_file_range is not None:
            _sync_file_range(descriptor, offset, size, _SYNC_FILE_RANGE_WRITE)

    def drop(self, descriptor: int) -> None:
        """Give back the pages and the place on disk of a file that nobody needs any more.

        A hint: where it cannot be done, they go with the file. Not by a hole: before it punches
        one, ext4 writes out what is dirty there.
        """
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)

    def fsync_directory(self, path: str) -> None:
        """The names in a directory are on disk when it returns."""

        def sync_names(_: int) -> int:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            return 0

        self._do(Call("fsync_directory", path), sync_names)

    # --- names ------------------------------------------------------------------------------

    def mkdir(self, path: str) -> None:
        """Make a directory and those above it that are missing; one that exists is fine."""
        if os.path.isdir(path):
            return
        self.mkdir(os.path.dirname(path) or ".")

        def make(_: int) -> int:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, _DIRECTORY_MODE)
            return 0

        self._do(Call("mkdir", path), make)

    def rename(self, path: str, target: str) -> None:
        """Give a file or directory another name; a file that had that name is replaced."""
        self._do(Call("rename", path, target=target), lambda _: os.rename(path, target))

    def unlink(self, path: str) -> None:
        """Remove a file's name; one that is gone already is fine."""

        def remove(_: int) -> int:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return 0

        self._do(Call("unlink", path), remove)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        self._do(Call("rmdir", path), lambda _: os.rmdir(path))

    def replace_file(self, path: str, content: bytes) -> None:
        """Write a small file whole or not at all: beside, synced, renamed, directory synced."""
        beside = f"{path}.new"
        descriptor = self.open(beside, create=True)
        try:
            self.truncate(descriptor, 0)
            self.pwrite(descriptor, content, 0)
            self.fsync(descriptor)
        finally:
            self.close(descriptor)
        self.rename(beside, path)
        self.fsync_directory(os.path.dirname(path))

    # --- locks ------------------------------------------------------------------------------

    def lock(self, descriptor: int) -> bool:
        """Try to lock byte 0 of a file, as a broker does; false when somebody else holds it.

        The lock belongs to the open file description: opening and closing the file elsewhere
        in this process does not lose it, as it would a plain POSIX lock.
        """
        try:
            _set_lock(descriptor, fcntl.F_WRLCK)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise _translate(error, Call("lock", self._path(descriptor))) from error
        return True

    def unlock(self, descriptor: int) -> None:
        """Free byte 0 of a file."""
        _set_lock(descriptor, fcntl.F_UNLCK)

    # --- the seam ---------------------------------------------------------------------------

    def _perform(self, call: Call, action: Action) -> int | None:
        """Make one system call. ``action`` takes how much of ``call.size`` it shall do."""
        return action(call.size)

    def _do(self, call: Call, action: Action) -> int:
        """Make a call through the seam; interrupted ones are repeated, others explained."""
        if self._unknown is not None:
            raise self._unknown
        try:
            for _ in range(_INTERRUPTS_MAX):
                with contextlib.suppress(InterruptedError):
                    return self._perform(call, action) or 0
            return self._perform(call, action) or 0
        except OSError as error:
            raise self._failed(call, error) from error

    def _failed(self, call: Call, error: OSError) -> StoreError:
        if call.name not in _SYNC_CALLS:
            return _translate(error, call)
        unknown = CommitStateUnknownError(
            f"{call.name} failed, so what is on disk is unknown: {error.strerror}",
            call.path,
            call.offset,
            found=errno.errorcode.get(error.errno or 0),
        )
        self._unknown = self._unknown or unknown
        return unknown

    def _path(self, descriptor: int) -> str:
        return self._paths.get(descriptor, "")


def _linux_call(name: str, *arguments: type) -> Callable[[int, int, int, int], int] | None:
    """A call of Linux that the os module does not have; ``None`` elsewhere."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function.argtypes = arguments
    return function


_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = _linux_call(
    "sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
)


def _set_lock(descriptor: int, kind: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, 1, 0))


def _translate(error: OSError, call: Call) -> StoreError:
    return WriteFailedError(
        f"{call.name} failed: {error.strerror}",
        call.path,
        call.offset,
        found=errno.errorcode.get(error.errno or 0),
    )
