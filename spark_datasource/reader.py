"""Spark's reader: plans on the driver, reads in tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmqlog.spark_datasource.partitions import Partition
from rmqlog.spark_datasource.piece_reader import PieceReader
from rmqlog.spark_datasource.planning import plan_scan, read_policy
from rmqlog.spark_datasource.request import Request, parse_request
from rmqlog.spark_datasource.row_filters import RowFilter
from rmqlog.spark_datasource.schema import arrow_schema, field_metadata
from rmqlog.spark_datasource.snapshots import find_snapshot, limits_of, open_new, open_pinned
from rmqlog.spark_datasource.worker_process import begin_task, fit_to_worker


class RmqlogReader(DataSourceReader):
    """Reads one scan. It keeps only text, so that it travels to every task cheaply."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options = dict(options)
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        """The plan; its first partition carries the report."""
        begin_task()
        request = parse_request(self.options)
        snapshot = find_snapshot({**(request.field_metadata or {}), **field_metadata(self.schema)})
        if snapshot is None:
            stores, snapshot = open_new(request.options)
        else:
            stores = open_pinned(request.options, snapshot)
        plan = plan_scan(request, self.schema.fieldNames(), stores, snapshot)
        return list(plan.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, the same ones whenever it is read."""
        if not isinstance(partition, Partition):
            return
        begin_task()
        request = parse_request(self.options)
        reader = piece_reader(request, arrow_schema(self.schema))
        left = partition.row_limit
        if left is None:
            reader.announce(partition.pieces)
        for piece in partition.pieces:
            for batch in reader.read(piece):
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= batch.num_rows
                yield batch
                if left == 0:
                    return
        reader.log_left_out()


def piece_reader(request: Request, schema: pa.Schema) -> PieceReader:
    """The reader of a request's pieces."""
    options = request.options
    return PieceReader(
        schema, RowFilter.of(request), read_policy(options), fit_to_worker(limits_of(options)),
        explode=bool(options["explodeKeys"]),
    )
