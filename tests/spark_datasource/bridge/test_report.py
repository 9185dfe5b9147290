"""What Python decided is shown where Spark's users look, and reaches the optimizer."""

from __future__ import annotations

import json

import pytest
from probe_store import ProbeStore, plan_of
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def test_the_scan_line_of_an_explain_shows_the_report(probe: ProbeStore) -> None:
    plan = plan_of(probe.load().where("a < 4"))

    assert "BatchScan rmqlog[" in plan
    assert "rmqlog path=probe, rows=4 of <all>" in plan


def test_a_formatted_explain_shows_the_details(
    probe: ProbeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    probe.load().explain("formatted")

    text = capsys.readouterr().out
    assert "Path: probe" in text
    assert "Files: 3 of 7" in text


def test_the_report_is_had_from_the_scan_as_json(probe: ProbeStore) -> None:
    leaves = probe.load().where("a < 4")._jdf.queryExecution().optimizedPlan().collectLeaves()

    scan = leaves.apply(0).scan()

    assert scan.getClass().getName() == "org.rmqlog.spark.RmqlogScan"
    assert json.loads(scan.report())["rows"] == 4


def scan_metrics(frame: DataFrame) -> dict[str, int]:
    """The metrics of a frame that was run and is nothing but a scan."""
    node = frame._jdf.queryExecution().executedPlan().collectLeaves().apply(0)
    metrics = node.metrics()
    names = [metrics.keys().toSeq().apply(index) for index in range(metrics.size())]
    return {name: metrics.apply(name).value() for name in names}


def test_the_numbers_are_driver_metrics_of_the_scan(probe: ProbeStore) -> None:
    frame = probe.load().select("a")
    frame.collect()

    metrics = scan_metrics(frame)

    assert metrics["files planned"] == 3
    assert metrics["numOutputRows"] == 10


def test_rows_and_bytes_reach_the_optimizer(probe: ProbeStore) -> None:
    leaf = probe.load()._jdf.queryExecution().optimizedPlan().collectLeaves().apply(0)

    assert str(leaf.stats().sizeInBytes()) == "1000"
    # Without its cost-based optimizer Spark looks at the bytes alone, but it is told the rows.
    assert leaf.scan().estimateStatistics().numRows().getAsLong() == 10


def test_a_small_scan_is_broadcast_in_a_join(spark: SparkSession, probe: ProbeStore) -> None:
    large = spark.range(10_000_000_000).withColumnRenamed("id", "b")

    assert "BroadcastHashJoin" in plan_of(large.join(probe.load(), "b"))


@pytest.mark.parametrize("report", ["none", "broken"])
def test_a_query_without_a_readable_report_runs_all_the_same(
    probe: ProbeStore, report: str
) -> None:
    frame = probe.load(report=report).select("a")

    assert len(frame.collect()) == 10
    assert "rmqlog (no report)" in plan_of(frame)


def test_a_scan_is_planned_once(probe: ProbeStore) -> None:
    frame = probe.load().where("a < 4").select("a")
    frame.explain()
    frame.explain("cost")
    assert len(frame.collect()) == 4
    assert len(frame.collect()) == 4

    assert len(probe.calls("partitions")) == 1
    assert len(probe.calls("schema")) == 1
