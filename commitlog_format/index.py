"""All index files of a store as one index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rmqlog.commitlog_format.binary_columns import string_array
from rmqlog.commitlog_format.errors import SegmentExpiredError
from rmqlog.commitlog_format.files import FileAccess
from rmqlog.commitlog_format.hashing import index_hash, index_hashes
from rmqlog.commitlog_format.index_file import NO_END, IndexFile, Matches, sorted_matches
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits


class Index:
    """The index files of one store, oldest first; an immutable, picklable snapshot.

    Hits are by hash: whether a record has the topic and the key, its reader must check.
    ``begin_ms`` and ``end_ms`` skip files by the store times in their headers. They are a hint
    for clocks that never step back; whoever gives them allows for steps.
    """

    def __init__(self, files: Sequence[IndexFile]) -> None:
        self.files = tuple(files)

    @classmethod
    def open(
        cls,
        access: FileAccess,
        directory: str,
        slot_count: int | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Index:
        """The files of a directory whose names are numbers; none when it is missing."""
        try:
            entries = access.list(directory)
        except SegmentExpiredError:
            entries = []
        return cls(
            [
                IndexFile(access, f"{directory}/{entry.name}", slot_count, limits)
                for entry in entries
                # Length 0: a broker was killed while it made the file.
                if entry.is_file and entry.size and entry.name.isascii() and entry.name.isdigit()
            ]
        )

    def lookup(
        self,
        topic: str,
        key: str,
        end_offset: int = NO_END,
        *,
        begin_ms: int | None = None,
        end_ms: int | None = None,
    ) -> list[int]:
        """The physical offsets below ``end_offset`` under a key's hash, newest first.

        All of them; one can come twice.
        """
        key_hash = index_hash(topic, key)
        found: list[int] = []
        for file in self._newest_first(begin_ms, end_ms):
            found += file.lookup(key_hash, end_offset)
        return found

    def lookup_many(
        self,
        topic: str,
        keys: Sequence[str],
        end_offset: int = NO_END,
        *,
        begin_ms: int | None = None,
        end_ms: int | None = None,
    ) -> Matches:
        """All matches of many keys: the index of the key, and the physical offset.

        In the order of the keys, and newest first for each.
        """
        key_hashes = index_hashes(topic, string_array(keys)).astype(np.int64)
        files = self._newest_first(begin_ms, end_ms)
        return sorted_matches([file.lookup_many(key_hashes, end_offset) for file in files])

    def coverage(self) -> list[tuple[int, int]]:
        """The ranges ``[start, stop)`` of physical offsets whose records are all indexed.

        The keys of one message are put one after another, and a crash, or the file being full,
        can come in between. So the record at a file's end is not counted as covered, nor the
        one at its begin (the keys before may be in a file that is gone), unless another file
        covers up to there: when the file before ends with the same record, the two together
        have all its keys.
        """
        ranges: list[tuple[int, int]] = []
        for begin, end in sorted(self._file_ranges()):
            if ranges and begin <= ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], max(ranges[-1][1], end))
            elif begin + 1 < end:
                ranges.append((begin + 1, end))
        return ranges

    def _file_ranges(self) -> Iterator[tuple[int, int]]:
        for file in self.files:
            header = file.header
            # A file that a broker has just begun may show its begin before its end.
            begin, end = header.begin_physical_offset, header.end_physical_offset
            if header.index_count > 1 and begin <= end:
                yield begin, end

    def _newest_first(self, begin_ms: int | None, end_ms: int | None) -> Iterator[IndexFile]:
        for file in reversed(self.files):
            header = file.header
            is_older = begin_ms is not None and header.end_timestamp < begin_ms
            is_newer = end_ms is not None and header.begin_timestamp >= end_ms
            if header.index_count > 1 and not is_older and not is_newer:
                yield file
