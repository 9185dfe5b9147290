"""Where a snapshot ends: a limit that is too low for the store is told, it does not hide rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from built_stores import ROOT, build_store, numbered_records, offset_name
from memory_files import MemoryFiles
from random_records import with_body

from rmqlog.commitlog_format.errors import LimitExceededError
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS
from rmqlog.commitlog_format.store import Store

SEGMENT = f"{ROOT}/commitlog/{offset_name(0)}"
LIMITS = replace(DEFAULT_LIMITS, record_size=500)
RECORDS = numbered_records(8)
RECORDS[-1] = with_body(RECORDS[-1], bytes(600))


@pytest.mark.parametrize("dispatched", [0, 7, 8])
def test_a_last_record_above_the_limit_is_an_error(dispatched: int) -> None:
    built = build_store(RECORDS, dispatched_count=dispatched)
    with pytest.raises(LimitExceededError) as caught:
        _ = Store(ROOT, access=MemoryFiles(built.files), limits=LIMITS).end
    assert caught.value.offset == built.records[-1].physical_offset
    assert caught.value.expected == LIMITS.record_size


@pytest.mark.parametrize("dispatched", [0, 7, 8])
@pytest.mark.parametrize("place", [0, 28])
def test_bytes_that_only_look_like_a_large_record_end_the_log(dispatched: int, place: int) -> None:
    """Another size than a unit claims and there is room for, or another place."""
    built = build_store(RECORDS, dispatched_count=dispatched)
    last = built.records[-1]
    log = bytearray(built.files[SEGMENT])
    log[last.physical_offset + place] ^= 0x40
    files = MemoryFiles({**built.files, SEGMENT: bytes(log)})
    if place == 28 and dispatched == 8:
        # The unit says that there is a record of this size, and nothing more is looked at.
        with pytest.raises(LimitExceededError):
            Store(ROOT, access=files, limits=LIMITS)
    else:
        assert Store(ROOT, access=files, limits=LIMITS).end == last.physical_offset
