"""A run of equally sized files that together are one space of byte offsets.

CommitLog, ConsumeQueue and their kin are all stored so: each file is named by the offset of
its first byte, and the first one need not be 0 (MappedFileQueue.java).
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import SegmentExpiredError, StoreError, UnsafeFileError
from rmqlog.commitlog_format.files import DirectoryEntry, FileAccess, ReadableFile

_OFFSET_NAME = re.compile(rf"[0-9]{{{layout.OFFSET_NAME_DIGITS}}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One file of a run: where it is, and the offset of its first byte."""

    path: str
    start: int
    size: int
    modified_ms: int = 0

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Window:
    """Bytes of one file: ``data[0]`` is the byte at ``start`` of the run's offset space."""

    path: str
    start: int
    data: NDArray[np.uint8]

    @property
    def end(self) -> int:
        """The offset behind the last byte of the window."""
        return self.start + len(self.data)


class FileQueue:
    """Equally sized files in the order of their offsets; immutable.

    ``strays`` are names that do not belong there, for reports. Files may differ in size, although
    a broker refuses to start on such a store: a copy made while it ran may end in a short one.
    """

    def __init__(
        self, access: FileAccess, files: Sequence[SegmentFile], strays: Sequence[str] = ()
    ) -> None:
        self.access = access
        self.files = tuple(files)
        self.strays = tuple(strays)
        self.file_size = _common_size(self.files)

    @classmethod
    def open(cls, access: FileAccess, directories: Iterable[str]) -> FileQueue:
        """The run of files in one directory, or in several that share one offset space."""
        files: list[SegmentFile] = []
        strays: list[str] = []
        for directory in directories:
            for entry in access.list(directory):
                segment = _segment(directory, entry)
                if segment is None:
                    strays.append(f"{directory}/{entry.name}")
                elif segment.size:  # a broker killed while it made the next file leaves length 0
                    files.append(segment)
        files.sort(key=lambda file: file.start)
        return cls(access, files, strays)

    @cached_property
    def _starts(self) -> list[int]:
        return [file.start for file in self.files]

    @property
    def start(self) -> int:
        """The first offset that is there (0 for an empty run)."""
        return self.files[0].start if self.files else 0

    @property
    def end(self) -> int:
        """The offset behind the last file; how much of it is used, the content tells."""
        return self.files[-1].end if self.files else 0

    def file_of(self, offset: int) -> SegmentFile:
        """The file that holds an offset; ``SegmentExpiredError`` when there is none."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0 or offset >= self.files[index].end:
            folder = os.path.dirname(self.files[0].path) if self.files else ""
            raise SegmentExpiredError(
                "no file holds this offset", folder, offset,
                found=f"files for {self.start} to {self.end}", expected=offset,
            )
        return self.files[index]

    def handle(self, file: SegmentFile) -> ReadableFile:
        """The file, open."""
        return self.access.open(file.path)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes of one file."""
        file = self.file_of(offset)
        return self.handle(file).read(offset - file.start, size)

    def window(
        self, offset: int, size: int, *, sequential: bool = False
    ) -> Window:
        """Up to ``size`` bytes from ``offset`` on, cut at the end of its file."""
        file = self.file_of(offset)
        length = min(size, file.end - offset)
        data = self.handle(file).window(offset - file.start, length, sequential=sequential)
        return Window(file.path, offset, data)

    def windows(
        self, start: int, stop: int, size: int, *, sequential: bool = True
    ) -> Iterator[Window]:
        """The bytes from ``start`` to ``stop`` in windows of at most ``size``, file by file."""
        position = start
        while position < stop:
            window = self.window(position, min(size, stop - position), sequential=sequential)
            yield window
            position = window.end


def _segment(directory: str, entry: DirectoryEntry) -> SegmentFile | None:
    if not _OFFSET_NAME.fullmatch(entry.name):
        return None
    if not entry.is_file:
        # Left out as a stray, it would be a hole, and the answer short.
        raise UnsafeFileError(
            "a link, a folder or a device has the name of a segment", f"{directory}/{entry.name}",
            expected="a plain file",
        )
    start = int(entry.name)
    if start + entry.size >= 2**63:
        return None
    return SegmentFile(f"{directory}/{entry.name}", start, entry.size, entry.modified_ms)


def _common_size(files: Sequence[SegmentFile]) -> int:
    """The size that the files share: the distance of their names, else of most of them."""
    if not files:
        return 0
    gaps = [after.start - before.start for before, after in pairwise(files)]
    votes = Counter(gap for gap in gaps if gap > 0)
    votes.update(file.size for file in files)
    return max(votes, key=lambda size: (votes[size], size))


def check_contiguous(queue: FileQueue) -> list[StoreError]:
    """What is wrong with a run: files that overlap, gaps between them, wrong sizes."""
    sizes = [
        StoreError(
            "file of another size than the rest", file.path,
            found=file.size, expected=queue.file_size,
        )
        for file in queue.files if file.size != queue.file_size
    ]
    places = [
        StoreError(
            "file does not begin where the one before it ends", after.path,
            found=after.start, expected=before.end,
        )
        for before, after in pairwise(queue.files) if before.end != after.start
    ]
    return sizes + places
