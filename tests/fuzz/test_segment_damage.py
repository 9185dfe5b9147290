"""Damaged segments: no message that was never there, and all that lies before the damage."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pyarrow as pa
import pytest
from bad_input import value_or_error
from built_stores import ROOT, BuiltStore, build_store, numbered_records, offset_name
from memory_files import MemoryFiles

from rmqlog.commitlog_format.errors import SegmentExpiredError, StoreError
from rmqlog.commitlog_format.message import encode_record
from rmqlog.commitlog_format.message_reader import ReadPolicy
from rmqlog.commitlog_format.store import Store

pytestmark = [pytest.mark.fuzz, pytest.mark.usefixtures("loops")]

CASE_COUNT = 2_000
#: Cases are spread over so many tests, so that one that fails is found again at once.
PART_COUNT = 8
#: Strict readers mostly say no at once: a part of the cases is enough for them.
STRICT_EVERY = 4
LOG = f"{ROOT}/commitlog"
SEGMENT_SIZE = 2048
SECTOR_SIZE = 512
COLUMNS = ("topic", "queueId", "queueOffset", "body", "commitLogOffset", "tags", "keys")
BUILT = build_store(numbered_records(40, topics=2, queues=1), SEGMENT_SIZE)
LOG_PATHS = sorted(path for path in BUILT.files if path.startswith(LOG))
LOG_SIZE = len(LOG_PATHS) * SEGMENT_SIZE

Log = bytearray


def overwrite(log: Log, dice: random.Random) -> None:
    """1 to 64 random bytes or runs of them."""
    for _ in range(dice.randint(1, 64)):
        size = dice.choice((1, 1, 2, 4, 8, 64))
        start = dice.randrange(LOG_SIZE - size)
        log[start : start + size] = dice.randbytes(size)


def punch_hole(log: Log, dice: random.Random) -> None:
    """A run of zeros, as a page that was never written leaves it."""
    size = dice.choice((1, 4, 88, SECTOR_SIZE, SEGMENT_SIZE))
    start = dice.randrange(LOG_SIZE - size)
    log[start : start + size] = bytes(size)


def swap_sectors(log: Log, dice: random.Random) -> None:
    """Two sectors in each other's place."""
    first, second = (
        place * SECTOR_SIZE for place in dice.sample(range(LOG_SIZE // SECTOR_SIZE), 2)
    )
    one = log[first : first + SECTOR_SIZE]
    log[first : first + SECTOR_SIZE] = log[second : second + SECTOR_SIZE]
    log[second : second + SECTOR_SIZE] = one


def swap_messages(log: Log, dice: random.Random) -> None:
    """Two records of one size in each other's place: whole, but not where they say they are."""
    first = dice.choice(BUILT.records)
    same_size = [each for each in BUILT.records if each.total_size == first.total_size]
    second = dice.choice(same_size)
    places = [
        slice(each.physical_offset, each.physical_offset + each.total_size)
        for each in (first, second)
    ]
    log[places[0]], log[places[1]] = log[places[1]], log[places[0]]


def rename_segment(_log: Log, _dice: random.Random) -> None:
    """Nothing in the bytes; the file's name is changed by the caller."""


DAMAGES: tuple[Callable[[Log, random.Random], None], ...] = (
    overwrite, punch_hole, swap_sectors, swap_messages, rename_segment,
)


class DamagedStore:
    """One case: the damaged store, and what must be read from it."""

    def __init__(self, built: BuiltStore, seed: int) -> None:
        dice = random.Random(seed)
        original = b"".join(built.files[path] for path in LOG_PATHS)
        log = bytearray(original)
        damage = dice.choice(DAMAGES)
        damage(log, dice)
        files = dict(built.files)
        for index, path in enumerate(LOG_PATHS):
            files[path] = bytes(log[index * SEGMENT_SIZE : (index + 1) * SEGMENT_SIZE])
        differing = (at for at in range(LOG_SIZE) if log[at] != original[at])
        self.first_damage = next(differing, LOG_SIZE)
        self.is_renamed = damage is rename_segment
        if self.is_renamed:
            path = dice.choice(LOG_PATHS)
            start = dice.choice((1, SEGMENT_SIZE // 2, 64 * SEGMENT_SIZE, 2**40))
            self.first_damage = min(start, int(path.rpartition("/")[2]))
            files[f"{LOG}/{offset_name(start)}"] = files.pop(path)
        self.access = MemoryFiles(files)
        self.records = {each.physical_offset: each for each in built.records}
        self.intact = {
            each.physical_offset for each in built.records
            if log[each.physical_offset :][: each.total_size] == encode_record(each)
        }

    def before_the_damage(self) -> set[int]:
        """The offsets of the records that end before the first damaged byte."""
        return {
            offset for offset, each in self.records.items()
            if offset + each.total_size <= self.first_damage
        }

    def open(self) -> Store:
        """The store as it is after the damage."""
        return Store(ROOT, access=self.access)

    def read(self, policy: ReadPolicy) -> set[int]:
        """The offsets of the messages that all queues give."""
        store = self.open()
        batches = (
            batch for topic in store.topics
            for batch in store.read(topic, columns=COLUMNS, policy=policy)
        )
        return self.checked_offsets(batches)

    def checked_offsets(self, batches: Iterable[pa.RecordBatch]) -> set[int]:
        """The offsets of rows, each compared with what was written, none of them twice.

        Only the body has a checksum: other fields are compared where the record is intact.
        """
        found: set[int] = set()
        for batch in batches:
            for row in batch.to_pylist():
                offset = row["commitLogOffset"]
                record = self.records[offset]
                assert offset not in found
                assert row["body"] == record.body
                if offset in self.intact:
                    place = (row["topic"].encode(), row["queueId"], row["queueOffset"])
                    assert place == (record.topic, record.queue_id, record.queue_offset)
                    assert (row["tags"], row["keys"]) == ("TagA", "k1")
                found.add(offset)
        return found


@pytest.mark.parametrize("part", range(PART_COUNT))
def test_what_is_read_was_written_and_nothing_before_the_damage_is_missing(
    part: int, seed: int
) -> None:
    first = seed * CASE_COUNT + part * (CASE_COUNT // PART_COUNT)
    lenient = ReadPolicy(drop_malformed=True, skip_expired=True)
    for case in range(first, first + CASE_COUNT // PART_COUNT):
        damaged = DamagedStore(BUILT, case)
        expected = damaged.before_the_damage()
        found = value_or_error(lambda: damaged.read(lenient))  # noqa: B023
        if isinstance(found, StoreError):
            assert damaged.is_renamed, f"case {case}: {found}"
        else:
            assert expected <= found, f"case {case}"
        if case % STRICT_EVERY == 0:
            check_strict_readers(damaged)


def check_strict_readers(damaged: DamagedStore) -> None:
    """Queues and log, read without leave to drop: an error, or everything."""
    expected = damaged.before_the_damage()
    for read in (
        lambda: damaged.checked_offsets(damaged.open().scan(COLUMNS)),
        lambda: damaged.read(ReadPolicy()),
    ):
        found = value_or_error(read)
        assert isinstance(found, StoreError) or expected <= found


def test_an_undamaged_store_is_read_completely() -> None:
    access = MemoryFiles(dict(BUILT.files))
    store = Store(ROOT, access=access)
    rows = [row for topic in store.topics for batch in store.read(topic) for row in batch["body"]]

    assert len(rows) == sum(batch.num_rows for batch in store.scan()) == len(BUILT.records) == 40
    assert len(LOG_PATHS) >= 3


def test_a_hole_of_zeros_in_the_middle_of_the_log_is_not_its_end() -> None:
    files = dict(BUILT.files)
    record = BUILT.records[20]
    path = f"{LOG}/{offset_name(record.physical_offset // SEGMENT_SIZE * SEGMENT_SIZE)}"
    start = record.physical_offset % SEGMENT_SIZE
    hole = bytes(record.total_size)
    files[path] = files[path][:start] + hole + files[path][start + len(hole) :]
    store = Store(ROOT, access=MemoryFiles(files))

    with pytest.raises(StoreError, match="unused space in the middle") as caught:
        list(store.scan())
    assert (caught.value.path, caught.value.offset) == (path, record.physical_offset)


def test_a_missing_segment_is_an_error_not_a_short_answer() -> None:
    files = dict(BUILT.files)
    del files[LOG_PATHS[1]]
    store = Store(ROOT, access=MemoryFiles(files))

    with pytest.raises(SegmentExpiredError):
        list(store.scan())
