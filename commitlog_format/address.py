"""Hosts (address and port) and the message ids that contain them, one by one and in columns.

On disk a host is 4 or 16 address bytes and a 4-byte port. As text it is ``127.0.0.1:1234`` or
``[::1]:1234`` (RFC 5952). Like Java's ``InetAddress``, an IPv4-mapped IPv6 address is shown as
the IPv4 address; a port is shown as stored, even if no socket could have it.
"""

from __future__ import annotations

import ipaddress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqlog.commitlog_format.binary_columns import repeat_string
from rmqlog.commitlog_format.errors import InvalidNameError
from rmqlog.commitlog_format.layout import (
    I32,
    I64,
    IPV4_HOST_SIZE,
    IPV6_HOST_SIZE,
    PHYSICAL_OFFSET,
)

_MAX_PORT = 0xFFFF
_MESSAGE_ID_DIGITS = {2 * (size + I64.size): size for size in (IPV4_HOST_SIZE, IPV6_HOST_SIZE)}
#: Texts of hosts that a :class:`HostColumn` keeps; clients take new ports all the time.
_MAX_KEPT_HOSTS = 1 << 16
#: Four bytes, and the eight digits that they become, as they are read: from left to right.
_FOUR_BYTES = np.dtype(np.uint32).newbyteorder(">")
_EIGHT_DIGITS = np.dtype(np.uint64).newbyteorder(">")
#: How the eight half-bytes of a number move apart, until each is a byte of a 64-bit word.
_SPREADING = ((16, 0x0000FFFF0000FFFF), (8, 0x00FF00FF00FF00FF), (4, 0x0F0F0F0F0F0F0F0F))
_EACH_BYTE = 0x0101010101010101


def format_host(host: bytes) -> str:
    """The text of a host's 8 or 20 bytes."""
    port = I32.unpack(host[-I32.size :])[0]
    address = ipaddress.ip_address(host[: -I32.size])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return f"[{address}]:{port}"
        address = address.ipv4_mapped
    return f"{address}:{port}"


def parse_host(text: str) -> bytes:
    """The 8 or 20 bytes of a host's text; text that is no host raises ``InvalidNameError``."""
    address_text, _, port_text = text.rpartition(":")
    bracketed = address_text.startswith("[") and address_text.endswith("]")
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address
        if bracketed:
            address = ipaddress.IPv6Address(address_text[1:-1])
            if address.scope_id is not None:
                raise ValueError("a scope has no place on disk")
            # Java knows no mapped addresses: it would never write one.
            address = address.ipv4_mapped or address
        else:
            address = ipaddress.IPv4Address(address_text)
        if not (port_text.isascii() and port_text.isdigit() and int(port_text) <= _MAX_PORT):
            raise ValueError("no port")
    except ValueError:
        raise InvalidNameError(
            "not a host", found=text, expected="like 127.0.0.1:1234 or [::1]:1234"
        ) from None
    return address.packed + I32.pack(int(port_text))


def encode_message_id(store_host: bytes, physical_offset: int) -> str:
    """The offset message id: hex of the store host as on disk, then of the physical offset."""
    return (store_host + I64.pack(physical_offset)).hex().upper()


def decode_message_id(message_id: str) -> tuple[bytes, int]:
    """The store host's bytes and the physical offset in an offset message id."""
    host_size = _MESSAGE_ID_DIGITS.get(len(message_id), 0)
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        data = b""
    if host_size == 0 or len(data) != host_size + I64.size:
        raise InvalidNameError(
            "not an offset message id", found=message_id, expected="32 or 56 hex digits"
        )
    return data[:host_size], int(I64.unpack(data[host_size:])[0])


class HostColumn:
    """Makes columns of hosts; remembers texts from batch to batch, for hosts repeat."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[pa.Array, pa.StringArray]] = {}

    def build(self, hosts: NDArray[np.void]) -> pa.StringArray:
        """The texts of hosts that are all 8 or all 20 bytes wide."""
        size = hosts.dtype.itemsize
        hosts = np.ascontiguousarray(hosts)
        if len(hosts) and _is_constant(hosts):
            return repeat_string(format_host(hosts[0].tobytes()), len(hosts))
        items = pa.Array.from_buffers(pa.binary(size), len(hosts), [None, pa.py_buffer(hosts)])
        if size == IPV4_HOST_SIZE:
            # Numbers are looked up much faster than bytes.
            items = items.view(pa.int64())
        known, texts = self._known.get(size) or (items[:0], pa.array([], pa.string()))
        found = pc.index_in(items, known)
        if found.null_count:
            new = items.filter(found.is_null()).unique()
            if len(known) + len(new) > _MAX_KEPT_HOSTS:
                known, texts, new = items[:0], texts[:0], items.unique()
            known = pa.concat_arrays([known, new])
            new_texts = [format_host(host) for host in new.view(pa.binary(size)).to_pylist()]
            texts = pa.concat_arrays([texts, pa.array(new_texts, pa.string())])
            self._known[size] = (known, texts)
            found = pc.index_in(items, known)
        return texts.take(found)


def _is_constant(items: NDArray[np.void]) -> bool:
    size = items.dtype.itemsize
    data = items.view(np.uint8)
    return bool((data[size:] == data[:-size]).all())


def message_id_column(
    store_hosts: NDArray[np.void], physical_offsets: NDArray[np.int64]
) -> pa.StringArray:
    """The offset message ids of hosts that are all 8 or all 20 bytes wide."""
    count = len(store_hosts)
    store_hosts = np.ascontiguousarray(store_hosts)
    high = physical_offsets >> 32
    if count and _is_constant(store_hosts) and (high == high[0]).all():
        # The usual case, one broker within 4 GiB of its log: only the last digits differ.
        first_id = encode_message_id(store_hosts[0].tobytes(), int(physical_offsets[0])).encode()
        ids = np.repeat(np.frombuffer(first_id, f"V{len(first_id)}"), count)
        digits = ids.view(np.uint64).reshape(count, -1)
        digits[:, -1] = _hex_digits(physical_offsets.astype(np.uint32))
        return _column_of_digits(digits)
    items = np.empty(count, [("host", store_hosts.dtype), ("offset", PHYSICAL_OFFSET)])
    items["host"] = store_hosts
    items["offset"] = physical_offsets
    return hex_column(items)


def hex_column(items: NDArray[np.void]) -> pa.StringArray:
    """The upper-case hex digits of items, whose size is a multiple of four bytes."""
    words = items.view(_FOUR_BYTES).reshape(len(items), items.itemsize // _FOUR_BYTES.itemsize)
    return _column_of_digits(_hex_digits(words.astype(np.uint32)))


def _hex_digits(numbers: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """The eight upper-case hex digits of each number, as the bytes of a 64-bit word.

    Whole columns are moved and added, all digits of a number at once: to look each of them up
    in a table takes several times as long.
    """
    digits = numbers.astype(np.uint64)
    for shift, mask in _SPREADING:
        digits |= digits << shift
        digits &= mask
    # A digit from ten on carries into bit 4 when six is added: seven characters lie between
    # "9" and "A".
    is_letter = digits + 6 * _EACH_BYTE
    is_letter >>= 4
    is_letter &= _EACH_BYTE
    is_letter *= ord("A") - ord("9") - 1
    digits += is_letter
    digits += ord("0") * _EACH_BYTE
    return digits.astype(_EIGHT_DIGITS).view(np.uint64)


def _column_of_digits(digits: NDArray[np.uint64]) -> pa.StringArray:
    count, words = digits.shape
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(words * digits.itemsize)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(bounds), pa.py_buffer(digits)]
    )
