"""Writing a store: append with dispatch, and the rebuild of queues and index."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.harness import Case, Pair, seconds
from benchmarks.messages import TOPIC, message_batch, write_store
from benchmarks.workspace import Workspace
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.rebuild import rebuild
from rmqlog.writer.store_writer import StoreWriter


def _append_all(writer: StoreWriter, batches: Sequence[pa.RecordBatch]) -> None:
    """Append, and wait until queues and index have all of it."""
    for batch in batches:
        writer.append(batch)
    writer.dispatch()


def _append(batch_count: int, goal: float) -> Case:
    def prepare(workspace: Workspace) -> Pair:
        count = workspace.scaled(400_000, 100_000)
        batches = [message_batch(first, batch_count) for first in range(0, count, batch_count)]
        # The JVM stays for all cases, so it is warm after the first.
        warm_up = workspace.once("warm-up of putMessage", lambda: iter([200_000]))

        def ours() -> float:
            with StoreWriter(workspace.fresh("append-ours")) as writer:
                return seconds(lambda: _append_all(writer, batches))

        def reference() -> float:
            answer = workspace.java.request(
                "bench-put", store=str(workspace.fresh("append-java")), settings={},
                count=count, rounds=1, warmUpCount=next(warm_up, 20_000),
            )
            details["configuration"] = answer["configuration"]
            return float(answer["seconds"][0])

        details: dict[str, object] = {"messages": count, "batch": batch_count}

        def check() -> None:
            # The messages are those of every batch size.
            workspace.once("twins", lambda: _compare_twins(workspace, count))

        return Pair(ours, reference, check, details)

    return Case(
        f"append and dispatch, batches of {batch_count:,}",
        "RocketMQ's putMessage, one thread, queues and index built", goal, prepare,
    )


def _compare_twins(workspace: Workspace, count: int) -> None:
    """Both sides write the same messages: queues and index must hold the same."""
    ours = workspace.fresh("twin-ours")
    write_store(ours, count)
    java = workspace.fresh("twin-java")
    workspace.java.request(
        "bench-put", store=str(java), settings={}, count=count, rounds=1, warmUpCount=0
    )
    mine, theirs = Store(str(ours)), Store(str(java))
    for view in mine.queues_of(TOPIC):
        left = view.units(view.min_offset, view.max_offset)
        other = theirs.queue(TOPIC, view.queue_id)
        right = other.units(other.min_offset, other.max_offset)
        assert len(left) == len(right)
        assert np.array_equal(left.tags_codes, right.tags_codes)
    entries = [
        sum(file.header.index_count - 1 for file in store.index.files)
        for store in (mine, theirs)
    ]
    assert entries[0] == entries[1], entries
    for path in (ours, java):
        shutil.rmtree(path)


def _append_against_memory(workspace: Workspace) -> Pair:
    count = workspace.scaled(400_000, 100_000)
    batches = [message_batch(first, 10_000) for first in range(0, count, 10_000)]
    size = 0

    def ours() -> float:
        nonlocal size
        with StoreWriter(workspace.fresh("append-ours")) as writer:
            took = seconds(lambda: _append_all(writer, batches))
        size = Store(str(workspace.folder / "append-ours")).end
        return took

    def fill() -> float:
        return fill_mapped(workspace.fresh("fill") / "file", size)

    ours()
    return Pair(ours, fill, details={"messages": count, "bytes": size})


def fill_mapped(path: Path, size: int) -> float:
    """The machine's limit: numpy writes every byte of a freshly made mapped file."""
    import mmap
    import os

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(descriptor, 0, size)
        mapped = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        return seconds(lambda: mapped.fill(7))
    finally:
        os.close(descriptor)


def _rebuild(workspace: Workspace) -> Pair:
    count = workspace.scaled(2_100_000, 300_000)
    source = workspace.make("rebuild", lambda path: write_store(path, count))

    def log_alone(name: str) -> Path:
        path = workspace.fresh(name)
        (path / "commitlog").mkdir()
        for segment in (source / "commitlog").iterdir():
            (path / "commitlog" / segment.name).hardlink_to(segment)
        (path / "abort").touch()
        return path

    def ours() -> float:
        path = log_alone("rebuild-ours")
        return seconds(lambda: rebuild(path))

    def reference() -> float:
        path = log_alone("rebuild-java")
        answer = workspace.java.request("bench-rebuild", store=str(path), settings={})
        assert answer["units"] == count
        return float(answer["seconds"][0])

    def check() -> None:
        mine = Store(str(workspace.folder / "rebuild-ours"))
        assert sum(len(view) for view in mine.queues_of(TOPIC)) == count

    return Pair(ours, reference, check, {"messages": count})


CASES = [
    _append(10_000, 3.0),
    _append(1_000, 1.5),
    Case("append and dispatch, against memory", "numpy fills the same mapped bytes", 0.1,
         _append_against_memory),
    Case("rebuild of queues and index", "RocketMQ's own rebuild of the same log", 2.0, _rebuild),
]
