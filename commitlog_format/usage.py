"""How much of the log each topic takes, from when to when, and what retention removes next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.queue_view import QueueView
from rmqlog.commitlog_format.segment import SegmentFile
from rmqlog.commitlog_format.store import Store

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class QueueUsage:
    """What one queue holds. Times are store times, ``None`` where no message is left."""

    view: QueueView
    size: int
    first_ms: int | None
    last_ms: int | None


@dataclass(frozen=True, slots=True)
class TopicUsage:
    """What one topic holds: messages, their bytes in the log, and when they were stored."""

    topic: str
    queue_count: int
    message_count: int
    size: int
    first_ms: int | None
    last_ms: int | None


@dataclass(frozen=True, slots=True)
class NextExpiry:
    """The segment that retention removes first, from when on, and whose bytes are in it."""

    segment: SegmentFile
    expires_ms: int
    size_by_topic: dict[str, int]


def queue_usage(store: Store, view: QueueView) -> QueueUsage:
    """The bytes of a queue's messages, by the sizes in its units, and its first and last time."""
    size = sum(int(units.sizes.sum()) for units in view.scan())
    if not len(view):
        return QueueUsage(view, size, None, None)
    first = stored_at(store, view, view.min_offset)
    return QueueUsage(view, size, first, stored_at(store, view, view.max_offset - 1))


def topic_usages(store: Store, views: Iterable[QueueView] | None = None) -> list[TopicUsage]:
    """The topics of some queues, or of all, by name; exact, by a pass over all their units."""
    by_topic: dict[str, list[QueueUsage]] = {}
    for view in store.queues.values() if views is None else views:
        by_topic.setdefault(view.topic, []).append(queue_usage(store, view))
    return [_total(topic, usages) for topic, usages in sorted(by_topic.items())]


def stored_at(store: Store, view: QueueView, queue_offset: int) -> int | None:
    """When a message of a queue was stored; ``None`` if its record cannot be read any more."""
    try:
        unit = next(view.scan(queue_offset, queue_offset + 1))
        return store.log.record(int(unit.offsets[0])).store_timestamp
    except (StoreError, StopIteration):
        return None


def next_expiry(store: Store, reserved_hours: int) -> NextExpiry | None:
    """What expires next, ``reserved_hours`` after its file's last change.

    ``None`` while there is one segment: a broker never removes the last.
    """
    segments = store.log.files.files
    if len(segments) < 2:
        return None
    oldest = segments[0]
    sizes: dict[str, int] = {}
    for view in store.queues.values():
        first, stop = view.log_range(oldest.start, oldest.end)
        size = sum(int(units.sizes.sum()) for units in view.scan(first, stop))
        if size:
            sizes[view.topic] = sizes.get(view.topic, 0) + size
    return NextExpiry(oldest, oldest.modified_ms + reserved_hours * _HOUR_MS, sizes)


def _total(topic: str, usages: list[QueueUsage]) -> TopicUsage:
    firsts = [usage.first_ms for usage in usages if usage.first_ms is not None]
    lasts = [usage.last_ms for usage in usages if usage.last_ms is not None]
    return TopicUsage(
        topic,
        len(usages),
        sum(len(usage.view) for usage in usages),
        sum(usage.size for usage in usages),
        min(firsts, default=None),
        max(lasts, default=None),
    )
