"""The warning that the jar is missing: said, and said once, however many processes Spark starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import SparkFiles
from pyspark.sql.types import StructField, StructType
from query_stores import write_query_store

from rmqlog.commitlog_format.errors import InvalidSettingError
from rmqlog.spark_datasource import missing_bridge
from rmqlog.spark_datasource.source import RmqlogDataSource
from rmqlog.writer.message_columns import NewMessage
from rmqlog.writer.store_writer import StoreWriter

WARNING = "the bridge's jar is not there"
NEXT = "=== the next application"

#: Two applications one after another in one driver, each with several loads, queries and threads.
#: Without reuse every question is asked in a process of its own.
DRIVER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pyspark.sql import SparkSession

def load(spark, schema=None):
    reader = spark.read.format("rmqlog").option("topic", "orders")
    return (reader.schema(schema) if schema else reader).load(sys.argv[1])

for reuse in ("false", "true"):
    spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
             .config("spark.python.worker.reuse", reuse).getOrCreate())
    # With a schema of the user's own the source is not asked for its one.
    counts = [load(spark, "queueId int").count()] if reuse == "true" else []
    frame = load(spark)
    counts += [frame.count(), frame.where("queueId >= 0").count(), frame.union(frame).count() // 2]
    with ThreadPoolExecutor(2) as pool:
        counts += pool.map(lambda _: load(spark.newSession()).count(), range(2))
    counts += [load(spark, "body binary").count()]
    # To schema() a table's options come among others, to reader() none.
    spark.sql(f"CREATE TABLE t USING rmqlog OPTIONS (path '{sys.argv[1]}', TOPIC 'orders')")
    counts += [spark.table("t").count(), spark.sql("SELECT body FROM t").count()]
    spark.sql("DROP TABLE t")
    spark.stop()
    print("COUNTS", *sorted(set(counts)))
    print(sys.argv[2], file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_query_store(tmp_path_factory.mktemp("bridge") / "store", count=30)


@pytest.mark.spark
def test_an_application_without_the_jar_is_told_once(store: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    finished = subprocess.run(
        [sys.executable, "-c", DRIVER, str(store), NEXT], env=environment, cwd=tmp_path,
        capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    counts = [line for line in finished.stdout.splitlines() if line.startswith("COUNTS")]
    assert len(counts) == 2
    assert len(counts[0].split()) == 2, "every query counts the same messages"
    assert [part.count(WARNING) for part in finished.stderr.split(NEXT)] == [1, 1, 0]
    assert "rmqlog.jar_path()" in finished.stderr


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This process as a worker of an application whose files are in this folder."""
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(missing_bridge, "_told", set())
    return tmp_path


def _ask(store: Path, count: int = 3) -> None:
    for _ in range(count):
        source = RmqlogDataSource({"path": str(store)})
        source.reader(source.schema())


def test_another_process_of_the_application_says_nothing(
    store: Path, worker: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ask(store)
    monkeypatch.setattr(missing_bridge, "_told", set())
    _ask(store)
    assert caplog.text.count(WARNING) == 1


def test_a_folder_that_cannot_be_written_does_not_silence_it(
    store: Path, worker: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkFiles, "_root_directory", str(worker / "gone"))
    _ask(store)
    assert caplog.text.count(WARNING) == 1


def test_outside_of_spark_a_process_says_it_once(
    store: Path, worker: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", False)
    _ask(store)
    assert caplog.text.count(WARNING) == 1
    assert not list(worker.iterdir())


def _counted(source: RmqlogDataSource, schema: StructType) -> int:
    reader = source.reader(schema)
    return sum(
        batch.num_rows for partition in reader.partitions() for batch in reader.read(partition))


def test_a_created_table_is_read_by_its_statement_and_shows_what_is_there_now(
    tmp_path: Path
) -> None:
    """As Spark asks without the jar: properties among the options first, then no options."""
    path = write_query_store(tmp_path / "store", count=30)
    statement = {"path": f"file:{path}", "topic": "orders", "option.topic": "orders",
                 "location": f"file:{path}", "provider": "rmqlog", "owner": "me", "key": "wrong"}
    table = RmqlogDataSource(statement).schema()
    loaded = RmqlogDataSource({"path": str(path), "topic": "orders"})
    frame, count = loaded.schema(), _counted(loaded, loaded.schema())
    assert _counted(RmqlogDataSource({}), table) == count
    with StoreWriter(path, background=False) as writer:
        writer.put(NewMessage("orders", b"later"))
    assert _counted(RmqlogDataSource({}), table) == count + 1
    assert _counted(loaded, frame) == count, "one load() is one snapshot"


def test_a_table_with_columns_of_its_own_says_that_it_needs_the_jar(store: Path) -> None:
    schema = RmqlogDataSource({"path": str(store)}).schema()
    bare = StructType([StructField(field.name, field.dataType) for field in schema.fields])
    with pytest.raises(InvalidSettingError, match="needs the bridge's jar"):
        RmqlogDataSource({}).reader(bare)
