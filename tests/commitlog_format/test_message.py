"""The scalar codec: the vectors of the specification, and every record that a broker wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from golden_stores import GOLDEN_NAMES, GoldenStore, expected_row
from random_records import PLAIN_RECORD

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.address import parse_host
from rmqlog.commitlog_format.checksum import encode_property_crc, property_crc
from rmqlog.commitlog_format.errors import (
    ChecksumError,
    CorruptRecordError,
    LimitExceededError,
    TruncatedRecordError,
)
from rmqlog.commitlog_format.limits import Limits
from rmqlog.commitlog_format.message import (
    Message,
    Record,
    decode_message,
    decode_record,
    delay_ms,
    encode_record,
    parse_delay_level,
    tags_code,
    to_message,
)
from rmqlog.commitlog_format.store import Store

M1 = bytes.fromhex(
    "0000005edaa320a758932aac000000000000000000000000000000000000000000000000000000000000018b"
    "cfe568007f000001000004d20000018bcfe568017f00000100002a9f000000000000000000000000000000026869"
    "01540000"
)
M2 = bytes.fromhex(
    "0000007bdaa320a777d189820000000100000007000000000000000500000000000003e8000000000000018b"
    "cfe5687b0a0102030000b26e0000018bcfe56be8c0a8000a00002a9f00000002000000000000000000000005"
    "48656c6c6f09546f7069635465737400124b455953016b310254414753015461674102"
)
M3 = bytes.fromhex(
    "00000093daa320a777d189820000000100000007000000000000000500000000000003e8000000300000018b"
    "cfe5687b20010db80000000000000000000000010000b26e0000018bcfe56be8fe8000000000000000000000"
    "0000000200002a9f0000000200000000000000000000000548656c6c6f09546f706963546573740012"
    "4b455953016b310254414753015461674102"
)


def m2_record() -> Record:
    """The fields of vector M2."""
    return replace(PLAIN_RECORD, physical_offset=1000)


def test_the_minimal_vector_decodes() -> None:
    message = decode_message(M1, 0)

    assert (message.topic, message.body, message.properties) == ("T", b"hi", {})
    assert (message.born_host, message.store_host) == ("127.0.0.1:1234", "127.0.0.1:10911")
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (1700000000000, 1700000000001)
    assert message.store_size == len(M1) == 94


def test_the_full_vector_decodes_and_encodes() -> None:
    message = decode_message(M2, 1000)

    assert encode_record(m2_record()) == M2
    assert decode_record(M2, 1000) == m2_record()
    assert message.msg_id == "C0A8000A00002A9F00000000000003E8"
    assert (message.tags, message.keys, message.uniq_key) == ("TagA", "k1", None)
    assert message.tags_code == 2598919


def test_hosts_of_ipv6_are_wider() -> None:
    record = replace(
        m2_record(),
        sys_flag=0x30,
        born_host=parse_host("[2001:db8::1]:45678"),
        store_host=parse_host("[fe80::2]:10911"),
    )

    assert encode_record(record) == M3
    assert decode_message(M3, 1000).born_host == "[2001:db8::1]:45678"


def test_a_topic_of_128_bytes_has_a_length_of_two_bytes() -> None:
    topic = b"%RETRY%" + b"g" * 121
    record = replace(m2_record(), magic=layout.MAGIC_V2, topic=topic, reconsume_times=0)
    data = encode_record(record)

    assert len(data) == 243
    assert data[:8].hex() == "000000f3daa320ab"
    assert data[93:95].hex() == "0080"
    assert decode_record(data, 1000) == record


def test_the_property_checksum_ends_the_record() -> None:
    record = replace(m2_record(), properties=m2_record().properties + encode_property_crc(0))
    data = encode_record(record)
    stored = data[: -layout.PROPERTY_CRC_SIZE] + encode_property_crc(property_crc(data))

    assert stored[:4].hex() == "0000008f"
    assert stored[-20:].hex() == "5f5f435243333223013437313534353637313002"
    assert decode_message(stored, 1000).properties["__CRC32#"] == "4715456710"


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_record_of_a_real_log_decodes_as_rocketmq_decodes_it(
    name: str, golden_store: Callable[[str], GoldenStore]
) -> None:
    golden = golden_store(name)
    store = open_golden(golden)
    compared = 0
    for line in golden.log:
        if line["kind"] == "record":
            message = store.log.message(line["commitLogOffset"])
            assert row_of(message) == expected_row(line)
            record = store.log.record(line["commitLogOffset"])
            assert decode_record(encode_record(record), record.physical_offset) == record
            compared += 1
    assert compared >= 300


def open_golden(golden: GoldenStore) -> Store:
    """A golden store, with the log folders of the one that has several."""
    folders = [str(path) for path in sorted(golden.path.glob("cl_*"))]
    return Store(str(golden.path), log_directories=folders)


def row_of(message: Message) -> dict[str, object]:
    """A message in the names of the expectations."""
    return {
        "topic": message.topic, "queueId": message.queue_id, "queueOffset": message.queue_offset,
        "msgId": message.msg_id, "uniqKey": message.uniq_key, "tags": message.tags,
        "keys": message.keys, "flag": message.flag, "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp_ms, "bornHost": message.born_host,
        "storeTimestamp": message.store_timestamp_ms, "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times, "body": message.body,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "commitLogOffset": message.commit_log_offset, "storeSize": message.store_size,
        "bodyCrc": message.body_crc, "properties": dict(message.properties),
    }


def test_a_record_must_lie_where_it_says() -> None:
    with pytest.raises(CorruptRecordError, match=r"offset 1001: PHYSICALOFFSET.*found 1000"):
        decode_record(M2, 1001)


def test_a_wrong_checksum_is_found_only_when_it_is_checked() -> None:
    damaged = M2.replace(b"Hello", b"Hellp")

    assert decode_message(damaged, 1000, check_crc=False).body == b"Hellp"
    with pytest.raises(ChecksumError, match="BODYCRC"):
        decode_message(damaged, 1000)


def test_a_filler_is_not_a_message() -> None:
    with pytest.raises(CorruptRecordError, match="0xcbd43194"):
        decode_record(bytes.fromhex("00000064cbd43194").ljust(100, b"\0"))


def test_lengths_must_add_up() -> None:
    with pytest.raises(CorruptRecordError, match="do not add up"):
        decode_record(bytes.fromhex("0000007c") + M2[4:] + b"\0")


def test_every_truncation_is_an_error() -> None:
    for size in range(len(M2)):
        with pytest.raises(TruncatedRecordError):
            decode_record(M2[:size], 1000)


def test_a_record_beyond_the_limit_is_refused() -> None:
    with pytest.raises(LimitExceededError, match="found 123, expected 100"):
        decode_record(M2, limits=Limits(record_size=100))


def test_a_time_that_no_clock_has_is_damage() -> None:
    record = replace(m2_record(), store_timestamp=2**62)

    with pytest.raises(CorruptRecordError, match="STORETIMESTAMP"):
        to_message(record)


def test_malformed_text_becomes_a_replacement_character_as_in_java() -> None:
    record = replace(m2_record(), topic=b"T\xff")

    assert to_message(record).topic == "T\ufffd"


def test_the_schedule_topic_holds_a_time_in_its_tags_code() -> None:
    properties = {"DELAY": "3", "TAGS": "TagA"}

    assert tags_code(layout.SCHEDULE_TOPIC, properties, 1700000001000) == 0x18BCFE592F8
    assert tags_code("orders", properties, 1700000001000) == 2598919
    assert tags_code(layout.SCHEDULE_TOPIC, {"TAGS": "TagA"}, 5) == 2598919
    assert tags_code("orders", {}, 5) == 0


@pytest.mark.parametrize(
    ("text", "level"), [(None, 0), ("", 0), ("x", 0), ("0", 0), ("3", 3), ("99", 18), ("-1", -1)]
)
def test_delay_levels_are_capped(text: str | None, level: int) -> None:
    assert parse_delay_level(text) == level


def test_the_last_delay_level_is_two_hours() -> None:
    assert delay_ms(18) == 2 * 60 * 60 * 1000
