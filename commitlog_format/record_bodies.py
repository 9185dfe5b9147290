"""The body column: gathered, checked by BODYCRC, decompressed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.binary_columns import MAX_COLUMN_SIZE
from rmqlog.commitlog_format.checksum import body_crcs
from rmqlog.commitlog_format.compression import decompress
from rmqlog.commitlog_format.errors import BatchLimitExceededError, ChecksumError, StoreError
from rmqlog.commitlog_format.record_fields import MalformedRowsError, RecordFields


def body_column(fields: RecordFields, *, check_crc: bool) -> pa.BinaryArray:
    """The plain bodies; empty where a record has none.

    BODYCRC is of the body as stored. As a broker does, an empty body is neither checked nor
    decompressed.
    """
    stored = stored_bodies(fields, check_crc=check_crc)
    sys_flags = fields.header("sys_flag")
    is_compressed = (sys_flags & layout.SysFlag.COMPRESSED) != 0
    rows = np.flatnonzero(is_compressed & (fields.body.sizes > 0))
    return _decompress_rows(fields, stored, sys_flags, rows) if len(rows) else stored


def stored_bodies(fields: RecordFields, *, check_crc: bool) -> pa.BinaryArray:
    """The bodies as they are on disk, compared with BODYCRC if so asked."""
    check_total_size(fields, int(fields.body.sizes.sum()), MAX_COLUMN_SIZE)
    stored = fields.stored_bodies()
    if check_crc:
        expected = fields.header("body_crc")
        found = body_crcs(stored)
        fields.require(
            (found == expected) | (fields.body.sizes == 0), ChecksumError,
            "BODYCRC does not match the body", found, expected,
        )
    return stored


def check_total_size(fields: RecordFields, size: int, limit: int) -> None:
    """Raise if the rows together are too much for one batch."""
    if size > limit:
        raise BatchLimitExceededError(
            "too many bytes for one batch of rows", fields.path, int(fields.offsets[0]),
            size, limit,
        )


def _decompress_rows(
    fields: RecordFields, stored: pa.BinaryArray, sys_flags: NDArray[np.signedinteger],
    rows: NDArray[np.int64],
) -> pa.BinaryArray:
    kinds = (sys_flags[rows] & layout.COMPRESSION_MASK) >> layout.COMPRESSION_SHIFT
    plain: list[bytes] = []
    errors: dict[int, StoreError] = {}
    plain_size = 0
    for row, kind in zip(rows.tolist(), kinds.tolist(), strict=True):
        try:
            body = decompress(
                stored[row].as_py(), kind, fields.limits,
                path=fields.path, offset=int(fields.offsets[row]),
            )
        except StoreError as error:
            errors[row] = error
            continue
        plain_size += len(body)
        check_total_size(fields, plain_size, fields.limits.batch_decompressed_size)
        plain.append(body)
    if errors:
        malformed = np.zeros(len(fields), np.bool_)
        malformed[list(errors)] = True
        raise MalformedRowsError(malformed, errors.__getitem__)
    check_total_size(fields, stored.nbytes + plain_size, MAX_COLUMN_SIZE)
    sources = np.arange(len(fields))
    sources[rows] = len(fields) + np.arange(len(rows))
    return pa.concat_arrays([stored, pa.array(plain, pa.binary())]).take(pa.array(sources))
