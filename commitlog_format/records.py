"""The columnar decoder: whole columns from many records, no Python loop over messages.

:mod:`message` is its scalar twin and says the same of one record, field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.address import HostColumn, message_id_column
from rmqlog.commitlog_format.binary_columns import (
    MAX_COLUMN_SIZE,
    as_strings,
    gather_binary,
    items_at,
    repeat_string,
)
from rmqlog.commitlog_format.columns import MESSAGE_SCHEMA, TIMESTAMP, select_columns
from rmqlog.commitlog_format.compiled import count_rows
from rmqlog.commitlog_format.errors import (
    BatchLimitExceededError,
    CorruptRecordError,
    InvalidNameError,
)
from rmqlog.commitlog_format.hashing import java_hashes
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits
from rmqlog.commitlog_format.mapped_windows import intact
from rmqlog.commitlog_format.message import tags_code
from rmqlog.commitlog_format.plain_fields import record_fields
from rmqlog.commitlog_format.record_bodies import body_column, check_total_size
from rmqlog.commitlog_format.record_fields import MalformedRowsError, RecordFields
from rmqlog.commitlog_format.record_properties import PropertyColumns
from rmqlog.commitlog_format.text import decode_text

#: Columns that are fields of a record's header, with the types of the schema.
_HEADER_FIELDS = {
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "flag": "flag",
    "sysFlag": "sys_flag",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
    "commitLogOffset": "physical_offset",
    "storeSize": "total_size",
    "bodyCrc": "body_crc",
}
_TIMESTAMP_FIELDS = {"bornTimestamp": "born_timestamp", "storeTimestamp": "store_timestamp"}
_HOST_FIELDS = {"bornHost": "born_host", "storeHost": "store_host"}
_PROPERTY_NAMES = {
    "uniqKey": layout.PROPERTY_UNIQ_KEY,
    "tags": layout.PROPERTY_TAGS,
    "keys": layout.PROPERTY_KEYS,
}
#: The properties that columns are made from.
_PROPERTIES_OF = {
    **{column: (name,) for column, name in _PROPERTY_NAMES.items()},
    "tagsCode": (layout.PROPERTY_TAGS, layout.PROPERTY_DELAY),
}
_MICROSECONDS = 1000
_MAX_TIMESTAMP_MS = (2**63 - 1) // _MICROSECONDS
_SCHEDULE_TOPIC = np.frombuffer(layout.SCHEDULE_TOPIC.encode(), np.uint8)


class RecordDecoder:
    """Decodes records into the wanted columns; a column that nobody wants costs nothing.

    One decoder serves many batches and keeps what they have in common. It is not thread-safe.
    """

    def __init__(
        self, columns: Sequence[str], *, check_crc: bool = True, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._columns = select_columns(columns)
        if "brokerName" in self._columns:
            raise InvalidNameError("no record tells the broker's name", found="brokerName")
        # From the map single properties are cut out faster than from the records.
        self._build_order = sorted(self._columns, key=lambda name: name != "properties")
        self._check_crc = check_crc
        self._limits = limits
        self._hosts = HostColumn()
        self._schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in self._columns])

    def decode(
        self, window: NDArray[np.uint8], base_offset: int, offsets: NDArray[np.int64], *,
        path: str = "", sizes: NDArray[np.integer] | None = None,
    ) -> pa.RecordBatch:
        """The records at these physical offsets as one batch, in their order.

        ``window`` holds the log's bytes from ``base_offset`` on; the batch does not share its
        memory. ``sizes`` are what ConsumeQueue units claim. Every record is checked before it is
        believed; the first one in the order of ``offsets`` that fails raises
        ``CorruptRecordError`` or a subclass. ``BatchLimitExceededError`` asks for fewer rows.
        """
        count_rows(len(offsets))
        try:
            return self._decode(window, base_offset, offsets, path, sizes)
        except MalformedRowsError:
            malformed = self.find_malformed(window, base_offset, offsets, sizes=sizes)
        first = slice(int(np.argmax(malformed)), int(np.argmax(malformed)) + 1)
        first_size = None if sizes is None else sizes[first]
        try:
            return self._decode(window, base_offset, offsets[first], path, first_size)
        except MalformedRowsError as error:
            raise error.describe(0) from None

    def decode_batches(
        self, window: NDArray[np.uint8], base_offset: int, offsets: NDArray[np.int64], *,
        path: str = "", sizes: NDArray[np.integer] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """As :meth:`decode`, in as many batches as the limits of one batch make necessary."""
        try:
            yield self.decode(window, base_offset, offsets, path=path, sizes=sizes)
            return
        except BatchLimitExceededError:
            if len(offsets) <= 1:
                raise
        for half in _halves(len(offsets)):
            half_sizes = None if sizes is None else sizes[half]
            yield from self.decode_batches(
                window, base_offset, offsets[half], path=path, sizes=half_sizes
            )

    def find_malformed(
        self, window: NDArray[np.uint8], base_offset: int, offsets: NDArray[np.int64], *,
        sizes: NDArray[np.integer] | None = None,
    ) -> NDArray[np.bool_]:
        """Which of the records this decoder cannot decode, each judged by itself."""
        malformed = np.zeros(len(offsets), np.bool_)
        rows = np.arange(len(offsets))
        while True:
            try:
                claimed = None if sizes is None else sizes[rows]
                self._decode(window, base_offset, offsets[rows], "", claimed)
                return malformed
            except MalformedRowsError as error:
                # The rest may still fail a later check, of which there are few.
                malformed[rows[error.malformed]] = True
                rows = rows[~error.malformed]
            except BatchLimitExceededError:
                if len(rows) <= 1:
                    malformed[rows] = True
                    return malformed
                for half in _halves(len(rows)):
                    claimed = None if sizes is None else sizes[rows[half]]
                    malformed[rows[half]] = self.find_malformed(
                        window, base_offset, offsets[rows[half]], sizes=claimed
                    )
                return malformed

    def _decode(
        self, window: NDArray[np.uint8], base_offset: int, offsets: NDArray[np.int64],
        path: str, sizes: NDArray[np.integer] | None,
    ) -> pa.RecordBatch:
        with intact(window):
            fields = record_fields(
                window, base_offset, offsets, sizes, path=path, limits=self._limits,
                with_bodies="body" in self._columns,
            )
            batch = _BatchColumns(
                fields, self._hosts, self._columns, check_crc=self._check_crc
            )
            columns = {name: batch.column(name) for name in self._build_order}
        arrays = [columns[name] for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _BatchColumns:
    """Builds the columns of one batch, and what several of them need only once."""

    def __init__(
        self, fields: RecordFields, hosts: HostColumn, wanted: Sequence[str], *, check_crc: bool
    ) -> None:
        self._fields = fields
        self._hosts = hosts
        self._check_crc = check_crc
        self._wanted = wanted
        self._kept_properties: PropertyColumns | None = None
        self._kept_columns: dict[str, pa.StringArray] = {}

    def column(self, name: str) -> pa.Array:
        if name in _HEADER_FIELDS:
            return pa.array(self._fields.header(_HEADER_FIELDS[name]))
        if name in _TIMESTAMP_FIELDS:
            return self._timestamps(_TIMESTAMP_FIELDS[name])
        if name in _HOST_FIELDS:
            return self._by_group(_HOST_FIELDS[name], lambda hosts, _: self._hosts.build(hosts))
        if name in _PROPERTY_NAMES:
            return self._property(_PROPERTY_NAMES[name])
        builders: dict[str, Callable[[], pa.Array]] = {
            "topic": self._topics,
            "msgId": lambda: self._by_group("store_host", message_id_column),
            "body": lambda: body_column(self._fields, check_crc=self._check_crc),
            "properties": lambda: self._properties().map_column(),
            "tagsCode": self._tags_codes,
        }
        return builders[name]()

    def _timestamps(self, field: str) -> pa.Array:
        milliseconds = self._fields.header(field)
        if _is_beyond_time(milliseconds):
            self._fields.require(
                (milliseconds >= -_MAX_TIMESTAMP_MS) & (milliseconds <= _MAX_TIMESTAMP_MS),
                CorruptRecordError, f"{field.replace('_', '').upper()} is no time", milliseconds,
                f"at most {_MAX_TIMESTAMP_MS}",
            )
        return pa.array(milliseconds * _MICROSECONDS).view(TIMESTAMP)

    def _by_group(
        self, field: str,
        build: Callable[[NDArray[np.void], NDArray[np.int64]], pa.StringArray],
    ) -> pa.StringArray:
        """A column made from hosts, whose widths differ from group to group."""
        groups = self._fields.groups
        if groups[0].rows is None:
            return build(groups[0].headers[field], self._fields.offsets)
        parts = [build(group.headers[field], self._fields.offsets[group.rows]) for group in groups]
        order = np.argsort(np.concatenate([group.rows for group in groups]), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(order))

    def _topics(self) -> pa.StringArray:
        fields, topic = self._fields, self._fields.topic
        if fields.only_topic is not None:
            return repeat_string(decode_text(fields.only_topic), len(fields))
        return as_strings(gather_binary(fields.window, topic.positions, topic.sizes))

    def _properties(self) -> PropertyColumns:
        if self._kept_properties is None:
            total_size = int(self._fields.properties.sizes.sum())
            check_total_size(self._fields, total_size, MAX_COLUMN_SIZE)
            names = dict.fromkeys(
                name for column in self._wanted for name in _PROPERTIES_OF.get(column, ())
            )
            self._kept_properties = PropertyColumns(
                self._fields, tuple(names), with_map="properties" in self._wanted
            )
        return self._kept_properties

    def _property(self, name: str) -> pa.StringArray:
        if name not in self._kept_columns:
            self._kept_columns[name] = self._properties().column(name)
        return self._kept_columns[name]

    def _tags_codes(self) -> pa.Array:
        """What the dispatcher would put into the queue units: see ``message.tags_code``."""
        fields = self._fields
        tags = self._property(layout.PROPERTY_TAGS)
        codes = java_hashes(tags).astype(np.int64)
        scheduled = _schedule_rows(fields)
        if len(scheduled):
            self._timestamps("store_timestamp")  # only to check them
            times = fields.header("store_timestamp")
            delays = self._property(layout.PROPERTY_DELAY)
            for row in scheduled.tolist():
                both = {
                    layout.PROPERTY_DELAY: delays[row].as_py(),
                    layout.PROPERTY_TAGS: tags[row].as_py(),
                }
                present = {name: value for name, value in both.items() if value is not None}
                codes[row] = tags_code(layout.SCHEDULE_TOPIC, present, int(times[row]))
        return pa.array(codes)


def _is_beyond_time(milliseconds: NDArray[np.signedinteger]) -> bool:
    """Whether some time cannot be told in microseconds; two looks, no array made."""
    if not len(milliseconds):
        return False
    return max(int(milliseconds.max()), -int(milliseconds.min())) > _MAX_TIMESTAMP_MS


def _schedule_rows(fields: RecordFields) -> NDArray[np.int64]:
    """The rows whose topic is the schedule topic."""
    topic = fields.topic
    if fields.only_topic is not None:
        is_schedule = fields.only_topic == layout.SCHEDULE_TOPIC.encode()
        return np.arange(len(fields) if is_schedule else 0)
    rows = np.flatnonzero(topic.sizes == len(_SCHEDULE_TOPIC))
    if len(rows) == 0:
        return rows
    names = items_at(fields.window, topic.positions[rows], len(_SCHEDULE_TOPIC))
    same: NDArray[np.bool_] = (
        names.view(np.uint8).reshape(len(rows), len(_SCHEDULE_TOPIC)) == _SCHEDULE_TOPIC
    ).all(axis=1)
    return rows[same]


def _halves(count: int) -> tuple[slice, slice]:
    return slice(0, count // 2), slice(count // 2, count)
