"""Expiry: which files go, in which order, and that a dry run changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from faults import FaultyPosix, Kind, Plan, run_in_fork

from rmqlog.commitlog_format.layout import CONSUME_QUEUE_UNIT, INDEX_HEADER
from rmqlog.writer.posix import Posix
from rmqlog.writer.retention import DiskUsage, ExpiryReport, expire
from rmqlog.writer.settings import StoreSettings

SEGMENT_SIZE = 4096
UNITS_A_FILE = 4
HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
SETTINGS = StoreSettings(
    mappedFileSizeCommitLog=SEGMENT_SIZE,
    mappedFileSizeConsumeQueue=UNITS_A_FILE * 20,
    maxHashSlotNum=10,
    maxIndexNum=40,
    fileReservedTime=72,
)
EMPTY_DISK = DiskUsage(total=100 * SEGMENT_SIZE, used=0)


def make_store(path: Path, ages_h: list[float]) -> None:
    """A store with one segment for each age; queue and index files that point into each."""
    log, queue, index = path / "commitlog", path / "consumequeue/t/0", path / "index"
    for folder in (log, queue, index):
        folder.mkdir(parents=True)
    for number, age_h in enumerate(ages_h):
        start = number * SEGMENT_SIZE
        segment = log / f"{start:020d}"
        segment.write_bytes(bytes(SEGMENT_SIZE))
        changed = (NOW_MS - age_h * HOUR_MS) / 1000
        os.utime(segment, (changed, changed))
        units = np.zeros(UNITS_A_FILE, CONSUME_QUEUE_UNIT)
        units["commit_log_offset"] = start + np.arange(UNITS_A_FILE) * 100
        units["size"] = 100
        (queue / f"{number * units.nbytes:020d}").write_bytes(units.tobytes())
        header = np.zeros(1, INDEX_HEADER)
        header["end_physical_offset"] = start + 300
        content = header.tobytes().ljust(SETTINGS.index_file_size, b"\0")
        (index / f"2023111{number}000000000").write_bytes(content)


def names(path: Path, report: ExpiryReport) -> list[str]:
    return [str(Path(file.path).relative_to(path)) for file in report.files]


def run(path: Path, disk: DiskUsage = EMPTY_DISK, *, dry_run: bool = False) -> ExpiryReport:
    return expire(Posix(), str(path), SETTINGS, NOW_MS, dry_run=dry_run, disk=disk)


def files(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


OLDEST_FILES = [
    f"commitlog/{0:020d}", f"consumequeue/t/0/{0:020d}", "index/20231110000000000",
]


def test_old_segments_go_and_with_them_what_only_points_at_them(tmp_path: Path) -> None:
    make_store(tmp_path, [73, 72, 1])
    before = files(tmp_path)

    report = run(tmp_path)

    assert names(tmp_path, report) == OLDEST_FILES
    assert report.log_start == SEGMENT_SIZE
    assert report.size == SEGMENT_SIZE + UNITS_A_FILE * 20 + SETTINGS.index_file_size
    assert sorted({*files(tmp_path), *OLDEST_FILES}) == before
    assert "fileReservedTime 72" in report.files[0].reason


def test_a_dry_run_says_the_same_and_removes_nothing(tmp_path: Path) -> None:
    make_store(tmp_path, [100, 90, 1])
    before = files(tmp_path)

    planned = run(tmp_path, dry_run=True)

    assert planned.is_dry_run
    assert files(tmp_path) == before
    assert run(tmp_path).files == planned.files


def test_the_last_file_of_each_kind_stays_however_old(tmp_path: Path) -> None:
    make_store(tmp_path, [1000, 1000, 1000])

    report = run(tmp_path)

    assert report.log_start == 2 * SEGMENT_SIZE
    assert files(tmp_path) == [
        f"commitlog/{2 * SEGMENT_SIZE:020d}",
        f"consumequeue/t/0/{2 * UNITS_A_FILE * 20:020d}",
        "index/20231112000000000",
    ]


def test_a_young_segment_protects_older_ones_behind_it(tmp_path: Path) -> None:
    make_store(tmp_path, [1, 1000, 1])

    assert run(tmp_path).files == ()


@pytest.mark.parametrize(("used", "gone"), [(85, 0), (86, 1), (87, 2), (100, 3)])
def test_a_full_disk_takes_the_oldest_segments_of_any_age(
    tmp_path: Path, used: int, gone: int
) -> None:
    make_store(tmp_path, [1, 1, 1, 1])

    report = run(tmp_path, DiskUsage(100 * SEGMENT_SIZE, used * SEGMENT_SIZE))

    assert report.log_start == gone * SEGMENT_SIZE


def test_a_queue_file_with_a_live_unit_stays(tmp_path: Path) -> None:
    make_store(tmp_path, [1000, 1])
    first = tmp_path / f"consumequeue/t/0/{0:020d}"
    units = np.frombuffer(first.read_bytes(), CONSUME_QUEUE_UNIT).copy()
    units["commit_log_offset"][-1] = SEGMENT_SIZE
    first.write_bytes(units.tobytes())

    report = run(tmp_path)

    assert names(tmp_path, report) == [OLDEST_FILES[0], OLDEST_FILES[2]]


def test_files_are_released_before_they_are_removed(tmp_path: Path) -> None:
    make_store(tmp_path, [1000, 1])
    released = []

    def release(path: str) -> None:
        assert os.path.exists(path)
        released.append(path)

    report = expire(
        Posix(), str(tmp_path), SETTINGS, NOW_MS, disk=EMPTY_DISK, release=release
    )

    assert released == [file.path for file in report.files]


def test_an_index_file_that_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    make_store(tmp_path, [1000, 1])
    (tmp_path / OLDEST_FILES[2]).write_bytes(b"\x7f" * SETTINGS.index_file_size)

    report = run(tmp_path)

    assert names(tmp_path, report) == OLDEST_FILES[:2]


def test_killed_at_any_call_expiry_leaves_no_gap_and_can_be_run_again(tmp_path: Path) -> None:
    number = 0
    fired = True
    while fired:
        number += 1
        path = tmp_path / str(number)
        path.mkdir()
        make_store(path, [1000, 1000, 1000, 1])

        def victim(posix: FaultyPosix, _: object, path: Path = path) -> None:
            expire(posix, str(path), SETTINGS, NOW_MS, disk=EMPTY_DISK)

        fired = run_in_fork(victim, Plan(Kind.KILL_BEFORE, number)).fired
        starts = [int(file.name) for file in sorted((path / "commitlog").iterdir())]
        assert starts == list(range(starts[0], 4 * SEGMENT_SIZE, SEGMENT_SIZE))
        run(path)
        assert len(files(path)) == 3

    assert number > 9
