"""Writes go through to Python's writer with their mode, options and query id."""

from __future__ import annotations

import pytest
from probe_store import ProbeStore
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("one", 1), ("two", 2), ("three", 3)], "label string, a int")


@pytest.mark.parametrize(("mode", "overwrite"), [("append", False), ("overwrite", True)])
def test_a_mode_becomes_the_overwrite_flag(
    probe: ProbeStore, frame: DataFrame, mode: str, overwrite: bool
) -> None:
    writer = frame.write.format("rmqlog").option("topic", "orders").option("__rmqlog.limit", "1")
    writer.mode(mode).save(str(probe.path))

    (commit,) = probe.commits()
    assert commit["overwrite"] is overwrite
    assert [row["a"] for row in commit["rows"]] == [1, 2, 3]
    assert commit["columns"] == ["label", "a"]
    options = commit["options"]
    assert set(options) == {"path", "topic", "__rmqlog.bridge", "__rmqlog.queryid"}


def test_each_write_has_a_query_id_of_its_own(probe: ProbeStore, frame: DataFrame) -> None:
    for _ in range(2):
        frame.write.format("rmqlog").mode("append").save(str(probe.path))

    first, second = (commit["options"]["__rmqlog.queryid"] for commit in probe.commits())
    assert first
    assert first != second


def test_a_write_does_not_ask_for_the_schema(probe: ProbeStore, frame: DataFrame) -> None:
    frame.write.format("rmqlog").mode("append").save(str(probe.path))

    assert probe.calls("schema") == []


@pytest.mark.parametrize("mode", ["error", "ignore"])
def test_other_modes_are_refused_by_spark(probe: ProbeStore, frame: DataFrame, mode: str) -> None:
    with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        frame.write.format("rmqlog").mode(mode).save(str(probe.path))
    assert probe.commits() == []


def test_partition_columns_are_refused_by_spark(probe: ProbeStore, frame: DataFrame) -> None:
    with pytest.raises(PySparkException, match="partitioning"):
        frame.write.format("rmqlog").partitionBy("a").mode("append").save(str(probe.path))


def test_an_empty_frame_commits_too(probe: ProbeStore, frame: DataFrame) -> None:
    frame.where("a > 100").write.format("rmqlog").mode("append").save(str(probe.path))

    assert [commit["rows"] for commit in probe.commits()] == [[]]
