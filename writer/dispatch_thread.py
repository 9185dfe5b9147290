"""Dispatch behind the appends, in a thread of its own, as a broker's ReputMessageService."""

from __future__ import annotations

import logging
import queue
import threading

from rmqlog.commitlog_format.errors import StoreError
from rmqlog.writer.dispatch import DispatchBatch, Dispatcher

logger = logging.getLogger(__name__)

#: So many batches may wait; then appends wait too, and memory stays bounded.
_WAITING_COUNT_MAX = 16


class DispatchThread:
    """Hands batches to a dispatcher one after another, in the order of their appends.

    After a failure nothing more is dispatched: :meth:`check` and :meth:`drain` raise it.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._waiting: queue.Queue[DispatchBatch | None] = queue.Queue(_WAITING_COUNT_MAX)
        self._failure: StoreError | None = None
        self._thread = threading.Thread(target=self._run, name="rmqlog-dispatch", daemon=True)
        self._thread.start()

    def submit(self, batch: DispatchBatch) -> None:
        """Dispatch a batch soon; waits while too many others do."""
        self.check()
        self._waiting.put(batch)

    def drain(self) -> None:
        """Return when everything that was submitted is dispatched."""
        self._waiting.join()
        self.check()

    def check(self) -> None:
        """Raise what went wrong."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Dispatch what waits, then end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            batch = self._waiting.get()
            try:
                if batch is None:
                    return
                if self._failure is None:
                    self._dispatcher.dispatch(batch)
            except StoreError as error:
                logger.error("dispatch stops: %s", error)
                self._failure = error
            finally:
                self._waiting.task_done()
