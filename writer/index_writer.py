"""Index files as a broker fills them (IndexService, IndexFile.putKey), many entries at a time."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.compiled import kernels
from rmqlog.commitlog_format.errors import CorruptIndexError
from rmqlog.commitlog_format.index_file import IndexHeader
from rmqlog.commitlog_format.layout import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT
from rmqlog.writer.index_notes import IndexNotes, SlotsTally, notes_path, slots_sum
from rmqlog.writer.segments import FileSet, MappedFile
from rmqlog.writer.settings import StoreSettings

_RESERVE_STEP = 16 * 1024 * 1024
_TIME_DIFF_MAX = 2**31 - 1
#: Slots that were kept in memory are stored in pieces of so many.
_SLOTS_AT_ONCE = 1 << 20
#: From as many entries on as there are slots in so many, slots are kept in memory.
_SLOTS_PER_ENTRY_IN_BULK = 8


@dataclass(frozen=True, slots=True, eq=False)
class SlotOrder:
    """Entries in the order of their slots, those of one slot as they come: ``rows`` are their
    places among the entries, ``firsts`` where in this order each slot begins."""

    rows: NDArray[np.int64]
    slots: NDArray[np.int64]
    firsts: NDArray[np.int64]

    @classmethod
    def of(cls, hashes: NDArray[np.int32], slot_count: int) -> SlotOrder:
        """The order of entries with these hashes, at least one."""
        # Not %: numpy divides whole arrays by a constant many times faster.
        slots = hashes - hashes // slot_count * slot_count
        # By their low bits and then by their high ones: numpy sorts 16 bits by radix, which takes
        # half the time of one sort by all of them.
        rows = np.argsort(slots.astype(np.uint16), kind="stable")
        high = (slots >> 16).astype(np.uint8 if slot_count <= 1 << 24 else np.uint16)
        rows = rows[np.argsort(high[rows], kind="stable")]
        ordered = slots[rows].astype(np.int64)
        is_first = np.empty(len(rows), np.bool_)
        is_first[0] = True
        np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
        return cls(rows, ordered, np.flatnonzero(is_first))


class IndexFileWriter:
    """One index file: header, slots, and entries chained from newest to oldest."""

    def __init__(self, files: FileSet, path: str, slot_count: int, entry_count: int) -> None:
        self.path = path
        self.slot_count = slot_count
        self.entry_count = entry_count
        self._entries_position = INDEX_HEADER.itemsize + slot_count * INDEX_SLOT.itemsize
        size = self._entries_position + entry_count * INDEX_ENTRY.itemsize
        self._file = MappedFile(files, path, size, min(_RESERVE_STEP, size))
        self._flushed_count = 0
        #: The header as it was last stored: all of it changes at once.
        self._header: tuple[int, ...] = (0, 0, 0, 0, 0, 1)
        #: The sum of the slots, once somebody has counted them.
        self.tally: SlotsTally | None = None
        #: The slots as numbers, while much is put.
        self._heads: NDArray[np.int32] | None = None
        self.begin_timestamp = 0
        self.end_timestamp = 0
        self.begin_physical_offset = 0
        self.end_physical_offset = 0
        self.hash_slot_count = 0
        #: One more than there are entries: entry 0 does not exist.
        self.index_count = 1

    @classmethod
    def create(
        cls, files: FileSet, path: str, slot_count: int, entry_count: int,
        before: IndexFileWriter | None,
    ) -> IndexFileWriter:
        """A new file. It takes over where the one before it ended, as a broker's does."""
        made = cls(files, path, slot_count, entry_count)
        made._file.create()
        # Slots are written all over their area, so all of it is reserved first.
        made._file.reserve(0, made._entries_position)
        if before is not None:
            made.begin_physical_offset = made.end_physical_offset = before.end_physical_offset
            made.begin_timestamp = made.end_timestamp = before.end_timestamp
        made.tally = SlotsTally(slot_count)
        made._store_header()
        return made

    @classmethod
    def open(
        cls, files: FileSet, path: str, slot_count: int, entry_count: int
    ) -> IndexFileWriter:
        """A file that is there; its header is believed."""
        opened = cls(files, path, slot_count, entry_count)
        if os.path.getsize(path) != opened._file.size:
            raise CorruptIndexError(
                "index file has another size than configured", path,
                found=os.path.getsize(path), expected=opened._file.size,
            )
        header = opened._file.array[: INDEX_HEADER.itemsize].view(INDEX_HEADER)[0]
        opened.begin_timestamp = int(header["begin_timestamp"])
        opened.end_timestamp = int(header["end_timestamp"])
        opened.begin_physical_offset = int(header["begin_physical_offset"])
        opened.end_physical_offset = int(header["end_physical_offset"])
        opened.hash_slot_count = int(header["hash_slot_count"])
        opened.index_count = max(int(header["index_count"]), 1)
        opened._header = (*header.item()[:-1], opened.index_count)
        opened._flushed_count = opened.index_count
        opened._file.reserve(0, opened._entry_position(opened.index_count))
        return opened

    @property
    def room(self) -> int:
        """How many entries still fit."""
        return max(self.entry_count - self.index_count, 0)

    def put(
        self,
        hashes: NDArray[np.int32],
        physical_offsets: NDArray[np.int64],
        timestamps: NDArray[np.int64],
        order: SlotOrder | None = None,
    ) -> None:
        """Append entries, at most ``room`` of them, in the order given.

        ``order`` is their :class:`SlotOrder` where the caller has it already.
        """
        count = len(hashes)
        time_diffs = self._time_diffs(timestamps)
        loops = kernels(count)
        if loops is not None:
            entries, slots, numbers = self._chain_compiled(
                loops, hashes, physical_offsets, time_diffs
            )
        else:
            made = np.empty(count, INDEX_ENTRY)
            made["key_hash"] = hashes
            made["physical_offset"] = physical_offsets
            made["time_diff_s"] = time_diffs
            order = order or SlotOrder.of(hashes, self.slot_count)
            slots, numbers = self._chain(order, made)
            entries = made.view(np.uint8)
        self._file.store(self._entry_position(self.index_count), entries, len(entries))
        self._store_slots(slots, numbers)
        if self.index_count <= 1:
            self.begin_physical_offset = int(physical_offsets[0])
            self.begin_timestamp = int(timestamps[0])
        self.index_count += count
        self.end_physical_offset = int(physical_offsets[-1])
        self.end_timestamp = int(timestamps[-1])
        if self._heads is None:
            self._store_header()

    def begin_bulk(self) -> None:
        """Keep slots in memory until :meth:`end_bulk`, because most of them will change: what is
        put until then is not in the file's header either, so that nobody sees a half of it."""
        self._heads = self._slots.view(INDEX_SLOT).astype(np.int32)

    def end_bulk(self) -> None:
        """Store the slots, and then the header that counts what was put."""
        heads, self._heads = self._heads, None
        if heads is None or self._header[-1] == self.index_count:
            return
        for start in range(0, len(heads), _SLOTS_AT_ONCE):
            piece = heads[start : start + _SLOTS_AT_ONCE].astype(INDEX_SLOT).view(np.uint8)
            position = INDEX_HEADER.itemsize + start * INDEX_SLOT.itemsize
            self._file.store(position, piece, len(piece))
        self._store_header()

    def _store_slots(self, slots: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        """Let slots lead to other entries."""
        if self._heads is not None:
            self._heads[slots] = numbers
            return
        self._file.scatter(
            INDEX_HEADER.itemsize + slots * INDEX_SLOT.itemsize,
            INDEX_SLOT.itemsize,
            numbers.astype(INDEX_SLOT),
        )

    def _chain(
        self, order: SlotOrder, entries: NDArray[np.void]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Link each entry to the one before it in its slot; the slots that change, and to what.

        In the order of slots an entry's predecessor is its neighbour; the first of a slot
        continues the chain that the file has, the last one becomes the slot's value.
        """
        firsts = order.firsts
        numbers = order.rows + self.index_count
        all_heads = self._slots.view(INDEX_SLOT) if self._heads is None else self._heads
        heads = all_heads[order.slots[firsts]].astype(np.int64)
        # A slot that points outside of the entries is taken for an empty one.
        heads[(heads <= 0) | (heads > numbers[firsts])] = 0
        previous = np.empty(len(numbers), np.int64)
        previous[1:] = numbers[:-1]
        previous[firsts] = heads
        entries["previous"][order.rows] = previous
        self.hash_slot_count += int(np.count_nonzero(heads == 0))
        lasts = np.append(firsts[1:], len(numbers)) - 1
        return order.slots[lasts], numbers[lasts]

    def _chain_compiled(
        self,
        loops: ModuleType,
        hashes: NDArray[np.int32],
        physical_offsets: NDArray[np.int64],
        time_diffs: NDArray[np.int64],
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """The bytes of entries, the slots that change, and to what: in one pass, without a sort.

        Slots that are in memory the pass changes itself, and leaves none to be changed.
        """
        count = len(hashes)
        entries = np.empty(count * INDEX_ENTRY.itemsize + loops.SPARE, np.uint8)
        if self._heads is not None:
            empty_count, growth = loops.chain_entries_in_memory(
                loops.read_only(hashes), physical_offsets, time_diffs, self._heads,
                self.index_count, entries,
            )
            if self.tally is not None:
                self.tally.note_growth(self.index_count, count, int(growth))
            changed = numbers = np.empty(0, np.int64)
        else:
            places = np.full(2 << count.bit_length(), -1, np.int32)
            changed, numbers = np.empty((2, count), np.int64)
            changed_count, empty_count = loops.chain_entries(
                loops.read_only(hashes), physical_offsets, time_diffs,
                loops.read_only(self._slots), self.slot_count, self.index_count, places, entries,
                changed, numbers,
            )
            changed, numbers = changed[:changed_count], numbers[:changed_count]
        self.hash_slot_count += int(empty_count)
        return entries[: -loops.SPARE], changed, numbers

    @property
    def _slots(self) -> NDArray[np.uint8]:
        """The bytes of the slots, as they are in the file."""
        return self._file.array[INDEX_HEADER.itemsize : self._entries_position]

    def _time_diffs(self, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Seconds after the file's begin; the very first entry still counts from the begin that
        the file took over from the one before it."""
        if self.index_count > 1:
            return _seconds_after(self.begin_timestamp, timestamps)
        diffs = _seconds_after(int(timestamps[0]), timestamps)
        diffs[:1] = _seconds_after(self.begin_timestamp, timestamps[:1])
        return diffs

    def _entry_position(self, number: int) -> int:
        return self._entries_position + number * INDEX_ENTRY.itemsize

    def _store_header(self) -> None:
        fields = (
            self.begin_timestamp, self.end_timestamp, self.begin_physical_offset,
            self.end_physical_offset, self.hash_slot_count, self.index_count,
        )
        header = np.zeros(1, INDEX_HEADER)
        header[0] = fields
        self._file.store(0, header.view(np.uint8), INDEX_HEADER.itemsize)
        self._header = fields

    def count_slots(self, notes: IndexNotes) -> None:
        """Know the sum of the slots of a file that was opened, before anything is put.

        What no note knows to be on disk is synced with the next flush: a broker does not.
        """
        note = notes.find(
            os.path.basename(self.path), self._file.array, self.slot_count, self.index_count
        )
        if note is not None:
            self._flushed_count = note.header.index_count
            self.tally = SlotsTally(self.slot_count, self._flushed_count, note.slots_sum)
            return
        self._flushed_count = 1
        heads = self._slots.view(INDEX_SLOT)
        self.tally = SlotsTally(self.slot_count, self.index_count, slots_sum(heads))

    def flush(self, notes: IndexNotes | None = None) -> None:
        """All entries are on disk when it returns, before the header that counts them; then
        that is noted where ``notes`` are given."""
        header = IndexHeader(*self._header)
        count = header.index_count
        if self._flushed_count == count:
            return
        self._file.sync(self._entry_position(max(self._flushed_count, 1)),
                        self._entry_position(count))
        self._file.sync(0, self._entries_position)
        self._flushed_count = count
        if notes is not None and self.tally is not None:
            note = notes.due_note(self.path, header, self.entry_count, self.tally)
            if note is not None:
                notes.write(note)


def _seconds_after(begin_ms: int, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    if begin_ms <= 0:
        return np.zeros(len(timestamps), np.int64)
    if (timestamps == timestamps[:1]).all():  # those of a batch mostly are, and divisions are slow
        return np.repeat(_seconds_after_each(begin_ms, timestamps[:1]), len(timestamps))
    return _seconds_after_each(begin_ms, timestamps)


def _seconds_after_each(begin_ms: int, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    diffs = (timestamps - begin_ms) // 1000
    np.maximum(diffs, 0, out=diffs)
    return np.minimum(diffs, _TIME_DIFF_MAX, out=diffs)


class IndexWriter:
    """The index files of a store; entries go to the last one, and a full one is followed by a
    new one, named by the time at which it is made."""

    def __init__(self, files: FileSet, directory: str, settings: StoreSettings) -> None:
        self.files = files
        self.directory = directory
        self.slot_count = settings.maxHashSlotNum
        self.entry_count = settings.maxIndexNum
        self._last: IndexFileWriter | None = None
        self._unflushed: list[IndexFileWriter] = []
        #: Both the writer and its background thread may flush.
        self._flushing = threading.Lock()
        self._notes = IndexNotes(files.posix, notes_path(files.store_path))
        #: The latest message in a full, flushed file: what the checkpoint says of the index.
        self.safe_timestamp = 0
        self._is_in_bulk = False
        names = self._names()
        if names:
            self._last = IndexFileWriter.open(
                files, f"{directory}/{names[-1]}", self.slot_count, self.entry_count
            )
            self._unflushed.append(self._last)

    @property
    def end_physical_offset(self) -> int:
        """The last record that has an entry; older ones are not indexed again."""
        return self._last.end_physical_offset if self._last is not None else 0

    @property
    def entry_count_of_last(self) -> int:
        """Entries in the last file."""
        return self._last.index_count - 1 if self._last is not None else 0

    @contextlib.contextmanager
    def bulk(self, entry_count: int) -> Iterator[None]:
        """Announce that so many entries follow: if they are many, slots are stored once for each
        file, at its end. Left by an error, files keep what they had."""
        self._is_in_bulk = entry_count * _SLOTS_PER_ENTRY_IN_BULK >= self.slot_count
        if self._is_in_bulk and self._last is not None:
            self._last.begin_bulk()
        yield
        self._is_in_bulk = False
        if self._last is not None:
            self._last.end_bulk()

    def begin_record(self) -> None:
        """A broker looks for a file with room for every record, even for one without keys."""
        if self._last is None or self._last.room == 0:
            self._roll()
        elif self._last.tally is None:
            self._last.count_slots(self._notes)

    def put(
        self,
        hashes: NDArray[np.int32],
        physical_offsets: NDArray[np.int64],
        timestamps: NDArray[np.int64],
        order: SlotOrder | None = None,
    ) -> None:
        """Append entries in the order given, rolling to new files as they fill.

        ``order`` is of all of them; where they do not fit in one file it is of no use.
        """
        done = 0
        while done < len(hashes):
            if self._last is None or self._last.room == 0:
                self._roll()
            assert self._last is not None
            stop = min(done + self._last.room, len(hashes))
            part = slice(done, stop)
            self._last.put(
                hashes[part], physical_offsets[part], timestamps[part],
                order if stop - done == len(hashes) else None,
            )
            done = stop

    def _roll(self) -> None:
        before = self._last
        if before is not None:
            before.end_bulk()
        path = f"{self.directory}/{self._new_name()}"
        self._last = IndexFileWriter.create(
            self.files, path, self.slot_count, self.entry_count, before
        )
        if self._is_in_bulk:
            self._last.begin_bulk()
        self._unflushed.append(self._last)

    def _new_name(self) -> str:
        """The local time in milliseconds; later than every name that is there."""
        now = datetime.fromtimestamp(time.time())
        name = int(f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}")
        names = self._names()
        return str(max(name, int(names[-1]) + 1 if names else 0))

    def _names(self) -> list[str]:
        if not os.path.isdir(self.directory):
            return []
        return sorted(name for name in os.listdir(self.directory) if name.isdigit())

    def flush(self) -> None:
        """All entries are on disk when it returns; another thread may put more meanwhile."""
        with self._flushing:
            last = self._last
            for file in list(self._unflushed):
                file.flush(self._notes if file is last else None)
                if file is not last:  # it is full, and is not written again
                    self.safe_timestamp = max(self.safe_timestamp, file.end_timestamp)
                    self._unflushed.remove(file)
                    self.files.release(file.path)
