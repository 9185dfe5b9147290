"""Java's ``String.hashCode``, for one string and for a column, and the hash of index keys.

The hash runs over UTF-16 units, not over characters or UTF-8 bytes: a character outside the
BMP counts as two surrogates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import mul

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqlog.commitlog_format.compiled import kernels
from rmqlog.commitlog_format.layout import INDEX_KEY_SEPARATOR

_MULTIPLIER = 31
_MODULUS = 2**32
#: 31 is odd, so it has an inverse modulo 2**32.
_INVERSE = pow(_MULTIPLIER, -1, _MODULUS)
_SMALLEST_TABLE = 1 << 16
_NOT_ASCII = 0x80
#: Powers of 31 for the units of a short string, the last one for the last unit.
_WEIGHTS = tuple(pow(_MULTIPLIER, power, _MODULUS) for power in reversed(range(256)))


def java_hash(text: str) -> int:
    """``text.hashCode()`` in Java: a signed 32-bit number."""
    units: Sequence[int]
    if text.isascii():
        units = text.encode("ascii")
    else:
        units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    # The sum of units times powers of 31, in C; Horner's scheme would be a loop in Python.
    value: int = sum(map(mul, units, _weights(len(units)))) % _MODULUS
    return value - _MODULUS if value >= _MODULUS // 2 else value


def _weights(count: int) -> Sequence[int]:
    """The powers of 31 that the units of a string of so many are multiplied by."""
    if count <= len(_WEIGHTS):
        return _WEIGHTS[len(_WEIGHTS) - count :]
    weights: list[int] = _powers(_MULTIPLIER, count)[count - 1 :: -1].tolist()
    return weights


def java_hashes(texts: pa.StringArray) -> NDArray[np.int32]:
    """``java_hash`` of every string; 0 for a null, as for the empty string."""
    hashes, _ = _hashes_and_lengths(texts)
    return hashes.view(np.int32)


def index_hash(topic: str, key: str) -> int:
    """The hash in an index entry: of ``topic#key``, never negative (IndexFile)."""
    value = abs(java_hash(f"{topic}{INDEX_KEY_SEPARATOR}{key}"))
    return 0 if value == _MODULUS // 2 else value


def index_hashes(topics: str | pa.StringArray, keys: pa.StringArray) -> NDArray[np.int32]:
    """``index_hash`` of every key, with one topic for all or one topic for each."""
    if isinstance(topics, str):
        prefixes = np.array([java_hash(topics + INDEX_KEY_SEPARATOR) % _MODULUS], np.uint32)
    else:
        topic_hashes, _ = _hashes_and_lengths(topics)
        prefixes = topic_hashes * np.uint32(_MULTIPLIER) + np.uint32(ord(INDEX_KEY_SEPARATOR))
    hashes, lengths = _hashes_and_lengths(keys)
    powers = _powers(_MULTIPLIER, int(lengths.max(initial=0)) + 1)
    signed = (prefixes * powers[lengths] + hashes).view(np.int32)
    # abs() of the smallest number stays negative; RocketMQ takes 0 for it.
    absolute: NDArray[np.int32] = np.abs(signed)
    absolute[absolute < 0] = 0
    return absolute


def _hashes_and_lengths(texts: pa.StringArray) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The hash and the number of UTF-16 units of every string: no loop over strings or units.

    Strings of one length are a matrix, which is multiplied by powers of 31. Of others,
    ``units[i] * 31**-i`` is summed up string by string; every string's hash is its sum times
    a power of 31.
    """
    data, byte_bounds = _utf8_bytes(texts)
    loops = kernels(len(texts))
    if loops is not None and data.max(initial=0) < _NOT_ASCII:
        hashes = np.empty(len(texts), np.uint32)
        loops.hash_ascii(loops.read_only(data), byte_bounds, hashes)
        return hashes, byte_bounds[1:] - byte_bounds[:-1]
    units, bounds = _utf16_units(data, byte_bounds)
    lengths = bounds[1:] - bounds[:-1]
    size = int(lengths[0]) if len(lengths) else 0
    if size and (lengths == size).all():
        weights = np.ascontiguousarray(_powers(_MULTIPLIER, size)[size - 1 :: -1])
        return np.einsum("ij,j->i", units.reshape(-1, size), weights), lengths
    hashes = np.zeros(len(lengths), np.uint32)
    rows = np.flatnonzero(lengths)
    if len(rows):
        terms = units * _powers(_INVERSE, len(units))[: len(units)]
        lasts = bounds[1:][rows] - 1
        hashes[rows] = np.add.reduceat(terms, bounds[:-1][rows])
        hashes[rows] *= _powers(_MULTIPLIER, len(units))[lasts]
    return hashes, lengths


def _utf8_bytes(texts: pa.StringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All strings as one array of bytes, and where each begins and the last one ends."""
    _, offset_buffer, data_buffer = texts.buffers()
    count = len(texts)
    if count == 0 or data_buffer is None:
        return np.zeros(0, np.uint8), np.zeros(count + 1, np.int64)
    offsets = np.frombuffer(offset_buffer, np.int32)[texts.offset : texts.offset + count + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(data_buffer, np.uint8)[first:last]
    return data, offsets.astype(np.int64) - first


def _utf16_units(
    data: NDArray[np.uint8], bounds: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """UTF-8 as UTF-16 units, and where in them each string begins and the last one ends."""
    if data.max(initial=0) < _NOT_ASCII:
        return data.astype(np.uint32), bounds
    # Continuation bytes begin no unit; the first byte of a four-byte sequence begins two.
    units_begun = ((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0)
    units_before = np.concatenate((np.zeros(1, np.int64), np.cumsum(units_begun)))
    encoded = data.tobytes().decode("utf-8").encode("utf-16-le")
    return np.frombuffer(encoded, "<u2").astype(np.uint32), units_before[bounds]


def _powers(base: int, count: int) -> NDArray[np.uint32]:
    """At least ``count`` powers of ``base`` modulo 2**32, from the power 0 on."""
    return _power_table(base, max(_SMALLEST_TABLE, 1 << (count - 1).bit_length()))


@lru_cache(maxsize=16)
def _power_table(base: int, size: int) -> NDArray[np.uint32]:
    factors = np.full(size, base, np.uint32)
    factors[0] = 1
    powers: NDArray[np.uint32] = np.cumprod(factors, dtype=np.uint32)
    return powers
