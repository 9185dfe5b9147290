"""How far consumer groups are behind: in messages, and in age."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rmqlog.commitlog_format.queue_view import QueueView
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.commitlog_format.usage import stored_at


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far one group is behind in one queue.

    ``age_ms`` is how much earlier the oldest message that it has not consumed was stored than
    the queue's newest one: 0 without a lag, ``None`` if a record cannot be read any more.
    ``max_offset`` and ``lag`` are ``None`` for a queue that the store does not have.
    """

    group: str
    topic: str
    queue_id: int
    consumer_offset: int
    max_offset: int | None
    lag: int | None
    oldest_unconsumed_ms: int | None
    age_ms: int | None


def group_lags(store: Store) -> Iterator[QueueLag]:
    """The lag of every group in every queue that it has an offset for, from ``config/``."""
    known = {*store.files.queues, *store.tail}
    for (topic, group), offsets in sorted(
        store.config.consumer_offsets.items(), key=lambda item: (item[0][1], item[0][0])
    ):
        for queue_id, offset in sorted(offsets.items()):
            key = QueueKey(topic, queue_id)
            if key in known:
                yield _lag(store, store.queue_view(key), group, offset)
            else:
                yield QueueLag(group, topic, queue_id, offset, None, None, None, None)


def _lag(store: Store, view: QueueView, group: str, offset: int) -> QueueLag:
    lag = max(0, view.max_offset - offset)
    oldest = age = None
    if lag == 0:
        age = 0
    elif len(view):
        oldest = stored_at(store, view, max(offset, view.min_offset))
        newest = stored_at(store, view, view.max_offset - 1)
        if oldest is not None and newest is not None:
            age = newest - oldest
    return QueueLag(
        group, view.topic, view.queue_id, offset, view.max_offset, lag, oldest, age
    )
