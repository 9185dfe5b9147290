"""The ceilings of a Python source and sink: ready-made batches out, rows thrown away. And our own
source without the bridge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rmqlog.spark_datasource.source import RmqlogDataSource


class _Share(InputPartition):
    def __init__(self, row_count: int) -> None:
        self.row_count = row_count


class CeilingSource(DataSource):
    """Yields one Arrow batch, read once from a file, as often as a partition's rows need.

    Options: ``path`` (an Arrow file with one batch), ``rows`` (how many in all) and
    ``partitions``.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``spark.read.format``."""
        return "rmqlog_ceiling"

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader."""
        return _CeilingReader(self.options)


class _CeilingReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.path = options["path"]
        self.row_count = int(options["rows"])
        self.partition_count = int(options["partitions"])

    def partitions(self) -> list[InputPartition]:
        """The rows in equal shares."""
        count = self.partition_count
        rows = self.row_count
        return [_Share(rows // count + (index < rows % count)) for index in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The same batch again and again."""
        assert isinstance(partition, _Share)
        with pa.ipc.open_file(self.path) as file:
            batch = file.get_batch(0)
        left = partition.row_count
        while left > 0:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= batch.num_rows


class DiscardSink(DataSource):
    """Takes Arrow batches and throws them away; ``rows`` is how many there must have been."""

    @classmethod
    def name(cls) -> str:
        """The name for ``df.write.format``."""
        return "rmqlog_discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer."""
        return _DiscardWriter(int(self.options["rows"]))


@dataclass
class _Discarded(WriterCommitMessage):
    row_count: int


class _DiscardWriter(DataSourceArrowWriter):
    def __init__(self, row_count: int) -> None:
        self.row_count = row_count

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Count the rows: touching them is not part of the ceiling."""
        return _Discarded(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Fail when rows are missing."""
        found = sum(message.row_count for message in messages if isinstance(message, _Discarded))
        assert found == self.row_count, (found, self.row_count)


class PlainSource(RmqlogDataSource):
    """The source as Spark finds it where there is no jar."""

    @classmethod
    def name(cls) -> str:
        """Its own name: the jar takes ``rmqlog``."""
        return "rmqlog_plain"


def register(spark: SparkSession) -> None:
    """Make them known to a session."""
    for source in (CeilingSource, DiscardSink, PlainSource):
        spark.dataSource.register(source)
