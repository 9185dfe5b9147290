"""Spark's filters arrive in Python as the trees that the contract describes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from probe_source import evaluate, row_of
from probe_store import ProbeStore, plan_of
from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

UNKNOWN = {"op": "unknown"}


def compare(op: str, column: str, kind: str, value: Any) -> dict[str, Any]:
    return {"op": op, "column": column, "type": kind, "value": value}


@pytest.fixture(scope="module")
def shared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> ProbeStore:
    """One store for all conditions: nothing is written to it."""
    return ProbeStore(spark, tmp_path_factory.mktemp("shared") / "store")


@pytest.fixture(scope="module")
def frame(shared: ProbeStore) -> DataFrame:
    """One load for all conditions: they do not see each other's filters."""
    return shared.load()


def conjuncts(store: ProbeStore, filtered: DataFrame) -> list[dict[str, Any]]:
    """The trees of a planned frame, without the IsNotNull that Spark adds to most."""
    tree = json.loads(store.scan_of(filtered)["__rmqlog.filters"])
    assert tree["op"] == "and"
    return [arg for arg in tree["args"] if arg["op"] != "isNotNull"]


OPERATORS: dict[str, dict[str, Any]] = {
    "a = 3": compare("eq", "a", "long", 3),
    "a <=> 3": compare("eqNullSafe", "a", "long", 3),
    "a < 3": compare("lt", "a", "long", 3),
    "a <= 3": compare("le", "a", "long", 3),
    "a > 3": compare("gt", "a", "long", 3),
    "a >= 3": compare("ge", "a", "long", 3),
    "a IN (1, 2)": {"op": "in", "column": "a", "type": "long", "values": [1, 2]},
    "a IN (1, 2, NULL)": {"op": "in", "column": "a", "type": "long", "values": [1, 2, None]},
    "label IS NULL": {"op": "isNull", "column": "label"},
    "label LIKE 'row%'": compare("startsWith", "label", "string", "row"),
    "label LIKE '%-3'": compare("endsWith", "label", "string", "-3"),
    "label LIKE '%w-%'": compare("contains", "label", "string", "w-"),
    "a != 3": {"op": "not", "args": [compare("eq", "a", "long", 3)]},
    "a = 1 OR label = 'row-2'": {
        "op": "or",
        "args": [compare("eq", "a", "long", 1), compare("eq", "label", "string", "row-2")],
    },
    "(a = 1 AND x < 2D) OR NOT (label LIKE 'row%' OR b > 5)": {
        "op": "or",
        "args": [
            {
                "op": "and",
                "args": [compare("eq", "a", "long", 1), compare("lt", "x", "double", 2.0)],
            },
            {
                "op": "and",
                "args": [
                    {"op": "not", "args": [compare("startsWith", "label", "string", "row")]},
                    compare("le", "b", "long", 5),
                ],
            },
        ],
    },
}


@pytest.fixture(scope="module")
def answers_of_spark(frame: DataFrame) -> list[Row]:
    """Every condition as a column: in this place Spark pushes nothing down."""
    columns = [f"{condition} AS `{index}`" for index, condition in enumerate(OPERATORS)]
    return frame.selectExpr("a", *columns).collect()


@pytest.mark.parametrize("condition", OPERATORS)
def test_an_operator_arrives_and_means_what_spark_means(
    shared: ProbeStore, frame: DataFrame, answers_of_spark: list[Row], condition: str
) -> None:
    (tree,) = conjuncts(shared, frame.where(condition))

    assert tree == OPERATORS[condition]
    column = str(list(OPERATORS).index(condition))
    for row in answers_of_spark:
        assert evaluate(tree, row_of(row.a)) == row[column], row.a


LITERALS: dict[str, dict[str, Any]] = {
    "label = 'grün'": compare("eq", "label", "string", "grün"),
    "label = ''": compare("eq", "label", "string", ""),
    "b = 9223372036854775807": compare("eq", "b", "long", 2**63 - 1),
    "b = -9223372036854775808": compare("eq", "b", "long", -(2**63)),
    "x = 0.1D": compare("eq", "x", "double", 0.1),
    "odd = true": compare("eq", "odd", "boolean", True),
    "data = X'00ff'": compare("eq", "data", "binary", "AP8="),
    "t = TIMESTAMP'2024-02-29 12:34:56.789012Z'": compare(
        "eq", "t", "timestamp", 1_709_210_096_789_012
    ),
    "t < TIMESTAMP'1969-12-31 23:59:59.999999Z'": compare("lt", "t", "timestamp", -1),
    "t > TIMESTAMP'1500-01-01 00:00:00Z'": compare("gt", "t", "timestamp", -14_831_769_600_000_000),
    "x = double('NaN')": UNKNOWN,
    "x < double('Infinity')": UNKNOWN,
    "label = cast(X'ff' AS string)": UNKNOWN,
    "a = 1 OR x = double('NaN')": {"op": "or", "args": [compare("eq", "a", "long", 1), UNKNOWN]},
}


@pytest.mark.parametrize("condition", LITERALS)
def test_a_literal_arrives_exactly_or_as_unknown(
    shared: ProbeStore, frame: DataFrame, condition: str
) -> None:
    assert conjuncts(shared, frame.where(condition)) == [LITERALS[condition]]


def test_a_timestamp_arrives_exactly_as_java_instant_too(
    spark: SparkSession, shared: ProbeStore, frame: DataFrame
) -> None:
    spark.conf.set("spark.sql.datetime.java8API.enabled", "true")
    trees = conjuncts(shared, frame.where("t = TIMESTAMP'2024-02-29 12:34:56.789012Z'"))
    spark.conf.unset("spark.sql.datetime.java8API.enabled")

    assert trees == [compare("eq", "t", "timestamp", 1_709_210_096_789_012)]


USER_TYPES: dict[str, tuple[str, dict[str, Any]]] = {
    "d DECIMAL(10, 2)": ("d = 1.50BD", UNKNOWN),
    "d DATE": ("d = DATE'2024-01-01'", UNKNOWN),
    "d TIMESTAMP_NTZ": ("d = TIMESTAMP_NTZ'2024-01-01 00:00:00'", UNKNOWN),
    "d TINYINT": ("d = 5Y", compare("eq", "d", "long", 5)),
    "d FLOAT": ("d = 0.5F", compare("eq", "d", "double", 0.5)),
}


@pytest.mark.parametrize("column", USER_TYPES)
def test_a_literal_of_a_type_that_no_store_has_arrives_exactly_or_as_unknown(
    spark: SparkSession, shared: ProbeStore, column: str
) -> None:
    condition, expected = USER_TYPES[column]
    frame = spark.read.format("rmqlog").schema(column).load(str(shared.path))

    assert conjuncts(shared, frame.where(condition)) == [expected]


def test_a_comparison_by_collation_is_not_sent_as_one_by_bytes(
    spark: SparkSession, shared: ProbeStore
) -> None:
    frame = spark.read.format("rmqlog").schema("label STRING COLLATE UTF8_LCASE")

    scan = shared.scan_of(frame.load(str(shared.path)).where("label = 'ROW-1'"))

    assert '"ROW-1"' not in scan.get("__rmqlog.filters", "")


def test_a_thousand_values_arrive_in_one_list(shared: ProbeStore, frame: DataFrame) -> None:
    wanted = ", ".join(str(n) for n in range(5, 1005))

    (tree,) = conjuncts(shared, frame.where(f"a IN ({wanted})"))

    assert (tree["op"], sorted(tree["values"])) == ("in", list(range(5, 1005)))


def is_filtered_by_spark(frame: DataFrame) -> bool:
    return re.search(r"\bFilter \(", plan_of(frame)) is not None


def test_spark_evaluates_every_filter_again(frame: DataFrame) -> None:
    assert is_filtered_by_spark(frame.where("a >= 3"))


def test_a_filter_on_an_exact_column_is_left_to_python(probe: ProbeStore) -> None:
    frame = probe.load(exact="true").where("a BETWEEN 3 AND 4")

    assert not is_filtered_by_spark(frame)
    assert sorted(row.a for row in frame.collect()) == [3, 4]


def test_a_filter_that_also_names_another_column_is_evaluated_again(probe: ProbeStore) -> None:
    assert is_filtered_by_spark(probe.load(exact="true").where("a = 3 OR label = 'row-4'"))


def test_what_a_user_puts_under_a_reserved_name_does_not_reach_python(probe: ProbeStore) -> None:
    options = {"__rmqlog.filters": '{"op": "false"}', "__RMQLOG.limit": "1"}

    assert len(probe.load(**options).select("a").collect()) == 10
    assert set(probe.scan()) == {"path", "__rmqlog.bridge", "__rmqlog.metadata"}
