"""Mapped windows, and whether what was read from them may be believed."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rmqlog.commitlog_format.errors import (
    CorruptRecordError,
    FileUnavailableError,
    TruncatedFileError,
)
from rmqlog.commitlog_format.mapped_windows import MappedWindow, intact, map_window

SIZE = 64 * 1024


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file without zeros."""
    (tmp_path / "file").write_bytes(b"\1" * SIZE)
    return str(tmp_path / "file")


@pytest.fixture
def window(path: str) -> NDArray[np.uint8]:
    """All of the file but its first 5000 bytes and its last 100."""
    with open(path, "rb") as file:
        return map_window(file.fileno(), path, 5000, SIZE - 5100, sequential=True)


def read_while_it_shrinks(window: NDArray[np.uint8], path: str, *sizes: int) -> None:
    """Read a window when its file was cut to a size; to others afterwards."""
    with intact(window):
        os.truncate(path, sizes[0])
        assert len(window.tobytes()) == window.nbytes
        for size in sizes[1:]:
            os.truncate(path, size)


def test_what_lies_behind_a_window_may_go(path: str, window: NDArray[np.uint8]) -> None:
    os.truncate(path, SIZE - 100)
    with intact(window):
        assert window.all()


@pytest.mark.parametrize("size", [0, 4096, SIZE // 2, SIZE - 101])
def test_a_file_that_shrank_is_named_even_if_no_page_is_missing(
    path: str, window: NDArray[np.uint8], size: int
) -> None:
    for part in (window, window[10:20], window[8:].view(np.int16)[::2]):
        os.truncate(path, SIZE)

        with pytest.raises(TruncatedFileError) as caught:
            read_while_it_shrinks(part, path, size)
        assert (caught.value.path, caught.value.offset) == (path, size)


def test_what_looks_like_damage_may_be_what_was_lost(
    path: str, window: NDArray[np.uint8]
) -> None:
    with pytest.raises(CorruptRecordError), intact(window):
        raise CorruptRecordError("damage")
    os.truncate(path, 0)
    with pytest.raises(TruncatedFileError) as caught, intact(window):
        raise CorruptRecordError("damage")
    assert isinstance(caught.value.__context__, CorruptRecordError)


def test_a_file_that_shrank_and_grew_is_named_too(path: str, window: NDArray[np.uint8]) -> None:
    with pytest.raises(FileUnavailableError, match="pages of the file were lost"):
        read_while_it_shrinks(window, path, 0, SIZE)


def test_a_file_whose_size_cannot_be_told_is_named(
    path: str, window: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: MappedWindow) -> int:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(MappedWindow, "size", refuse, raising=False)
    with pytest.raises(FileUnavailableError, match="Stale") as caught, intact(window):
        pass
    assert caught.value.path == path


def test_of_a_copy_nothing_can_be_lost() -> None:
    for copy in (np.ones(10, np.uint8), np.frombuffer(b"\1" * 10, np.uint8)):
        with intact(copy):
            assert copy.all()


def test_other_mappings_are_not_ours_to_check(path: str) -> None:
    with open(path, "rb") as file:
        other = np.frombuffer(mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ), np.uint8)
    with intact(other):
        os.truncate(path, 0)
