"""What planning reads: it costs by files, not by messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import InProcessScan
from numpy.typing import NDArray
from query_reference import leaf
from small_stores import batch, open_writer

from rmqlog.commitlog_format import store as store_module
from rmqlog.commitlog_format.files import DirectoryEntry, LocalFiles, ReadableFile
from rmqlog.writer.settings import StoreSettings

SETTINGS = StoreSettings(
    mappedFileSizeCommitLog=8 << 20, mappedFileSizeConsumeQueue=20 * 20_000,
    maxHashSlotNum=20_000, maxIndexNum=80_000,
)
FEW, MANY = 300, 9_000


@dataclass
class CountingFiles:
    """The local files, with reads and their bytes counted; a mapped window is a read too."""

    files: LocalFiles = field(default_factory=LocalFiles)
    read_count: int = 0
    read_size: int = 0

    def list(self, directory: str) -> list[DirectoryEntry]:
        """The names in a directory."""
        self.note(0)
        return self.files.list(directory)

    def open(self, path: str) -> ReadableFile:
        """A file whose reads are counted."""
        return CountedFile(self.files.open(path), self)

    def note(self, size: int) -> None:
        """Count one read."""
        self.read_count += 1
        self.read_size += size


@dataclass
class CountedFile:
    """One file of :class:`CountingFiles`."""

    file: ReadableFile
    counts: CountingFiles

    def size(self) -> int:
        """Bytes in the file."""
        return self.file.size()

    def read(self, offset: int, size: int) -> bytes:
        """Exactly so many bytes."""
        self.counts.note(size)
        return self.file.read(offset, size)

    def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
        """Fill an array."""
        self.counts.note(len(target))
        self.file.read_into(offset, target)

    def window(self, offset: int, size: int, *, sequential: bool = False) -> NDArray[np.uint8]:
        """A view of so many bytes."""
        self.counts.note(size)
        return self.file.window(offset, size, sequential=sequential)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Two stores with equally many files."""
    paths = {count: tmp_path_factory.mktemp("cost") / f"store-{count}" for count in (FEW, MANY)}
    for count, path in paths.items():
        with open_writer(path, SETTINGS) as writer:
            for first in range(0, count, 3_000):
                writer.append(batch(min(3_000, count - first), first))
    files = [sorted(str(file.relative_to(path)) for file in path.rglob("0*"))
             for path in paths.values()]
    assert files[0] == files[1]
    return paths


@pytest.mark.parametrize("tree", [
    None, leaf("eq", "tags", "PAID"), leaf("eq", "keys", "key-17"), leaf("ge", "queueOffset", 20),
    leaf("eq", "commitLogOffset", 0)])
def test_planning_reads_as_much_for_few_messages_as_for_many(
    stores: dict[int, Path], tree: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {}
    for number, path in stores.items():
        counting = CountingFiles()
        monkeypatch.setattr(store_module, "LocalFiles", lambda counting=counting: counting)
        InProcessScan(path, {"topic": "orders"}, tree).plan()
        counts[number] = counting
    # Thirty times the messages are five more steps of a bisection, of which each of the four
    # queues takes a few (its end, and what the index does not cover of it).
    assert counts[MANY].read_count <= counts[FEW].read_count + 5 * 4 * 5
    assert counts[MANY].read_size <= counts[FEW].read_size * 1.1
