"""Behind damage the log goes on at the next record that proves itself, and at nothing else."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from built_stores import SEGMENT_SIZE, build_store, numbered_records
from golden_stores import GoldenStore
from random_records import PLAIN_RECORD, with_body

from rmqlog.commitlog_format import resync
from rmqlog.commitlog_format.message import encode_record
from rmqlog.commitlog_format.resync import next_sound_position
from rmqlog.commitlog_format.store import Store

BUILT = build_store(numbered_records(60))
RECORDS = [record for record in BUILT.records if record.physical_offset < SEGMENT_SIZE]


@pytest.fixture(params=[64, 1000, 16 * 1024 * 1024], autouse=True)
def window_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of several sizes; magic numbers lie across the borders of small ones."""
    monkeypatch.setattr(resync, "_WINDOW_SIZE", request.param)


def damage(path: Path, offset: int, size: int = 8) -> None:
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * size)


def test_it_goes_on_at_the_record_behind_the_damaged_one(tmp_path: Path) -> None:
    path = BUILT.write(tmp_path)
    log = Store(str(path)).log
    for victim, following in pairwise(RECORDS[2:10]):
        damage(path, victim.physical_offset)
        found = next_sound_position(log, victim.physical_offset, SEGMENT_SIZE)
        assert found == following.physical_offset


def test_records_whose_bodies_or_places_are_wrong_are_passed_over(tmp_path: Path) -> None:
    path = BUILT.write(tmp_path)
    damage(path, RECORDS[2].physical_offset)
    damage(path, RECORDS[3].physical_offset + 90, 1)  # its body
    damage(path, RECORDS[4].physical_offset + 28, 1)  # where it says that it lies
    log = Store(str(path)).log

    found = next_sound_position(log, RECORDS[2].physical_offset, SEGMENT_SIZE)
    assert found == RECORDS[5].physical_offset


def test_a_record_within_a_body_is_not_believed(tmp_path: Path) -> None:
    inner = encode_record(with_body(PLAIN_RECORD, b"a record that somebody sent"))
    built = build_store([with_body(PLAIN_RECORD, inner), *numbered_records(3)])
    path = built.write(tmp_path)
    damage(path, 0)

    found = next_sound_position(Store(str(path)).log, 0, SEGMENT_SIZE)
    assert found == built.records[1].physical_offset


def test_a_segment_without_a_sound_record_behind_it_has_no_place(tmp_path: Path) -> None:
    path = BUILT.write(tmp_path)
    last = RECORDS[-1]
    damage(path, last.physical_offset)
    log = Store(str(path)).log

    assert next_sound_position(log, last.physical_offset, log.end) is None


def test_nothing_behind_the_end_of_the_snapshot_is_found(tmp_path: Path) -> None:
    path = BUILT.write(tmp_path)
    victim, following = RECORDS[2], RECORDS[3]
    damage(path, victim.physical_offset)
    log = Store(str(path)).log

    assert next_sound_position(log, victim.physical_offset, following.physical_offset) is None


def test_in_a_dledger_log_it_goes_on_at_the_entry_of_the_record(
    golden_store: Callable[[str], GoldenStore],
) -> None:
    golden = golden_store("rmq-5.5.0-dledger")
    log = Store(str(golden.path)).log
    offsets = [line["commitLogOffset"] for line in golden.log if line["kind"] == "record"]
    header = log.entry_header_size(offsets[5])

    assert header > 0
    for here, following in pairwise(offsets[5:11]):
        assert next_sound_position(log, here - header, log.end) == following - header
