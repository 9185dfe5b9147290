"""A record field by field, for people: where each field lies, its value, and what it means.

Unlike the decoders it does not stop at the first thing that is wrong: a damaged record is what
one wants to look at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.address import format_host
from rmqlog.commitlog_format.checksum import body_crc
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.layout import I8, I16, I32, I64, U32, SysFlag
from rmqlog.commitlog_format.log_walk import LogWalk
from rmqlog.commitlog_format.message import host_size
from rmqlog.commitlog_format.text import decode_text

_INTEGERS = {I8.size: I8, I16.size: I16, I32.size: I32, I64.size: I64}
_MAGIC_MEANINGS = {
    layout.MAGIC_V1: "a message, its topic length in one byte (V1)",
    layout.MAGIC_V2: "a message, its topic length in two bytes (V2)",
    layout.MAGIC_BLANK: "filler: nothing follows in this segment",
}
_COMPRESSIONS = {0: "zlib, as before 4.9.4", 1: "lz4", 2: "zstd", 3: "zlib"}
_TRANSACTION_STATES = {
    SysFlag.TRANSACTION_PREPARED: "prepared",
    SysFlag.TRANSACTION_COMMIT: "committed transaction",
    SysFlag.TRANSACTION_ROLLBACK: "rolled back",
}


@dataclass(frozen=True, slots=True)
class RecordField:
    """One field: its name, its place in the record, its bytes, its value and its meaning.

    ``time_ms`` is set where the value is a time. ``is_wrong`` tells that it cannot be true.
    """

    name: str
    position: int
    data: bytes
    value: str
    meaning: str
    time_ms: int | None = None
    is_wrong: bool = False


def dissect(data: bytes, physical_offset: int) -> list[RecordField]:
    """The fields of the record that ``data`` begins with, up to the first that does not fit."""
    return list(_Dissection(data, physical_offset).fields())


def read_record_bytes(log: CommitLog, offset: int) -> bytes:
    """The bytes of the record that begins at an offset, or as many as could belong to it."""
    file = log.files.file_of(offset)
    left = file.end - offset
    handle = log.files.handle(file)
    prefix = handle.read(offset - file.start, min(layout.PREFIX.size, left))
    if len(prefix) < layout.PREFIX.size:
        return prefix
    size, magic = layout.PREFIX.unpack(prefix)
    if magic not in (layout.MAGIC_V1, layout.MAGIC_V2):
        return prefix
    wanted = max(size, layout.PREFIX.size)
    return handle.read(offset - file.start, min(wanted, left, log.limits.record_size))


def record_start(log: CommitLog, offset: int) -> int | None:
    """Where the record or filler begins that holds an offset; ``None`` if a walk of its segment
    does not come so far."""
    position = log.files.file_of(offset).start
    last = position
    try:
        for run in LogWalk(log, position, offset + 1):
            last = int(run.offsets[-1])
            position = last + int(run.sizes[-1])
    except StoreError:
        return None
    if offset < position:
        return last
    return position if _is_filler(read_record_bytes(log, position)) else None


def _is_filler(data: bytes) -> bool:
    if len(data) < layout.PREFIX.size:
        return False
    return bool(layout.PREFIX.unpack_from(data)[1] == layout.MAGIC_BLANK)


class _Dissection:
    """Takes field after field off a record's bytes."""

    def __init__(self, data: bytes, physical_offset: int) -> None:
        self._data = data
        self._physical_offset = physical_offset
        self._position = 0

    def fields(self) -> Iterator[RecordField]:
        try:
            yield from self._prefix()
            if self._magic not in (layout.MAGIC_V1, layout.MAGIC_V2):
                return
            yield from self._header()
            yield from self._variable_parts()
        except _DoesNotFitError as error:
            yield RecordField(
                error.name, self._position, self._data[self._position :], "",
                f"does not fit: {error.size} bytes wanted, "
                f"{len(self._data) - self._position} left", is_wrong=True,
            )
            return
        if self._position != self._total_size:
            yield RecordField(
                "(end)", self._position, b"", str(self._position),
                f"the fields end here, TOTALSIZE says {self._total_size}", is_wrong=True,
            )

    def _take(self, size: int, name: str) -> bytes:
        if not 0 <= size <= len(self._data) - self._position:
            raise _DoesNotFitError(name, size)
        self._position += size
        return self._data[self._position - size : self._position]

    def _integer(
        self, name: str, size: int, meaning: str, *, is_time: bool = False
    ) -> RecordField:
        position = self._position
        data = self._take(size, name)
        value = int(_INTEGERS[size].unpack(data)[0])
        return RecordField(
            name, position, data, str(value), meaning, time_ms=value if is_time else None
        )

    def _prefix(self) -> Iterator[RecordField]:
        total = self._integer("TOTALSIZE", I32.size, "bytes of the whole record")
        self._total_size = int(total.value)
        yield total
        position = self._position
        data = self._take(U32.size, "MAGICCODE")
        self._magic = int(U32.unpack(data)[0])
        meaning = _MAGIC_MEANINGS.get(self._magic)
        yield RecordField(
            "MAGICCODE", position, data, f"{self._magic:#010x}",
            meaning or "neither a message nor a filler", is_wrong=meaning is None,
        )

    def _header(self) -> Iterator[RecordField]:
        crc = self._integer("BODYCRC", I32.size, "CRC-32 of the stored body, without its top bit")
        self._crc = int(crc.value)
        yield crc
        yield self._integer("QUEUEID", I32.size, "the queue of the topic")
        yield self._integer("FLAG", I32.size, "the application's own")
        yield self._integer("QUEUEOFFSET", I64.size, "the place in the queue")
        yield self._physical()
        flags = self._integer("SYSFLAG", I32.size, "")
        sys_flag = int(flags.value)
        yield RecordField(
            flags.name, flags.position, flags.data, f"{sys_flag:#x}", _flag_meaning(sys_flag)
        )
        yield self._integer("BORNTIMESTAMP", I64.size, "sent by the client", is_time=True)
        yield self._host("BORNHOST", host_size(sys_flag, SysFlag.BORN_HOST_V6), "the client")
        yield self._integer("STORETIMESTAMP", I64.size, "stored by the broker", is_time=True)
        yield self._host("STOREHOST", host_size(sys_flag, SysFlag.STORE_HOST_V6), "the broker")
        yield self._integer("RECONSUMETIMES", I32.size, "how often it was consumed again")
        yield self._integer(
            "PREPAREDOFFSET", I64.size, "of a committed transaction: its half message"
        )

    def _physical(self) -> RecordField:
        found = self._integer("PHYSICALOFFSET", I64.size, "the place in the log")
        if int(found.value) == self._physical_offset:
            return found
        return RecordField(
            found.name, found.position, found.data, found.value,
            f"the record lies at {self._physical_offset}", is_wrong=True,
        )

    def _host(self, name: str, size: int, meaning: str) -> RecordField:
        position = self._position
        data = self._take(size, name)
        return RecordField(name, position, data, format_host(data), meaning)

    def _variable_parts(self) -> Iterator[RecordField]:
        body_size = self._integer("BODYLEN", I32.size, "bytes of the body as stored")
        yield body_size
        position = self._position
        body = self._take(int(body_size.value), "BODY")
        is_sound = not body or body_crc(body) == self._crc
        yield RecordField(
            "BODY", position, body, "",
            "matches BODYCRC" if is_sound else f"does not match BODYCRC: has {body_crc(body)}",
            is_wrong=not is_sound,
        )
        width = I8.size if self._magic == layout.MAGIC_V1 else I16.size
        topic_size = self._integer("TOPICLEN", width, "bytes of the topic")
        yield topic_size
        position = self._position
        topic = self._take(int(topic_size.value), "TOPIC")
        yield RecordField("TOPIC", position, topic, decode_text(topic), "the topic")
        properties_size = self._integer("PROPERTIESLEN", I16.size, "bytes of the properties")
        yield properties_size
        yield from self._properties(int(properties_size.value))

    def _properties(self, size: int) -> Iterator[RecordField]:
        position = self._position
        data = self._take(size, "PROPERTIES")
        for pair in data.split(bytes([layout.PROPERTY_SEPARATOR])):
            if pair:
                name, _, value = pair.partition(bytes([layout.NAME_VALUE_SEPARATOR]))
                yield RecordField(
                    "PROPERTIES", position, pair, f"{decode_text(name)} = {decode_text(value)}",
                    "",
                )
            position += len(pair) + 1


class _DoesNotFitError(Exception):
    """A field claims more bytes than are left."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(name, size)
        self.name = name
        self.size = size


def _flag_meaning(sys_flag: int) -> str:
    """The bits of SYSFLAG in words."""
    parts = []
    if sys_flag & SysFlag.COMPRESSED:
        kind = (sys_flag & layout.COMPRESSION_MASK) >> layout.COMPRESSION_SHIFT
        parts.append(f"compressed ({_COMPRESSIONS.get(kind, f'unknown kind {kind}')})")
    if sys_flag & SysFlag.MULTI_TAGS:
        parts.append("several tags")
    transaction = SysFlag(sys_flag & layout.TRANSACTION_MASK)
    if transaction:
        parts.append(_TRANSACTION_STATES[transaction])
    for bit, text in (
        (SysFlag.BORN_HOST_V6, "client on IPv6"),
        (SysFlag.STORE_HOST_V6, "broker on IPv6"),
        (SysFlag.NEED_UNWRAP, "to be unwrapped"),
        (SysFlag.INNER_BATCH, "inner batch"),
    ):
        if sys_flag & bit:
            parts.append(text)
    return ", ".join(parts) or "an ordinary message"
