"""Local files: ranges, windows, and what the system may say."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_stores import GoldenStore

import rmqlog
from rmqlog.commitlog_format import files
from rmqlog.commitlog_format.errors import (
    FileUnavailableError,
    SegmentExpiredError,
    StoreError,
    TruncatedFileError,
)
from rmqlog.commitlog_format.files import CopiedFile, LocalFile, LocalFiles
from rmqlog.commitlog_format.mapped_windows import GRANULARITY

CONTENT = bytes(range(256)) * 64


@pytest.fixture(autouse=True)
def small_windows_are_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files here are small, and it is mapping that needs tests."""
    monkeypatch.setattr(files, "COPIED_SIZE", 0)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file of 16 KiB."""
    (tmp_path / "file").write_bytes(CONTENT)
    return str(tmp_path / "file")


@pytest.mark.parametrize("kind", [LocalFile, CopiedFile])
@pytest.mark.parametrize(("offset", "size"), [(0, 10), (5000, 3000), (16384, 0), (1, 0)])
def test_a_window_is_the_bytes_of_the_range(
    kind: type[LocalFile], path: str, offset: int, size: int
) -> None:
    file = kind(path, keep_page_cache=False)

    assert file.window(offset, size, sequential=True).tobytes() == CONTENT[offset : offset + size]
    assert file.read(offset, size) == CONTENT[offset : offset + size]


@pytest.fixture
def advice(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges that the kernel is asked to forget: where they begin, and their sizes."""
    ranges: list[tuple[int, int]] = []

    def advise(_descriptor: int, start: int, size: int, _advice: int) -> None:
        ranges.append((start, size))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    return ranges


def test_what_was_mapped_is_forgotten_when_it_is_released(
    tmp_path: Path, advice: list[tuple[int, int]]
) -> None:
    size = 10_000
    (tmp_path / "large").write_bytes(bytes(3 * size))
    for keep in (True, False):
        file = LocalFile(str(tmp_path / "large"), keep_page_cache=keep)
        window = file.window(0, size, sequential=True)
        of_queue = file.window(size, size)
        advice.clear()
        assert not window.any()
        assert not of_queue.any()
        del window
        assert advice == ([] if keep else [(0, size)])
        del of_queue
        start = size - size % GRANULARITY
        assert advice[1:] == ([] if keep else [(start, 2 * size - start)])


@pytest.mark.parametrize("kind", [LocalFile, CopiedFile])
def test_what_was_copied_is_forgotten_at_once(
    kind: type[LocalFile], path: str, advice: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "COPIED_SIZE", 8_192)
    kind(path).window(4_000, 5_000)
    assert advice == []

    kind(path, keep_page_cache=False).window(4_000, 5_000)
    assert advice == [(0, 9_000)]


@pytest.mark.parametrize("copied_size", [0, 1 << 20])
@pytest.mark.parametrize("way", ["scan", "read"])
def test_open_store_can_spare_the_page_cache(
    golden_store: Callable[[str], GoldenStore], monkeypatch: pytest.MonkeyPatch,
    way: str, copied_size: int,
) -> None:
    forgotten: set[int] = set()
    monkeypatch.setattr(
        os, "posix_fadvise", lambda file, *_: forgotten.add(os.fstat(file).st_ino)
    )
    monkeypatch.setattr(files, "COPIED_SIZE", copied_size)
    path = golden_store("rmq-5.5.0-clean").path
    log = {file.stat().st_ino for file in (path / "commitlog").iterdir()}
    for keep in (True, False):
        store = rmqlog.open_store(str(path), keep_page_cache=keep)
        for _ in store.scan() if way == "scan" else store.read("orders"):
            pass
        assert bool(forgotten & log) is not keep


def test_what_is_read_by_queues_is_forgotten_up_to_where_the_reader_is(
    golden_store: Callable[[str], GoldenStore], advice: list[tuple[int, int]]
) -> None:
    store = rmqlog.open_store(str(golden_store("rmq-5.5.0-clean").path), keep_page_cache=False)
    view = store.queues_of("orders")[0]
    units = view.units(view.min_offset, view.max_offset)
    first_segment = store.log.files.files[0]
    assert first_segment.start == 0
    units = units.take(units.offsets < first_segment.end)
    reader = store.reader(["body"])
    middle = len(units) // 2
    for part in (slice(0, middle), slice(middle, len(units))):
        advice.clear()
        chosen = units.take(part)
        rows = sum(batch.num_rows for batch in reader.read(view.key, view.kind, chosen))
        assert rows == len(chosen)
        begins, ends = zip(*((start, start + size) for start, size in advice), strict=True)
        assert max(ends) == chosen.offsets[-1] + chosen.sizes[-1]
        assert min(begins) == chosen.offsets[0] - chosen.offsets[0] % GRANULARITY


@pytest.mark.parametrize("kind", [LocalFile, CopiedFile])
def test_a_range_behind_the_end_is_a_truncated_file(kind: type[LocalFile], path: str) -> None:
    file = kind(path)
    for take in (file.read, file.window):
        with pytest.raises(TruncatedFileError) as caught:
            take(16_380, 8)
        assert (caught.value.path, caught.value.offset) == (path, 16_380)
    with pytest.raises(TruncatedFileError, match="4 bytes"):
        file.read_into(16_380, np.zeros(8, np.uint8))


def test_a_small_window_is_a_copy_that_nobody_can_shrink(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "COPIED_SIZE", 4096)
    file = LocalFile(path)
    small, large = file.window(8_192, 4_096, sequential=True), file.window(0, 4_097)
    with open(path, "r+b") as changed:
        changed.write(bytes(len(CONTENT)))

    assert small.tobytes() == CONTENT[8_192:12_288]
    assert not large.any()


def test_what_the_system_refuses_is_named(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LocalFile(path)

    def refuse(*_arguments: Any, **_options: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    for module, name, use in (
        (os, "pread", lambda: file.read(0, 1)),
        (os, "preadv", lambda: file.read_into(0, np.zeros(1, np.uint8))),
        (os, "fstat", file.size),
        (files, "map_window", lambda: file.window(0, 1)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, refuse)
            with pytest.raises(FileUnavailableError, match="Input/output error") as caught:
                use()
        assert caught.value.path == path


def test_without_a_descriptor_for_a_mapping_the_bytes_are_copied(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(files, "map_window", refuse)

    assert LocalFile(path).window(10, 20).tobytes() == CONTENT[10:30]


def test_kept_files_make_room_when_descriptors_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (tmp_path / str(number)).write_bytes(b"x")
    access = LocalFiles()
    access.open(str(tmp_path / "0"))
    access.open(str(tmp_path / "1"))
    scandir, refused = os.scandir, [2]

    def refuse_twice(directory: str) -> Any:
        if refused[0]:
            refused[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return scandir(directory)

    monkeypatch.setattr(os, "scandir", refuse_twice)
    assert [entry.name for entry in access.list(str(tmp_path))] == ["0", "1", "2"]
    refused[0] = 1
    with pytest.raises(FileUnavailableError, match="Too many"):  # nothing left to close
        access.list(str(tmp_path))


def test_only_so_many_files_are_kept_open_and_the_last_used_stay(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / str(number)).write_bytes(b"x")
    access = LocalFiles(open_files=2)
    first = access.open(str(tmp_path / "0"))
    second = access.open(str(tmp_path / "1"))
    assert access.open(str(tmp_path / "0")) is first
    access.open(str(tmp_path / "2"))

    assert access.open(str(tmp_path / "0")) is first
    assert access.open(str(tmp_path / "1")) is not second
    assert second.read(0, 1) == b"x"  # whoever holds an evicted file may read on


def test_a_file_system_travels_by_pickle_without_its_open_files(path: str) -> None:
    access = LocalFiles(keep_page_cache=False, map_windows=False, open_files=3)
    access.open(path)
    again = pickle.loads(pickle.dumps(access))

    assert vars(again).keys() == vars(access).keys()
    assert (again.keep_page_cache, again.map_windows, again.open_files) == (False, False, 3)
    assert isinstance(again.open(path), CopiedFile)


def test_a_name_that_vanished_while_listing_is_left_out_any_other_failure_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Entry:
        name = "gone"

        def __init__(self, error: OSError) -> None:
            self.error = error

        def stat(self, *, follow_symlinks: bool) -> Any:
            raise self.error

    class Entries(list[Entry]):
        def __enter__(self) -> Entries:
            return self

        def __exit__(self, *_error: object) -> None:
            return

    monkeypatch.setattr(os, "scandir", lambda _: Entries([Entry(FileNotFoundError())]))
    assert LocalFiles().list(str(tmp_path)) == []
    refused = Entries([Entry(PermissionError(errno.EACCES, "Permission denied"))])
    monkeypatch.setattr(os, "scandir", lambda _: refused)
    with pytest.raises(StoreError, match="Permission denied"):
        LocalFiles().list(str(tmp_path))


def test_a_missing_file_is_an_expired_one(tmp_path: Path) -> None:
    with pytest.raises(SegmentExpiredError):
        LocalFiles().open(str(tmp_path / "missing"))
