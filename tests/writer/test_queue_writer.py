"""Units land where ConsumeQueue.putMessagePositionInfo puts them, its oddities included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rmqlog.commitlog_format.errors import CorruptQueueError
from rmqlog.commitlog_format.layout import (
    BATCH_CONSUME_QUEUE_UNIT,
    CONSUME_QUEUE_UNIT,
    PRE_BLANK_SIZE,
)
from rmqlog.writer.posix import Posix
from rmqlog.writer.queue_writer import BatchQueueWriter, QueueWriter, UnitFiles
from rmqlog.writer.segments import FileSet

UNITS_A_FILE = 4
FILE_SIZE = UNITS_A_FILE * CONSUME_QUEUE_UNIT.itemsize


def open_queue(path: Path, **state: int) -> QueueWriter:
    end = state.pop("end", 0)
    units = UnitFiles(FileSet(Posix(), str(path)), f"{path}/queue", FILE_SIZE, end)
    return QueueWriter(units, is_new=end == 0, **state)


def units_at(*offsets: int) -> np.ndarray:
    units = np.zeros(len(offsets), CONSUME_QUEUE_UNIT)
    units["commit_log_offset"] = offsets
    units["size"] = 100
    return units


def append(queue: QueueWriter, offsets: list[int], queue_offsets: list[int]) -> int:
    return queue.append(units_at(*offsets), np.array(queue_offsets, np.int64))


def written(path: Path) -> list[int]:
    """The commit log offsets of all units in all files, unused ones as -1."""
    files = sorted((path / "queue").iterdir())
    assert all(file.stat().st_size == FILE_SIZE for file in files)
    units = np.frombuffer(b"".join(file.read_bytes() for file in files), CONSUME_QUEUE_UNIT)
    return np.where(units["size"] == 0, -1, units["commit_log_offset"]).tolist()


def test_of_a_queue_only_the_pages_with_units_are_in_memory(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)

    append(queue, [0], [0])

    # What the kernel does about it depends on the disk: asked for is "random read", no read ahead.
    (file,) = (tmp_path / "queue").iterdir()
    of_map = Path("/proc/self/smaps").read_text().partition(f"{file}\n")[2]
    flags = next(line for line in of_map.splitlines() if line.startswith("VmFlags:"))
    assert "rr" in flags.split()


def test_units_fill_files_one_after_another(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)

    assert append(queue, [0, 100, 200], [0, 1, 2]) == 3
    assert append(queue, [300, 400, 500], [3, 4, 5]) == 3

    assert written(tmp_path) == [0, 100, 200, 300, 400, 500, -1, -1]
    assert sorted(file.name for file in (tmp_path / "queue").iterdir()) == [
        "00000000000000000000", "00000000000000000080",
    ]
    assert queue.next_offset == 6
    assert queue.max_physical_offset == 600


def test_a_record_that_has_a_unit_is_skipped(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    append(queue, [0, 100], [0, 1])

    assert append(queue, [0, 100, 200], [0, 1, 2]) == 1

    assert written(tmp_path) == [0, 100, 200, -1]


def test_a_queue_offset_that_is_taken_is_skipped_and_one_too_far_ahead_is_not(
    tmp_path: Path,
) -> None:
    queue = open_queue(tmp_path)
    append(queue, [0, 100, 200], [0, 1, 2])

    assert append(queue, [300, 400, 500], [1, 10, 11]) == 2

    # At queue offsets 3 and 4, although the records say 10 and 11.
    assert written(tmp_path)[:5] == [0, 100, 200, 400, 500]


def test_queue_offset_0_is_never_taken_for_a_repetition(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    append(queue, [0, 100], [0, 1])

    assert append(queue, [200, 300], [0, 0]) == 2

    assert written(tmp_path) == [0, 100, 200, 300]


def test_a_queue_that_starts_above_0_is_filled_with_blank_units_from_its_files_start(
    tmp_path: Path,
) -> None:
    queue = open_queue(tmp_path)

    append(queue, [5000, 5100], [6, 7])

    (only,) = (tmp_path / "queue").iterdir()
    assert only.name == "00000000000000000080"
    units = np.frombuffer(only.read_bytes(), CONSUME_QUEUE_UNIT)
    assert units["size"].tolist() == [PRE_BLANK_SIZE, PRE_BLANK_SIZE, 100, 100]
    assert units["commit_log_offset"].tolist() == [0, 0, 5000, 5100]
    assert queue.next_offset == 8


def test_a_queue_goes_on_where_it_was_left(tmp_path: Path) -> None:
    append(open_queue(tmp_path), [0, 100, 200, 300, 400], [0, 1, 2, 3, 4])
    again = open_queue(tmp_path, end=100, max_physical_offset=500)

    append(again, [500], [5])

    assert written(tmp_path) == [0, 100, 200, 300, 400, 500, -1, -1]


def test_flush_reaches_every_byte_that_was_appended(tmp_path: Path) -> None:
    synced: list[tuple[str, int, int]] = []

    class Recording(Posix):
        def _perform(self, call, action):  # type: ignore[no-untyped-def]
            if call.name == "sync":
                synced.append((Path(call.path).name, call.offset, call.size))
            return super()._perform(call, action)

    units = UnitFiles(FileSet(Recording(), str(tmp_path)), f"{tmp_path}/queue", FILE_SIZE)
    queue = QueueWriter(units)
    append(queue, [0, 100, 200], [0, 1, 2])
    units.flush()
    append(queue, [300, 400], [3, 4])
    units.flush()
    units.flush()

    first, second = f"{0:020d}", f"{80:020d}"
    assert synced == [(first, 0, 60), (first, 60, 20), (second, 0, 20)]
    assert units.flushed == units.end == 100


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / f"{0:020d}").write_bytes(bytes(60))

    with pytest.raises(CorruptQueueError) as caught:
        append(open_queue(tmp_path), [0], [0])

    assert (caught.value.found, caught.value.expected) == (60, FILE_SIZE)


def test_a_batch_queue_skips_what_it_has_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    size = 3 * BATCH_CONSUME_QUEUE_UNIT.itemsize

    def batch_units(*offsets: int) -> np.ndarray:
        units = np.zeros(len(offsets), BATCH_CONSUME_QUEUE_UNIT)
        units["commit_log_offset"] = offsets
        units["size"] = 100
        units["batch_count"] = 5
        return units

    files = FileSet(Posix(), str(tmp_path))
    queue = BatchQueueWriter(files, f"{tmp_path}/queue", size)
    assert queue.append(batch_units(0, 100)) == 2
    again = BatchQueueWriter(FileSet(Posix(), str(tmp_path)), f"{tmp_path}/queue", size)

    assert again.append(batch_units(100, 200, 300)) == 2

    content = b"".join(file.read_bytes() for file in sorted((tmp_path / "queue").iterdir()))
    units = np.frombuffer(content, BATCH_CONSUME_QUEUE_UNIT)
    assert units["commit_log_offset"].tolist() == [0, 100, 200, 300, 0, 0]
