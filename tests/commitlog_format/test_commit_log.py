"""The log by offset: single records, peeks, and windows over many, with claims that are false."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from built_stores import SEGMENT_SIZE, build_store, numbered_records
from random_records import PLAIN_RECORD, with_body

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.errors import (
    CorruptRecordError,
    LimitExceededError,
    SegmentExpiredError,
    TruncatedRecordError,
)
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits
from rmqlog.commitlog_format.segment import FileQueue

BUILT = build_store([*numbered_records(40), with_body(PLAIN_RECORD, b"x" * 2_000)])
OFFSETS = np.array([record.physical_offset for record in BUILT.records])
SIZES = np.array([record.total_size for record in BUILT.records])


def open_log(directory: Path, limits: Limits = DEFAULT_LIMITS) -> CommitLog:
    """The log of a copy of the store."""
    path = BUILT.write(directory) / "commitlog"
    return CommitLog(FileQueue.open(LocalFiles(), [str(path)]), limits=limits)


def test_every_record_is_found_by_its_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for record in BUILT.records:
        assert log.record(record.physical_offset) == record
        peek = log.peek(record.physical_offset)
        assert (peek.topic, peek.queue_id) == (record.topic.decode(), record.queue_id)
        assert (peek.queue_offset, peek.total_size) == (record.queue_offset, record.total_size)


@pytest.mark.parametrize("size", [1, 300, SEGMENT_SIZE, 10 * SEGMENT_SIZE])
def test_runs_give_every_record_once_whatever_the_size_of_windows(
    tmp_path: Path, size: int
) -> None:
    log = open_log(tmp_path, replace(DEFAULT_LIMITS, window_size=size))
    runs = list(log.runs(OFFSETS, SIZES))

    assert np.concatenate([run.offsets for run in runs]).tolist() == OFFSETS.tolist()
    for run in runs:
        for offset, length in zip(run.offsets.tolist(), run.sizes.tolist(), strict=True):
            data = run.window.data[offset - run.window.start :][:length].tobytes()
            assert len(data) == length
            assert struct.unpack(">i", data[:4]) == (length,)


def test_a_claim_that_leaves_its_segment_is_a_truncated_record(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.raises(TruncatedRecordError, match="does not fit into its segment") as caught:
        list(log.runs(OFFSETS[:1], np.array([SEGMENT_SIZE + 1])))
    assert (caught.value.found, caught.value.expected) == (SEGMENT_SIZE + 1, SEGMENT_SIZE)


def test_a_claim_beyond_the_limit_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    log = open_log(tmp_path, replace(DEFAULT_LIMITS, record_size=100_000))
    with pytest.raises(LimitExceededError, match="larger than allowed"):
        list(log.runs(OFFSETS[:1], np.array([100_001])))


@pytest.mark.parametrize("claim", [SEGMENT_SIZE + 1, 2**31 - 1])
def test_a_record_that_says_it_is_larger_than_its_segment_is_refused(
    tmp_path: Path, claim: int
) -> None:
    log = open_log(tmp_path)
    with (tmp_path / "store" / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.write(claim.to_bytes(4, "big"))

    for take in (log.record, log.peek, log.message):
        with pytest.raises((TruncatedRecordError, LimitExceededError)) as caught:
            take(0)
        assert caught.value.offset == 0


def test_an_offset_where_no_record_begins_is_named(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for take in (log.record, log.peek):
        with pytest.raises(CorruptRecordError, match="not a message") as caught:
            take(int(OFFSETS[1]) + 1)
        assert caught.value.path.endswith(f"/{0:020d}")


@pytest.mark.parametrize("left", range(1, 8))
def test_a_record_cannot_begin_in_the_last_bytes_of_a_segment(tmp_path: Path, left: int) -> None:
    log = open_log(tmp_path)
    for take in (log.record, log.peek):
        with pytest.raises((TruncatedRecordError, CorruptRecordError)):
            take(SEGMENT_SIZE - left)


def test_an_offset_outside_of_the_log_has_no_file(tmp_path: Path) -> None:
    log = open_log(tmp_path)

    assert log.path_of(log.end) == ""
    assert log.path_of(0).endswith(f"/{layout.COMMIT_LOG_DIRECTORY}/{0:020d}")
    with pytest.raises(SegmentExpiredError):
        log.record(log.end)
