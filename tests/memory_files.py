"""A file system in memory: stores that are built and damaged a thousand times, and counted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.errors import SegmentExpiredError, TruncatedFileError
from rmqlog.commitlog_format.files import DirectoryEntry


@dataclass
class MemoryFile:
    """One file of :class:`MemoryFiles`; reads are counted there."""

    path: str
    data: bytes
    files: MemoryFiles

    def size(self) -> int:
        """Bytes in the file."""
        return len(self.data)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly so many bytes."""
        if offset < 0 or size < 0 or offset + size > len(self.data):
            raise TruncatedFileError("file is too short", self.path, offset, len(self.data), size)
        self.files.read_count += 1
        self.files.read_size += size
        return self.data[offset : offset + size]

    def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
        """Fill an array."""
        target[:] = np.frombuffer(self.read(offset, len(target)), np.uint8)

    def window(self, offset: int, size: int, *, sequential: bool = False) -> NDArray[np.uint8]:
        """A read-only array of so many bytes."""
        return np.frombuffer(self.read(offset, size), np.uint8)


@dataclass
class MemoryFiles:
    """Files by their path; the folders are those that the paths name."""

    content: dict[str, bytes] = field(default_factory=dict)
    read_count: int = 0
    read_size: int = 0

    def __post_init__(self) -> None:
        self._folders: dict[str, dict[str, DirectoryEntry]] = {}
        for path, data in self.content.items():
            folder, _, name = path.rpartition("/")
            entry = DirectoryEntry(name, len(data), is_file=True, is_directory=False, modified_ms=0)
            while True:
                self._folders.setdefault(folder, {})[entry.name] = entry
                if not folder:
                    break
                folder, _, name = folder.rpartition("/")
                entry = DirectoryEntry(name, 0, is_file=False, is_directory=True, modified_ms=0)

    def list(self, directory: str) -> list[DirectoryEntry]:
        """The names in a directory, sorted."""
        found = self._folders.get(directory.rstrip("/"))
        if found is None:
            raise SegmentExpiredError("no such file or directory", directory)
        return [found[name] for name in sorted(found)]

    def open(self, path: str) -> MemoryFile:
        """A file that is there."""
        if path not in self.content:
            raise SegmentExpiredError("no such file or directory", path)
        return MemoryFile(path, self.content[path], self)
