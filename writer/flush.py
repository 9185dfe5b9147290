"""When bytes go to disk: by interval and pages, or at once for everybody who waits.

The broker's policies (FlushRealTimeService, GroupCommitService, CommitRealTimeService,
FlushConsumeQueueService). Asynchronous: what is appended is on disk within the thorough
interval. Synchronous: an append waits, and all that wait share one fsync.

A failed sync is never repeated. Everybody who waits, and everybody who comes later, gets
``CommitStateUnknownError``; the next open of the store finds out what is there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Protocol

from rmqlog.commitlog_format.checkpoint import Checkpoint
from rmqlog.commitlog_format.errors import FlushTimeoutError, StoreError
from rmqlog.writer.posix import Posix
from rmqlog.writer.segments import LogPositions
from rmqlog.writer.settings import StoreSettings

_PAGE_SIZE = 4096
#: A flush that takes longer than this is logged and counted, as the broker does.
SLOW_FLUSH_MS = 500

logger = logging.getLogger(__name__)


class Flushable(Protocol):
    """What a store offers to be flushed; each method may be called from another thread."""

    def positions(self) -> LogPositions:
        """How far the log is written, committed and flushed."""

    def commit_log(self) -> None:
        """Write what only the transient store pool holds to the log's files."""

    def flush_log(self) -> None:
        """Sync the log, names of new segments included, up to what is committed now."""

    def flush_queues(self, least_pages: int) -> None:
        """Sync the queues that have so many dirty pages (0: every dirty one), and the index."""

    def write_checkpoint(self) -> None:
        """Note in ``checkpoint`` what has been flushed."""


class Pace:
    """Says when a step is due: enough dirty pages, or anything dirty since too long a time."""

    def __init__(self, least_pages: int, thorough_interval_ms: int, now_ms: float) -> None:
        self.least_pages = least_pages
        self.thorough_interval_ms = thorough_interval_ms
        self._last_ms = now_ms

    def is_due(self, done: int, wanted: int, now_ms: float) -> bool:
        """Whether bytes from ``done`` to ``wanted`` are to be dealt with now."""
        if done >= wanted:
            return False
        pages = wanted // _PAGE_SIZE - done // _PAGE_SIZE
        if pages < self.least_pages and not self.is_thorough(now_ms):
            return False
        self._last_ms = now_ms
        return True

    def is_thorough(self, now_ms: float) -> bool:
        """Whether the last time is so long ago that pages do not matter."""
        return now_ms >= self._last_ms + self.thorough_interval_ms


class LogFlusher:
    """Commits and flushes the log in the background, and at once for those who wait.

    Without :meth:`start` there is no thread: :meth:`flush` does it in the caller's.
    """

    def __init__(
        self,
        store: Flushable,
        settings: StoreSettings,
        observe: Callable[[float], None] | None = None,
    ) -> None:
        """``observe`` is told how many milliseconds each flush took."""
        now_ms = _now_ms()
        self._store = store
        self._settings = settings
        self._observe = observe
        self._flush_pace = Pace(
            settings.flushCommitLogLeastPages, settings.flushCommitLogThoroughInterval, now_ms
        )
        self._commit_pace = Pace(
            settings.commitCommitLogLeastPages, settings.commitCommitLogThoroughInterval, now_ms
        )
        self._flush_next_ms = now_ms + settings.flushIntervalCommitLog
        self._condition = threading.Condition()
        self._flushing = threading.Lock()
        self._waiting: list[tuple[int, Future[int]]] = []
        self._failure: StoreError | None = None
        self._worker = _Worker(
            "rmqlog-flush-log", self._condition, lambda: bool(self._waiting), self._step
        )

    def start(self) -> None:
        """Start the background thread."""
        self._worker.start(self._interval_ms() / 1000)

    def stop(self) -> None:
        """Stop the thread; who still waits is served."""
        self._worker.stop()
        if self._waiting:
            self._step()

    def check(self) -> None:
        """Raise what went wrong in the background."""
        if self._failure is not None:
            raise self._failure

    def request(self, offset: int) -> Future[int]:
        """A future that is done when the log is on disk up to a physical offset."""
        self.check()
        future: Future[int] = Future()
        if offset <= self._store.positions().flushed:
            future.set_result(offset)
            return future
        with self._condition:
            self._waiting.append((offset, future))
            self._condition.notify()
        if not self._worker.is_running:
            self._step()
        return future

    def wait(self, offset: int) -> None:
        """Return when the log is on disk up to an offset; ``FlushTimeoutError`` after too long.

        After a timeout the bytes are in the log and may yet reach the disk.
        """
        future = self.request(offset)
        try:
            future.result(self._settings.syncFlushTimeout / 1000)
        except FutureTimeoutError:
            raise FlushTimeoutError(
                f"the log was not flushed within {self._settings.syncFlushTimeout} ms "
                "(syncFlushTimeout)", offset=offset, found=self._store.positions().flushed,
            ) from None

    def flush(self) -> None:
        """Commit and flush everything that is written now, in this thread."""
        self.check()
        try:
            self._flush_now()
        except StoreError as error:
            self._fail(error)
            raise

    def _interval_ms(self) -> int:
        interval_ms = self._settings.flushIntervalCommitLog
        if self._settings.transientStorePoolEnable:
            return min(interval_ms, self._settings.commitIntervalCommitLog)
        return interval_ms

    def _step(self) -> None:
        """One turn of the background thread."""
        with self._condition:
            waiting, self._waiting = self._waiting, []
        try:
            if waiting:
                self._flush_now()
            elif self._failure is None:
                self._flush_if_due(_now_ms())
        except StoreError as error:
            self._fail(error)
            for _, future in waiting:
                future.set_exception(error)
            return
        flushed = self._store.positions().flushed
        for offset, future in waiting:
            assert offset <= flushed
            future.set_result(flushed)

    def _flush_if_due(self, now_ms: float) -> None:
        at = self._store.positions()
        if self._commit_pace.is_due(at.committed, at.written, now_ms):
            self._store.commit_log()
        if now_ms >= self._flush_next_ms:
            self._flush_next_ms = now_ms + self._settings.flushIntervalCommitLog
            if self._flush_pace.is_due(at.flushed, at.written, now_ms):
                self._flush_now()

    def _flush_now(self) -> None:
        begin_ms = _now_ms()
        with self._flushing:
            self._store.commit_log()
            self._store.flush_log()
        took_ms = _now_ms() - begin_ms
        if took_ms > SLOW_FLUSH_MS:
            logger.warning("flushing the log took %.0f ms", took_ms)
        if self._observe is not None:
            self._observe(took_ms)

    def _fail(self, error: StoreError) -> None:
        """Let everybody who waits or comes later know; the first failure stays."""
        logger.error("the log cannot be flushed: %s", error)
        with self._condition:
            self._failure = self._failure or error
            waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            future.set_exception(self._failure)


class QueueFlusher:
    """Flushes queues, index and checkpoint in the background, on their own interval."""

    def __init__(self, store: Flushable, settings: StoreSettings) -> None:
        self._store = store
        self._interval_ms = settings.flushIntervalConsumeQueue
        self._least_pages = settings.flushConsumeQueueLeastPages
        self._thorough_interval_ms = settings.flushConsumeQueueThoroughInterval
        self._thorough_last_ms = _now_ms()
        self._failure: StoreError | None = None
        self._worker = _Worker(
            "rmqlog-flush-queues", threading.Condition(), lambda: False, self._step
        )

    def start(self) -> None:
        """Start the background thread."""
        self._worker.start(self._interval_ms / 1000)

    def stop(self) -> None:
        """Stop the thread."""
        self._worker.stop()

    def check(self) -> None:
        """Raise what went wrong in the background."""
        if self._failure is not None:
            raise self._failure

    def _step(self) -> None:
        if self._failure is not None:
            return
        now_ms = _now_ms()
        is_thorough = now_ms >= self._thorough_last_ms + self._thorough_interval_ms
        if is_thorough:
            self._thorough_last_ms = now_ms
        try:
            self._store.flush_queues(0 if is_thorough else self._least_pages)
            self._store.write_checkpoint()
        except StoreError as error:
            logger.error("the queues cannot be flushed: %s", error)
            self._failure = error


class CheckpointFile:
    """``checkpoint``, written in place: its fields lie in one sector, so none is ever torn."""

    def __init__(self, posix: Posix, path: str) -> None:
        self._posix = posix
        self._path = path
        self.written: Checkpoint | None = None

    def write(self, checkpoint: Checkpoint) -> None:
        """Put a checkpoint on disk, unless it is there already.

        Only call it with times whose messages, and whose queue units, are on disk.
        """
        if checkpoint == self.written:
            return
        descriptor = self._posix.open(self._path, create=True)
        try:
            self._posix.pwrite(descriptor, checkpoint.encode(), 0)
            self._posix.fsync(descriptor)
        finally:
            self._posix.close(descriptor)
        self.written = checkpoint


class _Worker:
    """A thread that takes a step whenever there is work, and after each interval."""

    def __init__(
        self,
        name: str,
        condition: threading.Condition,
        has_work: Callable[[], bool],
        step: Callable[[], None],
    ) -> None:
        """Who makes work notifies the condition."""
        self._name = name
        self._condition = condition
        self._has_work = has_work
        self._step = step
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def start(self, interval_s: float) -> None:
        # A daemon, so that a program that forgets to close the store ends all the same.
        self._thread = threading.Thread(
            target=self._run, args=(interval_s,), name=self._name, daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, interval_s: float) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._has_work() or self._stopping, interval_s)
            if self._stopping:
                return
            self._step()


def _now_ms() -> float:
    return time.monotonic() * 1000
