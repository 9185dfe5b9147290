"""One IndexFile: from the hash of ``topic#key`` to the physical offsets of its messages.

Every put writes its entry, then the slot, then the header (IndexFile.java, putKey). A slot holds
the number of its newest entry, an entry that of the next older one of the same slot, so along
a chain numbers strictly decrease, and each entry's hash belongs to the chain's slot. Whatever
breaks one of these rules is damage and raises: it may have cut off older entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.errors import CorruptIndexError
from rmqlog.commitlog_format.files import FileAccess, ReadableFile
from rmqlog.commitlog_format.gather import gather
from rmqlog.commitlog_format.layout import (
    I32,
    INDEX_BYTES_PER_SLOT,
    INDEX_ENTRY,
    INDEX_ENTRY_FIELDS,
    INDEX_HEADER,
    INDEX_SLOT,
)
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits
from rmqlog.commitlog_format.mapped_windows import intact

#: No record begins here: a bound that excludes nothing.
NO_END = 2**63 - 1

#: Fewer chains than this are walked one by one, which is then faster than in whole arrays.
_LOCKSTEP_COUNT = 24
#: The row of an array of chains that holds the number of the next entry.
_NUMBER = 1

#: Indexes of keys, and for each a physical offset.
Matches: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The header of an index file, in the words of IndexHeader.java; times in ms."""

    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    hash_slot_count: int
    #: One more than there are entries.
    index_count: int


class IndexFile:
    """An immutable view of one index file: entries put after it was opened are not reported.

    ``slot_count`` is not stored in the file. It follows from the file's size when there are
    four entries to a slot, as by default; otherwise it must be given (``maxHashSlotNum``).
    """

    def __init__(
        self,
        access: FileAccess,
        path: str,
        slot_count: int | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.path = path
        self._access = access
        self._limits = limits
        file = access.open(path)
        size = file.size()
        self.slot_count = _slot_count(path, size) if slot_count is None else slot_count
        self._entries_position = INDEX_HEADER.itemsize + self.slot_count * INDEX_SLOT.itemsize
        entries_size = size - self._entries_position
        if self.slot_count <= 0 or entries_size <= 0 or entries_size % INDEX_ENTRY.itemsize:
            raise CorruptIndexError(
                f"not the length of an index file of {self.slot_count} slots", path, found=size,
                expected=f"{self._entries_position} bytes and a multiple of {INDEX_ENTRY.itemsize}",
            )
        #: Entry 0 is never used, so this is one more than the file can hold.
        self.entry_limit = entries_size // INDEX_ENTRY.itemsize
        self.header = self._read_header(file)

    def lookup(self, key_hash: int, end_offset: int = NO_END) -> list[int]:
        """The physical offsets below ``end_offset`` under a hash, newest first, all of them.

        An offset can come twice: brokers index the last message again when they restart.
        """
        file = self._access.open(self.path)
        slot = key_hash % self.slot_count
        number = I32.unpack(file.read(self._slot_position(slot), INDEX_SLOT.itemsize))[0]
        return self._walk(file, key_hash, number, self.entry_limit, end_offset)

    def entries(self) -> NDArray[np.void]:
        """All entries in the order in which they were put; ``entries()[0]`` is entry 1."""
        size = INDEX_ENTRY.itemsize
        count = self.header.index_count - 1
        position = self._entries_position + size
        window_size = self._window_entry_count() * size
        file = self._access.open(self.path)
        found = np.empty(count, INDEX_ENTRY)
        content = found.view(np.uint8)
        for start in range(0, count * size, window_size):
            length = min(window_size, count * size - start)
            window = file.window(position + start, length, sequential=True)
            with intact(window):
                content[start : start + length] = window
        return found

    def lookup_many(
        self, key_hashes: NDArray[np.int64], end_offset: int = NO_END
    ) -> Matches:
        """All matches of many hashes: the index of the hash, and the physical offset.

        In the order of the hashes, and newest first for each.
        """
        file = self._access.open(self.path)
        count = len(key_hashes)
        heads = self._slot_values(file, key_hashes % self.slot_count)
        # One column for each chain: which key, the next entry, and what must be above it.
        chains = np.stack([np.arange(count), heads, np.full(count, self.entry_limit)])
        chains = self._going(chains, key_hashes)
        matches: list[Matches] = []
        # Chains lead to ever smaller numbers, so each window of the file is needed only once,
        # from the end to the front.
        while chains.shape[1]:
            low = max(1, int(chains[_NUMBER].max()) - self._window_entry_count() + 1)
            inside = chains[_NUMBER] >= low
            left = self._follow(file, low, chains[:, inside], key_hashes, end_offset, matches)
            chains = np.concatenate([chains[:, ~inside], left], axis=1)
        return sorted_matches(matches)

    def _follow(
        self,
        file: ReadableFile,
        low: int,
        chains: NDArray[np.int64],
        key_hashes: NDArray[np.int64],
        end_offset: int,
        matches: list[Matches],
    ) -> NDArray[np.int64]:
        """Follow chains through a window that begins with entry ``low``, in lock step.

        Adds to ``matches`` and returns the chains that go on in front of the window.
        """
        left = [np.empty((3, 0), np.int64)]
        if chains.shape[1] >= _LOCKSTEP_COUNT:
            size = (int(chains[_NUMBER].max()) - low + 1) * INDEX_ENTRY.itemsize
            window = file.window(self._entry_position(low), size)
        while chains.shape[1] >= _LOCKSTEP_COUNT:
            which, numbers, _ = chains
            with intact(window):
                entries = window.view(f"V{INDEX_ENTRY.itemsize}")[numbers - low].view(INDEX_ENTRY)
            matches.append(self._matches(entries, which, numbers, key_hashes[which], end_offset))
            older = np.stack([which, entries["previous"].astype(np.int64), numbers])
            older = self._going(older, key_hashes)
            inside = older[_NUMBER] >= low
            left.append(older[:, ~inside])
            chains = older[:, inside]
        for index, number, limit in chains.T.tolist():
            tail = self._walk(file, int(key_hashes[index]), number, limit, end_offset)
            matches.append((np.full(len(tail), index, np.int64), np.array(tail, np.int64)))
        return np.concatenate(left, axis=1)

    def _going(
        self, chains: NDArray[np.int64], key_hashes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The chains that are not at their end, each of which must lead to an older entry."""
        chains = chains[:, chains[_NUMBER] != 0]
        which, numbers, limits = chains
        bad = (numbers < 0) | (numbers >= limits)
        if bad.any():
            first = int(np.argmax(bad))
            slot = int(key_hashes[which[first]]) % self.slot_count
            raise self._bad_link(slot, int(numbers[first]), int(limits[first]))
        return chains

    def _matches(
        self,
        entries: NDArray[np.void],
        which: NDArray[np.int64],
        numbers: NDArray[np.int64],
        key_hashes: NDArray[np.int64],
        end_offset: int,
    ) -> Matches:
        """The entries that match, all of them checked as :meth:`_walk` does."""
        entry_hashes = entries["key_hash"].astype(np.int64)
        physical_offsets = entries["physical_offset"].astype(np.int64)
        slots = key_hashes % self.slot_count
        bad = (entry_hashes % self.slot_count != slots) | (entry_hashes < 0)
        bad |= physical_offsets < 0
        if bad.any():
            first = int(np.argmax(bad))
            raise self._bad_entry(
                int(slots[first]), int(numbers[first]),
                int(entry_hashes[first]), int(physical_offsets[first]),
            )
        found = entry_hashes == key_hashes
        found &= (numbers < self.header.index_count) & (physical_offsets < end_offset)
        return which[found], physical_offsets[found]

    def _walk(
        self, file: ReadableFile, key_hash: int, number: int, limit: int, end_offset: int
    ) -> list[int]:
        """Follow one chain from entry ``number``, which must be below ``limit``, to its end."""
        slot_count, index_count = self.slot_count, self.header.index_count
        slot = key_hash % slot_count
        found = []
        while number != 0:
            if not 0 < number < limit:
                raise self._bad_link(slot, number, limit)
            position = self._entry_position(number)
            entry_hash, physical_offset, _, previous = INDEX_ENTRY_FIELDS.unpack(
                file.read(position, INDEX_ENTRY.itemsize)
            )
            if entry_hash % slot_count != slot or entry_hash < 0 or physical_offset < 0:
                raise self._bad_entry(slot, number, entry_hash, physical_offset)
            # Entries that a broker added since the header was read are passed through only:
            # the older ones hang on them. A copy that was made file front to file end while
            # a broker ran looks the same, so a slot beyond the header's count is no damage,
            # and not an empty slot as it is for a broker, which would lose the older entries.
            is_known = number < index_count and physical_offset < end_offset
            if entry_hash == key_hash and is_known:
                found.append(physical_offset)
            limit, number = number, previous
        return found

    def _slot_values(
        self, file: ReadableFile, slots: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        positions = self._slot_position(0) + slots * INDEX_SLOT.itemsize
        return gather(file, positions, INDEX_SLOT, self._limits.window_size).astype(np.int64)

    def _slot_position(self, slot: int) -> int:
        return INDEX_HEADER.itemsize + slot * INDEX_SLOT.itemsize

    def _entry_position(self, number: int) -> int:
        return self._entries_position + number * INDEX_ENTRY.itemsize

    def _window_entry_count(self) -> int:
        return max(1, self._limits.window_size // INDEX_ENTRY.itemsize)

    def _read_header(self, file: ReadableFile) -> IndexHeader:
        fields = np.frombuffer(file.read(0, INDEX_HEADER.itemsize), INDEX_HEADER)[0].item()
        # A file that no put has reached yet may still say 0; brokers take it for 1.
        header = replace(IndexHeader(*fields), index_count=max(1, fields[-1]))
        if header.index_count > self.entry_limit:
            raise CorruptIndexError(
                "the header counts more entries than the file has room for", self.path, 0,
                header.index_count, f"at most {self.entry_limit}",
            )
        return header

    def _bad_link(self, slot: int, number: int, limit: int) -> CorruptIndexError:
        is_from_slot = limit == self.entry_limit
        position = self._slot_position(slot) if is_from_slot else self._entry_position(limit)
        source = f"slot {slot}" if is_from_slot else f"entry {limit} of slot {slot}"
        return CorruptIndexError(
            f"{source} points to an entry that cannot be older", self.path, position,
            number, f"0 to {limit - 1}",
        )

    def _bad_entry(
        self, slot: int, number: int, entry_hash: int, physical_offset: int
    ) -> CorruptIndexError:
        return CorruptIndexError(
            f"entry {number} does not belong into the chain of slot {slot}", self.path,
            self._entry_position(number),
            f"hash {entry_hash} and physical offset {physical_offset}",
            f"a hash of that slot among {self.slot_count}, and an offset of the log",
        )


def sorted_matches(matches: list[Matches]) -> Matches:
    """Matches in one pair of arrays, by key; what was newest first of a key stays so."""
    empty = np.empty(0, np.int64)
    which = np.concatenate([empty, *(keys for keys, _ in matches)])
    physical_offsets = np.concatenate([empty, *(offsets for _, offsets in matches)])
    order = np.argsort(which, kind="stable")
    return which[order], physical_offsets[order]


def _slot_count(path: str, size: int) -> int:
    slot_count, rest = divmod(size - INDEX_HEADER.itemsize, INDEX_BYTES_PER_SLOT)
    if rest or slot_count <= 0:
        raise CorruptIndexError(
            "not the length of an index file with four entries to a slot; for another ratio "
            "the slot count must be given",
            path, found=size,
            expected=f"{INDEX_HEADER.itemsize} + {INDEX_BYTES_PER_SLOT} for each slot",
        )
    return slot_count
