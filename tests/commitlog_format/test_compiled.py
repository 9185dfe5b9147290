"""When loops are compiled, and that they stay within their arrays whatever the bytes say."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa
import pytest
from bad_input import run_in_child
from queue_files import make_units, write_queue
from random_records import PLAIN_RECORD, Log, build_log, with_body

from rmqlog.commitlog_format import checksum, compiled, kernel_words, layout
from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS
from rmqlog.commitlog_format.compiled import (
    COMPILE_VARIABLE,
    SMALLEST_BATCH,
    Loading,
    count_rows,
    expect_rows,
    kernels,
)
from rmqlog.commitlog_format.consume_queue import ConsumeQueue
from rmqlog.commitlog_format.errors import CorruptQueueError, CorruptRecordError
from rmqlog.commitlog_format.hashing import java_hash, java_hashes
from rmqlog.commitlog_format.message import Record
from rmqlog.commitlog_format.records import RecordDecoder

COLUMNS = [name for name in MESSAGE_COLUMNS if name != "brokerName"]

#: The bytes end where the process may not read on: one byte too far is a signal.
AGAINST_A_WALL = """
import ctypes, json, mmap, os, random, sys
os.environ["RMQLOG_COMPILE"] = "always"
import numba
import numpy as np
from queue_files import make_units, write_queue
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


def odd_records() -> list[Record]:
    """Records that take every branch: texts of many sizes, names that change, a wide body."""
    properties = [
        b"", b"KEYS\x01k\x02", b"KEYS\x01k1 k2\x02TAGS\x01TagA\x02", b"TAGS\x01a",
        b"a-name-of-twenty-four-by\x01a value with sixteen\x02UNIQ_KEY\x01" + b"0" * 32 + b"\x02",
        b"TAGS\x01" + "标签".encode() + b"\x02", b"x\x01\x01y\x02",
    ]
    bodies = [b"", b"body", b"x" * 300, b"y" * 2000]
    return [
        with_body(replace(PLAIN_RECORD, properties=text), body)
        for text in properties for body in bodies
    ]


def bad_properties() -> list[bytes]:
    """Properties that no loop takes."""
    return [
        b"\x01v\x02", b"n\x01\x02", b"n\x02", b"n", b"a\x01b\x02a\x01c\x02",
        "名".encode() + b"\x01v\x02", b"n\x02m\x01v\x02",
        b"".join(b"n%d\x01v\x02" % number for number in range(65)),
    ]


def decoded(log: Log, columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
    """Every column, claims and checksums compared."""
    return RecordDecoder(columns).decode(
        log.window, log.base_offset, log.offsets, sizes=log.sizes
    )


@pytest.mark.usefixtures("uncompiled")
def test_the_loops_as_they_are_written_decode_as_numpy_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = [build_log(odd_records()), build_log([PLAIN_RECORD] * 9)]
    logs += [
        build_log([PLAIN_RECORD, replace(PLAIN_RECORD, properties=text)])
        for text in bad_properties()
    ]
    choices = [COLUMNS, ["body"], ["tags", "keys"], ["flag", "topic"], ["properties"]]
    found = [decoded(log, columns) for log in logs for columns in choices]
    monkeypatch.setattr(compiled, "_loading", Loading())
    monkeypatch.setattr(compiled, "SMALLEST_BATCH", 10**9)

    assert found == [decoded(log, columns) for log in logs for columns in choices]


@pytest.mark.usefixtures("uncompiled")
def test_the_loops_as_they_are_written_leave_damage_to_numpy() -> None:
    log = build_log([PLAIN_RECORD] * 3)
    for place in range(int(log.sizes[0]), int(log.sizes[0]) + 120):
        window = log.window.copy()
        window[place] ^= 0xFF
        with contextlib.suppress(CorruptRecordError):
            RecordDecoder(COLUMNS, check_crc=False).decode(window, log.base_offset, log.offsets)


@pytest.mark.usefixtures("uncompiled")
def test_the_loops_as_they_are_written_hash_and_walk() -> None:
    texts = ["", "a", "TagA", "order-12345", "x" * 33]
    log = build_log([PLAIN_RECORD] * 3)
    bounds = np.zeros(8, np.int64)
    loops = compiled.kernels(1)
    assert loops is not None

    assert java_hashes(pa.array(texts)).tolist() == [java_hash(text) for text in texts]
    assert loops.follow_records(log.window, len(log.window), bounds) == 3
    assert bounds[1:4].tolist() == np.cumsum(log.sizes).tolist()
    for damage in (layout.MAGIC_POSITION, 0):
        window = log.window.copy()
        window[damage] ^= 0x7F
        assert loops.follow_records(window, len(window), bounds) == 0


@pytest.mark.usefixtures("uncompiled")
def test_the_loops_as_they_are_written_find_tags_codes(tmp_path: Path) -> None:
    codes = [7, -1, 2**32 + 7, 2**16 + 7, 8, 7]
    queue = ConsumeQueue(write_queue(tmp_path / "sound", make_units([1] * 6, codes)))
    assert queue.matching_units(0, 6, {7, -1})[0].tolist() == [0, 1, 5]

    codes[3] = layout.EXT_ADDRESS_BASE
    queue = ConsumeQueue(write_queue(tmp_path / "addressed", make_units([1] * 6, codes)))
    with pytest.raises(CorruptQueueError, match="ext file"):
        queue.matching_units(0, 6, {7})


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("starts", "sizes", "room", "expected"),
    [([0, 5], [5, 3], 16, -1), ([0, 9], [5, 0], 16, -1), ([0, 5], [5, 4], 16, 1),
     ([-1, 0], [1, 1], 16, 0), ([0, 6], [5, 3], 16, 1), ([0, 5], [5, -1], 16, 1)],
)
def test_the_loops_as_they_are_written_stop_where_a_piece_or_its_room_ends(
    starts: list[int], sizes: list[int], room: int, expected: int
) -> None:
    loops = compiled.kernels(1)
    assert loops is not None
    data, target = np.arange(8, dtype=np.uint8), np.zeros(room, np.uint8)
    bounds = np.zeros(3, np.int32)

    assert loops.gather(data, np.array(starts), np.array(sizes), target, bounds) == expected
    if expected == loops.ALL_ROWS:
        pieces = [data[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        assert target[: bounds[-1]].tobytes() == b"".join(piece.tobytes() for piece in pieces)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, -1), ({"start": -1}, 0), ({"size": 13}, 0), ({"values": 19}, 0), ({"column": 10}, 0),
     ({"names": 12}, 0), ({"pairs": 2}, 0)],
)
def test_the_loops_as_they_are_written_stop_where_properties_or_their_room_end(
    changes: dict[str, int], expected: int
) -> None:
    loops = compiled.kernels(1)
    assert loops is not None
    text = b"KEYS\x01k12\x02a\x01b"
    room = {
        "start": 0, "size": len(text), "values": 20, "column": 11, "names": 13, "pairs": 3,
        **changes,
    }
    pairs, is_there = room["pairs"], np.zeros((1, 1), np.bool_)
    values, value_bounds = np.zeros(room["values"], np.uint8), np.zeros(pairs, np.int32)

    stopped = loops.split_properties(
        np.frombuffer(text, np.uint8), np.array([room["start"]]), np.array([room["size"]]),
        np.frombuffer(b"KEYS", np.uint8), np.array([0, 4]), np.zeros(room["column"], np.uint8),
        room["column"], np.zeros((1, 2), np.int32), is_there, True, np.zeros(2, np.int32),
        np.zeros(room["names"], np.uint8), np.zeros(pairs, np.int32), values, value_bounds,
        np.zeros(1, np.bool_),
    )

    assert stopped == expected
    if stopped == loops.ALL_ROWS:
        assert is_there.all()
        assert values[: value_bounds[-1]].tobytes() == b"k12b"


def test_each_instruction_of_the_loops_is_compiled_to_what_it_says() -> None:
    @numba.njit
    def instructions(data, place, crc32_address):  # type: ignore[no-untyped-def]
        kernel_words.prefetch(data, place)
        word = kernel_words.load_word(data, place)
        kernel_words.store_word(data, place + 8, kernel_words.swap_word(word))
        half = kernel_words.swap_half(kernel_words.load_half(data, place))
        crc = kernel_words.call_crc32(crc32_address, data, place, np.int64(9))
        zeros = kernel_words.trailing_zeros(np.uint64(0b101000))
        return half, crc, zeros, kernel_words.trailing_zeros(np.uint64(0))

    data = np.arange(24, dtype=np.uint8)
    found = instructions(data, 3, checksum._crc32_address())

    expected = bytes([*range(11), *range(10, 2, -1), *range(19, 24)])
    assert data.tobytes() == expected
    assert found == (0x03040506, zlib.crc32(expected[3:12]), 3, 64)


def test_the_compiled_loops_are_there_again(fresh: Loading) -> None:
    fresh.choice = "always"
    loops = kernels(SMALLEST_BATCH)

    assert loops is not None
    assert hasattr(loops.find_fields, "py_func"), "not compiled"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Loading:
    """The state of a process that has had nothing to do yet."""
    monkeypatch.delenv(COMPILE_VARIABLE, raising=False)
    loading = Loading()
    monkeypatch.setattr(compiled, "_loading", loading)
    return loading


def test_a_process_loads_them_when_it_has_had_more_rows_than_a_segment(fresh: Loading) -> None:
    count_rows((1 << 30) // layout.MIN_RECORD_SIZE)
    assert kernels(10_000) is None

    count_rows(250_000)
    assert kernels(10_000) is not None


@pytest.mark.parametrize(("done", "announced"), [(0, 4_000_000), (3_000_000, 1_000_000)])
def test_a_process_that_knows_what_comes_loads_them_at_once(
    fresh: Loading, done: int, announced: int
) -> None:
    count_rows(done)
    expect_rows(announced - 1)
    assert kernels(10_000) is None

    expect_rows(announced)
    assert kernels(10_000) is not None


def test_what_was_announced_is_not_counted_twice(fresh: Loading) -> None:
    for _ in range(3):
        expect_rows(1_000_000)
        count_rows(1_000_000)

    assert kernels(10_000) is None


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


#: Four scans, so that a quarter of a gibibyte counts as a whole one.
FOUR_SCANS = """
import rmqlog
from rmqlog.commitlog_format import compiled

store = rmqlog.open_store(sys.argv[1], end=int(sys.argv[2]))
for _ in range(4):
    for batch in store.scan():
        pass
print(json.dumps({"rows": compiled._loading.row_count, "peak": memory("VmHWM")}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak")
def test_a_gibibyte_of_the_smallest_records_is_scanned_in_less_than_200_mib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(COMPILE_VARIABLE, raising=False)
    record = with_body(replace(PLAIN_RECORD, topic=b"t", properties=b""), b"")
    size = int(build_log([record]).sizes[0])
    count = (256 << 20) // size
    log = np.tile(build_log([record]).window, count)
    place = slice(layout.PHYSICAL_OFFSET_POSITION, layout.PHYSICAL_OFFSET_POSITION + 8)
    offsets = (np.arange(count) * size).astype(">i8")
    log.reshape(count, size)[:, place] = offsets.view(np.uint8).reshape(count, 8)
    (tmp_path / "commitlog").mkdir()
    log.tofile(tmp_path / "commitlog" / f"{0:020d}")

    found = run_in_child(FOUR_SCANS, tmp_path, len(log))

    assert found["rows"] == 4 * count > 11_600_000, "a scan looks twice, and counts once"
    assert found["peak"] < 200 << 20


@pytest.mark.parametrize("error", [ImportError, RuntimeError])
def test_a_compiler_that_does_not_load_is_gone_without(
    fresh: Loading, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(*_arguments: object) -> None:
        raise error("no locator available")

    monkeypatch.delattr("rmqlog.commitlog_format.kernels", raising=False)
    monkeypatch.delitem(sys.modules, "rmqlog.commitlog_format.kernels", raising=False)
    monkeypatch.setattr(numba, "njit", refuse)
    fresh.choice = "always"

    assert kernels(10_000) is None
    assert fresh.is_settled


def test_a_big_endian_machine_has_numpy(
    fresh: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "byteorder", "big")
    expect_rows(10**9)

    assert kernels(10_000) is None


def test_little_room_for_addresses_is_left_to_the_data(
    fresh: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (900 << 20, resource.RLIM_INFINITY))
    expect_rows(10**9)

    assert kernels(10_000) is None


def test_threads_that_come_at_once_load_them_once(
    fresh: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[int] = []
    monkeypatch.setattr(compiled, "_load", lambda: loads.append(1))

    for _ in range(2):
        fresh.settle()

    assert len(loads) == 1


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
