"""When loops are compiled, and that they stay within their arrays whatever the bytes say."""

from __future__ import annotations

import subprocess
import sys

import pytest
from bad_input import run_in_child
from random_records import PLAIN_RECORD, build_log

from rmqlog.commitlog_format import compiled
from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS
from rmqlog.commitlog_format.compiled import (
    COMPILE_VARIABLE,
    SMALLEST_BATCH,
    Loading,
    count_rows,
    kernels,
)
from rmqlog.commitlog_format.errors import CorruptRecordError
from rmqlog.commitlog_format.records import RecordDecoder

#: The bytes end where the process may not read on: one byte too far is a signal.
AGAINST_A_WALL = """
import ctypes, json, mmap, os, random, sys
os.environ["RMQLOG_COMPILE"] = "always"
import numpy as np
from random_records import PLAIN_RECORD, build_log
from rmqlog.commitlog_format import compiled
from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS
from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.records import RecordDecoder

compiled.SMALLEST_BATCH = 1
log = build_log([PLAIN_RECORD] * 5)
size = len(log.window)
room = size + -size % mmap.PAGESIZE
memory = mmap.mmap(-1, room + mmap.PAGESIZE)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(address + room), mmap.PAGESIZE, 0) == 0
window = np.frombuffer(memory, np.uint8, size, room - size)
columns = [name for name in MESSAGE_COLUMNS if name != "brokerName"]
rng = random.Random(int(sys.argv[1]))
ends = {"rows": 0, "errors": 0}
for case in range(8_000):
    window[:] = log.window
    for _ in range(rng.randint(1, 3)):
        # Mostly in the last record, whose bytes are at the wall.
        place = rng.randrange(size) if rng.random() < 0.2 else rng.randrange(size * 4 // 5, size)
        window[place] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    chosen = columns if case % 2 else rng.sample(columns, 3)
    try:
        RecordDecoder(chosen, check_crc=False).decode(window, log.base_offset, log.offsets)
        ends["rows"] += 1
    except StoreError:
        ends["errors"] += 1
ends["loaded"] = compiled.kernels(1) is not None
print(json.dumps(ends))
"""


@pytest.mark.fuzz
def test_no_loop_reads_behind_the_bytes_at_hand(seed: int) -> None:
    ends = run_in_child(AGAINST_A_WALL, seed)

    assert ends["loaded"]
    assert min(ends["rows"], ends["errors"]) > 1000


@pytest.mark.parametrize("claimed", [-1, 0, 2**31 - 1])
def test_a_claim_that_no_record_fits_is_refused(
    claimed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COMPILE_VARIABLE, "always")
    monkeypatch.setattr(compiled, "_loading", Loading())
    log = build_log([PLAIN_RECORD] * SMALLEST_BATCH)
    sizes = log.sizes.copy()
    sizes[3] = claimed

    with pytest.raises(CorruptRecordError, match="the queue unit claims") as caught:
        RecordDecoder(["body"]).decode(log.window, log.base_offset, log.offsets, sizes=sizes)

    assert caught.value.offset == log.offsets[3]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Loading:
    """The state of a process that has had nothing to do yet."""
    monkeypatch.delenv(COMPILE_VARIABLE, raising=False)
    loading = Loading()
    monkeypatch.setattr(compiled, "_loading", loading)
    return loading


def test_a_process_loads_them_when_it_has_had_more_rows_than_a_segment(fresh: Loading) -> None:
    count_rows(3_900_000)
    assert kernels(10_000) is None

    count_rows(100_000)
    assert kernels(10_000) is not None


def test_each_decoded_batch_is_counted_once(fresh: Loading) -> None:
    log = build_log([PLAIN_RECORD] * SMALLEST_BATCH)
    columns = [name for name in MESSAGE_COLUMNS if name != "brokerName"]
    RecordDecoder(columns).decode(log.window, log.base_offset, log.offsets)

    assert fresh.row_count == SMALLEST_BATCH


def test_small_batches_are_neither_counted_nor_compiled(fresh: Loading) -> None:
    fresh.choice = "always"

    assert kernels(SMALLEST_BATCH - 1) is None
    assert not fresh.is_settled
    assert kernels(SMALLEST_BATCH) is not None


def test_the_environment_can_forbid_them(
    fresh: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COMPILE_VARIABLE, "never")
    monkeypatch.setattr(compiled, "_loading", Loading())

    count_rows(10**9)

    assert kernels(10**9) is None


def test_without_numba_numpy_does_everything() -> None:
    code = """
import json, sys
sys.modules["numba"] = None
from rmqlog.commitlog_format.compiled import count_rows, kernels
count_rows(10**9)
print(json.dumps({"is_none": kernels(10**9) is None}))
"""
    assert run_in_child(code) == {"is_none": True}


def test_a_limited_address_space_is_left_to_the_data() -> None:
    code = """
import json, resource
resource.setrlimit(resource.RLIMIT_AS, (900 << 20, resource.RLIM_INFINITY))
import sys
from rmqlog.commitlog_format.compiled import count_rows, kernels
count_rows(10**9)
print(json.dumps({"is_none": kernels(10**9) is None, "numba": "numba" in sys.modules}))
"""
    assert run_in_child(code) == {"is_none": True, "numba": False}


def test_a_process_that_reads_little_does_not_load_numba() -> None:
    code = "import sys, rmqlog, rmqlog.writer; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
