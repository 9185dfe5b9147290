"""The life of a writer: open, append, flush, fail, close, open again."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import FaultyPosix, Kind, Plan
from golden_stores import GoldenStore
from small_stores import SMALL, batch, files_below, open_writer, rows_of

from rmqlog.commitlog_format import compiled
from rmqlog.commitlog_format.checkpoint import read_checkpoint
from rmqlog.commitlog_format.compiled import Loading
from rmqlog.commitlog_format.errors import (
    InvalidSettingError,
    RuleViolationError,
    StoreLockedError,
    UnsupportedFormatError,
    WriteFailedError,
    WriterClosedError,
)
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.posix import Call, Posix
from rmqlog.writer.settings import FlushDiskType
from rmqlog.writer.store_writer import NewMessage, StoreWriter

#: Run in a process of its own: opens a store, appends, says so, and waits for its end.
VICTIM = """
import sys, time
import pyarrow as pa
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.store_writer import StoreWriter

settings = StoreSettings(mappedFileSizeCommitLog=65536, mappedFileSizeConsumeQueue=2000,
                         maxHashSlotNum=50, maxIndexNum=200)
{open}
rows = pa.RecordBatch.from_pydict({{"topic": ["t"] * 10, "body": [b"x"] * 10}})
writer.append(rows)
print("ready", flush=True)
{then}
"""


class NoSpace(Posix):
    """A disk on which nothing more can be reserved once it is ``full``."""

    full = False

    def _perform(self, call, action):  # type: ignore[no-untyped-def]
        if self.full and call.name == "allocate":
            raise OSError(28, "No space left on device")
        return super()._perform(call, action)


def test_a_store_is_closed_as_a_broker_closes_it(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(20))
        assert (tmp_path / "abort").exists()

    assert not (tmp_path / "abort").exists()
    checkpoint = read_checkpoint(LocalFiles(), str(tmp_path))
    assert checkpoint.physic_msg_timestamp == checkpoint.logics_msg_timestamp > 0
    topics = json.loads((tmp_path / "config" / "topics.json").read_text())
    assert topics["topicConfigTable"]["orders"]["perm"] == 6
    assert topics["topicConfigTable"]["orders"]["readQueueNums"] == 4
    assert Store(str(tmp_path)).log_end.reason is None


def test_a_writer_asks_for_compiled_loops_at_four_million_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = Loading()
    loading.row_count = 4_000_000 - 30
    monkeypatch.setattr(compiled, "_loading", loading)
    with open_writer(tmp_path) as writer:
        writer.append(batch(20))
        assert not loading.is_worthwhile
        writer.append(batch(10))
        assert loading.is_worthwhile


def test_opening_and_closing_a_store_changes_no_message(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(100))
    before = dict(files_below(tmp_path, "commitlog", "consumequeue", "index", "config"))

    with open_writer(tmp_path) as writer:
        assert writer.recovery.was_clean

    assert dict(files_below(tmp_path, "commitlog", "consumequeue", "index", "config")) == before


def test_without_settings_the_files_of_the_store_tell_them(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(30))

    with StoreWriter(tmp_path, background=False) as writer:
        assert writer.settings.mappedFileSizeCommitLog == SMALL.mappedFileSizeCommitLog
        assert writer.settings.mappedFileSizeConsumeQueue == SMALL.mappedFileSizeConsumeQueue
        assert writer.settings.maxHashSlotNum == SMALL.maxHashSlotNum
        assert writer.settings.maxIndexNum == SMALL.maxIndexNum


@pytest.mark.parametrize(
    "changes",
    [
        {"mappedFileSizeCommitLog": 32 * 1024},
        {"mappedFileSizeConsumeQueue": 400},
        {"maxHashSlotNum": 21},
        {"maxIndexNum": 81},
    ],
)
def test_settings_that_differ_from_the_files_are_refused_and_change_nothing(
    tmp_path: Path, changes: dict[str, int]
) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(30))
    before = dict(files_below(tmp_path, "commitlog", "consumequeue", "index"))

    with pytest.raises(InvalidSettingError):
        open_writer(tmp_path, SMALL.with_changes(**changes))

    assert dict(files_below(tmp_path, "commitlog", "consumequeue", "index")) == before
    with open_writer(tmp_path):
        pass


def test_a_second_writer_is_told_who_the_first_one_is(tmp_path: Path) -> None:
    with open_writer(tmp_path), pytest.raises(StoreLockedError, match=str(os.getpid())):
        open_writer(tmp_path)


def test_after_close_nothing_can_be_appended_and_closing_again_is_fine(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.close()
    writer.close()

    with pytest.raises(WriterClosedError):
        writer.append(batch(1))


def test_a_full_disk_refuses_a_batch_before_its_first_byte_and_later_ones_work(
    tmp_path: Path,
) -> None:
    posix = NoSpace()
    with open_writer(tmp_path, posix=posix) as writer:
        writer.append(batch(10))
        end = writer.end
        posix.full = True
        with pytest.raises(WriteFailedError, match="ENOSPC"):
            writer.append(batch(400, 10))
        assert writer.end == end
        posix.full = False
        writer.append(batch(400, 10))

    assert [row["body"] for row in rows_of(tmp_path, "orders")] == batch(410)["body"].to_pylist()


def test_a_write_that_fails_half_way_stops_the_writer_and_the_next_open_recovers(
    tmp_path: Path,
) -> None:
    stores = 0

    class Failing(Posix):
        def _perform(self, call: Call, action):  # type: ignore[no-untyped-def]
            nonlocal stores
            stores += call.name == "store"
            if stores == 60:
                raise OSError(5, "Input/output error")
            return super()._perform(call, action)

    writer = open_writer(tmp_path, posix=Failing())

    def append_many() -> None:
        for first in range(0, 1000, 10):
            writer.append(batch(10, first))

    with pytest.raises(WriteFailedError):
        append_many()
    with pytest.raises(WriterClosedError, match="stopped by an error"):
        writer.append(batch(1))
    writer.close()
    assert (tmp_path / "abort").exists()

    with open_writer(tmp_path) as again:
        assert not again.recovery.was_clean
        again.append(batch(1, 5000))
    bodies = [row["body"] for row in rows_of(tmp_path, "orders")]
    assert bodies[:-1] == batch(len(bodies) - 1)["body"].to_pylist()
    assert bodies[-1] == batch(1, 5000)["body"].to_pylist()[0]


def test_a_failed_sync_is_never_repeated_and_nothing_more_is_written(tmp_path: Path) -> None:
    posix = FaultyPosix()
    writer = open_writer(tmp_path, posix=posix)
    writer.append(batch(5))
    posix.count = 0
    posix.plan = Plan(Kind.ERROR, 1, only=frozenset({"sync"}))

    with pytest.raises(OSError, match="unknown"):
        writer.flush()
    with pytest.raises(OSError, match="unknown"):
        writer.append(batch(5))
    with pytest.raises(OSError, match="unknown"):
        writer.close()

    assert sum(name == "sync" for name, _ in posix.calls) == 1
    with open_writer(tmp_path) as again:
        again.append(batch(1))


def test_in_synchronous_mode_an_append_returns_when_it_is_on_disk(tmp_path: Path) -> None:
    settings = SMALL.with_changes(flushDiskType=FlushDiskType.SYNC_FLUSH)
    with open_writer(tmp_path, settings) as writer:
        result = writer.append(batch(50))
        assert writer.positions().flushed == result.end == writer.end

        later = writer.append(batch(50), wait=False)
        assert writer.when_flushed(later).result(timeout=10) >= later.end


def test_in_asynchronous_mode_positions_show_what_is_not_yet_on_disk(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        result = writer.append(batch(50))
        assert (writer.positions().written, writer.positions().flushed) == (result.end, 0)

        writer.flush()

        assert writer.positions().flushed == result.end


def test_the_transient_pool_keeps_bytes_in_memory_until_they_are_committed(tmp_path: Path) -> None:
    settings = SMALL.with_changes(transientStorePoolEnable=True)
    with open_writer(tmp_path, settings) as writer:
        result = writer.append(batch(300))
        assert writer.positions().committed == 0
        first = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
        assert not any(first)

        writer.commit_log()

        assert writer.positions().committed == result.end
    assert len(rows_of(tmp_path, "orders")) == 300


@pytest.mark.parametrize("in_background", [False, True])
def test_threads_share_a_writer_and_no_message_is_lost_or_mixed_up(
    tmp_path: Path, in_background: bool
) -> None:
    with StoreWriter(tmp_path, SMALL, dispatch_in_background=in_background) as writer:

        def run(number: int) -> None:
            for first in range(0, 60, 6):
                writer.append(batch(6, number * 1000 + first))
                writer.put(NewMessage("single", f"{number}-{first}".encode()))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    rows = rows_of(tmp_path, "orders")
    expected = [body for n in range(4) for body in batch(60, n * 1000)["body"].to_pylist()]
    assert sorted(row["body"] for row in rows) == sorted(expected)
    assert len(rows_of(tmp_path, "single")) == 40
    for key, view in Store(str(tmp_path)).queues.items():
        assert view.max_offset > 0, key


@pytest.mark.parametrize("in_background", [False, True])
def test_queues_and_index_of_many_appends_are_those_built_append_by_append(
    tmp_path: Path, in_background: bool
) -> None:
    keys = [f"u{number}" for number in range(200)]
    topics = [f"t{number * number % 7}" for number in range(200)]

    def write(path: Path, *, one_by_one: bool) -> None:
        in_thread = in_background and not one_by_one
        with open_writer(path, dispatch_in_background=in_thread) as writer:
            for first in range(0, 200, 20):
                rows = slice(first, first + 20)
                writer.append(batch(20, first, topics[rows], uniqKey=keys[rows]))
                if one_by_one:
                    writer.flush()

    one, other = tmp_path / "a", tmp_path / "b"
    write(one, one_by_one=True)
    write(other, one_by_one=False)

    assert dict(files_below(one, "consumequeue")) == dict(files_below(other, "consumequeue"))
    assert [content for _, content in files_below(one, "index")] == [
        content for _, content in files_below(other, "index")
    ]


def test_what_is_not_dispatched_yet_is_read_from_the_log(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(7))

        assert not (tmp_path / "consumequeue").exists()
        assert len(rows_of(tmp_path, "orders")) == 7

        writer.append(batch(9_000, 7))
        assert Store(str(tmp_path)).queue("orders", 0).stop_index > 0


def test_after_a_dispatch_that_failed_nothing_more_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise WriteFailedError("the disk is full")

    writer = open_writer(tmp_path)
    writer.append(batch(7))
    with monkeypatch.context() as patch:
        patch.setattr("rmqlog.writer.dispatch.Dispatcher.dispatch", fail)
        with pytest.raises(WriteFailedError, match="full"):
            writer.flush()

    with pytest.raises(WriteFailedError, match="full"):
        writer.append(batch(7, 7))
    with pytest.raises(WriteFailedError, match="full"):
        writer.close()

    assert (tmp_path / "abort").exists()
    with open_writer(tmp_path):
        pass
    assert len(rows_of(tmp_path, "orders")) == 7


def test_without_an_index_none_is_built(tmp_path: Path) -> None:
    with open_writer(tmp_path, SMALL.with_changes(messageIndexEnable=False)) as writer:
        writer.append(batch(10))

    assert not (tmp_path / "index").exists()


def test_hundreds_of_queues_need_few_descriptors(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    already_open = len(os.listdir("/proc/self/fd"))  # by what ran before in this process
    resource.setrlimit(resource.RLIMIT_NOFILE, (already_open + 90, hard))
    try:
        with open_writer(tmp_path) as writer:
            topics = [f"t{number % 100}" for number in range(300)]
            writer.append(batch(300, 0, topics, queueId=[n // 100 for n in range(300)]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    store = Store(str(tmp_path))
    assert {view.max_offset for view in store.queues.values()} == {1}
    assert len(store.queues) == 300


def test_a_store_whose_log_lies_elsewhere_is_not_written(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(10))
    (tmp_path / "commitlog").rename(tmp_path / "elsewhere")

    with pytest.raises(UnsupportedFormatError, match="storePathCommitLog"):
        open_writer(tmp_path)

    assert any((tmp_path / "consumequeue").rglob("0*"))


def test_a_store_with_batch_queues_is_opened_with_their_file_size(
    tmp_path: Path, golden_store: Callable[[str], GoldenStore]
) -> None:
    shutil.copytree(golden_store("rmq-5.5.0-bcq").path, tmp_path / "store")

    with StoreWriter(tmp_path / "store", background=False) as writer:
        assert writer.settings.mapperFileSizeBatchConsumeQueue == 920
        result = writer.append(batch(3))

    assert len(result) == 3


def test_store_times_do_not_step_back_behind_a_record_of_a_batch_queue(
    tmp_path: Path, golden_store: Callable[[str], GoldenStore]
) -> None:
    shutil.copytree(golden_store("rmq-5.5.0-bcq").path, tmp_path / "store")
    *_, last = Store(str(tmp_path / "store")).scan(["topic", "storeTimestamp"])
    assert last["topic"][-1].as_py() == "bcq"

    with StoreWriter(tmp_path / "store", background=False, now_ms=lambda: 1_000) as writer:
        result = writer.append(batch(1))

    assert result.store_timestamp_ms == last["storeTimestamp"][-1].value // 1000


def test_topics_with_batch_queues_are_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(
        '{"topicConfigTable":{"b":{"attributes":{"queue.type":"BatchCQ"},"perm":6,'
        '"readQueueNums":1,"writeQueueNums":1}}}'
    )
    with open_writer(tmp_path) as writer, pytest.raises(RuleViolationError, match="Batch"):
        writer.append(batch(1, topic="b"))


def test_the_next_segment_is_made_ahead_and_removed_when_it_was_not_needed(
    tmp_path: Path,
) -> None:
    with StoreWriter(tmp_path, SMALL) as writer:
        while writer.end < SMALL.mappedFileSizeCommitLog * 3 // 4:
            writer.append(batch(10))
        ahead = tmp_path / "commitlog" / f"{SMALL.mappedFileSizeCommitLog:020d}"
        for _ in range(1000):
            if ahead.exists():
                break
            threading.Event().wait(0.01)
        assert ahead.stat().st_size == SMALL.mappedFileSizeCommitLog

    assert not ahead.exists()


def test_statistics_count_messages_and_bytes_by_topic(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        result = writer.append(batch(4, 0, ["a", "b", "a", "a"]))
        writer.flush()
        found = writer.statistics.snapshot()

    assert found.messages_by_topic == {"a": 3, "b": 1}
    assert found.messages == 4
    assert found.bytes == int(result.store_size.sum()) == result.end
    assert found.flushes == 1
    assert found.batches == 1


def run_victim(tmp_path: Path, opening: str, then: str) -> subprocess.Popen[str]:
    program = VICTIM.format(open=opening.format(path=str(tmp_path)), then=then)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    ("then", "signal_number", "status"),
    [
        ("while True: writer.append(rows)", signal.SIGTERM, 143),
        ("time.sleep(100)", signal.SIGTERM, 143),
        ("sys.exit(3)", None, 3),
        ("raise RuntimeError('the program fails')", None, 1),
    ],
    ids=["SIGTERM while appending", "SIGTERM while idle", "exit", "error"],
)
def test_a_writer_that_nobody_closed_is_closed_when_its_process_ends(
    tmp_path: Path, then: str, signal_number: int | None, status: int
) -> None:
    process = run_victim(tmp_path, "writer = StoreWriter({path!r}, settings)", then)
    if signal_number is not None:
        process.send_signal(signal_number)

    assert process.wait(60) == status
    process.stdout.close()  # type: ignore[union-attr]
    assert not (tmp_path / "abort").exists()
    with StoreWriter(tmp_path, background=False) as writer:
        assert writer.recovery.was_clean
        assert writer.recovery.cuts == ()


def test_a_forked_child_does_not_close_its_parents_store(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(1))
        child = os.fork()
        if child == 0:
            writer.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert (tmp_path / "abort").exists()
        writer.append(batch(1))
