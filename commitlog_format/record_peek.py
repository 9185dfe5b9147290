"""What a lookup needs of one record, read with as few steps as Python allows.

The full scalar decoder in :mod:`message` says the same; it takes several times as long, which
shows when thousands of index hits are verified one by one.
"""

from __future__ import annotations

from typing import NamedTuple

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.layout import I8, I16, I32
from rmqlog.commitlog_format.message import decode_record
from rmqlog.commitlog_format.text import decode_text


class RecordPeek(NamedTuple):
    """Some fields of a record; ``properties`` is the string as stored."""

    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    total_size: int
    properties: str


def peek_record(data: bytes, physical_offset: int, path: str = "") -> RecordPeek:
    """The record that ``data`` begins with, checked as ``message.decode_record`` does."""
    found = peek_plain_record(data, physical_offset)
    if found is not None:
        return found
    record = decode_record(data, physical_offset, path=path)
    return RecordPeek(
        decode_text(record.topic), record.queue_id, record.queue_offset, record.sys_flag,
        record.total_size, decode_text(record.properties),
    )


def peek_plain_record(data: bytes, physical_offset: int) -> RecordPeek | None:
    """A V1 record if all of it is there and adds up; else the full decoder knows what it is."""
    if len(data) < layout.MIN_RECORD_SIZE:
        return None
    total_size, magic, queue_id, queue_offset, physical, sys_flag = (
        layout.RECORD_PEEK.unpack_from(data)
    )
    header_size = layout.RECORD_HEADERS[sys_flag & layout.HOSTS_V6_MASK].itemsize
    if magic != layout.MAGIC_V1 or physical != physical_offset or total_size > len(data):
        return None
    if total_size <= header_size:
        return None
    (body_size,) = I32.unpack_from(data, header_size - I32.size)
    topic_start = header_size + body_size + I8.size
    if body_size < 0 or topic_start + I16.size > total_size:
        return None
    topic_size = data[topic_start - I8.size]
    properties_start = topic_start + topic_size + I16.size
    if topic_size > layout.MAX_TOPIC_SIZE_V1 or properties_start > total_size:
        return None
    (properties_size,) = I16.unpack_from(data, properties_start - I16.size)
    if properties_start + properties_size != total_size:
        return None
    return RecordPeek(
        decode_text(data[topic_start : topic_start + topic_size]), queue_id, queue_offset,
        sys_flag, total_size, decode_text(data[properties_start:total_size]),
    )
