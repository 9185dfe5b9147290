"""Queues made by hand: ends, stale units, minima, tag scans, and every kind of damage."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from queue_files import join_units, make_units, pre_blank_units, write_queue

from rmqlog.commitlog_format.consume_queue import ConsumeQueue
from rmqlog.commitlog_format.errors import (
    CorruptQueueError,
    InvalidNameError,
    SegmentExpiredError,
    StoreError,
)
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.layout import CONSUME_QUEUE_UNIT, EXT_ADDRESS_BASE
from rmqlog.commitlog_format.limits import Limits
from rmqlog.commitlog_format.segment import FileQueue

Verify = Callable[[np.void, int], bool]


def there(*ranges: range) -> Verify:
    """Verifies the units whose index lies in one of the ranges."""
    return lambda _unit, index: any(index in indexes for indexes in ranges)


def unused(_unit: np.void, _index: int) -> bool:
    raise AssertionError("nothing is to be verified here")


def increasing(count: int, start: int = 0) -> list[int]:
    return [start + 100 * index for index in range(count)]


class CountingFiles(FileQueue):
    """Counts reads and their bytes."""

    reads = 0
    bytes_read = 0

    def read(self, offset: int, size: int) -> bytes:
        self.reads += 1
        self.bytes_read += size
        return super().read(offset, size)


# --- the golden units --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("00000000000003e80000007b000000000027a807", (1000, 123, 2598919)),
        ("000000000000025000000073ffffffffb80cf172", (592, 115, -1207111310)),
        ("00000000000003e8000000c80000000000000000", (1000, 200, 0)),
        ("00000000000000007fffffff0000000000000000", (0, 0x7FFFFFFF, 0)),
        ("00000000000003e80000007b800000000000002c", (1000, 123, EXT_ADDRESS_BASE + 44)),
        ("00000000000003e80000007b0000018bcfe592f8", (1000, 123, 1700000011000)),
    ],
)
def test_the_golden_vectors_are_read(
    tmp_path: Path, unit: str, expected: tuple[int, int, int]
) -> None:
    (tmp_path / f"{0:020d}").write_bytes(bytes.fromhex(unit) * 3)
    queue = ConsumeQueue(FileQueue.open(LocalFiles(), [str(tmp_path)]))
    assert queue.unit(1).item() == expected
    assert queue.units(0, 3).tolist() == [expected] * 3


# --- the end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 19, 20, 21, 35])
@pytest.mark.parametrize("first_index", [0, 30])
def test_the_end_is_behind_the_last_unit_that_is_not_blank(
    tmp_path: Path, count: int, first_index: int
) -> None:
    queue = ConsumeQueue(write_queue(tmp_path, make_units(increasing(count)), 10, first_index))
    assert queue.first_offset == first_index
    assert queue.find_end(there(range(1000))) == first_index + count


def test_an_empty_file_made_ahead_does_not_end_the_queue(tmp_path: Path) -> None:
    write_queue(tmp_path, make_units(increasing(10)))
    files = write_queue(tmp_path, make_units([]), first_index=10)
    assert len(files.files) == 2
    assert ConsumeQueue(files).find_end(there(range(10))) == 10


def test_a_queue_without_files_is_empty(tmp_path: Path) -> None:
    queue = ConsumeQueue(FileQueue.open(LocalFiles(), [str(tmp_path)]))
    assert queue.find_end(unused) == 0
    assert queue.find_start(0, 0) == 0
    assert len(queue.units(0, 0)) == 0
    assert len(queue.matching_units(0, 0, {1})[0]) == 0


@pytest.mark.parametrize("stale", [0, 1, 2, 7, 8, 9, 30, 95])
@pytest.mark.parametrize("true", [0, 1, 5, 100])
def test_stale_units_behind_the_end_are_stepped_over(
    tmp_path: Path, true: int, stale: int
) -> None:
    queue = ConsumeQueue(write_queue(tmp_path, make_units(increasing(true + stale)), 20))
    assert queue.find_end(there(range(true))) == true


def test_a_negative_offset_is_no_record_that_expired(tmp_path: Path) -> None:
    units = make_units([*increasing(4), -5, -700])
    queue = ConsumeQueue(write_queue(tmp_path, units))
    assert queue.find_end(there(range(4)), log_start=100) == 4
    assert queue.find_end(there(), log_start=0) == 0


def test_a_few_damaged_records_among_the_last_do_not_end_the_queue(tmp_path: Path) -> None:
    queue = ConsumeQueue(write_queue(tmp_path, make_units(increasing(200)), 50))
    for damaged in (range(188, 195), range(185, 192), range(120, 127)):
        verify = there(range(damaged.start), range(damaged.stop, 197))
        assert queue.find_end(verify) == 197


def test_units_whose_records_retention_took_are_there(tmp_path: Path) -> None:
    queue = ConsumeQueue(write_queue(tmp_path, make_units(increasing(35))))
    assert queue.find_end(there(), log_start=10_000) == 35
    assert queue.find_start(10_000, 35) == 35
    assert queue.find_end(there(), log_start=2_000) == 20
    assert queue.find_end(there(range(20, 30)), log_start=2_000) == 30


def test_a_queue_of_which_no_record_is_there_is_empty(tmp_path: Path) -> None:
    queue = ConsumeQueue(write_queue(tmp_path, make_units(increasing(35)), first_index=70))
    assert queue.find_end(there()) == 70


@pytest.mark.parametrize("stale", [[1200, 1300, 1400], [1500], [500, 600, 700]])
def test_the_queue_ends_at_a_drop_although_stale_units_verify(
    tmp_path: Path, stale: list[int]
) -> None:
    queue = ConsumeQueue(write_queue(tmp_path, make_units([*increasing(10), 1500, *stale])))
    assert queue.find_end(there(range(100))) == 11


def test_one_damaged_unit_is_no_drop_that_ends_the_queue(tmp_path: Path) -> None:
    offsets = increasing(35)
    for index, wrong in ((30, 0), (30, 2**62)):
        damaged = [*offsets[:index], wrong, *offsets[index + 1 :]]
        queue = ConsumeQueue(write_queue(tmp_path, make_units(damaged)))
        assert queue.find_end(there(range(index), range(index + 1, 35))) == 35


def test_pre_blank_units_are_no_drop_and_not_stale(tmp_path: Path) -> None:
    units = join_units(pre_blank_units(7), make_units([0, 100]))
    queue = ConsumeQueue(write_queue(tmp_path, units))
    assert queue.find_end(there(range(7, 9))) == 9
    assert queue.find_start(0, 9) == 7
    assert queue.find_end(there()) == 7
    assert queue.find_start(0, 7) == 7


def test_a_hole_of_zeros_in_an_older_file_is_not_the_end(tmp_path: Path) -> None:
    units = make_units(increasing(35))
    units[12:19] = 0
    queue = ConsumeQueue(write_queue(tmp_path, units))
    assert queue.find_end(there(range(35))) == 35


def test_a_copy_cut_within_a_unit_ends_before_it(tmp_path: Path) -> None:
    write_queue(tmp_path, make_units(increasing(35)))
    last = tmp_path / f"{600:020d}"
    last.write_bytes(last.read_bytes()[:70])
    queue = ConsumeQueue(FileQueue.open(LocalFiles(), [str(tmp_path)]))
    assert queue.find_end(there(range(35))) == 33
    assert queue.units(30, 33)["commit_log_offset"].tolist() == [3000, 3100, 3200]


def test_end_and_minimum_take_so_few_reads_that_the_number_of_units_does_not_matter(
    tmp_path: Path,
) -> None:
    files = write_queue(tmp_path, make_units(increasing(90_000)), 30_000)
    counting = CountingFiles(files.access, files.files)
    queue = ConsumeQueue(counting)
    end = queue.find_end(there(range(60_001)))
    assert end == 60_001
    assert queue.find_start(100 * 777, end) == 777
    assert counting.reads < 400
    assert counting.bytes_read == 20 * counting.reads


# --- the minimum -------------------------------------------------------------------------------


@pytest.mark.parametrize("live", [0, 1, 9, 10, 15, 25, 34, 35])
def test_the_minimum_is_searched_in_all_files(tmp_path: Path, live: int) -> None:
    queue = ConsumeQueue(write_queue(tmp_path, make_units(increasing(35))))
    assert queue.find_start(100 * live, 35) == live
    assert queue.find_start(100 * live - 99 if live else 0, 35) == live


def test_pre_blank_units_come_before_every_physical_offset(tmp_path: Path) -> None:
    units = join_units(pre_blank_units(13), make_units(increasing(10)))
    queue = ConsumeQueue(write_queue(tmp_path, units, first_index=50))
    assert queue.find_start(0, 73) == 63
    assert queue.first_at_or_after(0, 50, 73) == 63
    assert queue.first_at_or_after(250, 50, 73) == 66
    assert queue.first_at_or_after(10_000, 50, 73) == 73


# --- tag scans ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("window_size", [64 * 1024 * 1024, 110, 20, 1])
@pytest.mark.parametrize("code_count", [1, 3, 9, 40])
def test_a_scan_finds_what_a_comparison_of_all_codes_finds(
    tmp_path: Path, window_size: int, code_count: int
) -> None:
    source = np.random.default_rng(code_count)
    codes = source.integers(-50, 50, 95).tolist()
    units = make_units(increasing(95), codes)
    queue = ConsumeQueue(write_queue(tmp_path, units), limits=Limits(window_size=window_size))
    wanted = set(range(-20, -20 + code_count))
    for start, stop in ((0, 95), (7, 33), (40, 40)):
        offsets, found = queue.matching_units(start, stop, wanted)
        expected = [index for index in range(start, stop) if codes[index] in wanted]
        assert offsets.tolist() == expected
        assert found.dtype == CONSUME_QUEUE_UNIT
        assert found.tobytes() == units[expected].tobytes()


@pytest.mark.usefixtures("loops")
def test_codes_that_differ_only_in_the_high_word_are_told_apart(tmp_path: Path) -> None:
    codes = [-1, 0xFFFFFFFF, 1, 2**32 + 1, -(2**31), 2**31]
    queue = ConsumeQueue(write_queue(tmp_path, make_units(increasing(6), codes)))
    for index, code in enumerate(codes):
        assert queue.matching_units(0, 6, {code})[0].tolist() == [index]
    assert queue.matching_units(0, 6, set())[0].tolist() == []


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("wanted", [{7}, {7, 2**32 + 7, -1}, {7, *range(2000, 2100)}])
@pytest.mark.parametrize("mapped", [True, False])
def test_a_scan_reads_more_than_one_block(
    tmp_path: Path, wanted: set[int], mapped: bool
) -> None:
    count = 230_000
    codes = (np.arange(count) % 1000).tolist()
    write_queue(tmp_path, make_units(increasing(count), codes), count)
    files = FileQueue.open(LocalFiles(map_windows=mapped), [str(tmp_path)])
    offsets, units = ConsumeQueue(files).matching_units(5, count, wanted)
    assert offsets.tolist() == list(range(7, count, 1000))
    assert set(units["tags_code"].tolist()) == {7}


def test_a_code_of_more_than_64_bits_is_refused(tmp_path: Path) -> None:
    queue = ConsumeQueue(write_queue(tmp_path, make_units([0])))
    with pytest.raises(InvalidNameError):
        queue.matching_units(0, 1, {2**63})


@pytest.mark.usefixtures("loops")
def test_an_address_without_an_ext_file_is_damage_and_not_a_miss(tmp_path: Path) -> None:
    codes = [5, EXT_ADDRESS_BASE + 40, 5]
    queue = ConsumeQueue(write_queue(tmp_path, make_units(increasing(3), codes)))
    with pytest.raises(CorruptQueueError, match="ext file"):
        queue.matching_units(0, 3, {5})
    with pytest.raises(CorruptQueueError, match="ext file"):
        queue.tags_codes(queue.units(0, 3))


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("damaged", [0, 1, 4_099, 99_999, 100_003, 120_000])
@pytest.mark.parametrize("code", [EXT_ADDRESS_BASE + 40, -(2**57) - 1])
def test_one_address_without_an_ext_file_is_noticed_in_a_long_queue(
    tmp_path: Path, damaged: int, code: int
) -> None:
    count = 120_001
    codes = np.full(count, 5)
    codes[damaged] = code
    files = write_queue(tmp_path, make_units(increasing(count), codes.tolist()), count)
    with pytest.raises(CorruptQueueError, match="ext file"):
        ConsumeQueue(files).matching_units(0, count, {6})


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 11), (5, 4), (11, 11), (0, 2**62)])
def test_a_range_that_the_files_do_not_have_is_refused(
    tmp_path: Path, start: int, stop: int
) -> None:
    queue = ConsumeQueue(write_queue(tmp_path, make_units([0])))
    with pytest.raises(InvalidNameError) as caught:
        queue.units(start, stop)
    assert pickle.loads(pickle.dumps(caught.value)) == caught.value
    with pytest.raises(InvalidNameError):
        queue.matching_units(start, stop, {0})


def test_a_file_size_or_name_that_is_no_multiple_of_the_unit_is_named(tmp_path: Path) -> None:
    (tmp_path / "size").mkdir()
    (tmp_path / "size" / f"{0:020d}").write_bytes(bytes(201))
    with pytest.raises(CorruptQueueError, match="file size") as caught:
        ConsumeQueue(FileQueue.open(LocalFiles(), [str(tmp_path / "size")]))
    assert caught.value.found == 201
    (tmp_path / "name").mkdir()
    (tmp_path / "name" / f"{7:020d}").write_bytes(bytes(200))
    with pytest.raises(CorruptQueueError, match="first offset") as caught:
        ConsumeQueue(FileQueue.open(LocalFiles(), [str(tmp_path / "name")]))
    assert caught.value.found == 7


def test_a_missing_or_short_file_in_the_middle_raises(tmp_path: Path) -> None:
    write_queue(tmp_path, make_units(increasing(35)))
    middle = tmp_path / f"{200:020d}"
    middle.write_bytes(middle.read_bytes()[:70])
    queue = ConsumeQueue(FileQueue.open(LocalFiles(), [str(tmp_path)]))
    with pytest.raises(CorruptQueueError, match="within a unit"):
        queue.units(0, 35)
    middle.unlink()
    queue = ConsumeQueue(FileQueue.open(LocalFiles(), [str(tmp_path)]))
    with pytest.raises(SegmentExpiredError):
        queue.units(0, 35)


def test_a_file_that_shrinks_under_us_raises(tmp_path: Path) -> None:
    files = write_queue(tmp_path, make_units(increasing(35)))
    queue = ConsumeQueue(files)
    (tmp_path / f"{200:020d}").write_bytes(bytes(50))
    with pytest.raises(StoreError, match="too short"):
        queue.units(0, 35)
    with pytest.raises(StoreError, match="too short"):
        queue.matching_units(0, 35, {0})


@pytest.mark.fuzz
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=1000), st.integers(1, 400), st.integers(0, 300), st.integers())
def test_random_bytes_give_values_or_a_store_error(
    tmp_path: Path, content: bytes, file_size: int, start: int, log_start: int
) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    for position in range(0, len(content), file_size):
        name = f"{start * 20 + position:020d}"
        (tmp_path / name).write_bytes(content[position : position + file_size])
    with contextlib.suppress(StoreError):
        queue = ConsumeQueue(FileQueue.open(LocalFiles(), [str(tmp_path)]))
        end = queue.find_end(lambda unit, _: int(unit["size"]) % 2 == 0, log_start)
        minimum = queue.find_start(log_start, end)
        assert queue.first_index <= minimum <= end <= queue.stop_index
        units = queue.units(minimum, end)
        assert units.dtype == CONSUME_QUEUE_UNIT
        queue.matching_units(minimum, end, set(units["tags_code"].tolist()[:3]))
