"""The tables' schemas as Spark sees them, and the Arrow schemas that its workers demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmqlog.commitlog_format.columns import MESSAGE_SCHEMA
from rmqlog.commitlog_format.errors import InvalidNameError, InvalidSettingError, nearest_name
from rmqlog.spark_datasource.options import KEY_COLUMN, Options
from rmqlog.spark_datasource.snapshots import SNAPSHOT_KEY, Snapshot

#: Marks columns on which we apply every filter exactly; see bridge/README.md.
EXACT_KEY: Final = "rmqlog.exactFilters"
#: What a queue and its store tell: constant in a queue, so a filter keeps or skips it whole.
QUEUE_COLUMNS: Final = ("brokerName", "topic", "queueId")

_SPARK_TYPES: dict[pa.DataType, DataType] = {
    pa.string(): StringType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.binary(): BinaryType(),
    pa.timestamp("us", "UTC"): TimestampType(),
    pa.map_(pa.string(), pa.string()): MapType(StringType(), StringType()),
}


def message_types(options: Options) -> dict[str, DataType]:
    """The columns of the message table under these options, in order, with their types."""
    types = {field.name: _SPARK_TYPES[field.type] for field in MESSAGE_SCHEMA}
    if options["bodyFormat"] == "string":
        types["body"] = StringType()
    if options["explodeKeys"]:
        names = list(types)
        place = names.index("keys") + 1
        types[KEY_COLUMN] = StringType()
        types = {name: types[name] for name in [*names[:place], KEY_COLUMN, *names[place:]]}
    if options["columns"] is not None:
        if KEY_COLUMN in options["columns"] and KEY_COLUMN not in types:
            raise InvalidSettingError(
                "the column key needs explodeKeys=true", found=f"columns={options['columns']}"
            )
        types = {name: types[name] for name in options["columns"]}
    return types


def message_schema(options: Options, snapshot: Snapshot, *, exact: bool) -> StructType:
    """The message table; its first field carries the snapshot.

    ``exact`` tells Spark that filters on queue columns need no second look.
    """
    schema = schema_of(message_types(options))
    schema.fields[0].metadata[SNAPSHOT_KEY] = snapshot.to_json()
    if exact:
        for field in schema.fields:
            if field.name in QUEUE_COLUMNS:
                field.metadata[EXACT_KEY] = True
    return schema


def schema_of(types: Mapping[str, DataType]) -> StructType:
    """Nullable fields of these types."""
    return StructType([StructField(name, kind, True) for name, kind in types.items()])


def names_schema(names: Iterable[str]) -> StructType:
    """An answer that is a list of names."""
    return schema_of(dict.fromkeys(names, StringType()))


def field_metadata(schema: StructType) -> dict[str, Mapping[str, Any]]:
    """The metadata of a schema's fields, by name."""
    return {field.name: field.metadata or {} for field in schema.fields}


def check_schema(wanted: StructType, types: Mapping[str, DataType]) -> None:
    """Raise unless a schema, perhaps the user's own, is a choice of a table's columns."""
    for field in wanted.fields:
        if field.name not in types:
            raise InvalidNameError(
                "no such column", found=field.name,
                expected=nearest_name(field.name, types, "one of " + ", ".join(types)),
            )
        if field.dataType != types[field.name]:
            raise InvalidNameError(
                f"column {field.name} has another type", found=field.dataType.simpleString(),
                expected=types[field.name].simpleString(),
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark's workers compare our batches with."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # pyspark 4.1 spells it differently
        return to_arrow_schema(schema, timestamp_utc=True)  # type: ignore[call-arg]
