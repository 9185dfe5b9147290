"""Small jobs for a writer that is about to be killed: eight ways to touch the files of a store.

Each appends numbered messages in batches and says through ``note`` what was acknowledged:
``["appended", n]`` when n messages are in the log, ``["flushed", n]`` when they are on disk.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from rmqlog.writer.posix import Posix
from rmqlog.writer.settings import FlushDiskType, StoreSettings
from rmqlog.writer.store_writer import StoreWriter

SEGMENT_SIZE = 64 * 1024
CLOCK_START_MS = 1_700_000_000_000
#: More than the margin of a checkpoint, so that it vouches for what was flushed before.
CLOCK_STEP_MS = 5_000
#: Files so small that a few messages fill several of them.
SETTINGS = StoreSettings(
    mappedFileSizeCommitLog=SEGMENT_SIZE,
    mappedFileSizeConsumeQueue=20 * 12,
    maxHashSlotNum=16,
    maxIndexNum=64,
    defaultTopicQueueNums=2,
)
SYNC_SETTINGS = SETTINGS.with_changes(flushDiskType=FlushDiskType.SYNC_FLUSH)
#: Each queue has ext files, of twelve units.
EXT_SETTINGS = SETTINGS.with_changes(
    enableConsumeQueueExt=True, mappedFileSizeConsumeQueueExt=20 * 12 + 10
)
POOL_SETTINGS = SETTINGS.with_changes(transientStorePoolEnable=True)

#: What a record needs besides its body with the texts of :func:`message`.
RECORD_OVERHEAD = 91 + len("orders") + len("KEYS:k-0000;TAGS:t0;UNIQ_KEY:;") + 32

Note = Callable[[object], None]


@dataclass(frozen=True)
class Message:
    """One message of a workload."""

    number: int
    size: int = 100
    topic: str = "orders"
    queue_id: int = 0

    @property
    def body(self) -> bytes:
        """Its bytes, which tell it from all others."""
        return f"message {self.number} ".encode().ljust(self.size, b".")

    @property
    def keys(self) -> str:
        """Its key."""
        return f"k-{self.number:04d}"

    @property
    def tags(self) -> str:
        """Its tag."""
        return f"t{self.number % 3}"

    @property
    def uniq_key(self) -> str:
        """Its client's id, of fixed length like all its texts."""
        return f"{self.number:032X}"


Batch = list[Message]


@dataclass(frozen=True)
class Workload:
    """``before`` is in the store, closed; ``batches`` are appended by the victim."""

    name: str
    batches: tuple[Batch, ...]
    before: tuple[Batch, ...] = ()

    @property
    def messages(self) -> list[Message]:
        """Everything in the order in which it is appended."""
        return [message for batch in (*self.before, *self.batches) for message in batch]

    @property
    def before_count(self) -> int:
        """Messages that are on disk before the victim starts."""
        return sum(map(len, self.before))

    def prepare(self, path: str, settings: StoreSettings = SETTINGS) -> None:
        """Make the store that the victim finds."""
        if self.before:
            append_all(path, Posix(), self.before, 0, lambda note: None, settings)

    def run(self, path: str, posix: Posix, note: Note, settings: StoreSettings = SETTINGS) -> None:
        """What the victim does."""
        append_all(path, posix, self.batches, self.before_count, note, settings)


def open_writer(path: str, posix: Posix, settings: StoreSettings = SETTINGS) -> StoreWriter:
    """A writer without threads, whose clock ticks at each look: every run does just the same."""
    clock = itertools.count(CLOCK_START_MS, CLOCK_STEP_MS)
    return StoreWriter(path, settings, posix=posix, background=False, now_ms=lambda: next(clock))


def append_all(
    path: str,
    posix: Posix,
    batches: tuple[Batch, ...],
    count: int,
    note: Note,
    settings: StoreSettings,
) -> None:
    """Append batches, each flushed before the next; then close."""
    writer = open_writer(path, posix, settings)
    try:
        for batch in batches:
            writer.append(to_arrow(batch))
            count += len(batch)
            is_sync = settings.flushDiskType is FlushDiskType.SYNC_FLUSH
            note(["flushed" if is_sync else "appended", count])
            if not is_sync:
                writer.flush()
                note(["flushed", count])
    finally:
        writer.close()


def to_arrow(batch: Batch) -> pa.RecordBatch:
    """The columns of a batch of messages."""
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([message.topic for message in batch], pa.string()),
            "queueId": pa.array([message.queue_id for message in batch], pa.int32()),
            "body": pa.array([message.body for message in batch], pa.binary()),
            "keys": pa.array([message.keys for message in batch], pa.string()),
            "tags": pa.array([message.tags for message in batch], pa.string()),
            "uniqKey": pa.array([message.uniq_key for message in batch], pa.string()),
        }
    )


def numbered(sizes: list[int], first: int = 0, **fields: object) -> Batch:
    """Messages with bodies of these sizes."""
    return [
        Message(first + i, size, **fields)  # type: ignore[arg-type]
        for i, size in enumerate(sizes)
    ]


def filling_segment(first: int, left: int = SEGMENT_SIZE, count: int = 8) -> Batch:
    """Messages that leave just the 8 bytes of a filler in a segment with ``left`` bytes."""
    size = (left - 8) // count
    last = left - 8 - (count - 1) * size
    return numbered([size - RECORD_OVERHEAD] * (count - 1) + [last - RECORD_OVERHEAD], first)


def _in_parts(batch: Batch, size: int) -> tuple[Batch, ...]:
    return tuple(batch[start : start + size] for start in range(0, len(batch), size))


def workloads() -> Iterator[Workload]:
    """The eight of them."""
    base = (numbered([200] * 5),)
    yield Workload("fits in a segment", _in_parts(numbered([300] * 6), 3))
    yield Workload("ends at the segment's end", (filling_segment(0),))
    yield Workload(
        "blank tail of 8 bytes", (numbered([100] * 2, 8),), before=(filling_segment(0),)
    )
    yield Workload("rolls over two segments", (numbered([9000] * 16),))
    yield Workload("new topic", (numbered([150] * 4, 5, topic="orders2"),), before=base)
    yield Workload("new queue", (numbered([150] * 14, 5, queue_id=1),), before=base)
    yield Workload("nothing to append", (), before=base)
    # The second batch begins a segment and the third goes on in it: the checkpoint then vouches
    # for the first segment, and recovery starts at the second.
    yield Workload("three batches in turn", _in_parts(numbered([7000] * 18, 5), 6), before=base)


WORKLOADS = tuple(workloads())
