"""The two checksums of a record: BODYCRC, and the ``__CRC32#`` property of newer brokers."""

from __future__ import annotations

import ctypes
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from rmqlog.commitlog_format.binary_columns import column_bounds, column_bytes
from rmqlog.commitlog_format.compiled import kernels
from rmqlog.commitlog_format.layout import (
    CRC_MASK,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CRC,
    PROPERTY_CRC_DIGITS,
    PROPERTY_CRC_SIZE,
    PROPERTY_SEPARATOR,
)

_PROPERTY_CRC_NAME = PROPERTY_CRC.encode() + bytes([NAME_VALUE_SEPARATOR])
_PROPERTY_CRC_END = bytes([PROPERTY_SEPARATOR])
_CRC_STEP = 256


def body_crc(data: bytes | memoryview) -> int:
    """CRC-32 without its top bit, as BODYCRC holds it (UtilAll.crc32)."""
    return zlib_ng.crc32(data) & CRC_MASK


def body_crcs(bodies: pa.BinaryArray) -> NDArray[np.int32]:
    """``body_crc`` of every body of a column without nulls."""
    loops, address = kernels(len(bodies)), _crc32_address()
    if loops is not None and address:
        data, bounds = column_bytes(bodies), column_bounds(bodies)
        found = np.empty(len(bodies), np.uint32)
        loops.checksums(loops.read_only(data), bounds - bounds[0], address, found)
        return (found & np.uint32(CRC_MASK)).astype(np.int32)
    crcs: list[int] = []
    for start in range(0, len(bodies), _CRC_STEP):
        # The objects of one step stay in the processor's cache; slicing a memoryview body by
        # body takes twice as long.
        step = bodies.slice(start, _CRC_STEP).to_numpy(zero_copy_only=False)
        crcs.extend(map(zlib_ng.crc32, step.tolist()))
    return (np.array(crcs, np.uint32) & np.uint32(CRC_MASK)).astype(np.int32)


@lru_cache(maxsize=1)
def _crc32_address() -> int:
    """Where zlib-ng's own function is, for compiled loops; 0 if its module hides it."""
    try:
        function = ctypes.CDLL(zlib_ng.__file__).zng_crc32
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def property_crc(record: bytes | memoryview) -> int:
    """The checksum that belongs into the ``__CRC32#`` property of a whole record.

    It covers everything but the property itself, which is the record's last 20 bytes.
    """
    return zlib_ng.crc32(record[: len(record) - PROPERTY_CRC_SIZE]) & CRC_MASK


def encode_property_crc(crc: int) -> bytes:
    """The 20 bytes of the property: its ten digits come least significant first."""
    digits = f"{crc:0{PROPERTY_CRC_DIGITS}d}"[::-1].encode()
    return _PROPERTY_CRC_NAME + digits + _PROPERTY_CRC_END


def stored_property_crc(record: bytes | memoryview) -> int | None:
    """What the ``__CRC32#`` property of a record claims; ``None`` if it does not end with one."""
    tail = bytes(record[max(0, len(record) - PROPERTY_CRC_SIZE) :])
    digits = tail[len(_PROPERTY_CRC_NAME) : -1]
    well_formed = (
        len(tail) == PROPERTY_CRC_SIZE
        and tail.startswith(_PROPERTY_CRC_NAME)
        and tail.endswith(_PROPERTY_CRC_END)
        and digits.isdigit()
    )
    return int(digits[::-1]) if well_formed else None
