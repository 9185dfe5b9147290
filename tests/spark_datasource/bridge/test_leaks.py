"""No query sees what another one pushed, however the two share a frame."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from probe_store import ProbeStore
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def numbers(frame: DataFrame) -> list[int]:
    return sorted(row.a for row in frame.select("a").collect())


def test_a_filter_does_not_reach_the_next_query_of_the_same_frame(probe: ProbeStore) -> None:
    frame = probe.load()

    assert frame.where("a = 1").count() == 1
    assert frame.count() == 10
    assert numbers(frame.where("a = 2")) == [2]
    assert numbers(frame) == list(range(10))


def test_both_sides_of_a_union_keep_their_own_filter(probe: ProbeStore) -> None:
    frame = probe.load()

    assert numbers(frame.where("a = 1").union(frame.where("a = 2"))) == [1, 2]


def test_both_sides_of_a_self_join_keep_their_own_filter(probe: ProbeStore) -> None:
    frame = probe.load()
    left = frame.where("a < 5").select("a", "b")
    right = frame.where("a > 2").select("a", "x")

    assert numbers(left.join(right, "a")) == [3, 4]


def test_a_cached_frame_and_its_filters_do_not_mix(probe: ProbeStore) -> None:
    frame = probe.load()
    cached = frame.where("a >= 8").cache()

    assert numbers(cached) == [8, 9]
    assert numbers(frame.where("a = 1")) == [1]
    assert numbers(cached.where("a = 9")) == [9]
    assert numbers(frame) == list(range(10))
    cached.unpersist()


def test_a_view_gives_all_rows_after_a_filtered_query(
    spark: SparkSession, probe: ProbeStore
) -> None:
    probe.load().createOrReplaceTempView("probe_view")

    assert numbers(spark.sql("SELECT a FROM probe_view WHERE a = 1")) == [1]
    assert spark.sql("SELECT count(*) AS n FROM probe_view").first().n == 10


def test_subqueries_keep_their_own_filters(spark: SparkSession, probe: ProbeStore) -> None:
    probe.load().createOrReplaceTempView("probe_view")
    query = """
        SELECT a, (SELECT count(*) FROM probe_view WHERE a > 6) AS n FROM probe_view
        WHERE a IN (SELECT a FROM probe_view WHERE odd) AND a < 4
    """

    assert [(row.a, row.n) for row in spark.sql(query).orderBy("a").collect()] == [(1, 3), (3, 3)]


def test_threads_on_one_frame_keep_their_own_filters(probe: ProbeStore) -> None:
    frame = probe.load()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: numbers(frame.where(f"a = {n}")), range(6)))

    assert answers == [[n] for n in range(6)]
