"""Taking back what was put to an index file after its last note, and nothing else.

Entries are only appended, so those that a note counts are as they were. Slots are overwritten in
place: one that leads behind the counted entries led to the ``previous`` of what it leads to now.
Those later entries may be lost or garbage, so the slots that come out are compared with the sum
in the note; if it differs, they are found by reading the counted entries instead. If that does not
help either, or anything else is not as the note says, the note is not believed.
"""

from __future__ import annotations

import logging
import os
import zlib

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.files import FileAccess
from rmqlog.commitlog_format.hashing import index_hash
from rmqlog.commitlog_format.layout import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    INDEX_TAG_PREFIX,
    KEY_SEPARATOR,
)
from rmqlog.writer.index_notes import IndexNote, entry_position, slots_sum, tail_range
from rmqlog.writer.log_recovery import data_end, zero
from rmqlog.writer.posix import Posix

#: Counted entries are read in pieces of so many.
_PIECE_COUNT = 1 << 18

logger = logging.getLogger(__name__)

Slots = NDArray[np.int64]


def roll_back(
    posix: Posix, access: FileAccess, path: str, note: IndexNote, log: CommitLog, log_end: int
) -> bool:
    """Make an index file what a note says it was; false, and nothing changed, when that is not
    to be had. Killed at any point it can be run again."""
    try:
        noted = _NotedFile(access, path, note)
        if not noted.is_sound() or not _is_of_log(*noted.last_entry(), note, log, log_end):
            return False
        found = noted.read_slots()
        repaired = noted.slots_before(found)
    except StoreError as error:
        logger.info("%s: its note is not believed: %s", path, error)
        return False
    if repaired is None:
        return False
    _write(posix, path, note, found, repaired, noted.header_bytes())
    return True


def _is_of_log(
    key_hash: int, offset: int, note: IndexNote, log: CommitLog, log_end: int
) -> bool:
    """Whether the last entry is of a record that is still in the log, at its place.

    Then so are all before it: a log changes only at its end. Somebody else may have cut it and
    gone on.
    """
    if offset != note.header.end_physical_offset or not log.start <= offset < log_end:
        return False
    message = log.message(offset, check_crc=False)
    if message.store_timestamp_ms != note.header.end_timestamp:
        return False
    keys = {message.uniq_key, *(message.keys or "").split(KEY_SEPARATOR)}
    keys.add(INDEX_TAG_PREFIX + (message.tags or ""))
    return key_hash in {index_hash(message.topic, key) for key in keys if key}


class _NotedFile:
    """An index file after a crash, beside what a note says of it."""

    def __init__(self, access: FileAccess, path: str, note: IndexNote) -> None:
        self._file = access.open(path)
        self._slot_count = note.slot_count
        self._entry_count = note.entry_count
        self._index_count = note.header.index_count
        self._note = note

    def is_sound(self) -> bool:
        """Whether the file has its size, and its last counted entries are as they were."""
        if not 1 < self._index_count <= self._entry_count or self._slot_count < 1:
            return False
        if self._file.size() != entry_position(self._slot_count, self._entry_count):
            return False
        start, stop = tail_range(self._slot_count, self._index_count)
        return zlib.crc32(self._file.read(start, stop - start)) == self._note.tail_crc

    def last_entry(self) -> tuple[int, int]:
        """Hash and physical offset of the last entry that is counted."""
        entry = self._entries(self._index_count - 1, self._index_count)[0]
        return int(entry["key_hash"]), int(entry["physical_offset"])

    def header_bytes(self) -> bytes:
        return self._file.read(0, INDEX_HEADER.itemsize)

    def read_slots(self) -> Slots:
        """The slots as they are."""
        slots = np.empty(self._slot_count, INDEX_SLOT)
        self._file.read_into(INDEX_HEADER.itemsize, slots.view(np.uint8))
        return slots.astype(np.int64)

    def slots_before(self, found: Slots) -> Slots | None:
        """The slots as they were, known by their sum; ``None`` when they cannot be told."""
        for find in (self._followed, self._recounted):
            slots = find(found)
            if slots is not None and slots_sum(slots) == self._note.slots_sum:
                return slots
        return None

    def _followed(self, found: Slots) -> Slots | None:
        """The slots, each led back along its chain to a counted entry; reads later entries only.

        ``None`` where a chain does not lead back.
        """
        slots = found.copy()
        left = np.flatnonzero((slots < 0) | (slots >= self._index_count))
        if not len(left):
            return slots
        lowest, highest = int(slots[left].min()), int(slots[left].max())
        if lowest < 0 or highest >= self._entry_count:
            return None
        later = self._entries(self._index_count, highest + 1)
        while len(left):
            heads = slots[left]
            entries = later[heads - self._index_count]
            previous = entries["previous"].astype(np.int64)
            hashes = entries["key_hash"].astype(np.int64)
            is_link = (hashes % self._slot_count == left) & (previous >= 0) & (previous < heads)
            if not is_link.all():
                return None
            slots[left] = previous
            left = left[previous >= self._index_count]
        return slots

    def _recounted(self, _found: Slots) -> Slots | None:
        """The slots by the counted entries alone, all of which are read."""
        logger.info("%s: the entries behind its note are lost, so all are read", self._file.path)
        slots = np.zeros(self._slot_count, np.int64)
        for start in range(1, self._index_count, _PIECE_COUNT):
            stop = min(start + _PIECE_COUNT, self._index_count)
            hashes = self._entries(start, stop)["key_hash"].astype(np.int64)
            # Where a slot comes twice, numpy keeps the last value: the newest entry.
            slots[hashes % self._slot_count] = np.arange(start, stop)
        return slots

    def _entries(self, start: int, stop: int) -> NDArray[np.void]:
        entries = np.empty(stop - start, INDEX_ENTRY)
        self._file.read_into(entry_position(self._slot_count, start), entries.view(np.uint8))
        return entries


def _write(
    posix: Posix, path: str, note: IndexNote, found: Slots, repaired: Slots, header: bytes
) -> None:
    """Slots and header go to disk before the later entries are zeroed: until then, those lead
    back to what the slots were."""
    wanted = np.zeros(1, INDEX_HEADER)
    wanted[0] = tuple(getattr(note.header, name) for name in INDEX_HEADER.names or ())
    changed = np.flatnonzero(found != repaired)
    if len(changed) or wanted.tobytes() != header:
        slots_end = entry_position(note.slot_count, 0)
        descriptor = posix.open(path)
        try:
            posix.allocate(descriptor, 0, slots_end)
            mapping = posix.map(descriptor, os.path.getsize(path))
        finally:
            posix.close(descriptor)
        positions = INDEX_HEADER.itemsize + changed * INDEX_SLOT.itemsize
        values = repaired[changed].astype(INDEX_SLOT)
        try:
            posix.scatter(mapping, positions, INDEX_SLOT.itemsize, values)
            posix.store(mapping, 0, wanted.view(np.uint8))
            posix.sync(mapping, 0, slots_end)
        finally:
            mapping.close()
    start = entry_position(note.slot_count, note.header.index_count)
    stop = data_end(path, start)
    if stop > start:
        zero(posix, path, start, stop)
