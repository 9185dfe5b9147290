"""Open writers are closed when the process ends: at exit, and on SIGTERM."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

_EXIT_STATUS = 128 + signal.SIGTERM


class Closeable(Protocol):
    """What can be closed, twice too."""

    def close(self) -> None:
        """Bring everything into order."""


class _OpenWriters:
    """The writers of this process. The signal arrives in the main thread between any two steps,
    so while a writer changes its files there it only takes note, and the exit comes after."""

    def __init__(self) -> None:
        self._writers: weakref.WeakSet[Closeable] = weakref.WeakSet()
        self._pid = os.getpid()
        self._busy = 0
        self._is_pending = False

    def add(self, writer: Closeable) -> None:
        if os.getpid() != self._pid:  # a fork inherits the writers, but they are not its own
            self._writers = weakref.WeakSet()
            self._pid = os.getpid()
        self._writers.add(writer)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_signal)

    def remove(self, writer: Closeable) -> None:
        """Forget a writer that is closed; with the last one the signal is the process's again."""
        self._writers.discard(writer)
        is_main = threading.current_thread() is threading.main_thread()
        is_ours = signal.getsignal(signal.SIGTERM) == self._on_signal
        if is_main and is_ours and not self._writers:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Within it, SIGTERM waits."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals are handled in the main thread only
            return
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            if self._is_pending and not self._busy:
                self._is_pending = False
                raise SystemExit(_EXIT_STATUS)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._busy:
            self._is_pending = True
        else:
            raise SystemExit(_EXIT_STATUS)

    def close_all(self) -> None:
        if os.getpid() == self._pid:
            for writer in list(self._writers):
                writer.close()


open_writers = _OpenWriters()
atexit.register(open_writers.close_all)
