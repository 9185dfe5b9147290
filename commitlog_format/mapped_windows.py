"""Windows of files in mapped memory, and whether what was read from one may be believed.

A file can shrink while a window of it is being read. Then pages of the window are zeros, as
:mod:`bus_guard` sees to, or the end of its last page is. So values that were made from a window
count only if its file was still whole afterwards: they are made within :func:`intact`.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.bus_guard import WatchedRange, bus_guard
from rmqlog.commitlog_format.errors import FileUnavailableError, TruncatedFileError

#: Mappings begin at multiples of this.
GRANULARITY = mmap.ALLOCATIONGRANULARITY
#: No reader of a window nests its calls so deep, the handler of a fault included.
_CALL_DEPTH = 40


class MappedWindow(mmap.mmap):
    """One mapping, which is undone when nobody holds an array of it any more."""

    path = ""
    #: Where it ends in its file.
    end = 0
    watched: WatchedRange | None = None
    #: Called when the mapping is undone.
    released: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.watched is not None:
            self.watched.forget()
        if self.released is not None:
            self.close()
            self.released()

    def check(self) -> None:
        """Raise unless the file has held all of the window until now."""
        # In this order: what was lost before, the size that is seen then explains.
        lost = self.watched is not None and self.watched.lost
        try:
            size = self.size()
        except OSError as error:
            raise FileUnavailableError(
                f"the system refuses: {error.strerror}", self.path
            ) from error
        if size < self.end:
            raise TruncatedFileError(
                "the file shrank while it was read", self.path, size, f"{size} bytes",
                f"at least {self.end}",
            )
        # It is long enough: it shrank and grew again, or the disk does not give its pages.
        if lost:
            raise FileUnavailableError("pages of the file were lost while it was read", self.path)


def map_window(
    descriptor: int,
    path: str,
    offset: int,
    size: int,
    *,
    sequential: bool = False,
    released: Callable[[], None] | None = None,
) -> NDArray[np.uint8]:
    """Map ``size`` bytes of an open file, read-only; as long as somebody holds the array.

    Then ``released`` is called. ``OSError`` and ``ValueError`` are what the system says.
    """
    start = offset - offset % GRANULARITY
    length = offset + size - start
    mapping = MappedWindow(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ, offset=start)
    mapping.path, mapping.end, mapping.released = path, offset + size, released
    if sequential:
        mapping.madvise(mmap.MADV_SEQUENTIAL)
    window = np.frombuffer(mapping, np.uint8, size, offset - start)
    guard = bus_guard()
    if guard is not None:
        address = window.__array_interface__["data"][0] - (offset - start)
        mapping.watched = guard.watch(address, length + -length % mmap.PAGESIZE)
    return window


@contextmanager
def intact(window: NDArray[np.uint8]) -> Iterator[None]:
    """Make values from a window within this; it raises if the file shrank meanwhile.

    Errors too: what looks like damage may be the zeros in the place of what was lost. Of a
    window that is a copy, nothing can be lost. ``yield`` values to others behind it, not within.
    """
    mapping = _mapping_of(window)
    if mapping is None:
        yield
        return
    _reserve_calls(_CALL_DEPTH)
    try:
        yield
    except Exception:
        mapping.check()
        raise
    mapping.check()


def _mapping_of(window: NDArray[np.uint8]) -> MappedWindow | None:
    """The mapping that an array, or what it is a view of, was made from."""
    owner: object = window
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    return owner if isinstance(owner, MappedWindow) else None


def _reserve_calls(depth: int) -> None:
    """Raise ``RecursionError`` here unless so many calls more can be nested.

    The handler of a fault is a call too. If it could not be made, the fault would come again
    and again, and no error would ever be seen.
    """
    if depth:
        _reserve_calls(depth - 1)
