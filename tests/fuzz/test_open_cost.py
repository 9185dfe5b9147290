"""What opening a store costs is counted: it does not grow with the number of messages."""

from __future__ import annotations

import pytest
from built_stores import ROOT, build_store, numbered_records
from memory_files import MemoryFiles

from rmqlog.commitlog_format.store import Store

pytestmark = pytest.mark.fuzz


def opening_cost(count: int) -> tuple[int, int]:
    """Reads and bytes for opening a store of so many messages and bounding all its queues."""
    built = build_store(numbered_records(count), 1 << 16)
    access = MemoryFiles(dict(built.files))
    store = Store(ROOT, access=access)
    assert sum(len(view) for view in store.queues.values()) == count
    return access.read_count, access.read_size


def test_opening_reads_as_little_of_many_messages_as_of_few() -> None:
    few_reads, few_bytes = opening_cost(500)
    many_reads, many_bytes = opening_cost(20_000)

    # Each queue is bisected within one file of fixed size; only which bytes are hit differs.
    assert many_reads <= few_reads + 16
    assert many_bytes <= few_bytes + (1 << 16)  # at most one segment's unused tail
