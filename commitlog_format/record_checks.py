"""Whether records can be believed, without decoding a column of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.limits import Limits
from rmqlog.commitlog_format.mapped_windows import intact
from rmqlog.commitlog_format.plain_fields import record_fields
from rmqlog.commitlog_format.record_bodies import stored_bodies
from rmqlog.commitlog_format.record_fields import MalformedRowsError


def first_malformed(
    window: NDArray[np.uint8],
    base_offset: int,
    offsets: NDArray[np.int64],
    *,
    check_crc: bool,
    path: str,
    limits: Limits,
) -> StoreError | None:
    """What is wrong with the first record that does not check; ``None`` when all do.

    Magic, lengths and PHYSICALOFFSET, and with ``check_crc`` the body's checksum: what a
    broker's recovery looks at, and the place of the record besides.
    """
    if len(offsets) == 0:
        return None
    try:
        with intact(window):
            fields = record_fields(
                window, base_offset, offsets, None, path=path, limits=limits,
                with_bodies=check_crc,
            )
            if check_crc:
                stored_bodies(fields, check_crc=True)
    except MalformedRowsError as error:
        first = int(np.argmax(error.malformed))
        # A record before it may fail a check that comes later.
        earlier = first_malformed(
            window, base_offset, offsets[:first], check_crc=check_crc, path=path, limits=limits
        )
        return earlier or error.describe(first)
    return None
