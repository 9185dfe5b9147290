"""Damaged records, decoded by RocketMQ's classes and by ours: they agree, or we know why not.

Two of RocketMQ's judges are asked. ``MessageDecoder`` is what clients use; the store's own check
(``CommitLog.checkMessageAndReturnSize``) is what recovery believes. ``Difference`` lists every
way in which ours may differ from them; anything else fails.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
from broker.features import DIFFERENTIAL_DECODING, Comparisons
from broker.java_driver import JavaDriver
from broker.java_toolchain import LINE_4, LINE_5, Line
from broker.message_rows import java_row, message_row
from broker.record_mutations import mutate, seed_records
from golden_stores import GoldenStore

from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.layout import (
    PROPERTY_DELAY,
    PROPERTY_INNER_BASE,
    PROPERTY_INNER_COUNT,
    SCHEDULE_TOPIC,
)
from rmqlog.commitlog_format.message import (
    Message,
    Record,
    check_body_crc,
    decode_record,
    to_message,
)

RECORDS_A_REQUEST = 1_000
#: What follows a record in its segment: the store's check looks at it, and finds nothing.
END_OF_LOG = bytes(64)

INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


class Difference(Enum):
    """Why an answer of ours differs from one of RocketMQ's."""

    DECODER_TRUSTS_LENGTHS = "MessageDecoder never compares the lengths with TOTALSIZE"
    DECODER_TRUSTS_MAGIC = "MessageDecoder of 4.9 takes any magic"
    DECODER_SKIPS_CRC = "MessageDecoder of 4.9 never checks the body"
    TIME_BEYOND_ARROW = "milliseconds beyond the range of Arrow's and Spark's timestamps"
    PORT_OUT_OF_RANGE = "Java cannot hold a port outside 0 to 65535; we show it"
    PROPERTY_IS_NO_NUMBER = (
        "the store refuses a record whose DELAY (scheduled), INNER_BASE or INNER_NUM is no number"
    )


class Ours:
    """What our scalar decoder says about some bytes."""

    def __init__(self, data: bytes) -> None:
        self.record: Record | None = None
        self.message: Message | None = None
        self.reason = ""
        try:
            self.record = decode_record(data)
            check_body_crc(self.record)
            self.message = to_message(self.record)
        except StoreError as error:
            self.reason = str(error)

    @property
    def sound(self) -> bool:
        """Whether the record itself is accepted, whatever its text or compression holds."""
        return self.message is not None or (
            self.record is not None and "BODYCRC" not in self.reason
        )


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("line", "count"), [(LINE_5, 20_000), (LINE_4, 5_000)], ids=["5.5.0", "4.9.5"]
)
def test_damaged_records_are_decoded_as_rocketmq_decodes_them(
    java_driver: Callable[[Line], JavaDriver],
    golden_store: Callable[[str], GoldenStore],
    comparisons: Comparisons,
    line: Line,
    count: int,
) -> None:
    names = ["rmq-5.5.0-clean", "rmq-5.5.0-bcq"] if line == LINE_5 else ["rmq-4.9.5-clean"]
    seeds = seed_records(map(golden_store, names))
    source = random.Random(20_000)
    seen: Counter[Difference | str] = Counter()

    for _ in range(count // RECORDS_A_REQUEST):
        records = [
            mutate(source, source.choice(seeds)) + END_OF_LOG for _ in range(RECORDS_A_REQUEST)
        ]
        answers = java_driver(line).decode(records, checkCrc=True)
        for data, answer in zip(records, answers, strict=True):
            ours = Ours(data)
            seen[_against_decoder(line, data, ours, answer)] += 1
            seen[_against_store(data, ours, answer["check"])] += 1

    # The comparison means something only if both verdicts are common.
    assert seen["same message"] > count // 3
    assert seen["both refuse"] > count // 10
    assert seen["same verdict of the store"] > count * 9 // 10
    for what, number in seen.items():
        text = what.value if isinstance(what, Difference) else what
        comparisons.count(DIFFERENTIAL_DECODING, line, text, number)


def _against_decoder(
    line: Line, data: bytes, ours: Ours, answer: dict[str, Any]
) -> Difference | str:
    theirs = answer["message"]
    if theirs is None and ours.message is None:
        return "both refuse"
    if theirs is None:
        assert ours.message is not None
        ports = (ours.message.born_host, ours.message.store_host)
        assert any(not 0 <= int(host.rsplit(":", 1)[1]) <= 65_535 for host in ports), data.hex()
        return Difference.PORT_OUT_OF_RANGE
    if ours.message is None:
        return _why_only_the_decoder_accepts(line, data, ours, answer["check"]["success"])
    assert message_row(ours.message) == java_row(theirs), data.hex()
    return "same message"


def _why_only_the_decoder_accepts(
    line: Line, data: bytes, ours: Ours, store_accepts: bool
) -> Difference:
    if "is no time" in ours.reason:
        return Difference.TIME_BEYOND_ARROW
    assert not store_accepts, f"only we refuse ({ours.reason}): {data.hex()}"
    if line == LINE_4 and "not a message" in ours.reason:
        return Difference.DECODER_TRUSTS_MAGIC
    if line == LINE_4 and "BODYCRC" in ours.reason:
        return Difference.DECODER_SKIPS_CRC
    assert ours.record is None, f"only MessageDecoder accepts ({ours.reason}): {data.hex()}"
    return Difference.DECODER_TRUSTS_LENGTHS


def _against_store(data: bytes, ours: Ours, check: dict[str, Any]) -> Difference | str:
    accepted = check["success"] and check["size"] > 0
    if ours.sound and not accepted:
        assert any(not INTEGER.fullmatch(text) for text in _numbers(ours)), data.hex()
        return Difference.PROPERTY_IS_NO_NUMBER
    assert ours.sound == accepted, f"{ours.reason}: {data.hex()}"
    if ours.message is None or not accepted:
        return "same verdict of the store"
    assert ours.message.store_size == check["size"]
    row = {**message_row(ours.message), "tagsCode": ours.message.tags_code}
    their_row = {name: check[name] for name in row.keys() & check.keys()}
    their_row["sysFlag"] = row["sysFlag"]
    # The dispatcher has an empty string where there are no keys.
    their_row["keys"] = their_row["keys"] or None
    assert {name: row[name] for name in their_row} == their_row, data.hex()
    return "same verdict of the store"


def _numbers(ours: Ours) -> list[str]:
    """The properties that the store must be able to read as numbers."""
    assert ours.message is not None
    names = [PROPERTY_INNER_BASE, PROPERTY_INNER_COUNT]
    if ours.message.topic == SCHEDULE_TOPIC:
        names.append(PROPERTY_DELAY)
    return [ours.message.properties[name] for name in names if name in ours.message.properties]
