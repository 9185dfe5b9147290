"""Reading through Spark: no leaks, one snapshot, SQL, counts, plans, errors with their place."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from query_reference import is_system, store_rows
from query_stores import write_query_store

import rmqlog
from rmqlog.commitlog_format.errors import InvalidNameError, InvalidSettingError
from rmqlog.writer import NewMessage, StoreWriter

pytestmark = pytest.mark.spark

Load = Callable[..., DataFrame]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_query_store(tmp_path_factory.mktemp("reading") / "store-a")


@pytest.fixture(scope="module")
def rows(store: Path) -> list[dict[str, Any]]:
    return [row for row in store_rows(store) if not is_system(row["topic"])]


@pytest.fixture(params=["rmqlog", "rmqlog_plain"])
def load(request: pytest.FixtureRequest, spark: SparkSession, store: Path) -> Load:
    """Loads the store, with the bridge and without."""

    def read(path: Path = store, **options: str) -> DataFrame:
        return spark.read.format(request.param).options(**options).load(str(path))

    return read


def count_of(rows: list[dict[str, Any]], **wanted: Any) -> int:
    return sum(all(row[name] == value for name, value in wanted.items()) for row in rows)


# --- Nothing leaks ---------------------------------------------------------------------------


def test_a_filter_does_not_reach_another_query_of_the_frame(
    spark: SparkSession, load: Load, rows: list[dict[str, Any]]
) -> None:
    frame = load()
    paid, created = count_of(rows, tags="PAID"), count_of(rows, tags="CREATED")
    assert frame.where("tags = 'PAID'").count() == paid
    assert frame.count() == len(rows)
    both = frame.where("tags = 'PAID'").union(frame.where("tags = 'CREATED'"))
    assert both.count() == paid + created
    frame.createOrReplaceTempView("leaking")
    assert spark.sql("SELECT 1 FROM leaking WHERE tags = 'PAID'").count() == paid
    assert spark.sql("SELECT 1 FROM leaking").count() == len(rows)
    nested = "SELECT 1 FROM leaking WHERE queueId = (SELECT min(queueId) FROM leaking)"
    assert spark.sql(nested).count() == count_of(rows, queueId=0)


def test_threads_that_share_a_frame_do_not_share_filters(
    load: Load, rows: list[dict[str, Any]]
) -> None:
    frame = load()
    tags = ["PAID", "CREATED", "Aa", "BB"]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda tag: frame.where(frame.tags == tag).count(), tags))
    assert found == [count_of(rows, tags=tag) for tag in tags]


def test_a_cached_frame_answers_every_query(load: Load, rows: list[dict[str, Any]]) -> None:
    frame = load().cache()
    try:
        assert frame.where("tags = 'PAID'").count() == count_of(rows, tags="PAID")
        assert frame.count() == len(rows)
    finally:
        frame.unpersist()


# --- One load is one snapshot ------------------------------------------------------------------


def test_a_self_join_on_a_store_that_grows_sees_one_snapshot(load: Load, tmp_path: Path) -> None:
    path = write_query_store(tmp_path / "store", count=60)
    frame = load(path)
    before = frame.count()
    place = ["topic", "queueId", "queueOffset"]
    left = frame.select(*place)
    write_query_store(path, count=60, seed=3, first=60)
    assert left.join(frame.select(*place), place).count() == before
    assert frame.count() == before
    assert load(path).count() > before


def test_the_next_read_goes_on_where_the_last_one_ended(load: Load, tmp_path: Path) -> None:
    path = write_query_store(tmp_path / "store", count=60)
    first = load(path)
    offsets = rmqlog.ending_offsets(first)
    write_query_store(path, count=60, seed=3, first=60)
    second = load(path, startingOffsets=offsets)
    whole = load(path)
    assert_df_equality(
        _sortable(first.union(second)), _sortable(whole), ignore_row_order=True,
        ignore_nullable=True, ignore_metadata=True)
    assert json.loads(rmqlog.ending_offsets(second)) == json.loads(rmqlog.ending_offsets(whole))


def _sortable(frame: DataFrame) -> DataFrame:
    """Spark does not order maps; their sorted entries it does."""
    return frame.withColumn("properties", functions.expr("to_json(map_from_entries("
                            "array_sort(map_entries(properties))))"))


# --- SQL and tables ----------------------------------------------------------------------------


def test_topics_are_tables_of_a_catalog(
    spark: SparkSession, store: Path, rows: list[dict[str, Any]], new_catalog: str
) -> None:
    spark.conf.set(f"spark.sql.catalog.{new_catalog}.path", str(store))
    tables = {row.tableName for row in spark.sql(f"SHOW TABLES IN {new_catalog}").collect()}
    assert tables == {row["topic"] for row in rows}
    assert spark.sql(f"DESCRIBE {new_catalog}.orders").count() == 22
    orders = [row for row in rows if row["topic"] == "orders"]
    end = sorted(row["commitLogOffset"] + row["storeSize"] for row in orders)[20]
    questions = {
        f"{new_catalog}.orders WHERE tags = 'PAID'": count_of(orders, tags="PAID"),
        f"{new_catalog}.orders VERSION AS OF {end}": 21,
        f"{new_catalog}.`%RETRY%g`": count_of(store_rows(store), topic="%RETRY%g"),
        f"{new_catalog}.`{store}`.batch": count_of(rows, topic="batch"),
        f"{new_catalog}.metadata.topics": 4,
    }
    for question, expected in questions.items():
        query = f"SELECT * FROM {question}"  # noqa: S608 - our own words
        assert spark.sql(query).count() == expected, question
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.table(f"{new_catalog}.nobody")


def test_views_and_tables_keep_their_options(
    spark: SparkSession, store: Path, rows: list[dict[str, Any]]
) -> None:
    options = f"OPTIONS (path '{store}', topic 'orders', tags 'PAID')"
    expected = count_of(rows, topic="orders", tags="PAID")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW paid_view USING rmqlog {options}")
    assert spark.table("paid_view").count() == expected
    spark.sql(f"CREATE TABLE paid_table USING rmqlog {options}")
    try:
        assert spark.table("paid_table").count() == expected
    finally:
        spark.sql("DROP TABLE paid_table")
    assert "orders" in rmqlog.register_views(spark, str(store))
    assert spark.table("orders").count() == count_of(rows, topic="orders")


def test_views_of_topics_that_differ_by_case_do_not_replace_each_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    with StoreWriter(tmp_path / "store", background=False) as writer:
        for topic in ("Cases", "cases", "cases", "my-topic"):
            writer.put(NewMessage(topic, b"body"))
    path = str(tmp_path / "store")
    with pytest.raises(InvalidNameError, match="'Cases' and 'cases'"):
        rmqlog.register_views(spark, path)
    assert rmqlog.register_views(spark, path, {"topicsPattern": "[a-z-]*"}) == ["cases", "my-topic"]
    assert spark.table("CASES").count() == 2
    assert spark.table("`my-topic`").count() == 1
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert len(rmqlog.register_views(spark, path)) == 3
        assert [spark.table(name).count() for name in ("Cases", "cases")] == [1, 2]
        for name in ("Cases", "cases", "`my-topic`"):
            spark.sql(f"DROP VIEW {name}")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.parametrize("table", ["topics", "queues", "groups", "files"])
def test_metadata_tables_can_be_read_in_any_columns(load: Load, table: str) -> None:
    frame = load(metadata=table)
    assert frame.count() == len(frame.collect())
    last = frame.columns[-1]
    assert [row[0] for row in frame.select(last).collect()] == [
        row[last] for row in frame.collect()]


def test_metadata_counts_what_a_read_gives(load: Load, rows: list[dict[str, Any]]) -> None:
    found = {row.topic: row for row in load(metadata="topics").collect()}
    for topic in ("orders", "batch", "orderly"):
        of_topic = [row for row in rows if row["topic"] == topic]
        assert found[topic].messages == len(of_topic)
        assert found[topic].bytes == sum(row["storeSize"] for row in of_topic)
    queues = load(metadata="queues").where("topic = 'orders'").collect()
    assert sum(row.maxOffset - row.minOffset for row in queues) == found["orders"].messages


def test_a_schema_of_the_users_own_is_a_projection(
    spark: SparkSession, load: Load, store: Path, rows: list[dict[str, Any]]
) -> None:
    reader = spark.read.format("rmqlog").schema("body binary, topic string")
    assert reader.load(str(store)).count() == len(rows)
    assert load(columns="topic,queueOffset").columns == ["topic", "queueOffset"]
    with pytest.raises(PySparkException, match="did you mean topic"):
        spark.read.format("rmqlog").schema("topc string").load(str(store)).collect()


# --- Counts and plans --------------------------------------------------------------------------


def test_counts_from_bounds_equal_counted_rows(
    spark: SparkSession, store: Path, rows: list[dict[str, Any]]
) -> None:
    for pushdown in ("true", "false"):
        frame = spark.read.format("rmqlog").option("pushdown", pushdown).load(str(store))
        assert frame.count() == len(rows)
        found = frame.groupBy("topic", "queueId").agg(
            {"*": "count", "queueOffset": "max"}).collect()
        assert {(row[0], row[1]): row["count(1)"] for row in found} == {
            (row[0], row[1]): count_of(rows, topic=row[0], queueId=row[1]) for row in found}
        nothing = frame.where("topic = 'nobody'")
        assert nothing.count() == 0
        assert nothing.agg({"queueOffset": "max"}).first()[0] is None  # type: ignore[index]
        assert frame.where("topic = 'orders'").limit(5).count() == 5


def test_the_plan_shows_the_path(spark: SparkSession, store: Path, capsys: Any) -> None:
    frame = spark.read.format("rmqlog").load(str(store))
    frame.where("tags = 'PAID'").explain()
    assert "rmqlog path=tag scan, partitions=" in capsys.readouterr().out
    text = rmqlog.explain(frame.where("keys = 'order-Aa' AND topic = 'orders'"))
    assert "index lookup" in text
    assert "index entries: " in text
    assert "queue bounds" in rmqlog.explain(frame.groupBy("topic").count())
    plain = spark.read.format("rmqlog_plain").option("topic", "orders").load(str(store))
    assert "without the bridge" in rmqlog.explain(plain)


def test_the_plan_of_metadata_is_shown(load: Load) -> None:
    assert "path=metadata" in rmqlog.explain(load(metadata="topics"))


def test_scans_in_subqueries_are_explained(spark: SparkSession, load: Load) -> None:
    load().createOrReplaceTempView("explained")
    newest = "SELECT max(queueOffset) FROM explained WHERE tags = 'PAID'"
    query = f"SELECT * FROM explained WHERE queueOffset = ({newest})"  # noqa: S608 - our own words
    assert rmqlog.explain(spark.sql(query)).count("rmqlog path=") == 2
    assert rmqlog.explain(spark.sql(f"SELECT ({newest})")).count("rmqlog path=") == 1


def test_a_query_that_reads_nothing_is_explained(spark: SparkSession, load: Load) -> None:
    frame = load()
    assert "rmqlog reads nothing" in rmqlog.explain(frame.where("1 = 0"))
    frame.cache()
    try:
        assert "from its cache" in rmqlog.explain(frame.where("tags = 'PAID'"))
    finally:
        frame.unpersist()
    with pytest.raises(InvalidSettingError, match="no store"):
        rmqlog.explain(spark.range(3))


def test_estimates_reach_the_optimizer(spark: SparkSession, store: Path) -> None:
    frame = spark.read.format("rmqlog").load(str(store))
    statistics = frame.where("tags = 'PAID'")._jdf.queryExecution().optimizedPlan().stats()
    assert 0 < int(str(statistics.sizeInBytes())) < 10_000_000


# --- Errors ------------------------------------------------------------------------------------


def test_errors_name_file_and_offset_across_processes(load: Load, tmp_path: Path) -> None:
    path = write_query_store(tmp_path / "store", count=30)
    victim = next(row for row in store_rows(path) if row["topic"] == "orders")
    (file,) = (path / "commitlog").iterdir()
    data = bytearray(file.read_bytes())
    data[victim["commitLogOffset"] + 4] ^= 0xFF
    frame = load(path)
    file.write_bytes(bytes(data))
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    assert f"{file} at offset {victim['commitLogOffset']}" in str(caught.value)


@pytest.mark.parametrize(("options", "message"), [
    ({"tpic": "x"}, "did you mean topic"),
    ({"topic": "ordres"}, "expected 'orders'"),
    ({"mode": "PERMISSIVE"}, "FAILFAST or DROPMALFORMED"),
])
def test_mistakes_are_explained_at_load(
    load: Load, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        load(**options).schema  # noqa: B018


def test_a_path_that_is_no_store_is_explained(load: Load, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="not a RocketMQ store"):
        load(tmp_path).schema  # noqa: B018
