"""Notes of how much of the last index file is on disk, so that a crash costs what was dirty.

A slot of an index file is overwritten in place, so after a crash it may lead to an entry that
never reached the disk. A note in ``<store>/rmqlog``, which brokers ignore, is written after a
flush: which file, its header, a sum over all its slots, and a checksum of its last entries. By it
recovery (:mod:`rmqlog.writer.index_rollback`) can take back just what came later, and tell
whether it got back what was there.

There are two notes, each in a sector of its own, written in turn: when one is torn, or is ahead
of a log that lost its end, the one before it holds.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import deque
from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import SegmentExpiredError, StoreError
from rmqlog.commitlog_format.files import FileAccess, LocalFiles, ReadableFile
from rmqlog.commitlog_format.index_file import IndexHeader
from rmqlog.commitlog_format.layout import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT
from rmqlog.writer.posix import Posix

_NOTE_COUNT = 2
#: Apart by the largest sector, so that a torn one takes no other with it.
_NOTE_DISTANCE = 4096
#: A note has this size: what every disk writes whole or not at all.
_NOTE_SIZE = 512
_CRC_DIGITS = 8
#: A note costs a sync, so it is written after so many entries, or so many bytes of log.
_STEP_COUNT = 4096
_STEP_SIZE = 16 * 1024 * 1024
#: In a file with room for few entries the step is this part of them.
_STEP_PART = 16
#: At least so many bytes of entries are compared: all that share a sector with later ones.
_TAIL_SIZE = 4096
#: Slots and entries are summed up in pieces that stay in the processor's cache.
_PIECE_COUNT = 1 << 15


@dataclass(frozen=True, slots=True)
class IndexNote:
    """What is on disk of one index file: ``header`` and everything it counts.

    ``number`` rises from note to note. ``slots_sum`` is of all slots (:func:`slots_sum`),
    ``tail_crc`` of the last entries (:func:`tail_range`).
    """

    number: int
    file_name: str
    slot_count: int
    entry_count: int
    header: IndexHeader
    slots_sum: int
    tail_crc: int

    def encode(self) -> bytes:
        """The bytes of a note: a checksum, then JSON."""
        text = json.dumps(asdict(self), separators=(",", ":")).encode()
        padded = text.ljust(_NOTE_SIZE - _CRC_DIGITS - 2) + b"\n"
        return f"{zlib.crc32(padded):0{_CRC_DIGITS}x} ".encode() + padded

    @classmethod
    def decode(cls, content: bytes) -> IndexNote | None:
        """The note in these bytes; ``None`` where there is none that is whole."""
        crc, text = content[:_CRC_DIGITS], content[_CRC_DIGITS + 1 :]
        if crc != f"{zlib.crc32(text):0{_CRC_DIGITS}x}".encode():
            return None
        try:
            members = json.loads(text)
            header = IndexHeader(**members.pop("header"))
            note = cls(header=header, **members)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        numbers = [
            *asdict(header).values(),
            *(getattr(note, field.name) for field in fields(cls)
              if field.name not in ("file_name", "header")),
        ]
        is_typed = isinstance(note.file_name, str) and all(type(n) is int for n in numbers)
        return note if is_typed else None


def notes_path(store_path: str) -> str:
    """Where the notes of a store are."""
    return f"{store_path}/{layout.RMQLOG_DIRECTORY}/{layout.INDEX_NOTES_FILE}"


def read_notes(access: FileAccess, path: str) -> list[IndexNote]:
    """The notes in a file, newest first; a missing or damaged file has none."""
    try:
        file = access.open(path)
        size = min(file.size(), (_NOTE_COUNT - 1) * _NOTE_DISTANCE + _NOTE_SIZE)
        content = file.read(0, size)
    except StoreError:
        return []
    starts = range(0, len(content), _NOTE_DISTANCE)
    notes = [IndexNote.decode(content[start : start + _NOTE_SIZE]) for start in starts]
    return sorted(filter(None, notes), key=lambda note: note.number, reverse=True)


def slots_sum(heads: NDArray[np.integer], first_slot: int = 0) -> int:
    """A sum over slots that differs when any of them does: each counts by a factor of its own.

    Empty slots count nothing, and a sum follows changes without a look at the other slots.
    """
    total = 0
    for start in range(0, len(heads), _PIECE_COUNT):
        piece = heads[start : start + _PIECE_COUNT].astype(np.uint64)
        slots = np.arange(first_slot + start, first_slot + start + len(piece), dtype=np.uint64)
        total += _weighted(slots, piece)
    return total % 2**64


def entries_sum(entries: NDArray[np.void], first_number: int, slot_count: int) -> int:
    """By how much entries changed the sum of the slots: each took the place of its previous."""
    total = 0
    for start in range(0, len(entries), _PIECE_COUNT):
        piece = entries[start : start + _PIECE_COUNT]
        hashes = piece["key_hash"].astype(np.int64)
        numbers = np.arange(first_number + start, first_number + start + len(piece))
        gained = (numbers - piece["previous"]).astype(np.uint64)
        slots = hashes - hashes // slot_count * slot_count
        total += _weighted(slots.astype(np.uint64), gained)
    return total % 2**64


def _weighted(slots: NDArray[np.uint64], values: NDArray[np.uint64]) -> int:
    """Values times pseudo-random factors of their slots (the finaliser of splitmix64)."""
    first, second = map(np.uint64, layout.SLOT_WEIGHT_FACTORS)
    factors = (slots + np.uint64(1)) * first
    factors ^= factors >> np.uint64(30)
    factors *= second
    factors ^= factors >> np.uint64(27)
    factors *= values
    return int(factors.sum(dtype=np.uint64))


def entry_position(slot_count: int, number: int) -> int:
    """Where an entry of an index file is."""
    slots_size = slot_count * INDEX_SLOT.itemsize
    return INDEX_HEADER.itemsize + slots_size + number * INDEX_ENTRY.itemsize


def tail_range(slot_count: int, index_count: int) -> tuple[int, int]:
    """Where the entries are that a note has a checksum of: the last ones it counts."""
    stop = entry_position(slot_count, index_count)
    return max(entry_position(slot_count, 0), stop - stop % _TAIL_SIZE - _TAIL_SIZE), stop


class SlotsTally:
    """The sum of one index file's slots, brought up to date from its entries.

    Entries are only appended, so another thread may put more meanwhile.
    """

    def __init__(self, slot_count: int, index_count: int = 1, total: int = 0) -> None:
        self.slot_count = slot_count
        self._index_count = index_count
        self._total = total
        #: What is known of entries without a look at them: the first one, how many, the growth.
        self._known: deque[tuple[int, int, int]] = deque()

    def note_growth(self, first_number: int, count: int, growth: int) -> None:
        """Note by how much entries change the sum, for when they count."""
        self._known.append((first_number, count, growth))

    def advance(self, file: ReadableFile, index_count: int) -> int:
        """The sum when the file had so many entries.

        They are copied piece by piece: through the writer's map they would fill its memory.
        """
        self._add_known(index_count)
        piece = np.empty(min(_PIECE_COUNT, index_count - self._index_count), INDEX_ENTRY)
        while self._index_count < index_count:
            entries = piece[: index_count - self._index_count]
            position = entry_position(self.slot_count, self._index_count)
            file.read_into(position, entries.view(np.uint8))
            self._total += entries_sum(entries, self._index_count, self.slot_count)
            self._index_count += len(entries)
        self._total %= 2**64
        return self._total

    def _add_known(self, index_count: int) -> None:
        while self._known and sum(self._known[0][:2]) <= index_count:
            first_number, count, growth = self._known.popleft()
            if first_number == self._index_count:
                self._index_count += count
                self._total += growth


class IndexNotes:
    """Writes the notes of a store, each after the flush that it is about."""

    def __init__(self, posix: Posix, path: str) -> None:
        self._posix = posix
        self._path = path
        self._exists = os.path.exists(path)
        self._number = max((note.number for note in read_notes(LocalFiles(), path)), default=0)
        self._last: IndexNote | None = None

    def find(
        self, file_name: str, array: NDArray[np.uint8], slot_count: int, index_count: int
    ) -> IndexNote | None:
        """The newest note that holds of a file, whose bytes are given; the next one spares it."""
        for note in read_notes(LocalFiles(), self._path):
            is_of_file = (note.file_name, note.slot_count) == (file_name, slot_count)
            if is_of_file and 1 < note.header.index_count <= index_count:
                start, stop = tail_range(slot_count, note.header.index_count)
                if zlib.crc32(array[start:stop].tobytes()) == note.tail_crc:
                    self._last = note
                    return note
        return None

    def due_note(
        self, path: str, header: IndexHeader, entry_count: int, tally: SlotsTally
    ) -> IndexNote | None:
        """The note that a file is on disk with this header; ``None`` while it is not time for
        another one."""
        file_name = os.path.basename(path)
        if not self._is_due(file_name, header, entry_count):
            return None
        try:
            file = LocalFiles().open(path)
        except SegmentExpiredError:
            # A broker that tries to start beside us removes the last index file before it looks
            # at the lock. Of a file without a name there is nothing to note.
            return None
        total = tally.advance(file, header.index_count)
        start, stop = tail_range(tally.slot_count, header.index_count)
        return IndexNote(
            self._next_number(), file_name, tally.slot_count, entry_count, header, total,
            zlib.crc32(file.read(start, stop - start)),
        )

    def write(self, note: IndexNote) -> None:
        """Put a note on disk."""
        self._posix.mkdir(os.path.dirname(self._path))
        descriptor = self._posix.open(self._path, create=True)
        try:
            place = note.number % _NOTE_COUNT
            self._posix.pwrite(descriptor, note.encode(), place * _NOTE_DISTANCE)
            self._posix.fsync(descriptor)
        finally:
            self._posix.close(descriptor)
        if not self._exists:
            self._posix.fsync_directory(os.path.dirname(self._path))
            self._exists = True
        self._number = note.number
        self._last = note

    def _is_due(self, file_name: str, header: IndexHeader, entry_count: int) -> bool:
        """Whether so much has come since the last note that another one is worth its sync."""
        count, end = 1, header.begin_physical_offset
        if self._last is not None and self._last.file_name == file_name:
            count, end = self._last.header.index_count, self._last.header.end_physical_offset
        step = max(1, min(_STEP_COUNT, entry_count // _STEP_PART))
        is_far = header.end_physical_offset - end >= _STEP_SIZE
        return header.index_count > count and (is_far or header.index_count - count >= step)

    def _next_number(self) -> int:
        """A number that leads to the place that does not hold the last good note."""
        number = self._number + 1
        if self._last is not None and (number - self._last.number) % _NOTE_COUNT == 0:
            number += 1
        return number
