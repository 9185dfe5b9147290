"""Stores that our own writer makes, for tests: small files, a clock that only we move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmqlog.commitlog_format.store import Store
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.store_writer import StoreWriter

START_MS = 1_700_000_000_000
SMALL = StoreSettings(
    mappedFileSizeCommitLog=16 * 1024,
    mappedFileSizeConsumeQueue=20 * 10,
    maxHashSlotNum=20,
    maxIndexNum=80,
    defaultTopicQueueNums=4,
)


class Clock:
    """Milliseconds that stand still until they are moved."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def open_writer(path: Path, settings: StoreSettings = SMALL, **further: Any) -> StoreWriter:
    """A writer without threads of its own whose clock stands still."""
    chosen: dict[str, Any] = {"background": False, "now_ms": Clock(), **further}
    return StoreWriter(path, settings, **chosen)


def batch(count: int, first: int = 0, topic: Any = "orders", **columns: Any) -> pa.RecordBatch:
    """Numbered messages with keys, tags and bodies of many lengths; ``columns`` replace them.

    ``topic`` is one for all, or a column.
    """
    numbers = range(first, first + count)
    found: dict[str, Any] = {
        "topic": [topic] * count if isinstance(topic, str) else topic,
        "body": [f"body {number} ".encode() + b"." * (number * 7 % 90) for number in numbers],
        "keys": [f"key-{number}" if number % 5 else f"key-{number} also-{number}"
                 for number in numbers],
        "tags": [("PAID", "CREATED", None)[number % 3] for number in numbers],
    }
    found.update(columns)
    return pa.RecordBatch.from_pydict(found)


def rows_of(path: Path, topic: str) -> list[dict[str, Any]]:
    """All rows of a topic as a reader gives them, in the order of the log."""
    store = Store(str(path))
    found = [row for read in store.read(topic) for row in read.to_pylist()]
    return sorted(found, key=lambda row: row["commitLogOffset"])


def files_below(path: Path, *folders: str) -> Iterator[tuple[str, bytes]]:
    """The names and bytes of all files below some folders of a store, sorted."""
    for folder in folders:
        for file in sorted((path / folder).rglob("*")):
            if file.is_file():
                yield str(file.relative_to(path)), file.read_bytes()
