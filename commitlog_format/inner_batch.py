"""Inner batches: one record of a BatchConsumeQueue topic that holds many messages.

Each inner message has its own body, flag, properties and queue offset (base + i); place, hosts
and times are those of the record around it (MessageDecoder.decodeMessages).
"""

from __future__ import annotations

from dataclasses import replace

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import CorruptRecordError, LimitExceededError
from rmqlog.commitlog_format.layout import I16, INNER_MESSAGE, SysFlag
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits
from rmqlog.commitlog_format.message import Message, tags_code
from rmqlog.commitlog_format.properties import parse_properties
from rmqlog.commitlog_format.text import decode_text


def is_inner_batch(sys_flag: int) -> bool:
    """Whether a record with this SYSFLAG holds an inner batch."""
    return bool(sys_flag & SysFlag.INNER_BATCH.value)


def expand(message: Message, *, path: str = "", limits: Limits = DEFAULT_LIMITS) -> list[Message]:
    """The messages of a record: itself, or those of its inner batch."""
    if not is_inner_batch(message.sys_flag):
        return [message]
    base = _base_offset(message, path)
    inner: list[Message] = []
    position = 0
    while position < len(message.body):
        if len(inner) == limits.inner_batch_count:
            raise LimitExceededError(
                "too many messages in an inner batch", path, message.commit_log_offset,
                f"more than {limits.inner_batch_count}", f"at most {limits.inner_batch_count}",
            )
        flag, body, raw_properties, position = _split(message, position, path)
        properties = parse_properties(decode_text(raw_properties))
        inner.append(
            replace(
                message,
                queue_offset=base + len(inner),
                body=body,
                flag=flag,
                properties=properties,
                store_size=None,
                body_crc=None,
                tags_code=tags_code(message.topic, properties, message.store_timestamp_ms),
            )
        )
    declared = message.properties.get(layout.PROPERTY_INNER_COUNT)
    if declared != str(len(inner)):
        raise CorruptRecordError(
            "inner batch does not hold as many messages as INNER_NUM says",
            path, message.commit_log_offset, len(inner), declared,
        )
    return inner


def _base_offset(message: Message, path: str) -> int:
    text = message.properties.get(layout.PROPERTY_INNER_BASE)
    if text is None:
        return message.queue_offset
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise CorruptRecordError(
            "INNER_BASE is no queue offset", path, message.commit_log_offset, repr(text)
        )
    return int(text)


def _split(message: Message, position: int, path: str) -> tuple[int, bytes, bytes, int]:
    """Flag, body and properties of the inner message at ``position``, and where the next is."""
    data = message.body

    def damaged(what: str, found: int, expected: object) -> CorruptRecordError:
        return CorruptRecordError(
            f"inner message at byte {position} of the body: {what}",
            path, message.commit_log_offset, found, expected,
        )

    if len(data) - position < INNER_MESSAGE.size:
        raise damaged("cut off", len(data) - position, INNER_MESSAGE.size)
    size, _magic, _crc, flag, body_size = INNER_MESSAGE.unpack_from(data, position)
    body_start = position + INNER_MESSAGE.size
    if not 0 <= body_size <= len(data) - body_start - I16.size:
        raise damaged("body does not fit", body_size, f"0 to {len(data) - body_start - I16.size}")
    body_end = body_start + body_size
    (properties_size,) = I16.unpack_from(data, body_end)
    end = body_end + I16.size + properties_size
    if properties_size < 0 or end > len(data):
        raise damaged("properties do not fit", properties_size, "what is left of the body")
    if size != end - position:
        raise damaged("size does not match its parts", size, end - position)
    return flag, data[body_start:body_end], data[body_end + I16.size : end], end
