"""Walking the log: every way in which a walk can end, and what it says then."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from built_stores import offset_name
from memory_files import MemoryFiles
from random_records import PLAIN_RECORD, build_log, with_body

from rmqlog.commitlog_format import layout, log_walk
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.errors import StoreError, TruncatedFileError
from rmqlog.commitlog_format.files import DirectoryEntry
from rmqlog.commitlog_format.layout import PREFIX
from rmqlog.commitlog_format.limits import Limits
from rmqlog.commitlog_format.log_walk import LogWalk
from rmqlog.commitlog_format.segment import FileQueue

pytestmark = pytest.mark.usefixtures("loops")

GOOD = build_log([PLAIN_RECORD, PLAIN_RECORD]).window.tobytes()
SIZE = len(GOOD) // 2
V1 = layout.MAGIC_V1


def walked(
    data: bytes, *, dledger: bool = False, limits: Limits | None = None, size: int = 1024
) -> tuple[list[int], LogWalk]:
    """The offsets that a walk over one segment finds, and the walk."""
    files = {f"log/{offset_name(0)}": data.ljust(size, b"\0")}
    queue = FileQueue.open(MemoryFiles(files), ["log"])
    log = CommitLog(queue, dledger_start=0 if dledger else None, limits=limits or Limits())
    walk = LogWalk(log, 0, check_crc=True)
    return [offset for run in walk for offset in run.offsets.tolist()], walk


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b"", None),
        (PREFIX.pack(100, 0x12345678), "not a record"),
        (PREFIX.pack(90, V1), "record is too small"),
        (PREFIX.pack(-1, V1), "record is too small"),
        (PREFIX.pack(5000, V1), "does not fit into its segment"),
        (PREFIX.pack(2**31 - 1, V1), "larger than allowed"),
        (GOOD[:SIZE], "PHYSICALOFFSET"),
    ],
)
def test_a_walk_says_why_it_ends(tail: bytes, reason: str | None) -> None:
    offsets, walk = walked(GOOD + tail)

    assert offsets == [0, SIZE]
    assert walk.end.offset == 2 * SIZE
    if reason is None:
        assert walk.end.reason is None
    else:
        assert reason in str(walk.end.reason)


def test_a_wrong_checksum_ends_the_walk_before_its_record() -> None:
    offsets, walk = walked(GOOD[:SIZE] + GOOD[SIZE:].replace(b"Hello", b"Jello"))

    assert offsets == [0]
    assert walk.end.offset == SIZE
    assert "BODYCRC" in str(walk.end.reason)


@pytest.mark.parametrize("left", [1, 7, 8])
def test_the_last_bytes_of_a_segment_may_be_too_few_for_anything(left: int) -> None:
    offsets, walk = walked(GOOD, size=len(GOOD) + left)

    assert offsets == [0, SIZE]
    assert walk.end.offset == (len(GOOD) + left if left < 8 else len(GOOD))


def test_windows_smaller_than_the_log_and_than_a_record_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = [with_body(PLAIN_RECORD, bytes(size)) for size in (10, 3000, 10, 500, 10)]
    log = build_log(records)
    expected = log.offsets.tolist()
    for window_size in (128, 600, 5000):
        monkeypatch.setattr(log_walk, "_WINDOW_SIZE", window_size)
        monkeypatch.setattr(log_walk, "RUN_RECORD_COUNT", 2)
        assert walked(log.window.tobytes(), size=8192)[0] == expected


class _ShrunkFiles(MemoryFiles):
    """Lists files larger than they are: they shrink as soon as they are opened."""

    def list(self, directory: str) -> list[DirectoryEntry]:
        return [
            replace(entry, size=entry.size + 1000 if entry.is_file else 0)
            for entry in super().list(directory)
        ]


@pytest.mark.parametrize("window_size", [128, 1 << 20])
def test_a_file_that_shrank_is_no_end_of_the_log(
    monkeypatch: pytest.MonkeyPatch, window_size: int
) -> None:
    monkeypatch.setattr(log_walk, "_WINDOW_SIZE", window_size)
    claim = GOOD + PREFIX.pack(900, V1).ljust(200, b"\0")
    queue = FileQueue.open(_ShrunkFiles({f"log/{offset_name(0)}": claim}), ["log"])
    found: list[int] = []

    def walk() -> None:
        for run in LogWalk(CommitLog(queue), 0):
            found.extend(run.offsets.tolist())

    with pytest.raises(TruncatedFileError):
        walk()
    assert found == ([0, SIZE] if window_size == 128 else [])


def entry(index: int, offset: int, magic: int = 1, size: int | None = None) -> bytes:
    """A DLedger entry that holds one record."""
    record = build_log([PLAIN_RECORD], offset + 48).window.tobytes()
    header = np.zeros(1, layout.DLEDGER_ENTRY_HEADER)
    header["magic"], header["index"] = magic, index
    header["size"] = 48 + len(record) if size is None else size
    return header.tobytes() + record


ENTRY_SIZE = len(entry(0, 0))


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b"", None),
        (entry(1, ENTRY_SIZE, magic=7), "not a DLedger entry"),
        (entry(1, ENTRY_SIZE, size=60), "disagree on their size"),
        (entry(1, ENTRY_SIZE)[:48] + PREFIX.pack(0, 5), "not a record"),
        (entry(1, ENTRY_SIZE, size=48 + 90)[:48] + PREFIX.pack(90, V1), "record is too small"),
        (entry(1, ENTRY_SIZE, size=48 + 5000)[:48] + PREFIX.pack(5000, V1), "does not fit"),
    ],
)
def test_a_dledger_log_ends_for_reasons_of_its_own(tail: bytes, reason: str | None) -> None:
    offsets, walk = walked(entry(0, 0) + tail, dledger=True)

    assert offsets == [48]
    assert walk.end.offset in (ENTRY_SIZE, ENTRY_SIZE + 48)
    assert reason is None or reason in str(walk.end.reason)


def test_a_dledger_filler_ends_its_segment() -> None:
    filler = layout.DLEDGER_PREFIX.pack(layout.DLEDGER_MAGIC_BLANK, 100)
    offsets, walk = walked(entry(0, 0) + filler, dledger=True)

    assert (offsets, walk.end.offset, walk.end.reason) == ([48], 1024, None)


def test_a_record_beyond_the_limit_is_the_reason() -> None:
    _, walk = walked(GOOD, limits=Limits(record_size=100))

    assert isinstance(walk.end.reason, StoreError)
    assert walk.end.offset == 0
