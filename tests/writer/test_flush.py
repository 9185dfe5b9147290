"""When bytes go to disk: pace, group commit, and what happens when a sync fails."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
from faults import FaultyPosix, Kind, Plan

from rmqlog.commitlog_format.checkpoint import Checkpoint, decode_checkpoint
from rmqlog.commitlog_format.errors import (
    CommitStateUnknownError,
    FlushTimeoutError,
    StoreError,
)
from rmqlog.writer.flush import CheckpointFile, LogFlusher, Pace, QueueFlusher
from rmqlog.writer.posix import Mapping
from rmqlog.writer.segments import LogPositions
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.transient_store_pool import TransientStorePool

#: Long enough that only those who ask are served.
NEVER_MS = 3_600_000
PAGE = 4096


class RecordedStore:
    """A log of numbers only, which notes what is asked of it and can be held up in a flush."""

    def __init__(self) -> None:
        self.written = self.committed = self.flushed = 0
        self.flush_count = 0
        self.failure: StoreError | None = None
        self.steps: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.wrote_checkpoint = threading.Event()

    def positions(self) -> LogPositions:
        return LogPositions(self.written, self.committed, self.flushed)

    def commit_log(self) -> None:
        self.steps.append("commit")
        self.committed = self.written

    def flush_log(self) -> None:
        self.steps.append("flush")
        self.flush_count += 1
        committed = self.committed
        self.entered.set()
        self.gate.wait()
        if self.failure is not None:
            raise self.failure
        self.flushed = committed

    def flush_queues(self, least_pages: int) -> None:
        self.steps.append(f"queues {least_pages}")
        if self.failure is not None:
            raise self.failure

    def write_checkpoint(self) -> None:
        self.steps.append("checkpoint")
        self.wrote_checkpoint.set()


def settings(**changes: object) -> StoreSettings:
    chosen: dict[str, object] = {"flushIntervalCommitLog": NEVER_MS, **changes}
    return StoreSettings(**chosen)  # type: ignore[arg-type]


UNKNOWN = CommitStateUnknownError("fsync failed", "log", 0, "EIO")


def test_few_dirty_pages_wait_for_the_thorough_interval() -> None:
    pace = Pace(4, 10_000, now_ms=0)

    assert not pace.is_due(0, 0, now_ms=20_000)
    assert not pace.is_due(0, 4 * PAGE - 1, now_ms=9_999)
    assert pace.is_due(0, 4 * PAGE, now_ms=1)
    assert not pace.is_due(4 * PAGE, 4 * PAGE + 1, now_ms=10_000)
    assert pace.is_due(4 * PAGE, 4 * PAGE + 1, now_ms=10_001)


def test_a_future_is_done_when_its_bytes_are_flushed() -> None:
    store = RecordedStore()
    flusher = LogFlusher(store, settings())
    flusher.start()
    store.written = 100

    flushed = flusher.request(100).result()

    assert flushed == 100
    assert store.steps == ["commit", "flush"]
    assert flusher.request(50).done()
    flusher.stop()


def test_sixty_four_who_wait_share_at_most_four_flushes() -> None:
    store = RecordedStore()
    store.gate.clear()
    flusher = LogFlusher(store, settings())
    flusher.start()
    appended = threading.Semaphore(0)
    append = threading.Lock()

    def append_and_wait() -> None:
        with append:
            store.written += 10
            end = store.written
        future = flusher.request(end)
        appended.release()
        future.result()
        assert store.flushed >= end

    threads = [threading.Thread(target=append_and_wait) for _ in range(64)]
    for thread in threads:
        thread.start()
    for _ in threads:
        appended.acquire()
    store.gate.set()
    for thread in threads:
        thread.join()
    flusher.stop()

    assert store.flushed == 640
    assert store.flush_count <= 4


def test_who_waits_gets_the_error_of_a_failed_flush_and_it_is_not_repeated() -> None:
    store = RecordedStore()
    store.failure = UNKNOWN
    flusher = LogFlusher(store, settings())
    flusher.start()
    store.written = 10

    with pytest.raises(CommitStateUnknownError):
        flusher.wait(10)
    with pytest.raises(CommitStateUnknownError):
        flusher.wait(10)
    with pytest.raises(CommitStateUnknownError):
        flusher.flush()
    flusher.stop()

    assert store.flush_count == 1


def test_a_failure_reaches_those_who_came_while_it_happened() -> None:
    store = RecordedStore()
    store.gate.clear()
    store.failure = UNKNOWN
    flusher = LogFlusher(store, settings())
    flusher.start()
    store.written = 20
    futures: list[Future[int]] = [flusher.request(10)]
    store.entered.wait()
    futures.append(flusher.request(20))

    store.gate.set()
    errors = [future.exception() for future in futures]
    flusher.stop()

    assert errors == [UNKNOWN, UNKNOWN]
    assert store.flush_count == 1


def test_a_wait_that_takes_too_long_says_so() -> None:
    store = RecordedStore()
    store.gate.clear()
    flusher = LogFlusher(store, settings(syncFlushTimeout=1))
    flusher.start()
    store.written = 10

    with pytest.raises(FlushTimeoutError, match="syncFlushTimeout"):
        flusher.wait(10)

    store.gate.set()
    flusher.stop()


def test_without_a_thread_who_waits_flushes_himself() -> None:
    store = RecordedStore()
    flusher = LogFlusher(store, settings())
    store.written = 10

    flusher.wait(10)

    assert store.flushed == 10


def test_the_background_thread_flushes_what_nobody_waits_for() -> None:
    store = RecordedStore()
    took: list[float] = []
    flusher = LogFlusher(
        store,
        settings(flushIntervalCommitLog=1, flushCommitLogThoroughInterval=1),
        observe=took.append,
    )
    store.written = 1
    flusher.start()

    assert store.entered.wait(60)
    flusher.stop()

    assert store.flushed == 1
    assert len(took) == store.flush_count


def test_queues_are_flushed_before_the_checkpoint_vouches_for_them() -> None:
    store = RecordedStore()
    flusher = QueueFlusher(store, settings(flushIntervalConsumeQueue=1))
    flusher.start()

    assert store.wrote_checkpoint.wait(60)
    flusher.stop()
    flusher.check()

    assert store.steps[:2] == ["queues 2", "checkpoint"]


def test_a_failed_flush_of_queues_is_reported_and_not_repeated() -> None:
    store = RecordedStore()
    store.failure = UNKNOWN
    flusher = QueueFlusher(store, settings(flushConsumeQueueThoroughInterval=0))

    flusher._step()
    flusher._step()

    with pytest.raises(CommitStateUnknownError):
        flusher.check()
    assert store.steps == ["queues 0"]


def test_the_checkpoint_is_written_once_for_each_change(tmp_path: Path) -> None:
    posix = FaultyPosix()
    path = tmp_path / "checkpoint"
    file = CheckpointFile(posix, str(path))
    checkpoint = Checkpoint(1, 2, 3, 4, 5, 6)

    file.write(checkpoint)
    calls = len(posix.calls)
    file.write(checkpoint)

    assert decode_checkpoint(path.read_bytes()) == checkpoint
    assert path.stat().st_size == 4096
    assert len(posix.calls) == calls
    assert posix.calls[-1][0] == "fsync"


def test_a_checkpoint_whose_sync_failed_is_not_taken_for_written(tmp_path: Path) -> None:
    posix = FaultyPosix(Plan(Kind.ERROR, 1, errno.EIO, only=frozenset({"fsync"})))
    file = CheckpointFile(posix, str(tmp_path / "checkpoint"))

    with pytest.raises(CommitStateUnknownError):
        file.write(Checkpoint(1))

    assert file.written is None


def test_the_pool_lends_so_many_buffers_and_takes_them_back() -> None:
    pool = TransientStorePool(2)
    first, second = pool.borrow("a", PAGE), pool.borrow("b", PAGE)

    assert isinstance(first, Mapping)
    assert second is not None
    assert pool.borrow("c", PAGE) is None
    pool.give_back(first)
    again = pool.borrow("c", PAGE)
    assert again is first
    assert again.path == "c"
