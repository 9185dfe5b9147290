"""Index files equal those of the sequential rules, entry by entry and byte by byte."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_files import open_with_wild_slot

from rmqlog.commitlog_format.errors import CorruptIndexError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.hashing import index_hash
from rmqlog.commitlog_format.layout import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT
from rmqlog.writer.index_notes import notes_path, read_notes, slots_sum
from rmqlog.writer.index_writer import IndexFileWriter, IndexWriter
from rmqlog.writer.posix import Posix
from rmqlog.writer.segments import FileSet
from rmqlog.writer.settings import StoreSettings

pytestmark = pytest.mark.usefixtures("loops")
Entry = tuple[int, int, int]  # hash, physical offset, store time


class SequentialIndexFile:
    """IndexFile.putKey as the specification has it, one entry at a time."""

    def __init__(self, slot_count: int, entry_count: int, begin: tuple[int, int] = (0, 0)) -> None:
        self.slots = np.zeros(slot_count, INDEX_SLOT)
        self.entries = np.zeros(entry_count, INDEX_ENTRY)
        self.begin_offset, self.begin_time = begin
        self.end_offset, self.end_time = begin
        self.used_slots, self.count = 0, 1

    def put(self, key_hash: int, offset: int, time: int) -> None:
        slot = key_hash % len(self.slots)
        previous = int(self.slots[slot])
        if not 0 < previous <= self.count:
            previous = 0
        seconds = int((time - self.begin_time) / 1000)
        if self.begin_time <= 0 or seconds < 0:
            seconds = 0
        self.entries[self.count] = (key_hash, offset, min(seconds, 2**31 - 1), previous)
        self.slots[slot] = self.count
        if self.count <= 1:
            self.begin_offset, self.begin_time = offset, time
        self.used_slots += previous == 0
        self.count += 1
        self.end_offset, self.end_time = offset, time

    def content(self) -> bytes:
        header = np.zeros(1, INDEX_HEADER)
        header[0] = (
            self.begin_time, self.end_time, self.begin_offset, self.end_offset,
            self.used_slots, self.count,
        )
        return header.tobytes() + self.slots.tobytes() + self.entries.tobytes()


def put(file: IndexFileWriter, entries: list[Entry]) -> None:
    file.put(
        np.array([entry[0] for entry in entries], np.int32),
        np.array([entry[1] for entry in entries], np.int64),
        np.array([entry[2] for entry in entries], np.int64),
    )


def test_the_golden_file_of_the_specification_comes_out(tmp_path: Path) -> None:
    file = IndexFileWriter.create(
        FileSet(Posix(), str(tmp_path)), f"{tmp_path}/1", 5_000, 20_000, None
    )
    order, k1 = index_hash("TopicTest", "order-1"), index_hash("TopicTest", "k1")

    put(file, [(order, 1000, 1700000001000), (k1, 1000, 1700000001000)])
    put(file, [(order, 2000, 1700000003999)])

    content = (tmp_path / "1").read_bytes()
    assert len(content) == 420_040
    assert zlib.crc32(content) == 577523973
    assert content[13736:13740] == bytes.fromhex("00000003")


def test_a_file_begins_where_the_one_before_it_ended(tmp_path: Path) -> None:
    files = FileSet(Posix(), str(tmp_path))
    before = IndexFileWriter(files, f"{tmp_path}/1", 100, 400)
    before.end_physical_offset, before.end_timestamp = 5555, 1700000000500
    order = index_hash("TopicTest", "order-1")

    file = IndexFileWriter.create(files, f"{tmp_path}/2", 100, 400, before)
    put(file, [(order, 6000, 1700000009000), (order, 7000, 1700000011000)])

    content = (tmp_path / "2").read_bytes()
    assert content[:40] == bytes.fromhex(
        "0000018bcfe58b280000018bcfe592f800000000000017700000000000001b580000000100000003"
    )
    # The first time difference counts from the end of the file before.
    assert content[40 + 400 + 20 : 40 + 400 + 60] == bytes.fromhex(
        "6d0746d0000000000000177000000008000000006d0746d00000000000001b580000000200000001"
    )


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**31 - 1) | st.integers(0, 5),
            st.integers(0, 2**40),
            st.integers(1, 2**43) | st.just(1),
        ),
        max_size=60,
    ),
    st.lists(st.integers(1, 20), min_size=1, max_size=10),
    st.integers(1, 7),
    st.none() | st.integers(0, 9),
)
def test_entries_put_in_any_batches_equal_those_put_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry], sizes: list[int], slots: int,
    batches_before_bulk: int | None,
) -> None:
    path = tmp_path_factory.mktemp("index")
    file = IndexFileWriter.create(FileSet(Posix(), str(path)), f"{path}/1", slots, 64, None)
    expected = SequentialIndexFile(slots, 64)
    done = 0
    for number, size in enumerate(sizes * 60):
        if done >= len(entries):
            break
        if number == batches_before_bulk:
            file.begin_bulk()
        put(file, entries[done : done + size])
        done += size
    file.end_bulk()
    for entry in entries:
        expected.put(*entry)

    assert (path / "1").read_bytes() == expected.content()


def test_a_slot_that_points_outside_of_the_entries_counts_as_empty(tmp_path: Path) -> None:
    file = open_with_wild_slot(tmp_path, 4, 16)

    put(file, [(4, 100, 1000), (8, 200, 1000)])

    entries = np.frombuffer((tmp_path / "1").read_bytes()[56:], INDEX_ENTRY)
    assert entries["previous"][1:3].tolist() == [0, 1]
    assert file.hash_slot_count == 1


def test_a_full_file_is_followed_by_another_with_a_later_name(tmp_path: Path) -> None:
    small = StoreSettings(maxHashSlotNum=3, maxIndexNum=5)
    index = IndexWriter(FileSet(Posix(), str(tmp_path)), f"{tmp_path}/index", small)
    hashes = np.arange(10, dtype=np.int32)

    index.put(hashes, np.arange(10) * 100, np.arange(10) + 1)
    index.flush()

    names = sorted(path.name for path in (tmp_path / "index").iterdir())
    assert len(names) == 3
    assert all(len(name) == 17 and name.isdigit() for name in names)
    assert index.end_physical_offset == 900
    assert index.entry_count_of_last == 2
    # Only full files count as safe.
    assert index.safe_timestamp == 8


def test_a_record_without_keys_still_asks_for_a_file_with_room(tmp_path: Path) -> None:
    small = StoreSettings(maxHashSlotNum=3, maxIndexNum=3)
    index = IndexWriter(FileSet(Posix(), str(tmp_path)), f"{tmp_path}/index", small)
    index.put(np.array([1, 2], np.int32), np.array([0, 0]), np.array([1, 1]))
    assert len(list((tmp_path / "index").iterdir())) == 1

    index.begin_record()

    assert len(list((tmp_path / "index").iterdir())) == 2


def test_an_index_goes_on_in_its_last_file(tmp_path: Path) -> None:
    small = StoreSettings(maxHashSlotNum=3, maxIndexNum=100)
    first = IndexWriter(FileSet(Posix(), str(tmp_path)), f"{tmp_path}/index", small)
    first.put(np.array([1, 4], np.int32), np.array([0, 100]), np.array([1000, 2000]))
    first.flush()
    again = IndexWriter(FileSet(Posix(), str(tmp_path)), f"{tmp_path}/index", small)
    again.put(np.array([7], np.int32), np.array([200]), np.array([9000]))
    again.flush()

    expected = SequentialIndexFile(3, 100)
    for entry in [(1, 0, 1000), (4, 100, 2000), (7, 200, 9000)]:
        expected.put(*entry)
    (only,) = (tmp_path / "index").iterdir()
    assert only.read_bytes() == expected.content()


def put_in_bulk(path: Path, count: int, *, fail: bool = False) -> IndexWriter:
    """Ten entries, and then so many at once in files of 40."""
    small = StoreSettings(maxHashSlotNum=8, maxIndexNum=41)
    index = IndexWriter(FileSet(Posix(), str(path)), f"{path}/index", small)
    hashes = np.arange(10 + count, dtype=np.int32) * 7919 % 1000
    numbers = np.arange(10 + count) + 1
    index.put(hashes[:10], numbers[:10] * 100, numbers[:10] * 1000)
    index.flush()
    with index.bulk(count):
        for start in range(10, 10 + count, 9):
            rows = slice(start, start + 9)
            index.put(hashes[rows], numbers[rows] * 100, numbers[rows] * 1000)
        if fail:
            raise ZeroDivisionError
    index.flush()
    return index


def test_what_is_put_in_bulk_is_chained_across_files(tmp_path: Path) -> None:
    put_in_bulk(tmp_path, 90)

    expected = [SequentialIndexFile(8, 41)]
    for number in range(1, 101):
        if expected[-1].count == 41:
            ended = expected[-1]
            expected.append(SequentialIndexFile(8, 41, (ended.end_offset, ended.end_time)))
        expected[-1].put((number - 1) * 7919 % 1000, number * 100, number * 1000)
    found = [path.read_bytes() for path in sorted((tmp_path / "index").iterdir())]
    assert found == [file.content() for file in expected]


def test_the_note_behind_a_bulk_knows_the_sum_of_all_slots(tmp_path: Path) -> None:
    put_in_bulk(tmp_path, 90)

    note = read_notes(LocalFiles(), notes_path(str(tmp_path)))[0]
    content = sorted((tmp_path / "index").iterdir())[-1].read_bytes()
    heads = np.frombuffer(content, INDEX_SLOT, 8, INDEX_HEADER.itemsize)
    assert note.header.index_count == 21
    assert note.slots_sum == slots_sum(heads)


def test_a_bulk_that_fails_leaves_slots_and_header_as_they_were(tmp_path: Path) -> None:
    put_in_bulk(tmp_path / "before", 0)
    (before,) = (tmp_path / "before" / "index").iterdir()

    with pytest.raises(ZeroDivisionError):
        put_in_bulk(tmp_path / "failed", 18, fail=True)

    (failed,) = (tmp_path / "failed" / "index").iterdir()
    end = INDEX_HEADER.itemsize + 8 * INDEX_SLOT.itemsize + 11 * INDEX_ENTRY.itemsize
    assert failed.read_bytes()[:end] == before.read_bytes()[:end]


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "20240101000000000").write_bytes(bytes(100))

    with pytest.raises(CorruptIndexError) as caught:
        IndexWriter(FileSet(Posix(), str(tmp_path)), str(tmp_path), StoreSettings())

    assert caught.value.found == 100
