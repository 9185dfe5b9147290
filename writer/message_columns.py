"""Messages to be appended, as whole columns: Arrow in, checked and completed columns out.

What a written row means: a column beats the property of the same meaning; names in
``properties`` that would make the store act are dropped and counted; columns that the store
assigns are ignored; any other unknown column is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.address import parse_host
from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS
from rmqlog.commitlog_format.compression import compress
from rmqlog.commitlog_format.encoding import ByteColumn, dictionary_codes, encode_property_map
from rmqlog.commitlog_format.errors import InvalidNameError, RuleViolationError
from rmqlog.commitlog_format.layout import Compression, SysFlag
from rmqlog.writer import rules
from rmqlog.writer.settings import StoreSettings

logger = logging.getLogger(__name__)

_Integer = TypeVar("_Integer", np.int32, np.int64)

INPUT_COLUMNS = (
    *("topic", "queueId", "tags", "keys", "body", "properties", "flag", "bornTimestamp"),
    *("bornHost", "uniqKey", "delayLevel", "shardingKey", "compression"),
)
#: Columns of a message that was read, which the store assigns anew.
ASSIGNED_COLUMNS = frozenset(MESSAGE_COLUMNS) - frozenset(INPUT_COLUMNS)
#: ``queue_id`` of a row that leaves the choice to the writer.
ANY_QUEUE = -1
#: ``born_timestamp`` of a row that takes the time of the append.
NO_TIME = -(2**63)

_COMPRESSIONS = {"zlib": Compression.ZLIB, "lz4": Compression.LZ4, "zstd": Compression.ZSTD}
#: Property names that make a store act. A message that was read carries them still.
_ACTING_NAMES = frozenset(
    {
        layout.PROPERTY_DELAY,
        layout.PROPERTY_REAL_TOPIC,
        layout.PROPERTY_REAL_QUEUE_ID,
        layout.PROPERTY_TRANSACTION,
        layout.PROPERTY_PRODUCER_GROUP,
        layout.PROPERTY_CRC,
    }
)
_ACTING_PREFIXES = ("INNER_", "TIMER_", "__RMQ.TRANSIENT.")
#: Properties that have a column of their own, by the column's name.
_COLUMN_PROPERTIES = {
    layout.PROPERTY_TAGS: "tags",
    layout.PROPERTY_KEYS: "keys",
    layout.PROPERTY_UNIQ_KEY: "uniqKey",
    layout.PROPERTY_SHARDING_KEY: "shardingKey",
}


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One message to be appended; what is left out has a broker's default."""

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | None = None
    queue_id: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    born_timestamp_ms: int | None = None
    born_host: str | None = None
    uniq_key: str | None = None
    delay_level: int = 0
    sharding_key: str | None = None
    compression: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class MessageColumns:
    """Checked messages. Texts are null where absent; ``bodies`` are as they will be stored,
    as an Arrow column and by place. ``text_bytes`` are the texts by place, by column name.

    ``other_properties`` is the finished string of all properties without a column.
    ``dropped_names`` counts the entries of ``properties`` that were left out, by name.
    """

    topics: Sequence[str]
    topic_codes: NDArray[np.int32]
    queue_id: NDArray[np.int32]
    tags: pa.StringArray
    keys: pa.StringArray
    uniq_keys: pa.StringArray
    sharding_keys: pa.StringArray
    text_bytes: Mapping[str, ByteColumn]
    bodies: pa.BinaryArray
    body_column: ByteColumn
    other_properties: ByteColumn | None
    flag: NDArray[np.int32]
    sys_flag: NDArray[np.int32]
    #: ``NO_TIME`` where the row has none.
    born_timestamp: NDArray[np.int64]
    born_hosts: Sequence[bytes]
    born_host_codes: NDArray[np.int32]
    delay_level: NDArray[np.int32]
    dropped_names: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.queue_id)


def read_messages(
    batch: pa.RecordBatch,
    settings: StoreSettings,
    *,
    topic: str | None = None,
    compression: str | None = None,
    allow_v2: bool = False,
) -> MessageColumns:
    """The messages of an Arrow batch, checked by every rule that concerns single rows.

    ``topic`` and ``compression`` are for rows that have none of their own.
    """
    _check_column_names(batch.schema.names)
    count = batch.num_rows
    columns = _Columns(batch)
    texts = {name: columns.text(name) for name in ("tags", "keys", "uniqKey", "shardingKey")}
    others, dropped = _read_properties(columns, texts)
    text_bytes = {name: ByteColumn.from_arrow(text) for name, text in texts.items()}
    for name, text in text_bytes.items():
        rules.check_separators(text, name)
    topics, topic_codes = _read_topics(columns, topic, allow_v2=allow_v2)
    queue_ids = columns.integers("queueId", pa.int32())
    given = np.asarray(queue_ids.is_valid()) if queue_ids is not None else np.zeros(count, bool)
    queue_id = _filled(queue_ids, count, ANY_QUEUE, np.int32)
    rules.check_queue_ids(queue_id, given)
    delay_level = _filled(columns.integers("delayLevel", pa.int32()), count, 0, np.int32)
    rules.check_delay_levels(delay_level)
    born_hosts, host_codes, host_flags = _read_born_hosts(columns, settings)
    bodies, body_flags = _read_bodies(columns, compression)
    body_column = ByteColumn.from_arrow(bodies)
    rules.check_body_sizes(body_column.sizes, settings)
    if dropped:
        logger.warning("dropped properties that would make the store act: %s", dropped)
    return MessageColumns(
        topics=topics,
        topic_codes=topic_codes,
        queue_id=queue_id,
        tags=texts["tags"],
        keys=texts["keys"],
        uniq_keys=texts["uniqKey"],
        sharding_keys=texts["shardingKey"],
        text_bytes=text_bytes,
        bodies=bodies,
        body_column=body_column,
        other_properties=others,
        flag=_filled(columns.integers("flag", pa.int32()), count, 0, np.int32),
        sys_flag=host_flags | body_flags,
        born_timestamp=_filled(columns.milliseconds("bornTimestamp"), count, NO_TIME, np.int64),
        born_hosts=born_hosts,
        born_host_codes=host_codes,
        delay_level=np.minimum(delay_level, len(settings.delay_levels_ms)).astype(np.int32),
        dropped_names=dropped,
    )


def batch_of(messages: Sequence[NewMessage]) -> pa.RecordBatch:
    """Single messages as an Arrow batch."""
    properties = [list(message.properties.items()) for message in messages]
    integers, text = pa.int32(), pa.string()
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([message.topic for message in messages], text),
            "queueId": pa.array([message.queue_id for message in messages], integers),
            "tags": pa.array([message.tags for message in messages], text),
            "keys": pa.array([message.keys for message in messages], text),
            "body": pa.array([message.body for message in messages], pa.binary()),
            "properties": pa.array(properties, pa.map_(text, text)),
            "flag": pa.array([message.flag for message in messages], integers),
            "bornTimestamp": pa.array([m.born_timestamp_ms for m in messages], pa.int64()),
            "bornHost": pa.array([message.born_host for message in messages], text),
            "uniqKey": pa.array([message.uniq_key for message in messages], text),
            "delayLevel": pa.array([message.delay_level for message in messages], integers),
            "shardingKey": pa.array([message.sharding_key for message in messages], text),
            "compression": pa.array([message.compression for message in messages], text),
        }
    )


def _check_column_names(names: Sequence[str]) -> None:
    for name in names:
        if name not in INPUT_COLUMNS and name not in ASSIGNED_COLUMNS:
            raise InvalidNameError(
                "no such column can be written", found=name,
                expected="some of " + ", ".join(INPUT_COLUMNS),
            )
    if len(set(names)) != len(names):
        raise InvalidNameError("a column comes twice", found=", ".join(names))


class _Columns:
    """Columns of a batch by name, cast to what the writer works with."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.count = batch.num_rows
        # Asking the batch for a name makes a schema each time.
        self._columns = dict(zip(batch.schema.names, batch.columns, strict=True))

    def find(self, name: str, kind: pa.DataType) -> pa.Array | None:
        column = self._columns.get(name)
        if column is None or column.type == kind:
            if column is not None and pa.types.is_string(kind):
                rules.check_well_formed(column, name)  # Spark, for one, does not look
            return column
        try:
            return column.cast(kind)
        except pa.ArrowException as error:
            raise InvalidNameError(
                f"column {name} cannot be written: {error}", found=column.type, expected=kind
            ) from error

    def text(self, name: str) -> pa.StringArray:
        """A text column; empty is the same as absent, and so null."""
        column = self.find(name, pa.string())
        if column is None:
            return pa.nulls(self.count, pa.string())
        empty_count = len(column) - np.count_nonzero(ByteColumn.from_arrow(column).sizes)
        if empty_count > column.null_count:
            column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
        return column

    def integers(self, name: str, kind: pa.DataType) -> pa.Array | None:
        column = self._columns.get(name)
        if column is not None and column.type != kind and pa.types.is_integer(column.type):
            rules.check_integers(column, name, kind)
        return self.find(name, kind)

    def milliseconds(self, name: str) -> pa.Array | None:
        """A column of times, or of integers that are milliseconds already."""
        column = self._columns.get(name)
        if column is not None and pa.types.is_timestamp(column.type):
            # Fractions of a millisecond have no place on disk.
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
            return column.view(pa.int64())
        return self.integers(name, pa.int64())


def _filled(
    column: pa.Array | None, count: int, default: int, kind: type[_Integer]
) -> NDArray[_Integer]:
    if column is None:
        return np.full(count, default, kind)
    filled = column.fill_null(default) if column.null_count else column
    return np.asarray(filled, dtype=kind)


def _read_topics(
    columns: _Columns, default: str | None, *, allow_v2: bool
) -> tuple[list[str], NDArray[np.int32]]:
    column = columns.find("topic", pa.string())
    if column is None and default is not None and columns.count:
        codes = np.zeros(columns.count, np.int32)
        rules.check_topics([default], codes, allow_v2=allow_v2)
        return [default], codes
    if column is None:
        column = pa.nulls(columns.count, pa.string())
    if column.null_count:
        if default is None:
            missing = np.flatnonzero(np.asarray(column.is_null()))
            raise RuleViolationError(rules.RULE_TOPIC_MISSING, int(missing[0]), None)
        column = column.fill_null(default)
    topics, codes = dictionary_codes(column)
    rules.check_topics(topics, codes, allow_v2=allow_v2)
    return topics, codes


def _read_born_hosts(
    columns: _Columns, settings: StoreSettings
) -> tuple[list[bytes], NDArray[np.int32], NDArray[np.int32]]:
    """Distinct hosts, each row's position among them, and each row's bit in SYSFLAG."""
    own = settings.store_host
    column = columns.find("bornHost", pa.string())
    if column is None:
        texts, codes = [own], np.zeros(columns.count, np.int32)
    else:
        texts, codes = dictionary_codes(column.fill_null(own) if column.null_count else column)
    hosts = [_parse_born_host(text, codes, code) for code, text in enumerate(texts)]
    v6 = [SysFlag.BORN_HOST_V6 if len(host) == layout.IPV6_HOST_SIZE else 0 for host in hosts]
    flags = np.array(v6 or [0], np.int32)[codes] if len(hosts) else np.zeros(0, np.int32)
    return hosts, codes, flags


def _parse_born_host(text: str, codes: NDArray[np.int32], code: int) -> bytes:
    try:
        return parse_host(text)
    except InvalidNameError as error:
        row = int(np.flatnonzero(codes == code)[0])
        raise RuleViolationError(rules.RULE_HOST, row, text, error.expected) from error


def _read_bodies(
    columns: _Columns, default: str | None
) -> tuple[pa.BinaryArray, NDArray[np.int32]]:
    """The bodies as they will be stored, and each row's compression bits in SYSFLAG."""
    bodies = columns.find("body", pa.binary())
    if bodies is None:
        bodies = pa.nulls(columns.count, pa.binary())
    rules.check_bodies_present(bodies)
    flags = np.zeros(columns.count, np.int32)
    wanted = columns.find("compression", pa.string())
    if wanted is None:
        if default is None:
            return bodies, flags
        wanted = pa.nulls(columns.count, pa.string())
    if default is not None:
        wanted = wanted.fill_null(default)
    if wanted.null_count == len(wanted):
        return bodies, flags
    stored = []
    for row, (body, name) in enumerate(zip(bodies.to_pylist(), wanted.to_pylist(), strict=True)):
        if name is None or not body:
            stored.append(body)
            continue
        kind = _COMPRESSIONS.get(name)
        if kind is None:
            raise RuleViolationError(rules.RULE_COMPRESSION, row, name)
        stored.append(compress(body, kind))
        flags[row] = SysFlag.COMPRESSED | (kind << layout.COMPRESSION_SHIFT)
    return pa.array(stored, pa.binary()), flags


def _read_properties(
    columns: _Columns, texts: dict[str, pa.StringArray]
) -> tuple[ByteColumn | None, dict[str, int]]:
    """The strings of properties without a column; those with one complete ``texts``."""
    column = columns.find("properties", pa.map_(pa.string(), pa.string()))
    if column is None or len(column) == column.null_count:
        return None, {}
    # Of a slice, offsets still point into the whole; a null row may hide entries.
    offsets = np.asarray(column.offsets).astype(np.int64)
    counts = np.diff(offsets)
    if column.null_count:
        counts[np.asarray(column.is_null())] = 0
    entry_rows = np.repeat(np.arange(len(column)), counts)
    entries = np.repeat(offsets[:-1] - (np.cumsum(counts) - counts), counts)
    entries += np.arange(len(entry_rows))
    names = column.keys.take(pa.array(entries))
    values = column.items.take(pa.array(entries))
    for part in (names, values):
        rules.check_well_formed(part, "properties", entry_rows)
    rules.check_property_entries(
        ByteColumn.from_arrow(names), ByteColumn.from_arrow(values), entry_rows,
        np.asarray(values.is_null()),
    )
    return _sort_out(names, values, entry_rows, len(column), texts)


def _sort_out(
    names: pa.StringArray,
    values: pa.StringArray,
    entry_rows: NDArray[np.int64],
    row_count: int,
    texts: dict[str, pa.StringArray],
) -> tuple[ByteColumn, dict[str, int]]:
    """Entries with a column go there, acting ones are dropped, the others become strings."""
    distinct, codes = dictionary_codes(names)
    keep = np.ones(len(codes), np.bool_)
    dropped: dict[str, int] = {}
    for code, name in enumerate(distinct):
        acts = name in _ACTING_NAMES or name.startswith(_ACTING_PREFIXES)
        if not acts and name not in _COLUMN_PROPERTIES:
            continue
        entries = np.flatnonzero(codes == code)
        keep[entries] = False
        if acts:
            dropped[name] = len(entries)
        else:
            target = _COLUMN_PROPERTIES[name]
            of_row = np.full(row_count, -1)
            of_row[entry_rows[entries]] = entries
            found = values.take(pa.array(of_row, mask=of_row < 0))
            texts[target] = pc.coalesce(texts[target], found)
    kept = np.flatnonzero(keep)
    ends = np.cumsum(np.bincount(entry_rows[kept], minlength=row_count))
    row_offsets = np.concatenate((np.zeros(1, np.int64), ends))
    encoded = encode_property_map(
        ByteColumn.from_arrow(names)[kept], ByteColumn.from_arrow(values)[kept], row_offsets
    )
    return encoded, dropped
