"""Tables that ``CREATE TABLE … USING rmqlog`` makes without the bridge's jar.

Spark hands the options of the statement to ``schema()``, mixed with the table's own properties,
and none at all to ``reader()``. But the schema comes back with what was put on its fields, and
that has the options. The snapshot in it is left alone: a table shows what the store has now.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from rmqlog.commitlog_format.errors import InvalidSettingError
from rmqlog.spark_datasource.schema import field_metadata
from rmqlog.spark_datasource.snapshots import find_snapshot

#: Where Spark says it of a table, and only there; of a statement's options it gives each twice.
_PROVIDER, _LOCATION, _OPTION_PREFIX = "provider", "path", "option."


def statement_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options of the user, without a table's properties if these are mixed into them."""
    options = {name.lower(): text for name, text in given.items()}
    if _PROVIDER not in options:
        return dict(given)
    return {
        name: text for name, text in options.items()
        if name == _LOCATION or f"{_OPTION_PREFIX}{name}" in options
    }


def table_options(
    given: Mapping[str, str], schema: StructType
) -> tuple[dict[str, str], StructType]:
    """The options and the schema of a scan: those of its table, if Spark gives no options."""
    if given:
        return dict(given), schema
    snapshot = find_snapshot(field_metadata(schema))
    if snapshot is None:
        raise InvalidSettingError(
            "no path", expected='load("/path/of/the/store"); a table that was created with '
            "columns of its own needs the bridge's jar",
        )
    fields = [StructField(field.name, field.dataType, field.nullable) for field in schema.fields]
    return snapshot.options, StructType(fields)
