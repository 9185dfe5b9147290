"""Mapped files: reserved before they are touched, flushed in order, released before they go."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from faults import FaultyPosix
from small_stores import SMALL

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import WriteFailedError
from rmqlog.commitlog_format.layout import PREFIX
from rmqlog.writer.log_files import LogFiles
from rmqlog.writer.placement import Placement
from rmqlog.writer.posix import Call, Posix
from rmqlog.writer.segments import FileSet, MappedFile, offset_name, warm_up
from rmqlog.writer.transient_store_pool import TransientStorePool

SIZE = SMALL.mappedFileSizeCommitLog


class Recorder(Posix):
    """Keeps every call with its place, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Call] = []

    def _perform(self, call, action):  # type: ignore[no-untyped-def]
        self.log.append(call)
        return super()._perform(call, action)

    def ranges(self, name: str) -> list[tuple[int, int]]:
        return [(call.offset, call.offset + call.size) for call in self.log if call.name == name]


def open_log(path: Path, posix: Posix, end: int = 0, **further: object) -> LogFiles:
    files = FileSet(posix, str(path))
    return LogFiles(files, f"{path}/commitlog", SMALL, end, make_ahead=False, **further)  # type: ignore[arg-type]


def write(log: LogFiles, offset: int, data: bytes) -> None:
    placement = Placement(offset, len(data), 0, 1)
    log.reserve([placement])
    log.write(placement, data)


def test_every_mapped_byte_was_reserved_before_it_was_written(tmp_path: Path) -> None:
    posix = Recorder()
    file = MappedFile(FileSet(posix, str(tmp_path)), f"{tmp_path}/f", 100_000, 4_096)
    file.create()
    rng = np.random.default_rng(1)
    position = 0
    while position < 90_000:
        data = rng.bytes(int(rng.integers(1, 5_000)))
        file.store(position, data, len(data))
        position += len(data)

    reserved = np.zeros(100_000, np.bool_)
    for call in posix.log:
        place = slice(call.offset, call.offset + call.size)
        if call.name == "allocate":
            reserved[place] = True
        elif call.name == "store":
            assert reserved[place].all()
    assert len(posix.ranges("allocate")) < 25
    assert (tmp_path / "f").stat().st_size == 100_000


def test_a_file_that_is_reopened_is_reserved_from_where_it_is_written(tmp_path: Path) -> None:
    posix = Recorder()
    MappedFile(FileSet(posix, str(tmp_path)), f"{tmp_path}/f", 100_000, 4_096).create()

    MappedFile(FileSet(posix, str(tmp_path)), f"{tmp_path}/f", 100_000, 4_096).store(
        50_000, b"x" * 10, 10
    )

    assert posix.ranges("allocate") == [(50_000, 53_248)]


def test_a_log_is_continued_where_it_ended(tmp_path: Path) -> None:
    write(open_log(tmp_path, Posix()), 0, b"a" * 100)

    log = open_log(tmp_path, Posix(), end=100)
    write(log, 100, b"b" * 50)

    content = (tmp_path / "commitlog" / offset_name(0)).read_bytes()
    assert content[:150] == b"a" * 100 + b"b" * 50
    assert log.end == 150


@pytest.mark.parametrize("reopened", [False, True])
def test_the_segment_before_a_new_one_is_ended_by_a_filler(tmp_path: Path, reopened: bool) -> None:
    log = open_log(tmp_path, Posix())
    write(log, 0, b"a" * 100)
    if reopened:
        log = open_log(tmp_path, Posix(), end=100)

    write(log, SIZE, b"b" * 50)

    first = (tmp_path / "commitlog" / offset_name(0)).read_bytes()
    assert PREFIX.unpack_from(first, 100) == (SIZE - 100, layout.MAGIC_BLANK)
    assert log.end == SIZE + 50


def test_a_flush_goes_from_the_oldest_segment_to_the_newest_and_names_come_first(
    tmp_path: Path,
) -> None:
    posix = Recorder()
    log = open_log(tmp_path, posix)
    write(log, 0, b"a" * 100)
    write(log, SIZE, b"b" * 100)
    posix.log.clear()

    assert log.flush() == SIZE + 100

    assert [(call.name, os.path.basename(call.path)) for call in posix.log if call.name in (
        "sync", "fsync_directory")][-2:] == [("sync", offset_name(0)), ("sync", offset_name(SIZE))]
    assert log.positions.flushed == SIZE + 100
    posix.log.clear()
    log.flush()
    assert posix.ranges("sync") == []


def test_positions_tell_what_is_written_committed_and_flushed(tmp_path: Path) -> None:
    log = open_log(tmp_path, Posix(), buffers=TransientStorePool(2))
    write(log, 0, b"a" * 100)
    write(log, SIZE, b"b" * 100)
    assert (log.positions.written, log.positions.committed, log.positions.flushed) == (
        SIZE + 100, 0, 0,
    )

    log.commit()
    assert (log.positions.committed, log.positions.flushed) == (SIZE + 100, 0)
    assert (tmp_path / "commitlog" / offset_name(SIZE)).read_bytes()[:100] == b"b" * 100

    log.flush()
    assert log.positions.flushed == SIZE + 100


def test_a_pool_that_is_used_up_leaves_the_next_segment_to_the_map(tmp_path: Path) -> None:
    log = open_log(tmp_path, Posix(), buffers=TransientStorePool(1))
    write(log, 0, b"a" * 100)
    write(log, SIZE, b"b" * 100)
    log.flush()
    # The first segment's buffer is free again.
    write(log, 2 * SIZE, b"c" * 100)
    log.flush()

    for number, byte in enumerate(b"abc"):
        content = (tmp_path / "commitlog" / offset_name(number * SIZE)).read_bytes()
        assert content[:100] == bytes([byte]) * 100
        assert not any(content[108:])


def test_a_file_is_released_before_its_name_goes(tmp_path: Path) -> None:
    file = MappedFile(FileSet(Posix(), str(tmp_path)), f"{tmp_path}/f", 8_192, 4_096)
    file.create()
    file.store(0, b"x", 1)

    file.remove()

    assert not (tmp_path / "f").exists()
    assert f"{tmp_path}/f" not in Path("/proc/self/maps").read_text()


def test_maps_that_fall_out_are_made_again(tmp_path: Path) -> None:
    files = FileSet(Posix(), str(tmp_path), open_files=2)
    mapped = [MappedFile(files, f"{tmp_path}/{n}", 4_096, 4_096) for n in range(5)]
    for number, file in enumerate(mapped):
        file.create()
        file.store(0, bytes([number]), 1)
    for number, file in enumerate(mapped):
        file.store(1, bytes([number]), 1)
        file.sync(0, 2)

    maps = Path("/proc/self/maps").read_text()
    assert sum(f"{tmp_path}/{number}" in maps for number in range(5)) <= 2
    assert [(tmp_path / str(n)).read_bytes()[:2] for n in range(5)] == [
        bytes([number, number]) for number in range(5)
    ]


def test_names_of_new_files_and_folders_are_synced_once(tmp_path: Path) -> None:
    posix = FaultyPosix()
    files = FileSet(posix, str(tmp_path))
    files.create(f"{tmp_path}/consumequeue/t/0/f", 100)
    posix.calls.clear()

    files.sync_names()
    files.sync_names()

    synced = [path for name, path in posix.calls if name == "fsync_directory"]
    expected = {f"{tmp_path}{below}" for below in ("", "/consumequeue", "/consumequeue/t",
                                                   "/consumequeue/t/0")}
    assert expected <= set(synced)
    assert len(synced) == len(set(synced))


def test_a_warm_file_is_reserved_as_a_whole_and_still_all_zero(tmp_path: Path) -> None:
    posix = Recorder()
    file = MappedFile(FileSet(posix, str(tmp_path)), f"{tmp_path}/f", 1 << 20, 4_096)
    file.create()

    warm_up(file)

    assert posix.ranges("allocate") == [(0, 1 << 20)]
    assert not file.array.any()
    assert (tmp_path / "f").stat().st_blocks * 512 >= 1 << 20


def test_a_file_shorter_than_its_map_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(100))
    file = MappedFile(FileSet(Posix(), str(tmp_path)), f"{tmp_path}/f", 8_192, 4_096)

    with pytest.raises(WriteFailedError, match="mapped"):
        _ = file.array
