"""Batch queues made by hand: queue offsets by base and count, ends, and damage."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from queue_files import write_queue

from rmqlog.commitlog_format.batch_consume_queue import BatchConsumeQueue
from rmqlog.commitlog_format.errors import CorruptQueueError, MessageNotFoundError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.layout import BATCH_CONSUME_QUEUE_UNIT
from rmqlog.commitlog_format.segment import FileQueue


def batch_units(*counts: int, base: int = 0) -> np.ndarray:
    units = np.zeros(len(counts), BATCH_CONSUME_QUEUE_UNIT)
    units["commit_log_offset"] = 500 * np.arange(len(counts))
    units["size"] = 500
    units["base_offset"] = base + np.cumsum([0, *counts])[:-1]
    units["batch_count"] = counts
    units["compacted_offset"] = -1
    return units


def everything(_unit: np.void, _index: int) -> bool:
    return True


def test_the_golden_vector_is_read(tmp_path: Path) -> None:
    unit = bytes.fromhex(
        "0000000000000255000002040000000000000000000001a1e196ad1a00000000000000000003ffffffff00000000"
    )
    (tmp_path / f"{0:020d}").write_bytes(unit.ljust(460, b"\0"))
    queue = BatchConsumeQueue(FileQueue.open(LocalFiles(), [str(tmp_path)]))
    assert queue.find_end(everything) == 1
    assert queue.unit(0).item() == (597, 516, 0, 0x1A1E196AD1A, 0, 3, -1, 0)
    assert queue.offset_range(0, 1) == (0, 3)


def test_queue_offsets_follow_from_base_and_count(tmp_path: Path) -> None:
    counts = [3, 1, 5, 1, 2, 10, 1]
    queue = BatchConsumeQueue(write_queue(tmp_path, batch_units(*counts, base=40), 3))
    end = queue.find_end(everything)
    assert end == 7
    assert queue.offset_range(0, end) == (40, 63)
    assert queue.offset_range(2, end) == (44, 63)
    expected = [index for index, count in enumerate(counts) for _ in range(count)]
    assert [queue.find(offset, 0, end) for offset in range(40, 63)] == expected
    for offset in (39, 63, -1):
        with pytest.raises(MessageNotFoundError):
            queue.find(offset, 0, end)
    with pytest.raises(MessageNotFoundError):
        queue.find(43, 2, end)


def test_a_gap_between_units_holds_nothing(tmp_path: Path) -> None:
    units = batch_units(2, 2)
    units["base_offset"][1] = 10
    queue = BatchConsumeQueue(write_queue(tmp_path, units))
    assert [queue.find(offset, 0, 2) for offset in (0, 1, 10, 11)] == [0, 0, 1, 1]
    with pytest.raises(MessageNotFoundError):
        queue.find(5, 0, 2)


def test_the_minimum_follows_retention(tmp_path: Path) -> None:
    queue = BatchConsumeQueue(write_queue(tmp_path, batch_units(3, 3, 3, 3), 2))
    start = queue.find_start(501, 4)
    assert (start, queue.offset_range(start, 4)) == (2, (6, 12))
    assert queue.find_end(lambda _unit, _index: False, log_start=10_000) == 4
    assert queue.find_start(10_000, 4) == 4
    assert queue.offset_range(4, 4) == (12, 12)


def test_stale_and_blank_units_end_the_queue(tmp_path: Path) -> None:
    queue = BatchConsumeQueue(write_queue(tmp_path, batch_units(*[2] * 30), 8))
    assert queue.find_end(lambda _unit, index: index < 11) == 11
    assert queue.find_end(lambda _unit, _index: False) == 0
    assert queue.offset_range(0, 0) == (0, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("commit_log_offset", -1), ("size", 0), ("base_offset", -1), ("batch_count", 0)],
)
def test_an_invalid_unit_ends_the_queue_as_in_a_broker(
    tmp_path: Path, field: str, value: int
) -> None:
    units = batch_units(2, 2, 2)
    units[field][2] = value
    assert BatchConsumeQueue(write_queue(tmp_path, units)).find_end(everything) == 2


def test_a_file_size_that_is_no_multiple_of_46_is_named(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}").write_bytes(bytes(100))
    with pytest.raises(CorruptQueueError, match="multiple"):
        BatchConsumeQueue(FileQueue.open(LocalFiles(), [str(tmp_path)]))


@pytest.mark.fuzz
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=460), st.integers(), st.integers(-5, 100))
def test_random_bytes_give_values_or_a_store_error(
    tmp_path: Path, content: bytes, log_start: int, queue_offset: int
) -> None:
    (tmp_path / f"{0:020d}").write_bytes(content.ljust(460, b"\1"))
    queue = BatchConsumeQueue(FileQueue.open(LocalFiles(), [str(tmp_path)]))
    end = queue.find_end(lambda unit, _index: int(unit["size"]) % 2 == 0, log_start)
    start = queue.find_start(log_start, end)
    assert 0 <= start <= end <= 10
    assert len(queue.offset_range(start, end)) == 2
    with contextlib.suppress(MessageNotFoundError):
        assert start <= queue.find(queue_offset, start, end) < end
