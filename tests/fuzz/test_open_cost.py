"""What opening a store costs is counted: it does not grow with the number of messages."""

from __future__ import annotations

import pytest
from built_stores import ROOT, build_store, numbered_records
from memory_files import MemoryFiles

from rmqlog.commitlog_format.store import Store

pytestmark = pytest.mark.fuzz


def opening_cost(count: int, segment_size: int) -> tuple[int, int, int]:
    """Reads and bytes for opening a store of so many messages and bounding all its queues; and
    how many segments it has."""
    built = build_store(numbered_records(count), segment_size)
    access = MemoryFiles(dict(built.files))
    store = Store(ROOT, access=access)
    assert sum(len(view) for view in store.queues.values()) == count
    return access.read_count, access.read_size, len(store.log.files.files)


@pytest.mark.parametrize(
    ("few", "many", "segment_size"),
    [(500, 20_000, 1 << 16), (2_000, 20_000, 1 << 22), (500, 5_000, 1 << 12)],
    ids=["in more segments", "all in one segment", "in ten times as many segments"],
)
def test_opening_reads_as_little_of_many_messages_as_of_few(
    few: int, many: int, segment_size: int
) -> None:
    few_reads, few_bytes, few_segments = opening_cost(few, segment_size)
    many_reads, many_bytes, many_segments = opening_cost(many, segment_size)

    assert (few_segments == many_segments) == (segment_size == 1 << 22)
    # Each queue is bisected within one file of fixed size; only which bytes are hit differs.
    assert many_reads <= few_reads + 16
    assert many_bytes <= few_bytes + segment_size  # at most one segment's unused tail
    assert many_bytes < 2 * segment_size + (1 << 17)
