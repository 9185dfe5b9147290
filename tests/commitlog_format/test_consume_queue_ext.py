"""Ext files made by hand: addresses over several files, and every kind of damage."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from queue_files import make_units, write_queue

from rmqlog.commitlog_format.consume_queue import ConsumeQueue
from rmqlog.commitlog_format.consume_queue_ext import ConsumeQueueExt
from rmqlog.commitlog_format.errors import CorruptQueueError, StoreError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.layout import CONSUME_QUEUE_EXT_HEADER, EXT_ADDRESS_BASE
from rmqlog.commitlog_format.segment import FileQueue


def ext_unit(tags_code: int, store_timestamp: int, bitmap: bytes = b"") -> bytes:
    header = (20 + len(bitmap), tags_code, store_timestamp, len(bitmap))
    return np.array([header], CONSUME_QUEUE_EXT_HEADER).tobytes() + bitmap


def open_ext(directory: Path, *contents: bytes, file_size: int = 64) -> ConsumeQueueExt:
    directory.mkdir(exist_ok=True)
    for index, content in enumerate(contents):
        name = f"{index * file_size:020d}"
        (directory / name).write_bytes(content.ljust(file_size, b"\0"))
    return ConsumeQueueExt(FileQueue.open(LocalFiles(), [str(directory)]))


def resolve(ext: ConsumeQueueExt, *offsets: int) -> list[tuple[int, int]]:
    addresses = np.array([EXT_ADDRESS_BASE + offset for offset in offsets], np.int64)
    codes, timestamps = ext.resolve(addresses)
    return list(zip(codes.tolist(), timestamps.tolist(), strict=True))


def test_the_golden_vector_is_read(tmp_path: Path) -> None:
    unit = ext_unit(2598919, 1700000001000)
    assert unit.hex() == "0014000000000027a8070000018bcfe56be80000"
    ext = open_ext(tmp_path, bytes(44) + unit)
    assert resolve(ext, 44) == [(2598919, 1700000001000)]
    assert ext.bitmap(EXT_ADDRESS_BASE + 44) == b""


def test_addresses_in_several_files_and_any_order_are_resolved(tmp_path: Path) -> None:
    first = ext_unit(-5, 1, b"abc") + ext_unit(6, 2) + b"\xff\xff"
    ext = open_ext(tmp_path, first, ext_unit(7, 3), ext_unit(8, 4))
    assert resolve(ext, 128, 0, 23, 64, 0) == [(8, 4), (-5, 1), (6, 2), (7, 3), (-5, 1)]
    assert ext.bitmap(EXT_ADDRESS_BASE) == b"abc"
    assert resolve(ext) == []


def test_a_queue_of_plain_codes_and_addresses_is_scanned_by_what_they_stand_for(
    tmp_path: Path,
) -> None:
    ext = open_ext(tmp_path / "ext", ext_unit(5, 1) + ext_unit(6, 2))
    codes = [5, EXT_ADDRESS_BASE, 6, EXT_ADDRESS_BASE + 20, -1]
    files = write_queue(tmp_path / "queue", make_units([0, 100, 200, 300, 400], codes))
    queue = ConsumeQueue(files, ext)
    assert queue.tags_codes(queue.units(0, 5)).tolist() == [5, 5, 6, 6, -1]
    for code, expected in ((5, [0, 1]), (6, [2, 3]), (-1, [4]), (7, [])):
        assert queue.matching_units(0, 5, {code})[0].tolist() == expected


@pytest.mark.parametrize("index", [1, 50_003, 99_999, 100_001])
def test_one_address_in_a_long_queue_is_found(tmp_path: Path, index: int) -> None:
    ext = open_ext(tmp_path / "ext", ext_unit(5, 1))
    count = 110_000
    codes = np.zeros(count, np.int64)
    codes[index] = EXT_ADDRESS_BASE
    units = make_units(range(0, count * 100, 100), codes.tolist())
    queue = ConsumeQueue(write_queue(tmp_path / "queue", units, count), ext)
    assert queue.matching_units(0, count, {5})[0].tolist() == [index]


@pytest.mark.parametrize(
    "unit",
    [
        bytes(20),
        b"\xff\xff" + bytes(18),
        b"\0\x13" + bytes(16) + b"\xff\xff",
        b"\0\x15" + bytes(18),
        b"\x7f\xff" + bytes(16) + b"\x7f\xeb",
    ],
)
def test_a_unit_whose_sizes_cannot_be_is_damage(tmp_path: Path, unit: bytes) -> None:
    ext = open_ext(tmp_path, ext_unit(1, 1) + unit)
    assert resolve(ext, 0) == [(1, 1)]
    with pytest.raises(CorruptQueueError, match="add up") as caught:
        resolve(ext, 0, 20)
    assert caught.value.offset == 20
    assert caught.value.path.endswith(f"{0:020d}")
    assert pickle.loads(pickle.dumps(caught.value)) == caught.value
    with pytest.raises(CorruptQueueError):
        ext.bitmap(EXT_ADDRESS_BASE + 20)


@pytest.mark.parametrize("offset", [45, 63, 64, 2**40, 9223372034707292159])
def test_an_address_behind_the_files_is_damage(tmp_path: Path, offset: int) -> None:
    ext = open_ext(tmp_path, ext_unit(1, 1))
    with pytest.raises(CorruptQueueError, match="behind the ext file"):
        resolve(ext, 0, offset)


def test_an_address_before_the_files_or_without_any_is_damage(tmp_path: Path) -> None:
    (tmp_path / f"{64:020d}").write_bytes(ext_unit(1, 1).ljust(64, b"\0"))
    ext = ConsumeQueueExt(FileQueue.open(LocalFiles(), [str(tmp_path)]))
    assert resolve(ext, 64) == [(1, 1)]
    with pytest.raises(CorruptQueueError):
        resolve(ext, 0)
    with pytest.raises(CorruptQueueError):
        resolve(open_ext(tmp_path / "empty"), 0)


def test_a_plain_code_is_no_address(tmp_path: Path) -> None:
    ext = open_ext(tmp_path, ext_unit(1, 1))
    with pytest.raises(CorruptQueueError, match="not an address"):
        ext.resolve(np.array([-(2**31)], np.int64))


@pytest.mark.fuzz
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(min_size=64, max_size=64), st.lists(st.integers(0, 140), max_size=60))
def test_random_bytes_give_values_or_a_store_error(
    tmp_path: Path, content: bytes, offsets: list[int]
) -> None:
    ext = open_ext(tmp_path, content, content)
    with contextlib.suppress(StoreError):
        assert len(resolve(ext, *offsets)) == len(offsets)
        for offset in offsets:
            assert len(ext.bitmap(EXT_ADDRESS_BASE + offset)) <= 64
