"""Scattered items of one file and of a run of files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from queue_files import write_queue

from rmqlog.commitlog_format import files
from rmqlog.commitlog_format.errors import SegmentExpiredError, TruncatedFileError
from rmqlog.commitlog_format.files import LocalFile, LocalFiles
from rmqlog.commitlog_format.gather import gather, gather_from_queue
from rmqlog.commitlog_format.layout import CONSUME_QUEUE_UNIT

ITEM = np.dtype([("number", ">i4"), ("next", ">i4")])


@pytest.mark.parametrize("window_size", [1, 8, 64, 1000, 1 << 20])
@pytest.mark.parametrize("count", [0, 1, 31, 32, 500])
def test_items_come_in_the_order_of_the_positions(
    tmp_path: Path, window_size: int, count: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(np.arange(1000, dtype=">i4").tobytes())
    numbers = np.random.default_rng(count).integers(0, 999, count)
    found = gather(LocalFiles().open(str(path)), 4 * numbers, ITEM, window_size)
    assert found.dtype == ITEM
    assert found["number"].tolist() == numbers.tolist()
    assert found["next"].tolist() == (numbers + 1).tolist()


@pytest.mark.parametrize("count", [1, 100])
def test_an_item_behind_the_end_raises(tmp_path: Path, count: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    with pytest.raises(TruncatedFileError):
        gather(LocalFiles().open(str(path)), np.full(count, 93), ITEM)


def test_items_that_were_lost_while_they_were_gathered_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\1" * 40_000)
    window = LocalFile.window

    def window_of_a_shrinking_file(file: LocalFile, offset: int, size: int) -> object:
        found = window(file, offset, size)
        os.truncate(file.path, 20_000)
        return found

    monkeypatch.setattr(files, "COPIED_SIZE", 0)
    monkeypatch.setattr(LocalFile, "window", window_of_a_shrinking_file)
    with pytest.raises(TruncatedFileError) as caught:
        gather(LocalFiles().open(str(path)), np.arange(0, 39_000, 100), ITEM)
    assert caught.value.path == str(path)


def test_items_are_gathered_from_a_run_of_files(tmp_path: Path) -> None:
    units = np.zeros(95, CONSUME_QUEUE_UNIT)
    units["commit_log_offset"] = np.arange(95)
    queue = write_queue(tmp_path, units, 40)
    numbers = np.random.default_rng(1).permutation(95)
    found = gather_from_queue(queue, 20 * numbers, CONSUME_QUEUE_UNIT)
    assert found["commit_log_offset"].tolist() == numbers.tolist()
    assert len(gather_from_queue(queue, np.empty(0, np.int64), CONSUME_QUEUE_UNIT)) == 0
    with pytest.raises(SegmentExpiredError):
        gather_from_queue(queue, np.array([5000]), CONSUME_QUEUE_UNIT)
    with pytest.raises(TruncatedFileError):
        gather_from_queue(queue, np.array([790]), CONSUME_QUEUE_UNIT)
