"""The Spark data source ``rmqlog``: it only sorts questions and hands them on."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader
from pyspark.sql.types import StructType

from rmqlog.commitlog_format.errors import StoreNotFoundError, TopicNotFoundError
from rmqlog.spark_datasource import catalog
from rmqlog.spark_datasource.aggregates import aggregate_schema
from rmqlog.spark_datasource.created_tables import statement_options, table_options
from rmqlog.spark_datasource.metadata_tables import table_types
from rmqlog.spark_datasource.missing_bridge import warn_of_missing_bridge
from rmqlog.spark_datasource.offsets import check_offset_names
from rmqlog.spark_datasource.reader import RmqlogReader
from rmqlog.spark_datasource.request import Request, parse_request
from rmqlog.spark_datasource.schema import check_schema, message_schema, schema_of
from rmqlog.spark_datasource.snapshots import SNAPSHOT_KEY, open_new
from rmqlog.spark_datasource.topics import check_topics_exist


class RmqlogDataSource(DataSource):
    """RocketMQ message stores as tables; options are in ``options.py`` and ``sink_options.py``."""

    @classmethod
    def name(cls) -> str:
        """The name for ``spark.read.format``."""
        return "rmqlog"

    def schema(self) -> StructType:
        """The schema of the table that the options mean, or the answer to a bridge's question."""
        if catalog.is_unknown_table(self.options):
            return StructType([])
        request = parse_request(statement_options(self.options))
        if request.catalog == catalog.TABLES:
            return catalog.table_names(request.options)
        if request.catalog == catalog.METADATA:
            return catalog.metadata_names()
        if request.aggregate is not None:
            return aggregate_schema(request)
        try:
            return _table_schema(request)
        except (TopicNotFoundError, StoreNotFoundError):
            if request.catalog == catalog.TABLE:
                return StructType([])
            raise

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of the wanted columns; the bridge prunes them, or the user's own schema."""
        options, schema = table_options(self.options, schema)
        request = parse_request(options)
        if not request.has_bridge:  # with a schema of the user's own nobody asks for ours
            warn_of_missing_bridge()
        if request.aggregate is None:
            check_schema(schema, table_types(request.options))
        return RmqlogReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of a frame, all of whose columns and options were checked."""
        # Workers that read start sooner, and in less memory, without it.
        from rmqlog.spark_datasource.sink import RmqlogWriter
        from rmqlog.spark_datasource.sink_plan import plan_write

        plan = plan_write(self.options, schema, overwrite=overwrite)
        return RmqlogWriter(plan)


def _table_schema(request: Request) -> StructType:
    options = request.options
    if not request.has_bridge:
        warn_of_missing_bridge()
    stores, snapshot = open_new(options)
    check_topics_exist(stores, options)
    if options["metadata"] is not None:
        schema = schema_of(table_types(options))
        schema.fields[0].metadata[SNAPSHOT_KEY] = snapshot.to_json()
        return schema
    check_offset_names(stores, options)
    exact = request.has_bridge and options["pushdown"]
    return message_schema(options, snapshot, exact=exact)
