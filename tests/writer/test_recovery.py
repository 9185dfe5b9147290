"""Opening a store after a crash or damage: where the log ends, and what is set aside."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from counting_files import CountingFiles
from crash.oracle import check_queues, check_store, read_log, tree_digest
from crash.workloads import (
    CLOCK_STEP_MS,
    SEGMENT_SIZE,
    SETTINGS,
    SYNC_SETTINGS,
    Message,
    open_writer,
    to_arrow,
)
from faults import FaultyPosix
from golden_stores import GoldenStore

from rmqlog.commitlog_format.errors import (
    InvalidSettingError,
    StoreError,
    UnsupportedFormatError,
)
from rmqlog.commitlog_format.layout import CONSUME_QUEUE_UNIT
from rmqlog.writer.posix import Mapping, Posix
from rmqlog.writer.recovery import RecoveryReport, recover
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.store_writer import StoreWriter

MESSAGES = [Message(number, 9000) for number in range(20)]
RECORD_SIZE = 9159
PER_SEGMENT = 7


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three segments of large messages, each flushed, closed in order."""
    path = tmp_path / "store"
    with open_writer(str(path), Posix()) as writer:
        for message in MESSAGES:
            writer.append(to_arrow([message]))
        writer.flush()
    return path


def crash(path: Path) -> None:
    """Make a store look as if its writer had been killed."""
    (path / "abort").touch()


def damage(path: Path, offset: int) -> None:
    """Change one byte of the log."""
    segment = path / "commitlog" / f"{offset - offset % SEGMENT_SIZE:020d}"
    content = bytearray(segment.read_bytes())
    content[offset % SEGMENT_SIZE] ^= 0xFF
    segment.write_bytes(content)


def run(path: Path, settings: StoreSettings = SETTINGS) -> RecoveryReport:
    return recover(Posix(), str(path), settings)


def test_a_clean_store_stays_as_it_is(store: Path) -> None:
    before = tree_digest(store)

    with open_writer(str(store), Posix()) as writer:
        report = writer.recovery

    assert report.was_clean
    assert report.cuts == ()
    assert report.dispatch_start == report.log_end
    assert tree_digest(store) == before


def test_a_bad_body_ends_the_log_and_what_follows_is_set_aside_whole(store: Path) -> None:
    bad = PER_SEGMENT + 2
    offset = SEGMENT_SIZE + 2 * RECORD_SIZE
    segments = sorted((store / "commitlog").iterdir())
    second, third = segments[1].read_bytes(), segments[2].read_bytes()
    (store / "checkpoint").unlink()  # else it vouches for these segments
    crash(store)
    damage(store, offset + 1000)

    with open_writer(str(store), Posix()) as writer:
        report = writer.recovery

    assert report.log_end == offset
    later, tail = report.cuts
    assert (later.offset, later.size, later.message_count) == (2 * SEGMENT_SIZE, SEGMENT_SIZE, 6)
    assert Path(later.moved_to).read_bytes() == third
    assert (tail.offset, tail.message_count) == (offset, PER_SEGMENT - 3)
    assert "BODYCRC" in tail.reason
    moved = bytearray(Path(tail.moved_to).read_bytes())
    moved[1000] ^= 0xFF
    position = offset - SEGMENT_SIZE
    assert bytes(moved) == second[position : position + len(moved)]
    noted = json.loads((Path(tail.moved_to).parent / "report.json").read_text())
    assert [cut["offset"] for cut in noted] == [later.offset, tail.offset]
    check_store(store, MESSAGES[:bad], bad)


def test_damage_that_the_checkpoint_vouched_for_hides_no_later_message(store: Path) -> None:
    damage(store, 3 * RECORD_SIZE + 4)
    crash(store)

    with open_writer(str(store), Posix()) as writer:
        assert writer.recovery.walk_start == 2 * SEGMENT_SIZE
        assert writer.recovery.cuts == ()
        writer.append(to_arrow([Message(20)]))
        assert writer.next_offset("orders", 0) == 21

    files = sorted((store / "consumequeue/orders/0").iterdir())
    units = np.frombuffer(b"".join(file.read_bytes() for file in files), CONSUME_QUEUE_UNIT)
    assert np.count_nonzero(units["size"]) == 21


def test_a_missing_segment_ends_the_log_and_later_ones_are_set_aside(store: Path) -> None:
    (store / "commitlog" / f"{SEGMENT_SIZE:020d}").unlink()
    (store / "checkpoint").unlink()
    crash(store)

    report = run(store)

    assert report.log_end == SEGMENT_SIZE
    assert [cut.offset for cut in report.cuts] == [2 * SEGMENT_SIZE]
    check_store(store, MESSAGES[:PER_SEGMENT], PER_SEGMENT)


def test_segments_made_ahead_just_go(store: Path) -> None:
    for number in (3, 4):
        (store / "commitlog" / f"{number * SEGMENT_SIZE:020d}").write_bytes(bytes(SEGMENT_SIZE))
    (store / "commitlog" / f"{5 * SEGMENT_SIZE:020d}").touch()
    crash(store)

    report = run(store)

    assert report.cuts == ()
    assert len(list((store / "commitlog").iterdir())) == 3
    check_store(store, MESSAGES, len(MESSAGES))


def test_recovery_run_twice_changes_nothing_the_second_time(store: Path) -> None:
    crash(store)
    damage(store, 2 * SEGMENT_SIZE + 500)
    first = run(store)
    before = tree_digest(store)

    second = run(store)

    assert len(first.cuts) == 1
    assert second.cuts == ()
    assert second.log_end == first.log_end
    assert tree_digest(store) == before


def test_units_of_lost_records_are_zeroed_even_in_a_clean_store(store: Path) -> None:
    damage(store, 2 * SEGMENT_SIZE + 500)

    with open_writer(str(store), Posix()) as writer:
        assert writer.recovery.was_clean

    check_queues(store, read_log(store))
    check_store(store, MESSAGES[: 2 * PER_SEGMENT], 2 * PER_SEGMENT)


def test_a_stale_unit_behind_a_queue_does_not_come_back(store: Path) -> None:
    last = sorted((store / "consumequeue/orders/0").iterdir())[-1]
    units = np.frombuffer(last.read_bytes(), CONSUME_QUEUE_UNIT).copy()
    count = int(np.count_nonzero(units["size"]))
    units[count] = (units[count - 1]["commit_log_offset"] + 10, 77, 0)
    last.write_bytes(units.tobytes())
    crash(store)

    check_store(store, MESSAGES, len(MESSAGES))


def test_a_hole_in_a_queue_is_filled_from_the_log(store: Path) -> None:
    first = min((store / "consumequeue/orders/0").iterdir())
    content = bytearray(first.read_bytes())
    content[3 * 20 : 5 * 20] = bytes(40)
    first.write_bytes(content)
    (store / "checkpoint").unlink()
    crash(store)

    check_store(store, MESSAGES, len(MESSAGES))


@pytest.mark.parametrize("content", [b"", b"\x7f" * 4096, b"\xff" * 4096, b"short"])
def test_a_checkpoint_that_cannot_be_true_vouches_for_nothing(
    store: Path, content: bytes
) -> None:
    (store / "checkpoint").write_bytes(content)
    crash(store)

    assert run(store).walk_start == 0
    check_store(store, MESSAGES, len(MESSAGES))


def read_sizes(path: Path, message_count: int) -> dict[str, int]:
    """What recovery reads of a store of so many messages whose last segment is dirty."""
    with open_writer(str(path), Posix()) as writer:
        for number in range(message_count):
            writer.append(to_arrow([Message(number, 9000)]))
    crash(path)
    access = CountingFiles()
    report = recover(Posix(), str(path), SETTINGS, access)
    assert report.walk_start >= (message_count // PER_SEGMENT - 1) * SEGMENT_SIZE
    return access.sizes


def test_after_a_crash_no_more_of_the_log_is_read_than_what_is_dirty(tmp_path: Path) -> None:
    assert CLOCK_STEP_MS > 3000  # so that the checkpoint vouches for all but the last message
    small = read_sizes(tmp_path / "small", 3 * PER_SEGMENT + 3)
    large = read_sizes(tmp_path / "large", 9 * PER_SEGMENT + 3)

    # One dirty segment, and a look at the first and the last record of others.
    assert small["commitlog"] < 2 * SEGMENT_SIZE
    assert large["commitlog"] == small["commitlog"]


class LateSync(FaultyPosix):
    """A Posix whose first sync of the log waits until so many appends were made."""

    def __init__(self, append_count: int) -> None:
        super().__init__()
        self.appended = threading.Semaphore(0)
        self._awaited = append_count
        self.log_syncs = 0

    def sync(self, mapping: Mapping, offset: int, size: int) -> None:
        """Wait, count, sync."""
        if "/commitlog/" in mapping.path:
            self.log_syncs += 1
            for _ in range(self._awaited):
                self.appended.acquire()
            self._awaited = 0
        super().sync(mapping, offset, size)


def test_sixty_four_waiting_appends_share_at_most_four_syncs(tmp_path: Path) -> None:
    posix = LateSync(64)
    settings = SYNC_SETTINGS.with_changes(syncFlushTimeout=600_000)
    with StoreWriter(tmp_path / "s", settings, posix=posix) as writer:

        def append(number: int) -> None:
            result = writer.append(to_arrow([Message(number)]), wait=False)
            future = writer.when_flushed(result)
            posix.appended.release()
            future.result()

        threads = [threading.Thread(target=append, args=(n,)) for n in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert writer.positions().flushed == writer.end
        assert posix.log_syncs <= 4

    assert len(read_log(tmp_path / "s")) == 64


def test_a_store_that_cannot_be_written_is_refused_untouched(store: Path) -> None:
    with pytest.raises(InvalidSettingError):
        run(store, SETTINGS.with_changes(mappedFileSizeCommitLog=2 * SEGMENT_SIZE))
    (store / "consumequeue" / "CURRENT").touch()
    with pytest.raises(UnsupportedFormatError, match="RocksDB"):
        run(store)


@pytest.mark.parametrize("name", ["rmq-5.5.0-clean", "rmq-4.9.5-clean", "rmq-5.5.0-retention"])
def test_a_crashed_broker_store_is_made_what_the_broker_had_made(
    golden_store: Callable[[str], GoldenStore], tmp_path: Path, name: str
) -> None:
    path = tmp_path / "store"
    shutil.copytree(golden_store(name).path, path)
    crash(path)
    queues = {
        file: file.read_bytes()
        for file in path.glob("consumequeue/*/*/*")
        if any(file.read_bytes())
    }
    log = {file: file.read_bytes() for file in path.glob("commitlog/*") if any(file.read_bytes())}

    with StoreWriter(path, background=False) as writer:
        assert writer.recovery.cuts == ()
        assert not writer.recovery.was_clean

    assert {file: file.read_bytes() for file in queues} == queues
    assert {file: file.read_bytes() for file in log} == log


def test_every_error_of_recovery_is_ours(store: Path) -> None:
    shutil.rmtree(store / "commitlog")
    (store / "commitlog").write_text("a file where a folder belongs")

    with pytest.raises(StoreError):
        run(store)
