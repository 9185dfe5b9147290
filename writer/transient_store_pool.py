"""Memory for segments that are written to their files later (TransientStorePool.java)."""

from __future__ import annotations

import threading

from rmqlog.writer.posix import Mapping


class TransientStorePool:
    """A fixed number of buffers of one segment's size each, made when first needed.

    A crash loses what was not committed to the file, even if only the process dies.
    """

    def __init__(self, count: int) -> None:
        self._mutex = threading.Lock()
        self._free: list[Mapping] = []
        self._left = count

    def borrow(self, path: str, size: int) -> Mapping | None:
        """A buffer for a segment's file; ``None`` when all are in use.

        A used one still has its old bytes: only what was appended to it may be committed.
        """
        with self._mutex:
            if self._free:
                buffer = self._free.pop()
                buffer.path = path
                return buffer
            if not self._left:
                return None
            self._left -= 1
        return Mapping.in_memory(path, size)

    def give_back(self, buffer: Mapping) -> None:
        """Return a buffer whose bytes are all in the file."""
        with self._mutex:
            self._free.append(buffer)
