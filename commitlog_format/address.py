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
#: Two bytes as they are read, from left to right.
_TWO_BYTES = np.dtype(np.uint16).newbyteorder(">")
#: The four hex digits of every 16-bit number, as one 32-bit word each.
_HEX_WORDS = np.frombuffer(
    np.arange(1 << 16, dtype=_TWO_BYTES).tobytes().hex().upper().encode(), np.uint32
)


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
    host_words = _two_bytes(store_hosts)
    offset_words = _two_bytes(physical_offsets.astype(PHYSICAL_OFFSET))
    high_words, low_words = offset_words[:, :2], offset_words[:, 2:]
    if count and _is_constant(store_hosts):  # the usual case: one broker wrote the log
        host_words = host_words[:1]
    if count and int(physical_offsets.min()) >> 32 == int(physical_offsets.max()) >> 32:
        high_words = high_words[:1]
    # Column by column in wide words: numpy is slow in copying short runs row by row.
    parts = [
        _HEX_WORDS[words].view(np.uint64).T for words in (host_words, high_words, low_words)
    ]
    columns = [column for part in parts for column in part]
    digits = np.empty((count, len(columns)), np.uint64)
    for place, column in enumerate(columns):
        digits[:, place] = column
    return _column_of_digits(digits)


def hex_column(items: NDArray[np.void]) -> pa.StringArray:
    """The upper-case hex digits of items, which have an even number of bytes."""
    return _column_of_digits(_HEX_WORDS[_two_bytes(items)])


def _two_bytes(items: NDArray[np.generic]) -> NDArray[np.uint16]:
    """The bytes of each item, two by two."""
    return items.view(_TWO_BYTES).reshape(len(items), items.itemsize // _TWO_BYTES.itemsize)


def _column_of_digits(digits: NDArray[np.unsignedinteger]) -> pa.StringArray:
    count, words = digits.shape
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(words * digits.itemsize)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(bounds), pa.py_buffer(digits)]
    )
