"""Index files for tests, made put by put as IndexFile.java does it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rmqlog.commitlog_format.hashing import index_hash
from rmqlog.commitlog_format.layout import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT
from rmqlog.writer.index_writer import IndexFileWriter
from rmqlog.writer.posix import Posix
from rmqlog.writer.segments import FileSet


@dataclass
class IndexFileModel:
    """The content of an index file, changed by :meth:`put`, or by hand to damage it."""

    slot_count: int = 5
    entry_limit: int = 20
    header: np.ndarray = field(init=False)
    slots: np.ndarray = field(init=False)
    entries: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.header = np.zeros(1, INDEX_HEADER)
        self.header["index_count"] = 1
        self.slots = np.zeros(self.slot_count, INDEX_SLOT)
        self.entries = np.zeros(self.entry_limit, INDEX_ENTRY)

    def put(self, topic: str, key: str, physical_offset: int, store_ms: int) -> bool:
        """putKey, in its order; ``False`` when the file is full."""
        header = self.header[0]
        number = int(header["index_count"])
        if number >= self.entry_limit:
            return False
        key_hash = index_hash(topic, key)
        slot = key_hash % self.slot_count
        previous = int(self.slots[slot])
        begin_ms = int(header["begin_timestamp"])
        time_diff_s = max(0, (store_ms - begin_ms) // 1000) if begin_ms > 0 else 0
        self.entries[number] = (key_hash, physical_offset, time_diff_s, previous)
        self.slots[slot] = number
        if number == 1:
            header["begin_physical_offset"] = physical_offset
            header["begin_timestamp"] = store_ms
        header["hash_slot_count"] += previous == 0
        header["index_count"] = number + 1
        header["end_physical_offset"] = physical_offset
        header["end_timestamp"] = store_ms
        return True

    def roll(self) -> IndexFileModel:
        """The next file, whose header begins with where this one ends."""
        following = IndexFileModel(self.slot_count, self.entry_limit)
        for end in ("physical_offset", "timestamp"):
            following.header[f"begin_{end}"] = following.header[f"end_{end}"] = self.header[
                f"end_{end}"
            ]
        return following

    def content(self) -> bytes:
        """The file's bytes."""
        return self.header.tobytes() + self.slots.tobytes() + self.entries.tobytes()

    def write(self, directory: Path, name: str = "20260101000000000") -> str:
        """Write the file and return its path."""
        path = directory / name
        path.write_bytes(self.content())
        return str(path)


def open_with_wild_slot(folder: Path, slot_count: int, entry_limit: int) -> IndexFileWriter:
    """The writer of an empty index file, named 1, whose first slot points outside of it."""
    path = folder / "1"
    IndexFileWriter.create(FileSet(Posix(), str(folder)), str(path), slot_count, entry_limit, None)
    with path.open("r+b") as file:
        file.seek(INDEX_HEADER.itemsize)
        file.write(np.array(entry_limit + 1, INDEX_SLOT).tobytes())
    return IndexFileWriter.open(
        FileSet(Posix(), str(folder)), str(path), slot_count, entry_limit
    )
