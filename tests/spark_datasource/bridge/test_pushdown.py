"""Columns, limits, aggregates and snapshots reach Python, and only when that is right."""

from __future__ import annotations

import json

import pytest
from probe_source import COLUMNS
from probe_store import ProbeStore
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

pytestmark = pytest.mark.spark


def test_only_the_wanted_columns_are_read(probe: ProbeStore) -> None:
    probe.load().select("label", "a").collect()
    assert sorted(probe.columns()) == ["a", "label"]

    probe.load().where("x > 1").select("a").collect()
    assert sorted(probe.columns()) == ["a", "x"]

    probe.load().collect()
    assert probe.columns() == list(COLUMNS)


def test_without_any_column_the_first_whole_number_serves(probe: ProbeStore) -> None:
    frame = probe.load()
    frame.createOrReplaceTempView("no_column")

    assert len(frame.select(sql.lit(1)).collect()) == 10
    assert probe.columns() == ["a"]


def test_without_a_whole_number_the_first_column_serves(
    spark: SparkSession, probe: ProbeStore
) -> None:
    frame = spark.read.format("rmqlog").schema("label string, x double").load(str(probe.path))

    assert len(frame.select(sql.lit(1)).collect()) == 10
    assert probe.columns() == ["label"]


def test_a_schema_of_the_user_is_a_projection(spark: SparkSession, probe: ProbeStore) -> None:
    frame = spark.read.format("rmqlog").schema("x double, a int").load(str(probe.path))

    assert frame.where("a = 4").collect() == [(2.0, 4)]
    assert probe.calls("schema") == []


def test_a_limit_reaches_python_when_no_filter_is_left(probe: ProbeStore) -> None:
    assert len(probe.load().limit(3).collect()) == 3
    assert probe.scan()["__rmqlog.limit"] == "3"

    assert len(probe.load(exact="true").where("a > 4").limit(2).collect()) == 2
    assert probe.scan()["__rmqlog.limit"] == "2"


def test_a_limit_stays_with_spark_when_it_filters_again(probe: ProbeStore) -> None:
    assert len(probe.load().where("a > 4").limit(2).collect()) == 2
    assert "__rmqlog.limit" not in probe.scan()


def test_a_sort_keeps_the_limit_from_python(probe: ProbeStore) -> None:
    rows = probe.load().orderBy(sql.desc("a")).limit(2).collect()

    assert [row.a for row in rows] == [9, 8]
    assert "__rmqlog.limit" not in probe.scan()


def test_a_count_is_answered_by_python(probe: ProbeStore) -> None:
    assert probe.load().count() == 10
    assert json.loads(probe.scan()["__rmqlog.aggregate"]) == {
        "groupBy": [],
        "aggregates": [{"func": "count"}],
    }


def test_counts_and_bounds_are_answered_by_python(probe: ProbeStore) -> None:
    columns = [sql.count("label"), sql.min("b"), sql.max("t"), sql.count("*")]

    (row,) = probe.load().agg(*columns).collect()

    assert (row[0], row[1], row[2].microsecond, row[3]) == (8, 0, 9, 10)
    assert json.loads(probe.scan()["__rmqlog.aggregate"])["aggregates"] == [
        {"func": "count", "column": "label"},
        {"func": "min", "column": "b"},
        {"func": "max", "column": "t"},
        {"func": "count"},
    ]


def test_groups_are_answered_by_python(probe: ProbeStore) -> None:
    rows = probe.load().groupBy("odd").agg(sql.count("*").alias("n"), sql.max("a").alias("m"))

    assert sorted((row.odd, row.n, row.m) for row in rows.collect()) == [
        (False, 5, 8),
        (True, 5, 9),
    ]
    assert json.loads(probe.scan()["__rmqlog.aggregate"])["groupBy"] == ["odd"]


def test_an_empty_count_is_zero_and_its_bounds_are_null(probe: ProbeStore) -> None:
    probe.grow(0)

    (row,) = probe.load().agg(sql.count("*"), sql.min("a"), sql.max("a")).collect()

    assert tuple(row) == (0, None, None)
    assert "__rmqlog.aggregate" in probe.scan()


def test_an_empty_store_has_no_groups(probe: ProbeStore) -> None:
    probe.grow(0)

    assert probe.load().groupBy("odd").count().collect() == []


def test_an_aggregate_that_python_refuses_is_computed_by_spark(probe: ProbeStore) -> None:
    rows = probe.load().groupBy("label").count().collect()

    assert sorted(row["count"] for row in rows) == [1] * 8 + [2]
    assert "__rmqlog.aggregate" in probe.calls("schema")[-1]["options"]
    assert "__rmqlog.aggregate" not in probe.scan()


def test_an_answer_with_too_few_columns_is_an_error(probe: ProbeStore) -> None:
    frame = probe.load(answer="short").agg(sql.count("*"), sql.max("a"))

    with pytest.raises(Py4JJavaError, match="1 columns instead of 2"):
        frame.collect()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("count(DISTINCT odd)", 2),
        ("count(*) FILTER (WHERE a > 6)", 3),
        ("sum(a)", 45),
        ("max(a + 1)", 10),
    ],
)
def test_what_has_no_form_stays_with_spark_unasked(
    probe: ProbeStore, expression: str, expected: int
) -> None:
    assert probe.load().selectExpr(f"{expression} AS answer").first().answer == expected
    assert [call["options"].get("__rmqlog.aggregate") for call in probe.calls("schema")] == [None]


def test_an_aggregate_behind_an_inexact_filter_stays_with_spark(probe: ProbeStore) -> None:
    assert probe.load().where("a > 6").count() == 3
    assert "__rmqlog.aggregate" not in probe.scan()


def test_an_aggregate_behind_an_exact_filter_is_answered_by_python(probe: ProbeStore) -> None:
    frame = probe.load(exact="true")

    assert frame.where("a > 6").count() == 3
    assert {"__rmqlog.aggregate", "__rmqlog.filters"} <= set(probe.scan())
    assert frame.where("a > 600").count() == 0


def test_one_load_is_one_snapshot(probe: ProbeStore) -> None:
    frame = probe.load()
    frame.createOrReplaceTempView("snapshot")
    probe.grow(20)

    assert frame.count() == 10
    assert len(frame.select("a").collect()) == 10
    assert len(frame.where("x >= 0").collect()) == 10
    assert frame.alias("l").join(frame.alias("r"), "a").count() == 10
    assert probe.spark.sql("SELECT count(*) AS n FROM snapshot WHERE b >= 0").first().n == 10
    assert probe.load().count() == 20


def test_metadata_comes_on_the_field_and_beside_it(probe: ProbeStore) -> None:
    probe.load().select("label").collect()

    (field,) = probe.calls("partitions")[-1]["schema"]["fields"]
    assert field["metadata"] == {"end": 10}
    assert json.loads(probe.scan()["__rmqlog.metadata"]) == {"label": {"end": 10}}


def test_equal_scans_of_one_query_are_read_once(probe: ProbeStore) -> None:
    frame = probe.load().groupBy("label").count()
    both = frame.union(frame)

    assert len(both.collect()) == 18
    assert "ReusedExchange" in both._jdf.queryExecution().executedPlan().toString()
