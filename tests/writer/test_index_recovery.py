"""After a crash the last index file is rolled back to its note, and no more is read than that."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from counting_files import CountingFiles
from crash.oracle import check_index, check_store, read_log, tree_digest
from crash.workloads import CLOCK_START_MS, SETTINGS, Message, to_arrow
from faults import FaultyPosix, Kind, Plan

from rmqlog.commitlog_format.errors import WriteFailedError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.index_file import IndexHeader
from rmqlog.commitlog_format.layout import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT
from rmqlog.writer import index_recovery
from rmqlog.writer.index_notes import IndexNote, notes_path, read_notes, slots_sum
from rmqlog.writer.index_writer import IndexWriter
from rmqlog.writer.posix import Posix
from rmqlog.writer.recovery import RecoveryReport, recover
from rmqlog.writer.segments import FileSet
from rmqlog.writer.store_writer import StoreWriter

#: One index file for everything, with the same slots however many messages there are.
LARGE = SETTINGS.with_changes(maxHashSlotNum=512, maxIndexNum=16_384)
SLOTS_END = INDEX_HEADER.itemsize + LARGE.maxHashSlotNum * INDEX_SLOT.itemsize
#: Entries of one message: its unique key, its key, its tag.
PER_MESSAGE = 3
#: So many messages are worth a note.
STEP = 400
FLUSHED = 2 * STEP
#: What a killed writer had appended.
MESSAGES = [Message(number) for number in range(FLUSHED + 50)]


def messages_from(first: int, count: int) -> list[Message]:
    return [Message(number) for number in range(first, first + count)]


def open_large(path: Path, posix: Posix | None = None) -> StoreWriter:
    clock = itertools.count(CLOCK_START_MS, 5_000)
    return StoreWriter(
        path, LARGE, posix=posix or Posix(), background=False, now_ms=lambda: next(clock)
    )


def crashed(path: Path, flushed: int, later: int) -> Path:
    """A store whose writer was killed: so many messages flushed, and so many more appended."""
    live = path.with_name(f"{path.name}-live")
    writer = open_large(live)
    for first in range(0, flushed, STEP):
        writer.append(to_arrow(messages_from(first, STEP)))
        writer.flush()
    if later:
        writer.append(to_arrow(messages_from(flushed, later)))
    shutil.copytree(live, path)
    writer.close()
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two notes, the newest of all that was flushed; then 50 messages more."""
    return crashed(tmp_path / "store", FLUSHED, 50)


@pytest.fixture
def rolled_back(monkeypatch: pytest.MonkeyPatch) -> list[IndexNote]:
    """The notes that were believed."""
    believed: list[IndexNote] = []

    def spy(*arguments: object) -> bool:
        done = roll_back(*arguments)  # type: ignore[arg-type]
        if done:
            believed.append(arguments[3])  # type: ignore[arg-type]
        return done

    roll_back = index_recovery.roll_back
    monkeypatch.setattr(index_recovery, "roll_back", spy)
    return believed


def index_file(path: Path) -> Path:
    (only,) = (path / "index").iterdir()
    return only


def header_of(path: Path) -> IndexHeader:
    return IndexHeader(*np.frombuffer(path.read_bytes()[:40], INDEX_HEADER)[0].item())


def rewrite(file: Path, position: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        opened.write(content)


def read_and_reindexed(path: Path, flushed: int, later: int) -> tuple[int, int, RecoveryReport]:
    """Bytes of the index that recovery reads, and bytes of log that must be indexed again."""
    access = CountingFiles()
    report = recover(Posix(), str(crashed(path, flushed, later)), LARGE, access)
    note = read_notes(LocalFiles(), notes_path(str(path)))[0]
    return access.sizes["index"], report.log_end - note.header.end_physical_offset, report


def test_what_recovery_reads_of_the_index_does_not_grow_with_what_was_flushed(
    tmp_path: Path, rolled_back: list[IndexNote]
) -> None:
    small, small_log, _ = read_and_reindexed(tmp_path / "small", FLUSHED, 50)
    large, large_log, report = read_and_reindexed(tmp_path / "large", 4000, 50)
    dirtier, _, _ = read_and_reindexed(tmp_path / "dirtier", FLUSHED, 100)

    assert len(rolled_back) == 3
    # The slots, the 150 later entries, and the entries that a note has a checksum of.
    assert abs(large - small) < 4096
    assert large < SLOTS_END + 150 * INDEX_ENTRY.itemsize + 4 * 4096
    assert abs(dirtier - small - 150 * INDEX_ENTRY.itemsize) < 4096
    assert abs(large_log - small_log) < 4096
    assert report.log_end > 8 * large_log
    check_store(tmp_path / "large", messages_from(0, 4050), 4050, LARGE)


def test_a_rolled_back_index_is_the_one_that_was_noted(
    store: Path, rolled_back: list[IndexNote]
) -> None:
    name = index_file(store).name
    before = crashed(store.with_name("before"), FLUSHED, 0)

    recover(Posix(), str(store), LARGE)

    assert index_file(store).name == name
    assert index_file(store).read_bytes() == index_file(before).read_bytes()
    assert header_of(index_file(store)) == rolled_back[0].header
    assert rolled_back[0].header.index_count == FLUSHED * PER_MESSAGE + 1
    check_store(store, MESSAGES, len(MESSAGES), LARGE)


def test_recovery_run_twice_changes_nothing_the_second_time(store: Path) -> None:
    recover(Posix(), str(store), LARGE)
    before = tree_digest(store)

    recover(Posix(), str(store), LARGE)

    assert tree_digest(store) == before


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_lost_of_the_later_changes_the_index_is_whole(
    store: Path, rolled_back: list[IndexNote], seed: int
) -> None:
    rng = random.Random(seed)
    file = index_file(store)
    content = bytearray(file.read_bytes())
    count = FLUSHED * PER_MESSAGE + 1
    before = index_file(crashed(store.with_name("before"), FLUSHED, 0)).read_bytes()
    first = SLOTS_END + count * INDEX_ENTRY.itemsize
    for begin in range(first, first + 150 * INDEX_ENTRY.itemsize, 512):
        if rng.random() < 0.5:
            garbage = rng.choice([bytes(512), rng.randbytes(512)])
            content[begin : begin + 512] = garbage
    for slot in range(INDEX_HEADER.itemsize, SLOTS_END, 4):
        if content[slot : slot + 4] != before[slot : slot + 4] and rng.random() < 0.5:
            content[slot : slot + 4] = rng.choice([before[slot : slot + 4], rng.randbytes(4)])
    content[:40] = rng.choice([before[:40], rng.randbytes(40), bytes(content[:40])])
    file.write_bytes(content)

    recover(Posix(), str(store), LARGE)

    assert len(rolled_back) == 1
    assert index_file(store).read_bytes() == before
    check_store(store, MESSAGES, len(MESSAGES), LARGE)


def test_without_the_newest_note_the_one_before_it_holds(
    store: Path, rolled_back: list[IndexNote]
) -> None:
    newest, older = read_notes(LocalFiles(), notes_path(str(store)))
    rewrite(Path(notes_path(str(store))), newest.number % 2 * 4096 + 100, b"torn")

    check_store(store, MESSAGES, len(MESSAGES), LARGE)

    assert rolled_back == [older]


def test_a_note_that_is_ahead_of_the_log_is_not_believed(
    store: Path, rolled_back: list[IndexNote]
) -> None:
    newest, older = read_notes(LocalFiles(), notes_path(str(store)))
    end = newest.header.end_physical_offset - 10
    segment = sorted((store / "commitlog").iterdir())[-1]
    start = int(segment.name)
    rewrite(segment, end - start, bytes(SETTINGS.mappedFileSizeCommitLog - (end - start)))

    recover(Posix(), str(store), LARGE)

    assert rolled_back == [older]
    count = len(read_log(store))
    assert STEP <= count < FLUSHED
    check_store(store, messages_from(0, count), count, LARGE)


def test_a_later_note_of_another_past_is_not_believed(
    store: Path, rolled_back: list[IndexNote]
) -> None:
    """The log lost its end and went on with other messages; then there was another crash."""
    newest, older = read_notes(LocalFiles(), notes_path(str(store)))
    segment = sorted((store / "commitlog").iterdir())[-1]
    position = newest.header.end_physical_offset - 10 - int(segment.name)
    rewrite(segment, position, bytes(SETTINGS.mappedFileSizeCommitLog - position))
    writer = open_large(store)
    count = len(read_log(store))
    others = messages_from(5000, 20)
    writer.append(to_arrow(others))
    again = store.with_name("again")
    shutil.copytree(store, again)
    writer.close()

    check_store(again, [*messages_from(0, count), *others], count + 20, LARGE)

    assert rolled_back == [older, older]


def test_the_next_note_after_a_crash_spares_the_one_that_held(store: Path) -> None:
    newest, older = read_notes(LocalFiles(), notes_path(str(store)))
    rewrite(Path(notes_path(str(store))), newest.number % 2 * 4096 + 100, b"torn")

    with open_large(store) as writer:
        writer.append(to_arrow(messages_from(len(MESSAGES), STEP)))
        writer.flush()
        notes = read_notes(LocalFiles(), notes_path(str(store)))

    assert older in notes
    assert notes[0].header.index_count > newest.header.index_count


@pytest.mark.parametrize("field", ["slots_sum", "tail_crc", "slot_count", "file_name"])
def test_a_note_that_does_not_fit_its_file_is_not_believed(
    store: Path, rolled_back: list[IndexNote], field: str
) -> None:
    notes = read_notes(LocalFiles(), notes_path(str(store)))
    for note in notes:
        wrong = "20200101000000000" if field == "file_name" else getattr(note, field) ^ 1
        changed = replace(note, **{field: wrong})
        rewrite(Path(notes_path(str(store))), note.number % 2 * 4096, changed.encode())

    check_store(store, MESSAGES, len(MESSAGES), LARGE)

    assert rolled_back == []


def test_entries_that_a_broker_added_since_are_made_anew(
    store: Path, rolled_back: list[IndexNote]
) -> None:
    """Another writer went on in the file and knows of no notes; then it crashed."""
    notes = Path(notes_path(str(store)))
    kept = notes.read_bytes()
    open_large(store).close()
    writer = open_large(store)
    writer.append(to_arrow(messages_from(len(MESSAGES), 50)))
    writer.flush()
    crash = store.with_name("crash")
    shutil.copytree(store, crash)
    writer.close()
    Path(notes_path(str(crash))).write_bytes(kept)

    check_store(crash, messages_from(0, FLUSHED + 100), FLUSHED + 100, LARGE)

    assert len(rolled_back) == 2
    assert rolled_back[-1].header.index_count == FLUSHED * PER_MESSAGE + 1


def test_a_file_that_no_note_knows_is_counted_and_synced_whole(tmp_path: Path) -> None:
    path = crashed(tmp_path / "store", STEP, 0)
    Path(notes_path(str(path))).unlink()
    (path / "abort").unlink()
    posix = FaultyPosix()

    writer = open_large(path, posix)
    writer.append(to_arrow(messages_from(STEP, 100)))
    writer.flush()
    crash = tmp_path / "crash"
    shutil.copytree(path, crash)
    writer.close()

    (note,) = read_notes(LocalFiles(), notes_path(str(crash)))
    assert note.header.index_count == (STEP + 100) * PER_MESSAGE + 1
    check_store(crash, messages_from(0, STEP + 100), STEP + 100, LARGE)


def test_after_a_note_that_could_not_be_written_the_index_is_whole(tmp_path: Path) -> None:
    class NoNotes(FaultyPosix):
        def pwrite(self, descriptor: int, data: object, offset: int) -> None:
            if self._path(descriptor).endswith("index-notes"):
                self.plan = Plan(Kind.ERROR, self.count + 1)
            super().pwrite(descriptor, data, offset)  # type: ignore[arg-type]

    writer = open_large(tmp_path / "s", NoNotes())
    writer.append(to_arrow(messages_from(0, STEP)))
    with pytest.raises(WriteFailedError, match="index-notes"):
        writer.flush()
    writer.close()

    assert read_notes(LocalFiles(), notes_path(str(tmp_path / "s"))) == []
    check_index(tmp_path / "s", read_log(tmp_path / "s"), LARGE)


def test_notes_are_right_while_several_threads_flush_and_put(tmp_path: Path) -> None:
    index = IndexWriter(FileSet(Posix(), str(tmp_path)), f"{tmp_path}/index", LARGE)
    rng = np.random.default_rng(1)
    put = threading.Event()

    def flush_on() -> None:
        while not put.is_set():
            index.flush()

    threads = [threading.Thread(target=flush_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    for offset in range(150):
        index.begin_record()
        hashes = rng.integers(0, 2**31, 100, np.int32)
        index.put(hashes, np.full(100, offset), np.full(100, 1 + offset))
    put.set()
    for thread in threads:
        thread.join()
    index.flush()

    notes = read_notes(LocalFiles(), notes_path(str(tmp_path)))
    entries = np.frombuffer(index_file(tmp_path).read_bytes()[SLOTS_END:], INDEX_ENTRY)
    assert len(notes) == 2
    for note in notes:
        heads = np.zeros(LARGE.maxHashSlotNum, np.int64)
        counted = entries["key_hash"][1 : note.header.index_count].astype(np.int64)
        heads[counted % len(heads)] = np.arange(1, note.header.index_count)
        assert slots_sum(heads) == note.slots_sum
        assert note.header.hash_slot_count == np.count_nonzero(heads)


def test_few_entries_are_not_worth_a_note(tmp_path: Path) -> None:
    posix = FaultyPosix()
    with open_large(tmp_path / "s", posix) as writer:
        for message in MESSAGES[:20]:
            writer.append(to_arrow([message]))
            writer.flush()

    assert ("pwrite", notes_path(str(tmp_path / "s"))) not in posix.calls


def test_the_largest_note_fits_into_a_sector() -> None:
    most = 2**63 - 1
    header = IndexHeader(most, most, most, most, 2**31 - 1, 2**31 - 1)
    note = IndexNote(most, "9" * 19, 2**31 - 1, 2**31 - 1, header, 2**64 - 1, 2**32 - 1)

    assert len(note.encode()) == 512
    assert IndexNote.decode(note.encode()) == note


@pytest.mark.parametrize(
    "text", [b"[]", b"{}", b'{"header":{}}', b'{"header":[]}', b"\xff", b"null", b"1e999"]
)
def test_bytes_that_are_no_note_are_none(text: bytes) -> None:
    whole = f"{zlib.crc32(text):08x} ".encode() + text

    assert IndexNote.decode(whole) is None
    assert IndexNote.decode(text) is None
    assert IndexNote.decode(b"") is None
