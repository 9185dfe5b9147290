"""Facts about Spark for which the bridge exists. When one of these fails, Spark has changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter
from pyspark.sql.types import StructType

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def plain(spark: SparkSession) -> SparkSession:
    """A session with a plain Python source of ten rows that pushes ``a = n`` down."""

    class PlainReader(DataSourceReader):
        wanted: int | None = None

        def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
            for one in filters:
                if isinstance(one, EqualTo) and one.attribute == ("a",):
                    self.wanted = one.value
                yield one

        def read(self, partition: object) -> Iterator[tuple[int, str]]:
            rows = range(10) if self.wanted is None else [self.wanted]
            return iter([(a, f"body-{a}") for a in rows])

    class PlainSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "plain_pushing"

        def schema(self) -> str:
            return "a int, body string"

        def reader(self, schema: StructType) -> DataSourceReader:
            return PlainReader()

    spark.dataSource.register(PlainSource)
    return spark


@pytest.fixture
def pushing(plain: SparkSession) -> Iterator[SparkSession]:
    """The same with Spark's setting for filters of Python sources switched on."""
    plain.conf.set(PUSHDOWN, "true")
    yield plain
    plain.conf.unset(PUSHDOWN)


def load(spark: SparkSession) -> DataFrame:
    return spark.read.format("plain_pushing").load()


def test_without_the_bridge_a_filter_leaks_into_the_next_query(pushing: SparkSession) -> None:
    frame = load(pushing)

    assert frame.where("a = 1").count() == 1
    assert frame.count() == 1  # ten would be right


def test_without_the_bridge_a_filter_leaks_inside_a_union(pushing: SparkSession) -> None:
    frame = load(pushing)

    rows = frame.where("a = 1").union(frame.where("a = 2")).collect()

    assert len(rows) == 1  # two would be right


def test_without_the_setting_a_reader_with_push_filters_fails_every_read(
    plain: SparkSession,
) -> None:
    with pytest.raises(AnalysisException, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        load(plain).collect()


def test_without_the_bridge_no_column_is_pruned(plain: SparkSession) -> None:
    asked = []

    class WideReader(DataSourceReader):
        def __init__(self, columns: Sequence[str]) -> None:
            self.columns = columns

        def read(self, partition: object) -> Iterator[tuple[str, str]]:
            return iter([(",".join(self.columns), "body")])

    class WideSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "plain_wide"

        def schema(self) -> str:
            return "tags string, body string"

        def reader(self, schema: StructType) -> DataSourceReader:
            return WideReader(schema.fieldNames())

    plain.dataSource.register(WideSource)
    asked = plain.read.format("plain_wide").load().select("tags").first().tags

    assert asked == "tags,body"  # "tags" would do
