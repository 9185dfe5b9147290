"""Dispatch of many small appends at once: calls cost the same for ten records as for thousands."""

from __future__ import annotations

import threading

from rmqlog.writer.dispatch import DispatchBatch, Dispatcher, join_batches

#: So many records wait at the most; from there on more of them gain nothing.
_WAITING_COUNT_MAX = 8192


class DispatchBacklog:
    """Collects the records of appends and dispatches them together, in the order of the log.

    Threads may share it. Readers take what is not dispatched yet from the log itself, as they do
    after a crash.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._waiting: list[DispatchBatch] = []
        self._waiting_count = 0
        self._failure: BaseException | None = None
        self._mutex = threading.Lock()

    def submit(self, batch: DispatchBatch) -> None:
        """Dispatch a batch now or with later ones."""
        with self._mutex:
            self.check()
            if not len(batch):
                return
            self._waiting.append(batch)
            self._waiting_count += len(batch)
            if self._waiting_count >= _WAITING_COUNT_MAX:
                self._dispatch()

    def drain(self) -> None:
        """Return when everything that was submitted is dispatched."""
        with self._mutex:
            self.check()
            self._dispatch()

    def check(self) -> None:
        """Raise what went wrong: after a failure nothing more is dispatched."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """There is no thread to end."""

    def _dispatch(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_count = self._waiting, [], 0
        try:
            self._dispatcher.dispatch(join_batches(waiting))
        except BaseException as error:
            self._failure = error
            raise
