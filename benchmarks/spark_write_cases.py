"""Writing through Spark: the whole job, the commit alone, growth, and the driver's memory."""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from benchmarks.harness import Case, Measure, Pair, seconds
from benchmarks.messages import BODY_SIZE, TOPIC
from benchmarks.workspace import Workspace
from benchmarks.writer_cases import fill_mapped
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.batch_write import commit_job
from rmqlog.writer.commit import StagedJob
from rmqlog.writer.commit_records import JobId
from rmqlog.writer.posix import Posix
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.staging import StagingPlan, StagingWriter

_PARTITION_COUNT = 4
#: Spark hands a sink batches of so many rows.
_BATCH_ROWS = 10_000
_MEMORY_LIMIT_MIB = 500
#: Whole jobs: Java compiles as it goes, and new memory takes longer to get than what was used;
#: disk and neighbours make single turns differ by a third.
_WARM_UP_TURNS = 6
_TURNS = 15


def random_messages(random: np.random.Generator, first: int, count: int) -> pa.RecordBatch:
    """Messages with bodies that nothing can compress, one key and one tag."""
    bounds = np.arange(count + 1, dtype=np.int32) * BODY_SIZE
    bodies = pa.py_buffer(random.bytes(count * BODY_SIZE))
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict(
        {
            "body": pa.Array.from_buffers(
                pa.binary(), count, [None, pa.py_buffer(bounds), bodies]
            ),
            "keys": pa.array([f"order-{number}" for number in numbers]),
            "tags": pa.array([f"Tag{number % 10}" for number in numbers]),
        }
    )


# --- the whole job --------------------------------------------------------------------------


def _frame(workspace: Workspace, count: int) -> DataFrame:
    """So many messages, from files that Spark reads fast."""

    def build(path: Path) -> None:
        share = count // _PARTITION_COUNT
        for index in range(_PARTITION_COUNT):
            messages = random_messages(workspace.random, index * share, share)
            pq.write_table(pa.table(messages), path / f"{index}.parquet", compression="none")

    path = workspace.make(f"write-input-{count}", build)
    return workspace.spark.read.parquet(str(path))


def _write_store(workspace: Workspace, frame: DataFrame, source: str = "rmqlog") -> Measure:
    def measure() -> float:
        path = str(workspace.fresh("spark-write"))
        writing = frame.write.format(source).option("topic", TOPIC).mode("append")
        return seconds(lambda: writing.save(path))

    return measure


def _digest(frame: DataFrame) -> object:
    """The same for the same rows in any order."""
    hashed = "cast(xxhash64(body, keys, tags) as decimal(38, 0))"
    return frame.selectExpr("count(*)", f"sum({hashed})").first()


def _written(workspace: Workspace) -> DataFrame:
    path = str(workspace.folder / "spark-write")
    return workspace.spark.read.format("rmqlog").option("topic", TOPIC).load(path)


def _against_discard(workspace: Workspace) -> Pair:
    count = workspace.scaled(1_000_000, 200_000)
    frame = _frame(workspace, count)
    # The sink fails unless it got so many rows.
    discarding = frame.write.format("rmqlog_discard").option("rows", count).mode("append")

    def check() -> None:
        assert _digest(_written(workspace)) == _digest(frame)

    return Pair(
        _write_store(workspace, frame), lambda: seconds(discarding.save), check, {"rows": count}
    )


def _against_file_format(kind: str) -> Case:
    def prepare(workspace: Workspace) -> Pair:
        count = workspace.scaled(1_000_000, 200_000)
        frame = _frame(workspace, count)
        name = f"spark-write-{kind}"
        writing = frame.write.format(kind).option("compression", "none").mode("append")

        def measure() -> float:
            # What the turn before wrote is removed in front of the clock, as it is for ours.
            target = str(workspace.fresh(name))
            return seconds(lambda: writing.save(target))

        def check() -> None:
            reader = workspace.spark.read.schema(frame.schema).format(kind)
            theirs = reader.load(str(workspace.folder / name))
            assert _digest(_written(workspace)) == _digest(theirs) == _digest(frame)

        return Pair(_write_store(workspace, frame), measure, check, {"rows": count})

    return Case(
        f"Spark write, whole job, against {kind}",
        f"Spark's {kind} writer, uncompressed, same rows", 1.0, prepare,
        turns=_TURNS, warm_up_turns=_WARM_UP_TURNS,
    )


def _against_python(workspace: Workspace) -> Pair:
    count = workspace.scaled(1_000_000, 200_000)
    frame = _frame(workspace, count)

    def check() -> None:
        assert _digest(_written(workspace)) == _digest(frame)

    return Pair(
        _write_store(workspace, frame), _write_store(workspace, frame, "rmqlog_plain"), check,
        {"rows": count},
    )


def _growth(workspace: Workspace) -> Pair:
    """Seconds for as many rows as the small job has."""
    large = workspace.scaled(5_000_000, 500_000)
    measures = {
        count: _write_store(workspace, _frame(workspace, count)) for count in (large, large // 10)
    }
    return Pair(
        lambda: measures[large]() / 10, measures[large // 10],
        details={"rows": [large // 10, large]},
    )


# --- the commit alone -----------------------------------------------------------------------


def stage(workspace: Workspace, path: Path, count: int) -> StagedJob:
    """What the tasks of a job leave."""
    plan = StagingPlan(str(path), "job", StoreSettings(), topic=TOPIC)
    plan.make_folder(Posix())
    share = count // _PARTITION_COUNT
    files = []
    for partition in range(_PARTITION_COUNT):
        with StagingWriter(plan, partition, 0) as staging:
            for first in range(partition * share, (partition + 1) * share, _BATCH_ROWS):
                staging.add(random_messages(workspace.random, first, _BATCH_ROWS))
            files.append(staging.finish())
    return StagedJob(JobId("job"), plan.folder, files)


def _commit(workspace: Workspace) -> Pair:
    count = workspace.scaled(1_000_000, 200_000)
    size = 0

    def ours() -> float:
        nonlocal size
        path = workspace.fresh("commit")
        staged = stage(workspace, path, count)
        size = staged.records_size
        return seconds(lambda: commit_job(str(path), staged, StoreSettings()))

    def check() -> None:
        store = Store(str(workspace.folder / "commit"))
        assert sum(len(view) for view in store.queues_of(TOPIC)) == count
        # The uniq key, the key and the tag of each message.
        assert sum(file.header.index_count - 1 for file in store.index.files) == 3 * count

    ours()
    return Pair(
        ours, lambda: fill_mapped(workspace.fresh("fill") / "file", size), check,
        {"rows": count, "bytes": size},
    )


def _memory(workspace: Workspace) -> Pair:
    """Not seconds but MiB, so that the ratio is how often it would fit."""
    large = workspace.scaled(5_000_000, 500_000)
    peaks = {}

    def peak(count: int) -> float:
        path = workspace.fresh("commit-memory")
        staged = stage(workspace, path, count)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peaks[count] = pool.apply(_peak_of_commit, (str(path), staged))
        shutil.rmtree(path)
        return peaks[count]

    peak(large // 10)
    return Pair(lambda: peak(large), lambda: _MEMORY_LIMIT_MIB, details={"MiB by rows": peaks})


def _peak_of_commit(path: str, staged: StagedJob) -> float:
    """The most memory in MiB that this process has had, mapped files included."""
    commit_job(path, staged, StoreSettings())
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


CASES = [
    Case("Spark write, whole job", "an Arrow sink that throws the same rows away", 0.6,
         _against_discard, turns=_TURNS, warm_up_turns=_WARM_UP_TURNS),
    _against_file_format("parquet"),
    _against_file_format("json"),
    Case("Spark write, rows staged in Java", "the same rows handed to Python", 1.2,
         _against_python, turns=_TURNS, warm_up_turns=_WARM_UP_TURNS),
    Case("commit of a Spark write, on disk", "numpy fills the same mapped bytes", 0.1, _commit),
    Case("Spark write, ten times the rows, for each row", "the same at a tenth of the rows", 0.9,
         _growth),
    Case("memory of a commit, 5 million rows", f"{_MEMORY_LIMIT_MIB} MiB", 1.0, _memory,
         unit="MiB"),
]
