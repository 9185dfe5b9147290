"""Hosts and message ids, one by one and in columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqlog.commitlog_format import address
from rmqlog.commitlog_format.address import (
    HostColumn,
    decode_message_id,
    encode_message_id,
    format_host,
    message_id_column,
    parse_host,
)
from rmqlog.commitlog_format.errors import InvalidNameError

HOSTS = {
    "127.0.0.1:10911": "7f00000100002a9f",
    "[::1]:1234": "00000000000000000000000000000001000004d2",
    "[2001:db8::1]:45678": "20010db80000000000000000000000010000b26e",
    "[fe80::2]:10911": "fe80000000000000000000000000000200002a9f",
}


@pytest.mark.parametrize(("text", "data"), HOSTS.items())
def test_text_and_bytes_of_a_host_are_two_forms_of_one_thing(text: str, data: str) -> None:
    assert parse_host(text).hex() == data
    assert format_host(bytes.fromhex(data)) == text


def test_a_mapped_address_is_the_ipv4_address_as_in_java() -> None:
    mapped = bytes.fromhex("00000000000000000000ffff7f000001000004d2")
    assert format_host(mapped) == "127.0.0.1:1234"
    assert parse_host("[::ffff:127.0.0.1]:1234") == parse_host("127.0.0.1:1234")


def test_a_port_is_shown_as_stored() -> None:
    assert format_host(bytes.fromhex("7f000001ffffffff")) == "127.0.0.1:-1"


@pytest.mark.parametrize(
    "text",
    [
        *("", "127.0.0.1", "127.0.0.1:", ":1", "::1:1234", "[::1]", "[::1]:65536", "1.2.3.4:-1"),
        *("1.2.3:4", "[fe80::1%eth0]:1", "localhost:1", "[1.2.3.4]:5", "1.2.3.4:٣", "1.2.3.4: 5"),
    ],
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(InvalidNameError):
        parse_host(text)


def test_a_message_id_is_the_hex_of_host_and_offset() -> None:
    host = parse_host("192.168.0.10:10911")
    assert encode_message_id(host, 1000) == "C0A8000A00002A9F00000000000003E8"
    assert decode_message_id("C0A8000A00002A9F00000000000003E8") == (host, 1000)
    assert decode_message_id("c0a8000a00002a9f00000000000003e8") == (host, 1000)


def test_an_ipv6_message_id_has_56_digits() -> None:
    host = parse_host("[fe80::2]:10911")
    message_id = encode_message_id(host, 2**40)
    assert len(message_id) == 56
    assert decode_message_id(message_id) == (host, 2**40)


@pytest.mark.parametrize("text", ["", "C0A8", "G" * 32, "0" * 33, " " * 32, "0" * 30 + " 0"])
def test_what_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidNameError):
        decode_message_id(text)


@pytest.mark.parametrize("size", [8, 20])
@given(data=st.data())
def test_columns_and_single_hosts_agree(size: int, data: st.DataObject) -> None:
    column = HostColumn()
    some_bytes = st.lists(st.binary(min_size=size, max_size=size), max_size=20)
    for _ in range(2):  # the second time some hosts are known
        hosts = data.draw(some_bytes)
        array = np.frombuffer(b"".join(hosts), f"V{size}")
        offsets = np.arange(len(hosts), dtype=np.int64) << 40
        assert column.build(array).to_pylist() == [format_host(host) for host in hosts]
        assert message_id_column(array, offsets).to_pylist() == [
            encode_message_id(host, offset)
            for host, offset in zip(hosts, offsets.tolist(), strict=True)
        ]


def test_a_column_of_ever_new_hosts_forgets_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "_MAX_KEPT_HOSTS", 10)
    column = HostColumn()
    for first in range(0, 60, 6):
        hosts = [parse_host(f"10.0.0.{number}:1") for number in range(first, first + 8)]
        texts = column.build(np.frombuffer(b"".join(hosts), "V8")).to_pylist()
        assert texts == [format_host(host) for host in hosts]
        known, _ = column._known[8]
        assert len(known) <= 10
