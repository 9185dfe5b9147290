"""The catalog's questions: which tables there are. A list of names is an answer's field names."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from rmqlog.commitlog_format.store_set import StoreSet
from rmqlog.spark_datasource.option_values import BRIDGE_PREFIX
from rmqlog.spark_datasource.options import METADATA_TABLES, Options
from rmqlog.spark_datasource.schema import names_schema
from rmqlog.spark_datasource.topics import select_topics, table_topics

TABLES, METADATA, TABLE = "tables", "metadata", "table"


def table_names(options: Options) -> StructType:
    """A field for each topic that a read without a named topic would give."""
    stores = StoreSet.open(options.paths, broker_name=options["brokerName"],
                           log_directories=options["storePathCommitLog"] or ())
    names: set[str] = set()
    for store in stores:
        selection = select_topics(store, options)
        names.update(filter(selection.includes, table_topics(store)))
    return names_schema(sorted(names))


def metadata_names() -> StructType:
    """A field for each table of metadata."""
    return names_schema(METADATA_TABLES)


def is_unknown_table(given: Mapping[str, str]) -> bool:
    """Whether the catalog asks for a table of metadata that there is not."""
    lower = {name.lower(): value for name, value in given.items()}
    return (
        lower.get(f"{BRIDGE_PREFIX}catalog") == TABLE
        and lower.get("metadata", METADATA_TABLES[0]).lower() not in METADATA_TABLES
    )
