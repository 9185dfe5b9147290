"""The seam of durable calls: what each does, and how failures are told."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from faults import FaultyPosix, Kind, Plan, run_in_fork

from rmqlog.commitlog_format.errors import CommitStateUnknownError, WriteFailedError
from rmqlog.writer.posix import Call, Mapping, Posix

SIZE = 64 * 1024


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file that does not exist yet."""
    return str(tmp_path / "file")


def make_file(posix: Posix, path: str) -> int:
    descriptor = posix.open(path, create=True)
    posix.allocate(descriptor, 0, SIZE)
    return descriptor


def test_stored_bytes_are_in_the_file_and_nothing_else_changes(path: str) -> None:
    posix = Posix()
    mapping = posix.map(make_file(posix, path), SIZE)

    posix.store(mapping, 5000, b"hello")
    posix.sync(mapping, 5000, 5)

    content = Path(path).read_bytes()
    assert content == bytes(5000) + b"hello" + bytes(SIZE - 5005)


def test_scatter_puts_each_item_at_its_position(path: str) -> None:
    posix = Posix()
    mapping = posix.map(make_file(posix, path), SIZE)

    posix.scatter(mapping, np.array([40, 8, 65532]), 4, np.array([1, 2, 3], ">i4"))

    slots = np.frombuffer(Path(path).read_bytes(), ">i4")
    assert {int(i): int(slots[i]) for i in np.flatnonzero(slots)} == {10: 1, 2: 2, 16383: 3}


def test_a_short_write_is_continued_until_all_bytes_are_written(path: str) -> None:
    posix = FaultyPosix(Plan(Kind.SHORT, 2, lasting=True))
    descriptor = posix.open(path, create=True)

    posix.pwrite(descriptor, bytes(range(100)), 7)

    assert Path(path).read_bytes() == bytes(7) + bytes(range(100))
    assert posix.count_of("pwrite") > 2


def test_much_is_written_in_pieces_that_are_all_there(path: str) -> None:
    posix = FaultyPosix()
    descriptor = posix.open(path, create=True)
    content = np.random.default_rng(1).bytes(2 * 1024 * 1024 + 5)

    posix.pwrite(descriptor, content, 3)

    assert Path(path).read_bytes() == bytes(3) + content
    assert posix.count_of("pwrite") == 3


def test_an_interrupted_call_is_repeated(path: str) -> None:
    posix = FaultyPosix(Plan(Kind.ERROR, 2, errno.EINTR))
    descriptor = posix.open(path, create=True)

    posix.pwrite(descriptor, b"abc", 0)

    assert Path(path).read_bytes() == b"abc"


def test_a_call_that_is_interrupted_for_ever_fails(path: str) -> None:
    posix = FaultyPosix(Plan(Kind.ERROR, 2, errno.EINTR, lasting=True))
    descriptor = posix.open(path, create=True)

    with pytest.raises(WriteFailedError, match="EINTR"):
        posix.pwrite(descriptor, b"abc", 0)


def test_a_failure_names_call_file_offset_and_error(path: str) -> None:
    posix = FaultyPosix(Plan(Kind.ERROR, 2, errno.ENOSPC))
    descriptor = posix.open(path, create=True)

    with pytest.raises(WriteFailedError) as caught:
        posix.pwrite(descriptor, b"abc", 12)

    assert caught.value.path == path
    assert caught.value.offset == 12
    assert caught.value.found == "ENOSPC"
    assert "pwrite" in str(caught.value)


@pytest.mark.parametrize("name", ["sync", "fsync", "fdatasync", "fsync_directory"])
def test_after_a_failed_sync_nothing_is_written_or_synced_again(path: str, name: str) -> None:
    posix = FaultyPosix(Plan(Kind.ERROR, 1, only=frozenset({name})))
    descriptor = make_file(posix, path)
    mapping = posix.map(descriptor, SIZE)
    posix.store(mapping, 0, b"before")
    sync = {
        "sync": lambda: posix.sync(mapping, 0, 6),
        "fsync": lambda: posix.fsync(descriptor),
        "fdatasync": lambda: posix.fdatasync(descriptor),
        "fsync_directory": lambda: posix.fsync_directory(os.path.dirname(path)),
    }[name]

    with pytest.raises(CommitStateUnknownError) as caught:
        sync()
    made = list(posix.calls)
    for call in (
        sync,
        lambda: posix.store(mapping, 0, b"after!"),
        lambda: posix.pwrite(descriptor, b"after!", 0),
        lambda: posix.unlink(path),
    ):
        with pytest.raises(CommitStateUnknownError):
            call()

    assert caught.value.found == "EIO"
    assert posix.calls == made
    assert Path(path).read_bytes()[:6] == b"before"


def test_a_created_file_has_its_name_only_with_its_size(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = tmp_path / "log" / "00000000000000000000"
    path.parent.mkdir()

    for number in range(1, 6):
        run_in_fork(
            lambda posix, _: posix.create_file(str(path), SIZE, str(scratch), durable=True),
            Plan(Kind.KILL_DURING, number),
        )
        assert not path.exists() or path.stat().st_size == SIZE

    assert path.stat().st_size == SIZE


def test_replace_file_leaves_the_old_or_the_new_content(path: str) -> None:
    Path(path).write_bytes(b"old")
    seen = []
    for number in range(1, 20):
        outcome = run_in_fork(
            lambda posix, _: posix.replace_file(path, b"new content"),
            Plan(Kind.KILL_DURING, number),
        )
        seen.append(Path(path).read_bytes())
        if not outcome.fired:
            break

    assert set(seen) == {b"old", b"new content"}
    assert seen[-1] == b"new content"


def test_mkdir_makes_what_is_missing_and_unlink_of_nothing_is_fine(tmp_path: Path) -> None:
    posix = Posix()

    posix.mkdir(str(tmp_path / "a" / "b"))
    posix.mkdir(str(tmp_path / "a" / "b"))
    posix.unlink(str(tmp_path / "a" / "nothing"))

    assert (tmp_path / "a" / "b").is_dir()


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (tmp_path / "link").symlink_to(target)

    with pytest.raises(WriteFailedError, match="ELOOP"):
        Posix().open(str(tmp_path / "link"))

    assert target.read_bytes() == b"precious"


def test_byte_0_is_locked_once_and_stays_so_when_the_file_is_closed_elsewhere(path: str) -> None:
    posix = Posix()
    first, second = posix.open(path, create=True), posix.open(path)

    assert posix.lock(first)
    assert not posix.lock(second)
    posix.close(second)
    third = posix.open(path)
    assert not posix.lock(third)

    posix.unlock(first)
    assert posix.lock(third)


def test_memory_of_a_mapping_goes_with_its_last_view(path: str) -> None:
    posix = Posix()
    mapping = posix.map(make_file(posix, path), SIZE)
    posix.store(mapping, 0, b"seen")
    view = mapping.array[:4]

    mapping.close()

    assert bytes(view) == b"seen"
    assert mapping.size == 0


def test_memory_without_a_file_is_zero_and_can_be_stored_to() -> None:
    mapping = Mapping.in_memory("later", SIZE)

    Posix().store(mapping, 1, b"x")

    assert bytes(mapping.array[:3]) == b"\0x\0"


def test_every_durable_call_passes_the_seam(tmp_path: Path, path: str) -> None:
    seen: list[Call] = []

    class Watching(Posix):
        def _perform(self, call, action):  # type: ignore[no-untyped-def]
            seen.append(call)
            return super()._perform(call, action)

    posix = Watching()
    descriptor = make_file(posix, path)
    mapping = posix.map(descriptor, SIZE)
    posix.store(mapping, 0, b"x")
    posix.scatter(mapping, np.array([4]), 4, b"abcd")
    posix.pwrite(descriptor, b"x", 0)
    posix.sync(mapping, 0, 1)
    posix.fsync(descriptor)
    posix.fdatasync(descriptor)
    posix.truncate(descriptor, SIZE)
    posix.mkdir(str(tmp_path / "d"))
    posix.rename(path, str(tmp_path / "d" / "f"))
    posix.fsync_directory(str(tmp_path))
    posix.unlink(str(tmp_path / "d" / "f"))
    posix.rmdir(str(tmp_path / "d"))

    assert [call.name for call in seen] == [
        "create", "allocate", "store", "scatter", "pwrite", "sync", "fsync", "fdatasync",
        "truncate", "mkdir", "rename", "fsync_directory", "unlink", "rmdir",
    ]
