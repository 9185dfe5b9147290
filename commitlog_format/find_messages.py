"""Finding messages by key or id in all topics of a store, and saying how it was done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.inner_batch import expand
from rmqlog.commitlog_format.lookup import TopicKeys, has_key
from rmqlog.commitlog_format.message_reader import messages_to_batch
from rmqlog.commitlog_format.store import Store

Row = dict[str, Any]
#: Called with how much is done and how much there is.
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Search:
    """Where to look: one topic or all of them, and deleted ones too if wanted.

    The counts are filled in while messages are found. ``progress`` is told how many bytes of
    the log were read for deleted topics.
    """

    store: Store
    topic: str | None = None
    include_deleted: bool = False
    progress: Progress | None = None
    found_count: int = 0
    scanned_count: int = 0
    found_by_offset: bool = False

    @property
    def covered_part(self) -> float:
        """Which part of the log the index covers, from 0 to 1."""
        start, end = self.store.start, self.store.end
        ranges = self.store.index.coverage()
        covered = sum(max(0, min(stop, end) - max(begin, start)) for begin, stop in ranges)
        return covered / (end - start) if end > start else 1.0

    def summary(self) -> str:
        """A sentence: how many were found, what the index covered, what was read instead."""
        messages = "1 message" if self.found_count == 1 else f"{self.found_count} messages"
        if self.found_by_offset:
            return f"{messages}, by offset id"
        # Cut off, not rounded: only what is covered whole is 100 %.
        percent = int(self.covered_part * 1000) / 10
        text = f"{messages}; the index covers {percent} % of the log"
        if self.scanned_count:
            text += f", {self.scanned_count} messages outside it were read"
        if self.include_deleted:
            text += ", and the whole log for deleted topics"
        return text


def find_everywhere(search: Search, key: str) -> Iterator[Row]:
    """Every message with a key, as a token of KEYS or as its uniq key, topic by topic."""
    store = search.store
    topics = store.topics if search.topic is None else [search.topic]
    if search.include_deleted:
        topics = [topic for topic in topics if topic in store.topics]
    for topic in topics:
        keys = TopicKeys(store, topic)
        search.scanned_count += sum(map(len, keys.uncovered))
        for batch in keys.find(key):
            yield from _counted(search, batch)
    if search.include_deleted:
        for batch in scan_deleted(store, search.topic, search.progress):
            yield from _counted(search, batch.filter(pa.array(has_key(batch, frozenset((key,))))))


def find_by_id(search: Search, msg_id: str) -> Iterator[Row]:
    """The message with an offset id; else those whose uniq key it is, which look alike."""
    try:
        message = search.store.message_by_id(msg_id)
    except StoreError:
        for row in find_everywhere(search, msg_id):
            if row["uniqKey"] == msg_id:
                yield row
            else:
                search.found_count -= 1
        return
    if search.topic in (None, message.topic):
        search.found_by_offset = True
        inner = expand(message, path=search.store.log.path_of(message.commit_log_offset))
        yield from _counted(
            search, messages_to_batch(inner, MESSAGE_COLUMNS, search.store.broker_name)
        )


def scan_deleted(
    store: Store, topic: str | None = None, progress: Progress | None = None
) -> Iterator[pa.RecordBatch]:
    """The records in the log whose topic has no queues any more, or those of one such topic.

    ``progress`` is called with the bytes of the log that were read and that there are.
    """
    known = pa.array(store.topics, pa.string())
    for batch in store.scan():
        wanted = pc.invert(pc.is_in(batch["topic"], known))
        if topic is not None:
            wanted = pc.and_(wanted, pc.equal(batch["topic"], topic))
        kept = batch.filter(wanted)
        if kept.num_rows:
            yield kept
        if progress is not None and batch.num_rows:
            progress(batch["commitLogOffset"][-1].as_py() - store.start, store.end - store.start)


def _counted(search: Search, batch: pa.RecordBatch) -> Iterator[Row]:
    search.found_count += batch.num_rows
    yield from batch.to_pylist()
