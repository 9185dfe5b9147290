"""One record, one message: the scalar codec, to be read beside the specification.

It is the twin of the columnar decoder in :mod:`records` and the oracle of its tests. Decoding
and encoding are mirror images, field by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.address import encode_message_id, format_host
from rmqlog.commitlog_format.checksum import body_crc
from rmqlog.commitlog_format.compression import decompress
from rmqlog.commitlog_format.errors import (
    ChecksumError,
    CorruptRecordError,
    LimitExceededError,
    TruncatedRecordError,
)
from rmqlog.commitlog_format.hashing import java_hash
from rmqlog.commitlog_format.layout import I8, I16, I32, I64, U32, SysFlag
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits
from rmqlog.commitlog_format.properties import parse_properties
from rmqlog.commitlog_format.text import decode_text

#: Java's Long.MAX_VALUE milliseconds do not fit into Arrow's microseconds.
_MAX_TIMESTAMP_MS = (2**63 - 1) // 1000


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of a CommitLog record exactly as they are on disk."""

    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: bytes
    properties: bytes

    @property
    def total_size(self) -> int:
        """TOTALSIZE: the bytes of the whole record."""
        header = layout.RECORD_HEADERS[self.sys_flag & layout.HOSTS_V6_MASK].itemsize
        topic_size_width = I8.size if self.magic == layout.MAGIC_V1 else I16.size
        lengths = topic_size_width + I16.size
        return header + lengths + len(self.body) + len(self.topic) + len(self.properties)


@dataclass(frozen=True, slots=True)
class Message:
    """One message as a user sees it: text decoded, body decompressed.

    ``store_size`` and ``body_crc`` are ``None`` for a message of an inner batch: it has none of
    its own.
    """

    topic: str
    queue_id: int
    queue_offset: int
    msg_id: str
    body: bytes
    properties: Mapping[str, str]
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: str
    store_timestamp_ms: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    commit_log_offset: int
    store_size: int | None
    body_crc: int | None
    tags_code: int

    @property
    def tags(self) -> str | None:
        """Property TAGS."""
        return self.properties.get(layout.PROPERTY_TAGS)

    @property
    def keys(self) -> str | None:
        """Property KEYS as stored: tokens separated by spaces."""
        return self.properties.get(layout.PROPERTY_KEYS)

    @property
    def uniq_key(self) -> str | None:
        """Property UNIQ_KEY: what clients and consoles call the message id."""
        return self.properties.get(layout.PROPERTY_UNIQ_KEY)


class _Cursor:
    """Reads fields one after another; a read past the end is a typed error."""

    def __init__(self, data: bytes, offset: int, path: str) -> None:
        self.data = data
        self.position = 0
        self.offset = offset
        self.path = path

    def take(self, size: int, what: str) -> bytes:
        left = len(self.data) - self.position
        if not 0 <= size <= left:
            raise TruncatedRecordError(
                f"{what} does not fit into the record",
                self.path, self.offset, f"{size} bytes", f"0 to {left} bytes",
            )
        self.position += size
        return self.data[self.position - size : self.position]

    def i8(self, what: str) -> int:
        return int(I8.unpack(self.take(I8.size, what))[0])

    def i16(self, what: str) -> int:
        return int(I16.unpack(self.take(I16.size, what))[0])

    def i32(self, what: str) -> int:
        return int(I32.unpack(self.take(I32.size, what))[0])

    def u32(self, what: str) -> int:
        return int(U32.unpack(self.take(U32.size, what))[0])

    def i64(self, what: str) -> int:
        return int(I64.unpack(self.take(I64.size, what))[0])


def decode_record(
    data: bytes, physical_offset: int | None = None, *, path: str = "",
    limits: Limits = DEFAULT_LIMITS,
) -> Record:
    """The record that ``data`` begins with.

    With ``physical_offset`` the record must say that it lies there: stale bytes behind the end
    of a log are well-formed records of another place. Checksums are not compared here.
    """
    where = -1 if physical_offset is None else physical_offset
    size_cursor = _Cursor(data, where, path)
    total_size = size_cursor.i32("TOTALSIZE")
    magic = size_cursor.u32("MAGICCODE")
    if magic not in (layout.MAGIC_V1, layout.MAGIC_V2):
        raise CorruptRecordError(
            "not a message", path, where, f"magic {magic:#010x}",
            f"{layout.MAGIC_V1:#010x} or {layout.MAGIC_V2:#010x}",
        )
    if total_size > limits.record_size:
        raise LimitExceededError(
            "record is larger than allowed", path, where, total_size, limits.record_size
        )
    size_cursor.position = 0
    cursor = _Cursor(size_cursor.take(total_size, "TOTALSIZE"), where, path)
    cursor.take(8, "TOTALSIZE and MAGICCODE")
    crc = cursor.i32("BODYCRC")
    queue_id = cursor.i32("QUEUEID")
    flag = cursor.i32("FLAG")
    queue_offset = cursor.i64("QUEUEOFFSET")
    physical = cursor.i64("PHYSICALOFFSET")
    sys_flag = cursor.i32("SYSFLAG")
    born_timestamp = cursor.i64("BORNTIMESTAMP")
    born_host = cursor.take(host_size(sys_flag, SysFlag.BORN_HOST_V6), "BORNHOST")
    store_timestamp = cursor.i64("STORETIMESTAMP")
    store_host = cursor.take(host_size(sys_flag, SysFlag.STORE_HOST_V6), "STOREHOST")
    reconsume_times = cursor.i32("RECONSUMETIMES")
    prepared = cursor.i64("PREPAREDTRANSACTIONOFFSET")
    body = cursor.take(cursor.i32("BODYLEN"), "BODY")
    topic_size = cursor.i8("TOPICLEN") if magic == layout.MAGIC_V1 else cursor.i16("TOPICLEN")
    topic = cursor.take(topic_size, "TOPIC")
    properties = cursor.take(cursor.i16("PROPERTIESLEN"), "PROPERTIES")
    if cursor.position != total_size:
        raise CorruptRecordError(
            "the lengths of the fields do not add up to TOTALSIZE",
            path, where, cursor.position, total_size,
        )
    if physical_offset is not None and physical != physical_offset:
        raise CorruptRecordError(
            "PHYSICALOFFSET is not where the record lies", path, where, physical, physical_offset
        )
    return Record(
        magic, crc, queue_id, flag, queue_offset, physical, sys_flag, born_timestamp, born_host,
        store_timestamp, store_host, reconsume_times, prepared, body, topic, properties,
    )


def encode_record(record: Record) -> bytes:
    """The bytes of a record. The values are taken as they are: the writer checks the rules."""
    topic_size = I8 if record.magic == layout.MAGIC_V1 else I16
    return b"".join(
        (
            I32.pack(record.total_size),
            U32.pack(record.magic),
            I32.pack(record.body_crc),
            I32.pack(record.queue_id),
            I32.pack(record.flag),
            I64.pack(record.queue_offset),
            I64.pack(record.physical_offset),
            I32.pack(record.sys_flag),
            I64.pack(record.born_timestamp),
            record.born_host,
            I64.pack(record.store_timestamp),
            record.store_host,
            I32.pack(record.reconsume_times),
            I64.pack(record.prepared_transaction_offset),
            I32.pack(len(record.body)),
            record.body,
            topic_size.pack(len(record.topic)),
            record.topic,
            I16.pack(len(record.properties)),
            record.properties,
        )
    )


def host_size(sys_flag: int, v6_bit: SysFlag) -> int:
    """The bytes of a host, address and port, by its bit in SYSFLAG."""
    # The bit as a plain number: an operation of IntFlag costs as much as ten fields.
    return layout.IPV6_HOST_SIZE if sys_flag & v6_bit.value else layout.IPV4_HOST_SIZE


def check_body_crc(record: Record, path: str = "") -> None:
    """Raise ``ChecksumError`` unless BODYCRC is the checksum of the stored body.

    As the broker does, an empty body is not checked.
    """
    if record.body and body_crc(record.body) != record.body_crc:
        raise ChecksumError(
            "BODYCRC does not match the body", path, record.physical_offset,
            body_crc(record.body), record.body_crc,
        )


def to_message(
    record: Record, *, check_crc: bool = True, path: str = "", limits: Limits = DEFAULT_LIMITS
) -> Message:
    """The message in a record: text decoded, body checked and decompressed."""
    where = record.physical_offset
    for name, value in (
        ("BORNTIMESTAMP", record.born_timestamp), ("STORETIMESTAMP", record.store_timestamp),
    ):
        if abs(value) > _MAX_TIMESTAMP_MS:
            raise CorruptRecordError(
                f"{name} is no time", path, where, value, f"at most {_MAX_TIMESTAMP_MS}"
            )
    if check_crc:
        check_body_crc(record, path)
    topic = decode_text(record.topic)
    properties = parse_properties(decode_text(record.properties))
    return Message(
        topic=topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        msg_id=encode_message_id(record.store_host, where),
        body=_plain_body(record, path, limits),
        properties=properties,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp_ms=record.born_timestamp,
        born_host=format_host(record.born_host),
        store_timestamp_ms=record.store_timestamp,
        store_host=format_host(record.store_host),
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        commit_log_offset=where,
        store_size=record.total_size,
        body_crc=record.body_crc,
        tags_code=tags_code(topic, properties, record.store_timestamp),
    )


def decode_message(
    data: bytes, physical_offset: int | None = None, *, check_crc: bool = True, path: str = "",
    limits: Limits = DEFAULT_LIMITS,
) -> Message:
    """The message that ``data`` begins with; see :func:`decode_record` and :func:`to_message`."""
    record = decode_record(data, physical_offset, path=path, limits=limits)
    return to_message(record, check_crc=check_crc, path=path, limits=limits)


def tags_code(topic: str, properties: Mapping[str, str], store_timestamp_ms: int) -> int:
    """What the dispatcher puts into the queue unit (CommitLog.checkMessageAndReturnSize).

    The hash of the tag; in the schedule topic the time at which the message is due.
    """
    if topic == layout.SCHEDULE_TOPIC:
        level = parse_delay_level(properties.get(layout.PROPERTY_DELAY))
        if level > 0:
            return store_timestamp_ms + delay_ms(level)
    tags = properties.get(layout.PROPERTY_TAGS)
    return java_hash(tags) if tags else 0


def parse_delay_level(text: str | None) -> int:
    """The delay level in a property, capped to the highest one; 0 where there is none."""
    try:
        level = int(text or "0")
    except ValueError:
        return 0
    return min(level, len(layout.DELAY_LEVELS_MS))


def delay_ms(level: int) -> int:
    """How long a delay level waits."""
    return layout.DELAY_LEVELS_MS[level - 1]


def _plain_body(record: Record, path: str, limits: Limits) -> bytes:
    if not record.sys_flag & SysFlag.COMPRESSED.value or not record.body:
        return record.body
    kind = (record.sys_flag & layout.COMPRESSION_MASK) >> layout.COMPRESSION_SHIFT
    return decompress(
        record.body, kind, limits, path=path, offset=record.physical_offset
    )
