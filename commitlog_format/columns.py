"""The columns of a message: names, order, Arrow types, and where each one is found."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from rmqlog.commitlog_format.errors import InvalidNameError

#: Milliseconds on disk; microseconds here because that is Spark's timestamp.
TIMESTAMP = pa.timestamp("us", "UTC")
PROPERTIES = pa.map_(pa.string(), pa.string())

MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("brokerName", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("queueId", pa.int32()),
        pa.field("queueOffset", pa.int64()),
        pa.field("msgId", pa.string()),
        pa.field("uniqKey", pa.string()),
        pa.field("tags", pa.string()),
        pa.field("keys", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("properties", PROPERTIES),
        pa.field("flag", pa.int32()),
        pa.field("sysFlag", pa.int32()),
        pa.field("bornTimestamp", TIMESTAMP),
        pa.field("bornHost", pa.string()),
        pa.field("storeTimestamp", TIMESTAMP),
        pa.field("storeHost", pa.string()),
        pa.field("reconsumeTimes", pa.int32()),
        pa.field("preparedTransactionOffset", pa.int64()),
        pa.field("commitLogOffset", pa.int64()),
        pa.field("storeSize", pa.int32()),
        pa.field("bodyCrc", pa.int32()),
        pa.field("tagsCode", pa.int64()),
    ]
)
MESSAGE_COLUMNS: tuple[str, ...] = tuple(MESSAGE_SCHEMA.names)

#: What a ConsumeQueue unit and its place tell: these never touch the commit log.
UNIT_COLUMNS = frozenset(
    {
        "brokerName",
        "topic",
        "queueId",
        "queueOffset",
        "commitLogOffset",
        "storeSize",
        "tagsCode",
    }
)

#: Columns that need the properties string of a record.
PROPERTY_COLUMNS = frozenset({"uniqKey", "tags", "keys", "properties"})


def select_columns(wanted: Iterable[str] | None) -> tuple[str, ...]:
    """The wanted columns as a tuple, all of them for ``None``; an unknown name raises."""
    if wanted is None:
        return MESSAGE_COLUMNS
    selected = tuple(wanted)
    for name in selected:
        if name not in MESSAGE_SCHEMA.names:
            raise InvalidNameError(
                "no such column", found=name, expected="one of " + ", ".join(MESSAGE_COLUMNS)
            )
    return selected
