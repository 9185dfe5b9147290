"""Reading through Spark, against the ceiling of any Python source and Spark's own readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness import Case, Pair, seconds, timed
from benchmarks.messages import TOPIC, small_messages, write_small_store, write_store
from benchmarks.workspace import Workspace
from rmqlog.commitlog_format.store import Store

_PARTITION_COUNT = 4
#: The reference gets the best of these.
_CEILING_BATCH_ROWS = (4_096, 12_288, 32_768)


def run(frame: DataFrame) -> None:
    """Read a whole frame and throw it away."""
    frame.write.format("noop").mode("overwrite").save()


def load(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    """The benchmark topic of a store."""
    wanted = {"topic": TOPIC, "minPartitions": str(_PARTITION_COUNT), **options}
    return spark.read.format("rmqlog").options(**wanted).load(str(path))


def ceiling(workspace: Workspace, name: str, frame: DataFrame, rows: int) -> DataFrame:
    """A frame of as many rows of the same schema as ``frame``, from ready-made batches."""
    spark = workspace.spark
    sample = frame.limit(max(_CEILING_BATCH_ROWS)).toArrow().combine_chunks()
    best: DataFrame | None = None
    best_seconds = float("inf")
    for batch_rows in _CEILING_BATCH_ROWS:
        path = workspace.folder / f"ceiling-{name}-{batch_rows}.arrow"
        (batch,) = sample.slice(0, batch_rows).combine_chunks().to_batches()
        with pa.ipc.new_file(str(path), batch.schema) as file:
            file.write_batch(batch)
        candidate = (
            spark.read.format("rmqlog_ceiling")
            .schema(frame.schema)
            .option("rows", rows)
            .option("partitions", _PARTITION_COUNT)
            .load(str(path))
        )
        run(candidate)
        took = seconds(lambda candidate=candidate: run(candidate))
        if took < best_seconds:
            best, best_seconds = candidate, took
    assert best is not None
    return best


def _warm_up(frame: DataFrame) -> None:
    """Run a frame as often as the candidates for the ceiling ran: until Java has compiled what it
    will, and workers have loaded their compiled loops."""
    for _ in range(2 * len(_CEILING_BATCH_ROWS)):
        run(frame)


def _store(workspace: Workspace) -> tuple[Path, int]:
    count = workspace.scaled(1_000_000, 200_000)
    path = workspace.make("spark-read", lambda path: write_store(path, count, properties=3))
    return path, count


def _against_ceiling(
    name: str, goal: float, columns: Sequence[str] | None = None, **options: str
) -> Case:
    def prepare(workspace: Workspace) -> Pair:
        path, count = _store(workspace)
        frame = load(workspace.spark, path, **options)
        if columns is not None:
            frame = frame.select(*columns)
        # Where the schema is the same, the best batch size is the same.
        schema = "all" if columns is None else "-".join(columns)
        reference = workspace.once(
            f"ceiling of {schema}", lambda: ceiling(workspace, schema, frame, count)
        )
        _warm_up(frame)
        return Pair(
            timed(lambda: run(frame)), timed(lambda: run(reference)),
            lambda: _same_count(frame, count), {"rows": count},
        )

    return Case(
        f"Spark read, {name}", "a Python source of ready-made Arrow batches", goal, prepare
    )


def _same_count(frame: DataFrame, count: int) -> None:
    # A sum is not answered from the queues' bounds, as a count would be.
    found = frame.selectExpr("sum(queueOffset * 0 + 1)").first()
    assert found is not None
    assert found[0] == count, (found[0], count)


def _against_file_format(kind: str, goal: float) -> Case:
    def prepare(workspace: Workspace) -> Pair:
        path, count = _store(workspace)
        frame = load(workspace.spark, path)
        target = str(workspace.folder / f"same-rows-{kind}")
        frame.repartition(_PARTITION_COUNT).write.format(kind).mode("overwrite").save(target)
        reference = workspace.spark.read.schema(frame.schema).format(kind).load(target)
        assert reference.count() == count
        _warm_up(frame)
        return Pair(timed(lambda: run(frame)), timed(lambda: run(reference)),
                    details={"rows": count})

    return Case(f"Spark read, full width, against {kind}", f"Spark's {kind} reader, same rows",
                goal, prepare)


def _count(workspace: Workspace) -> Pair:
    path, count = _store(workspace)
    frame = load(workspace.spark, path)

    def check() -> None:
        assert frame.count() == count

    return Pair(timed(lambda: frame.count()), timed(lambda: run(frame)), check)


def _small_store(workspace: Workspace, count: int) -> Path:
    return workspace.make(f"small-{count}", lambda path: write_small_store(path, count))


def _tag(workspace: Workspace) -> Pair:
    """The time above that of a query that reads nothing."""
    count = workspace.scaled(5_000_000, 500_000)
    spark = workspace.spark
    path = _small_store(workspace, count)
    condition = "tags = 'RARE'"
    pruned = load(spark, path).where(condition)
    unpruned = load(spark, path, pushdown="false").where(condition)
    nothing = load(spark, path).where("queueId = 999")
    empty = min(seconds(lambda: run(nothing)) for _ in range(5))

    def above(frame: DataFrame) -> Callable[[], float]:
        # A millisecond is what these clocks and schedulers can tell apart.
        return lambda: max(seconds(lambda: run(frame)) - empty, 0.001)

    def check() -> None:
        assert pruned.count() == unpruned.count() == count // 1000

    return Pair(above(pruned), above(unpruned), check, {"messages": count, "empty": empty})


def _key_query(spark: SparkSession, path: Path, number: int) -> DataFrame:
    return load(spark, path, key=small_messages(number, 1)["keys"][0].as_py())


def _one_key(workspace: Workspace) -> Pair:
    count = workspace.scaled(10_000_000, 1_000_000)
    path = _small_store(workspace, count)
    frame = _key_query(workspace.spark, path, count // 2)
    reference = ceiling(workspace, "one-row", frame, 1)
    numbers = iter(range(1000, count, 977))

    def ours() -> float:
        query = _key_query(workspace.spark, path, next(numbers))
        return seconds(lambda: query.collect())

    def check() -> None:
        assert frame.count() == 1

    return Pair(ours, timed(lambda: reference.limit(1).collect()), check, {"messages": count})


def _one_key_growth(workspace: Workspace) -> Pair:
    large = workspace.scaled(10_000_000, 1_000_000)
    paths = {count: _small_store(workspace, count) for count in (large, large // 10)}
    numbers = iter(range(1000, large // 10, 977))

    def query(count: int) -> float:
        frame = _key_query(workspace.spark, paths[count], next(numbers))
        return seconds(lambda: frame.collect())

    return Pair(lambda: query(large), lambda: query(large // 10))


def _planning(workspace: Workspace) -> Pair:
    """Ten times the files may take at most five times as long."""
    from rmqlog.writer.settings import StoreSettings

    def build(topics: int) -> Callable[[Path], None]:
        settings = StoreSettings(
            mappedFileSizeCommitLog=1 << 22, mappedFileSizeConsumeQueue=2000,
            maxHashSlotNum=1000, maxIndexNum=4000,
        )

        def make(path: Path) -> None:
            write_store(path, topics * 400, settings=settings)

        return make

    few = workspace.make("files-few", build(10))
    many = workspace.make("files-many", build(100))
    return Pair(
        timed(lambda: load(workspace.spark, many).select("queueOffset").limit(1).collect()),
        timed(lambda: load(workspace.spark, few).select("queueOffset").limit(1).collect()),
        details={"files": [sum(len(view.files.files.files) for view in Store(str(path))
                               .queues.values() if view.files) for path in (few, many)]},
    )


CASES = [
    _against_ceiling("full width", 0.8),
    _against_ceiling("full width, pushdown=false", 0.8, pushdown="false"),
    _against_file_format("json", 2.5),
    _against_file_format("parquet", 0.5),
    _against_ceiling("three queue columns", 0.8, ["queueId", "queueOffset", "tagsCode"]),
    Case("Spark count(*)", "the same frame at full width", 5.0, _count),
    Case("Spark read, a tag of 1 in 1,000", "the same query with pushdown=false, "
         "both above an empty query", 30.0, _tag),
    Case("Spark read, one key", "one row from a Python source of ready-made batches",
         1 / 1.3, _one_key),
    Case("Spark read, one key, ten times the messages", "the same at a tenth of the messages",
         1 / 1.1, _one_key_growth),
    Case("Spark planning, ten times the files", "the same at a tenth of the files", 1 / 5,
         _planning),
]
