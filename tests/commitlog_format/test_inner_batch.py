"""Messages of an inner batch: their queue offsets, and counts that do not hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bad_input import check_error
from random_records import PLAIN_RECORD
from twelve_records import inner_batch, inner_message

from rmqlog.commitlog_format.errors import CorruptRecordError
from rmqlog.commitlog_format.inner_batch import expand
from rmqlog.commitlog_format.message import Message, Record, to_message

TWO = (inner_message(b"one", b"TAGS\x01a\x02"), inner_message(b"two", b"", flag=3))


def batch_with(properties: bytes) -> Message:
    record: Record = replace(inner_batch(*TWO), properties=properties)
    return to_message(record)


def test_a_plain_record_is_its_only_message() -> None:
    message = to_message(PLAIN_RECORD)
    assert expand(message) == [message]


def test_inner_messages_count_from_inner_base_else_from_the_record() -> None:
    for properties, first in (
        (b"INNER_NUM\x012\x02INNER_BASE\x0140\x02", 40),
        (b"INNER_NUM\x012\x02", PLAIN_RECORD.queue_offset),
    ):
        found = expand(batch_with(properties))
        assert [message.queue_offset for message in found] == [first, first + 1]
        assert [(message.body, message.tags, message.flag) for message in found] == [
            (b"one", "a", 0), (b"two", None, 3),
        ]


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (b"INNER_NUM\x012\x02INNER_BASE\x01-1\x02", "INNER_BASE is no queue offset"),
        ("INNER_NUM\x012\x02INNER_BASE\x01٣\x02".encode(), "INNER_BASE is no queue offset"),
        (b"INNER_NUM\x012\x02INNER_BASE\x01" + b"9" * 20 + b"\x02", "INNER_BASE is no queue"),
        (b"INNER_NUM\x013\x02", "not hold as many messages"),
        (b"", "not hold as many messages"),
    ],
)
def test_a_base_or_a_count_that_cannot_be_true_is_damage(properties: bytes, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason) as caught:
        expand(batch_with(properties), path="segment")

    assert caught.value.offset == PLAIN_RECORD.physical_offset
    check_error(caught.value)
