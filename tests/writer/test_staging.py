"""Staging: rows are checked and encoded, nothing of the store is touched, bad files are refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from small_stores import SMALL, batch, files_below, open_writer, rows_of
from staged_jobs import stage

from rmqlog.commitlog_format.errors import (
    CommitFailedError,
    CorruptStagingError,
    RuleViolationError,
    StoreError,
    WriteFailedError,
)
from rmqlog.commitlog_format.hashing import java_hash
from rmqlog.commitlog_format.store import Store
from rmqlog.writer import staged_files
from rmqlog.writer.batch_write import commit_job
from rmqlog.writer.posix import Posix
from rmqlog.writer.staged_files import StagedBatch, StagedFileReader
from rmqlog.writer.staging import STAGING_AGE_S, StagingPlan, StagingWriter, sweep_staging


def read(path: Path) -> list[StagedBatch]:
    """The batches of a staged file."""
    return list(StagedFileReader(str(path)).batches())


def test_staging_touches_nothing_but_its_own_folder(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(5))
    folders = ("commitlog", "consumequeue", "index", "config")
    before = list(files_below(tmp_path, *folders))

    staged = stage(tmp_path, [[batch(3)], [batch(4)]])

    assert list(files_below(tmp_path, *folders)) == before
    assert sorted(os.listdir(staged.folder)) == ["0-0", "0-0.0", "1-0", "1-0.0"]
    assert staged.row_count == 7
    assert sum(staged.counts.values()) == 7


def test_an_attempt_that_fails_leaves_no_file(tmp_path: Path) -> None:
    plan = StagingPlan(str(tmp_path), "job", SMALL)
    plan.make_folder(Posix())

    def attempt() -> None:
        with StagingWriter(plan, 0, 7) as staging:
            staging.add(batch(3))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        attempt()

    assert os.listdir(plan.folder) == []


def test_an_attempt_that_begins_after_the_sweep_leaves_nothing(tmp_path: Path) -> None:
    plan = StagingPlan(str(tmp_path), "job", SMALL)
    plan.make_folder(Posix())
    sweep_staging(Posix(), str(tmp_path), "job")

    with pytest.raises(WriteFailedError, match="No such file"):
        StagingWriter(plan, 0, 0)

    assert os.listdir(tmp_path / "rmqlog" / "staging") == []


def test_an_attempt_whose_job_is_swept_meanwhile_fails(tmp_path: Path) -> None:
    plan = StagingPlan(str(tmp_path), "job", SMALL)
    plan.make_folder(Posix())

    with StagingWriter(plan, 0, 0) as staging:
        staging.add(batch(3))
        sweep_staging(Posix(), str(tmp_path), "job")
        with pytest.raises(StoreError):
            staging.finish()

    assert os.listdir(tmp_path / "rmqlog" / "staging") == []


def test_a_row_that_breaks_a_rule_is_named_by_its_place_in_the_partition(tmp_path: Path) -> None:
    bad = batch(3, 10, keys=["fine", "a\x01b", "fine"])

    with pytest.raises(RuleViolationError) as raised:
        stage(tmp_path, [[batch(4)], [batch(4), bad]])

    assert (raised.value.partition, raised.value.row) == (1, 5)
    assert str(raised.value).startswith("row 5 of partition 1 breaks a rule: ")
    assert "0x01" in raised.value.rule


def test_rows_without_a_queue_are_dealt_out_in_turn_beginning_with_their_partition(
    tmp_path: Path,
) -> None:
    staged = stage(tmp_path, [[batch(4)], [batch(2)], []], topic="t", queue_nums=3)
    commit_job(str(tmp_path), staged, SMALL)

    assert [row["queueId"] for row in rows_of(tmp_path, "t")] == [0, 1, 2, 0, 1, 2]


def test_a_column_may_choose_the_queue_by_its_hash(tmp_path: Path) -> None:
    users = ["ann", "bob", None, "ann", "cid"]
    rows = batch(5, queueId=pa.array([None, None, None, 3, None], pa.int32()), user=users)
    staged = stage(tmp_path, [[rows]], topic="t", queue_by="user", queue_nums=4)
    commit_job(str(tmp_path), staged, SMALL)

    found = [row["queueId"] for row in rows_of(tmp_path, "t")]

    ann, bob, cid = (abs(java_hash(user)) % 4 for user in ("ann", "bob", "cid"))
    assert found == [ann, bob, 0, 3, cid]


def test_only_long_bodies_are_compressed(tmp_path: Path) -> None:
    bodies = [b"x" * 99, b"y" * 100, b"z" * 5000]
    rows = batch(3, body=bodies)
    staged = stage(
        tmp_path, [[rows]], topic="t", compression="zstd", compression_threshold=100
    )
    commit_job(str(tmp_path), staged, SMALL)

    found = rows_of(tmp_path, "t")

    assert [row["body"] for row in found] == bodies
    assert [bool(row["sysFlag"] & 1) for row in found] == [False, True, True]


def test_the_option_topic_beats_the_column(tmp_path: Path) -> None:
    staged = stage(tmp_path, [[batch(2, topic="other")]], topic="t")

    assert {queue.topic for queue in staged.counts} == {"t"}


@pytest.mark.parametrize(
    "content",
    [b"x", b"rmq1", os.urandom(500), pickle.dumps({"a": list(range(100))}), b"\0" * 4096],
    ids=["one byte", "magic only", "garbage", "pickle", "zeros"],
)
def test_a_staged_file_that_no_task_wrote_is_refused_and_nothing_happens(
    tmp_path: Path, content: bytes
) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(5))
    staged = stage(tmp_path, [[batch(3)]])
    Path(staged.folder, "0-0").write_bytes(content)

    with pytest.raises(CorruptStagingError):
        read(Path(staged.folder, "0-0"))
    with pytest.raises(CommitFailedError, match="staged"):
        commit_job(str(tmp_path), staged, SMALL)
    assert len(rows_of(tmp_path, "orders")) == 5


def test_every_changed_byte_of_the_columns_is_noticed(tmp_path: Path) -> None:
    staged = stage(tmp_path, [[batch(3)]])
    path = Path(staged.folder, "0-0")
    content = path.read_bytes()

    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 0x5A
        path.write_bytes(changed)
        with pytest.raises(CorruptStagingError):
            read(path)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    staged = stage(tmp_path, [[batch(3)]])
    path = Path(staged.folder, "0-0")
    content = path.read_bytes()

    for size in range(1, len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(CorruptStagingError):
            read(path)


def test_records_that_are_cut_or_gone_fail_the_job_and_nothing_happens(tmp_path: Path) -> None:
    for number, part in enumerate((0.0, 0.5, 0.999, None)):
        staged = stage(tmp_path, [[batch(3)]], f"job-{number}")
        records = Path(staged.folder, "0-0.0")
        if part is None:
            records.unlink()
        else:
            os.truncate(records, int(records.stat().st_size * part))
        with pytest.raises(CommitFailedError, match=r"too short|cannot be read"):
            commit_job(str(tmp_path), staged, SMALL)

    assert not Store(str(tmp_path)).queues


def test_records_are_spread_over_files_that_are_emptied_when_they_were_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_files, "STAGED_RECORDS_SIZE", 1000)
    staged = stage(tmp_path, [[batch(3, 3 * number) for number in range(6)]])
    folder = Path(staged.folder)
    sizes = {name: (folder / name).stat().st_size for name in sorted(os.listdir(folder))}
    assert sum(size for name, size in sizes.items() if name != "0-0") == staged.records_size
    assert len(sizes) > 3
    left = []

    class Watching(Posix):
        def unlink(self, path: str) -> None:
            if path.startswith(f"{staged.folder}/0-0."):
                left.append(os.path.getsize(path))
            super().unlink(path)

    commit_job(str(tmp_path), staged, SMALL, posix=Watching())

    assert left == [0] * (len(sizes) - 1)
    numbers = [int(row["body"].split()[1]) for row in rows_of(tmp_path, "orders")]
    assert sorted(numbers) == list(range(18))


def test_a_sweep_removes_its_own_job_and_those_that_died_long_ago(tmp_path: Path) -> None:
    for job in ("mine", "old", "running"):
        stage(tmp_path, [[batch(1)]], job)
    staging = tmp_path / "rmqlog" / "staging"
    old = os.stat(staging / "old").st_mtime - STAGING_AGE_S - 60
    for path in (*(staging / "old").iterdir(), staging / "old"):
        os.utime(path, (old, old))

    sweep_staging(Posix(), str(tmp_path), "mine")

    assert os.listdir(staging) == ["running"]
