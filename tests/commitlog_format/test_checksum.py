"""The checksums of a record, against vectors of RocketMQ's own encoder."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqlog.commitlog_format.checksum import (
    body_crc,
    body_crcs,
    encode_property_crc,
    property_crc,
    stored_property_crc,
)

pytestmark = pytest.mark.usefixtures("loops")


def test_the_body_crc_lacks_the_top_bit() -> None:
    assert body_crc(b"hi") == 0x58932AAC
    assert body_crc(b"Hello") == 0x77D18982
    assert body_crc(b"") == 0


@given(st.lists(st.binary(max_size=40), max_size=600))
def test_a_column_of_bodies_has_the_crc_of_each(bodies: list[bytes]) -> None:
    expected = [zlib.crc32(body) & 0x7FFFFFFF for body in bodies]
    assert body_crcs(pa.array(bodies, pa.binary())).tolist() == expected
    assert body_crcs(pa.array(bodies, pa.binary()).slice(1)).tolist() == expected[1:]


def test_the_property_holds_ten_digits_least_significant_first() -> None:
    assert encode_property_crc(176545174) == bytes.fromhex(
        "5f5f435243333223013437313534353637313002"
    )


def test_the_property_covers_all_of_the_record_but_itself() -> None:
    record = b"everything before" + encode_property_crc(body_crc(b"everything before"))
    assert property_crc(record) == stored_property_crc(record) == body_crc(b"everything before")


def test_a_record_without_the_property_has_no_stored_crc() -> None:
    assert stored_property_crc(b"") is None
    assert stored_property_crc(b"x" * 40) is None
    assert stored_property_crc(b"__CRC32#\x01471545671x\x02") is None
    assert stored_property_crc(b"__CRC32#\x014715456710\x01") is None
