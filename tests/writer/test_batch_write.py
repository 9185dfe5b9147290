"""The commit of a batch write: the bytes of an append, all or nothing, once."""

from __future__ import annotations

import logging
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from small_stores import SMALL, START_MS, Clock, batch, files_below, open_writer, rows_of
from staged_jobs import stage

from rmqlog.commitlog_format.errors import (
    CommitFailedError,
    CommitStateUnknownError,
    CorruptConfigError,
)
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.commitlog_format.verify import verify_store
from rmqlog.writer.batch_write import abort_job, commit_job, is_committed
from rmqlog.writer.commit_manifest import CommitManifest
from rmqlog.writer.commit_records import CommitRecords, JobId, Transaction
from rmqlog.writer.log_files import LogFiles
from rmqlog.writer.posix import Posix
from rmqlog.writer.settings import StoreSettings

pytestmark = pytest.mark.usefixtures("loops")
FOLDERS = ("commitlog", "consumequeue", "index")


def complete(count: int, first: int = 0, **columns: object) -> pa.RecordBatch:
    """Messages that leave nothing to chance."""
    numbers = range(first, first + count)
    return batch(
        count, first,
        queueId=pa.array([number % 3 for number in numbers], pa.int32()),
        uniqKey=[f"{number:032X}" for number in numbers],
        bornTimestamp=pa.array(
            [None if number % 2 else START_MS - number for number in numbers], pa.int64()
        ),
        bornHost=["10.0.0.1:80" if number % 4 else "[::1]:80" for number in numbers],
        **columns,
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"], ids=["IPv4", "IPv6"])
def test_a_committed_job_has_the_very_bytes_of_an_append(tmp_path: Path, host: str) -> None:
    settings = SMALL.with_changes(brokerIP1=host)
    staged_path, appended_path = tmp_path / "staged", tmp_path / "appended"
    delays = pa.array([0, 3, 0, 0, 18] * 8, pa.int32())
    parts = [complete(90), complete(40, 90, delayLevel=delays), complete(70, 130)]
    for path in (staged_path, appended_path):
        with open_writer(path, settings) as writer:
            writer.append(complete(7, 1000))
    staged = stage(staged_path, [parts[:1], [], parts[1:]], settings=settings)

    result = commit_job(str(staged_path), staged, settings, now_ms=Clock())

    with open_writer(appended_path, settings) as writer:
        for part in parts:
            writer.append(part)
        assert result.end == writer.end
    # Index files are named by the time at which they are made.
    for folder in FOLDERS:
        ours = [content for _, content in files_below(staged_path, folder)]
        assert ours == [content for _, content in files_below(appended_path, folder)], folder
    assert result.row_count == 200
    found = [list(verify_store(Store(str(path)))) for path in (staged_path, appended_path)]
    assert found[0] == found[1]
    assert not [each for each in found[0] if each.area != "config"]
    assert not (staged_path / "abort").exists()


def test_a_long_commit_says_how_it_gets_on_and_another_is_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    commit_job(str(tmp_path), stage(tmp_path, [[batch(30)]]), SMALL)
    assert caplog.messages == []

    for module in ("commit", "batch_write"):
        monkeypatch.setattr(f"rmqlog.writer.{module}.LONG_COMMIT_S", 0.0)
    staged = stage(tmp_path, [[batch(30)], [batch(20, 30)]], "2", Transaction("etl", 7))
    commit_job(str(tmp_path), staged, SMALL)
    commit_job(str(tmp_path), staged, SMALL)

    size = staged.records_size
    *copied, committed, done_before = caplog.messages
    progress = rf"{tmp_path}: copied (\d+) of {size} bytes, \d+ MiB/s"
    found = [re.fullmatch(progress, line) for line in copied]
    sizes = [int(match[1]) for match in found if match]
    assert len(sizes) == len(copied) > 1
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == size
    assert re.fullmatch(
        rf"{tmp_path}: committed 50 messages, {size} bytes, in \S+ s \(\d+ MiB/s\)", committed
    )
    assert done_before == (
        f"{tmp_path}: job 2 (etl 7) was committed before; nothing was written"
    )


def test_all_rows_carry_one_time_not_before_the_last_one_in_the_store(tmp_path: Path) -> None:
    with open_writer(tmp_path, now_ms=Clock(START_MS + 5000)) as writer:
        writer.append(batch(2))

    commit_job(str(tmp_path), stage(tmp_path, [[batch(3, 2)]]), SMALL, now_ms=Clock(START_MS))

    times = {row["storeTimestamp"] for row in rows_of(tmp_path, "orders")}
    assert len(times) == 1


def test_rows_keep_their_order_within_a_queue_partition_after_partition(tmp_path: Path) -> None:
    partitions = [[batch(30), batch(20, 30)], [batch(40, 50)], [batch(10, 90)]]
    commit_job(str(tmp_path), stage(tmp_path, partitions), SMALL)

    rows = rows_of(tmp_path, "orders")

    numbers = [int(row["body"].split()[1]) for row in rows]
    assert numbers == list(range(100))
    for queue_id in range(4):
        offsets = [row["queueOffset"] for row in rows if row["queueId"] == queue_id]
        assert offsets == list(range(25))


def test_a_new_topic_is_known_to_brokers_with_all_its_queues(tmp_path: Path) -> None:
    settings = SMALL.with_changes(defaultTopicQueueNums=6)
    delayed = batch(2, delayLevel=pa.array([1, 2], pa.int32()))
    staged = stage(tmp_path, [[delayed]], topic="new", queue_nums=6, settings=settings)
    commit_job(str(tmp_path), staged, settings)

    with open_writer(tmp_path, settings) as writer:
        assert writer.next_offset("SCHEDULE_TOPIC_XXXX", 0) == 1
    assert Store(str(tmp_path)).config.topics["new"].write_queue_count == 6


def test_a_job_without_rows_changes_no_message(tmp_path: Path) -> None:
    transaction = Transaction("app", 1)
    result = commit_job(
        str(tmp_path), stage(tmp_path, [[], []], transaction=transaction), SMALL
    )

    assert result.row_count == 0
    assert is_committed(str(tmp_path), JobId("other", transaction))


def test_a_version_not_above_the_last_one_is_a_no_op(tmp_path: Path) -> None:
    def write(app: str, version: int) -> bool:
        transaction = Transaction(app, version)
        staged = stage(tmp_path, [[batch(3)]], f"{app}-{version}", transaction)
        return commit_job(str(tmp_path), staged, SMALL).was_done

    assert [write("a", 2), write("a", 2), write("a", 1), write("a", 3), write("b", 1)] == [
        False, True, True, False, False,
    ]
    assert len(rows_of(tmp_path, "orders")) == 9
    assert not list((tmp_path / "rmqlog" / "staging").iterdir())


def test_the_same_job_again_is_a_no_op(tmp_path: Path) -> None:
    commit_job(str(tmp_path), stage(tmp_path, [[batch(3)]], "one"), SMALL)

    assert commit_job(str(tmp_path), stage(tmp_path, [[batch(3)]], "one"), SMALL).was_done
    assert len(rows_of(tmp_path, "orders")) == 3


def test_a_store_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    closing = threading.Timer(0.3, writer.close)
    closing.start()

    commit_job(str(tmp_path), stage(tmp_path, [[batch(3)]]), SMALL, lock_timeout_s=60)

    closing.join()
    assert len(rows_of(tmp_path, "orders")) == 3


def test_a_store_that_stays_locked_is_refused_and_nothing_happens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    staged = stage(tmp_path, [[batch(3)]])

    with (
        open_writer(tmp_path),
        pytest.raises(CommitFailedError, match="written by somebody else"),
    ):
        commit_job(str(tmp_path), staged, SMALL, lock_timeout_s=0.2)

    assert caplog.messages == []  # nothing was copied, so nothing is said to be undone
    assert commit_job(str(tmp_path), staged, SMALL).row_count == 3


def test_abort_removes_what_was_staged_and_a_committed_job_stays(tmp_path: Path) -> None:
    staged = stage(tmp_path, [[batch(3)]])
    abort_job(str(tmp_path), staged.job)
    assert not list((tmp_path / "rmqlog" / "staging").iterdir())
    assert not (tmp_path / "commitlog").exists()

    commit_job(str(tmp_path), stage(tmp_path, [[batch(3)]]), SMALL)
    abort_job(str(tmp_path), staged.job)

    assert len(rows_of(tmp_path, "orders")) == 3


def test_a_commit_that_fails_behind_its_gate_has_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CommitStateUnknownError("the disk is gone")

    monkeypatch.setattr("rmqlog.writer.index_writer.IndexWriter.flush", fail)
    staged = stage(tmp_path, [[batch(3)]], transaction=Transaction("a", 1))

    assert commit_job(str(tmp_path), staged, SMALL).row_count == 3

    monkeypatch.undo()
    assert is_committed(str(tmp_path), staged.job)
    assert len(rows_of(tmp_path, "orders")) == 3
    with open_writer(tmp_path):
        assert CommitManifest.read(str(tmp_path)) is None
    assert not list(verify_store(Store(str(tmp_path))))


def test_staged_bytes_that_were_lost_fail_the_job_and_nothing_happens(tmp_path: Path) -> None:
    staged = stage(tmp_path, [[batch(50)]])
    path = Path(staged.folder) / f"{staged.files[0].name}.0"
    content = bytearray(path.read_bytes())
    content[-2000:-1000] = bytes(1000)
    path.write_bytes(content)

    with pytest.raises(CommitFailedError, match="no record where a staged one begins"):
        commit_job(str(tmp_path), staged, SMALL)

    with open_writer(tmp_path):
        pass
    assert list(Store(str(tmp_path)).topics) == []


def test_a_whole_batch_that_was_lost_fails_the_job(tmp_path: Path) -> None:
    staged = stage(tmp_path, [[batch(20), batch(30, 20)]])
    path = Path(staged.folder) / staged.files[0].name
    (alone,) = stage(tmp_path / "other", [[batch(20)]]).files
    first = (tmp_path / "other/rmqlog/staging/job" / alone.name).read_bytes()
    assert len(first) < path.stat().st_size
    path.write_bytes(path.read_bytes()[: len(first)])

    with pytest.raises(CommitFailedError, match="other rows than its task told; found 20"):
        commit_job(str(tmp_path), staged, SMALL)


def test_a_queue_that_no_task_told_of_fails_the_job(tmp_path: Path) -> None:
    staged = stage(tmp_path, [[batch(20)]])
    wrong = replace(staged.files[0], counts=((QueueKey("orders", 0), 20),))

    with pytest.raises(CommitFailedError, match="other rows than its task told"):
        commit_job(str(tmp_path), replace(staged, files=[wrong]), SMALL)


def test_a_gate_that_may_be_open_is_a_state_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: LogFiles) -> None:
        raise CommitStateUnknownError("the sync of the gate failed")

    monkeypatch.setattr(LogFiles, "open_gate", fail)
    staged = stage(tmp_path, [[batch(3)]])

    with pytest.raises(CommitStateUnknownError):
        commit_job(str(tmp_path), staged, SMALL)


def test_readers_end_the_log_in_front_of_a_job_whose_gate_is_shut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(5))
    seen = []
    open_gate = LogFiles.open_gate

    def look(log: LogFiles) -> None:
        seen.append(len(rows_of(tmp_path, "orders")))
        open_gate(log)
        seen.append(len(rows_of(tmp_path, "orders")))

    monkeypatch.setattr(LogFiles, "open_gate", look)
    commit_job(str(tmp_path), stage(tmp_path, [[batch(100, 5)]]), SMALL)

    assert seen == [5, 105]


def test_a_job_that_a_broker_wrote_over_never_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(5))
        start = writer.end
    staged = stage(tmp_path, [[batch(10, 5)]], transaction=Transaction("a", 1))
    manifest = CommitManifest(staged.job, start, start, b"\1" * 88)
    with open_writer(tmp_path) as writer:
        writer.append(batch(2, 100))
    manifest.write(Posix(), str(tmp_path))

    open_writer(tmp_path).close()

    assert CommitManifest.read(str(tmp_path)) is None
    assert not is_committed(str(tmp_path), staged.job)
    assert len(rows_of(tmp_path, "orders")) == 7


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"job": 1}', '{"job": "a", "startOffset": 0}'])
def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "rmqlog").mkdir()
    (tmp_path / "rmqlog" / "commit.json").write_text(text)

    with pytest.raises(CorruptConfigError, match=r"commit\.json"):
        open_writer(tmp_path)


@pytest.mark.parametrize("text", ['{"transactions": []}', '{"jobs": {}}', "not JSON"])
def test_records_of_commits_that_cannot_be_read_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "rmqlog").mkdir()
    (tmp_path / "rmqlog" / "commits.json").write_text(text)

    with pytest.raises(CorruptConfigError, match=r"commits\.json"):
        CommitRecords(Posix(), str(tmp_path))


def test_sizes_that_differ_from_the_store_are_refused(tmp_path: Path) -> None:
    open_with = StoreSettings(mappedFileSizeCommitLog=32 * 1024)
    with open_writer(tmp_path) as writer:
        writer.append(batch(1))

    with pytest.raises(CommitFailedError, match="mappedFileSizeCommitLog"):
        commit_job(str(tmp_path), stage(tmp_path, [[batch(1)]]), open_with)


def test_two_drivers_with_one_transaction_write_it_once(tmp_path: Path) -> None:
    transaction = Transaction("a", 1)
    jobs = [stage(tmp_path, [[batch(50)]], f"job-{n}", transaction) for n in range(4)]
    done: list[bool] = []

    def drive(number: int) -> None:
        result = commit_job(str(tmp_path), jobs[number], SMALL, lock_timeout_s=60)
        done.append(result.was_done)

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
        time.sleep(0.01)
    for thread in threads:
        thread.join()

    assert sorted(done) == [False, True, True, True]
    assert len(rows_of(tmp_path, "orders")) == 50
