"""All pairs of filter, columns, mode and store through Spark, against plain Python."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from query_filters import FILTER_NAMES, query_filters, to_sql
from query_reference import as_bag, is_system, kept, store_rows
from query_stores import write_query_store
from random_trees import TREES

from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS

pytestmark = pytest.mark.spark

COLUMNS = (
    ("brokerName", "topic", "queueId", "queueOffset"),
    ("queueOffset", "queueId", "commitLogOffset", "storeSize", "tagsCode", "topic"),
    ("tags", "keys", "uniqKey", "msgId", "storeTimestamp", "body"),
    MESSAGE_COLUMNS,
)
MODES: tuple[tuple[str, dict[str, str]], ...] = (
    ("rmqlog", {}),
    ("rmqlog_plain", {}),
    ("rmqlog", {"pushdown": "false"}),
    ("rmqlog", {"useIndex": "false", "minPartitions": "3"}),
)


class PairStores:
    """One store with three states of its index, and two stores as a cluster."""

    def __init__(self, folder: Path) -> None:
        whole = write_query_store(folder / "whole" / "store-a")
        half, none = folder / "half" / "store-a", folder / "none" / "store-a"
        for copy, step in ((half, 2), (none, 1)):
            shutil.copytree(whole, copy)
            for file in sorted((copy / "index").iterdir())[::step]:
                file.unlink()
        other = write_query_store(folder / "whole" / "store-b", count=100, seed=2)
        self.paths = ([whole], [half], [none], [whole, other])
        rows = {path: store_rows(path) for path in (whole, other)}
        self.rows = [
            [row for path in paths for row in rows.get(path, rows[whole])
             if not is_system(row["topic"])]
            for paths in self.paths
        ]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> PairStores:
    return PairStores(tmp_path_factory.mktemp("pairs"))


@pytest.mark.parametrize("number", range(len(FILTER_NAMES)), ids=FILTER_NAMES)
def test_a_query_gives_the_rows_of_plain_python(
    spark: SparkSession, stores: PairStores, number: int
) -> None:
    # A Latin square: each filter meets all columns, modes and stores, and these meet each other.
    for turn, columns in enumerate(COLUMNS):
        source, options = MODES[(turn + number) % len(MODES)]
        store = (turn + number // len(MODES)) % len(stores.paths)
        rows = stores.rows[store]
        tree = query_filters(rows)[FILTER_NAMES[number]]
        frame = spark.read.format(source).options(**options).load(
            [str(path) for path in stores.paths[store]])
        found = collected(frame.where(to_sql(tree)).select(*columns))
        assert as_bag(found, columns) == as_bag(kept(tree, rows), columns), (source, options, store)


@given(TREES, st.sampled_from(MODES), st.integers(0, 3))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_random_query_gives_the_rows_of_plain_python(
    spark: SparkSession, stores: PairStores, tree: dict[str, Any],
    mode: tuple[str, dict[str, str]], store: int,
) -> None:
    frame = spark.read.format(mode[0]).options(**mode[1]).load(
        [str(path) for path in stores.paths[store]])
    columns = (*COLUMNS[0], "tags", "keys")
    found = collected(frame.where(to_sql(tree)).select(*columns))
    assert as_bag(found, columns) == as_bag(kept(tree, stores.rows[store]), columns)


def collected(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as the reference has them."""
    times = [name for name in frame.columns if name.endswith("Timestamp")]
    for name in times:
        frame = frame.withColumn(name, frame[name].cast("double"))
    rows = [row.asDict() for row in frame.collect()]
    for row in rows:
        for name in times:
            row[name] = round(row[name] * 1_000_000)
        if "body" in row:
            row["body"] = bytes(row["body"])
    return rows
