"""What a real broker makes of a store that we wrote: it serves, delivers, takes more, stops."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rmqlog.commitlog_format.store import Store

from .features import WE_WRITE, Comparisons
from .java_toolchain import LINE_4, Line
from .message_rows import (
    QueueRows,
    assert_same_rows,
    java_row,
    opened_queue_rows,
    pulled_queue_rows,
)
from .reading_ways import our_queue_rows, read_by_python
from .real_broker import RealBroker
from .traffic import await_until, max_offset, message
from .written_stores import SMALL_FILES

StartBroker = Callable[..., RealBroker]
Queue = tuple[str, int]

#: Topics that clients read.
SERVED_TOPICS = ("orders", "kinds", "batch", "trans", "contested", "gone")
#: Where delayed messages go that are due within seconds.
DELIVERY_QUEUE: Queue = ("kinds", 0)
OUR_FOLDER = "rmqlog"
# Open transactions are asked about within seconds; a key lookup is not capped.
SETTINGS = {
    **SMALL_FILES,
    "transactionCheckInterval": 2_000,
    "transactionTimeOut": 500,
    "maxMsgsNumBatch": 10_000,
}


@dataclass
class Service:
    """What was seen of one store: by us before and after, by a client between."""

    line: Line
    written: QueueRows
    bounds: dict[Queue, tuple[int, int]]
    due_count: int
    our_files: dict[str, bytes]
    #: What RocketMQ's own store found in a copy, system topics too.
    opened: dict[str, Any] = field(default_factory=dict)
    pulled: list[dict[str, Any]] = field(default_factory=list)
    #: The ids of the messages that a client found by each (topic, key).
    found: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    #: The queue offsets that new messages got.
    new_offsets: dict[Queue, int] = field(default_factory=dict)
    our_files_after: dict[str, bytes] = field(default_factory=dict)
    left: QueueRows = field(default_factory=dict)


def serve(
    line: Line,
    start_broker: StartBroker,
    store: Path,
    due_count: int = 0,
    watch: Callable[[RealBroker], None] = lambda broker: None,
    extended_topics: Sequence[str] = ("orders",),
) -> Service:
    """Let a broker serve a store, of which ``due_count`` delayed messages come due, and stop.

    Each queue of ``extended_topics`` gets a new message from a client.
    """
    seen = look_at(line, store, due_count)
    with TemporaryDirectory(dir=store.parent) as folder:
        copy = Path(shutil.copytree(store, Path(folder, "copy")))
        broker = start_broker(line, store, SETTINGS)
        (seen.opened,) = broker.driver.open_stores([copy], SMALL_FILES, messages=True)
    seen.pulled = broker.pull(seen.bounds)
    for topic, key in ids_by_key(seen.written):
        rows = broker.ask("query-key", topic=topic, key=key, maxCount=10_000)
        seen.found[topic, key] = {row["msgId"] for row in map(java_row, rows)}
    new = [queue for queue in seen.bounds if queue[0] in extended_topics]
    answers = broker.send([message(*queue, b"new", keys="new") for queue in new])
    seen.new_offsets = {
        queue: answer["queueOffset"] for queue, answer in zip(new, answers, strict=True)
    }
    due_end = seen.bounds[DELIVERY_QUEUE][1] + due_count
    await_until(lambda: max_offset(broker, *DELIVERY_QUEUE) >= due_end)
    watch(broker)
    time.sleep(1.0)  # anything that were delivered twice would be here by now
    broker.stop()
    seen.left = read_by_python(store)
    seen.our_files_after = files_of_ours(store)
    return seen


def look_at(line: Line, store: Path, due_count: int = 0) -> Service:
    """What we see in a store before a broker has been there."""
    snapshot = Store(str(store))
    bounds = {
        (view.topic, view.queue_id): (view.min_offset, view.max_offset)
        for view in snapshot.queues.values()
        if view.topic in SERVED_TOPICS
    }
    return Service(line, our_queue_rows(snapshot), bounds, due_count, files_of_ours(store))


def files_of_ours(store: Path) -> dict[str, bytes]:
    """The contents of the folder in a store that is not RocketMQ's."""
    folder = store / OUR_FOLDER
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def ids_by_key(written: QueueRows) -> dict[tuple[str, str], set[str]]:
    """The messages of every key in the topics that clients read."""
    ids: dict[tuple[str, str], set[str]] = {}
    for (topic, _), rows in written.items():
        for row in rows if topic in SERVED_TOPICS else ():
            for key in set((row["keys"] or "").split(" ")) - {""}:
                ids.setdefault((topic, key), set()).add(row["msgId"])
    return ids


def assert_pulled(seen: Service, pulled: list[dict[str, Any]]) -> None:
    """A client got every message of every queue, from the first one to the last."""
    theirs = pulled_queue_rows(pulled)
    for queue in pulled:
        place = (queue["topic"], queue["queueId"])
        first, end = seen.bounds[place]
        # Those that came due may have been delivered before the pull.
        latest = end + (seen.due_count if place == DELIVERY_QUEUE else 0)
        # 4.9 looks for the first message in a queue's first file only: 0 where none is left.
        is_unknown = seen.line == LINE_4 and first == end
        assert queue["minOffset"] == (0 if is_unknown else first), place
        assert end <= queue["maxOffset"] <= latest, place
        del theirs.get(place, [])[end - first :]
    expected = {queue: rows for queue, rows in seen.written.items() if queue in seen.bounds}
    assert_same_rows(expected, {queue: rows for queue, rows in theirs.items() if rows})


def assert_served(seen: Service, comparisons: Comparisons, situation: str) -> None:
    """The broker served all of the store, took new messages behind it and lost nothing."""
    assert_pulled(seen, seen.pulled)
    theirs = opened_queue_rows(seen.opened)
    assert_same_rows(seen.written, theirs)
    assert seen.found == ids_by_key(seen.written)
    assert seen.new_offsets == {queue: seen.bounds[queue][1] for queue in seen.new_offsets}
    assert seen.new_offsets

    for queue, rows in seen.written.items():
        assert_same_rows({queue: rows}, {queue: seen.left[queue][: len(rows)]})
    delivered = seen.left[DELIVERY_QUEUE][len(seen.written[DELIVERY_QUEUE]) :]
    assert [(row["body"], row["tags"]) for row in delivered] == [
        (b"soon", "SOON")
    ] * seen.due_count
    assert seen.our_files_after == seen.our_files

    comparisons.messages(WE_WRITE, seen.line, situation, situation, theirs)
    comparisons.count(WE_WRITE, seen.line, f"{situation}: keys", len(seen.found))
    comparisons.count(WE_WRITE, seen.line, f"{situation}: delivered when due", len(delivered))
