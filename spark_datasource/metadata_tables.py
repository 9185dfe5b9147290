"""Tables about a store instead of its messages: topics, queues, consumer groups and files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from pyspark.sql.types import (
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    TimestampType,
)

from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.queue_view import QueueView
from rmqlog.commitlog_format.store import Store
from rmqlog.spark_datasource.options import Options
from rmqlog.spark_datasource.topics import select_topics

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
Row = tuple[Any, ...]

METADATA_TYPES: dict[str, dict[str, DataType]] = {
    "topics": {
        "brokerName": StringType(), "topic": StringType(), "queues": IntegerType(),
        "messages": LongType(), "bytes": LongType(), "share": DoubleType(),
        "firstTimestamp": TimestampType(), "lastTimestamp": TimestampType(),
        "perm": IntegerType(), "attributes": MapType(StringType(), StringType()),
    },
    "queues": {
        "brokerName": StringType(), "topic": StringType(), "queueId": IntegerType(),
        "kind": StringType(), "minOffset": LongType(), "maxOffset": LongType(),
        "notDispatched": LongType(),
        "firstTimestamp": TimestampType(), "lastTimestamp": TimestampType(),
    },
    "groups": {
        "brokerName": StringType(), "consumerGroup": StringType(), "topic": StringType(),
        "queueId": IntegerType(), "consumerOffset": LongType(), "maxOffset": LongType(),
        "lag": LongType(), "oldestUnconsumed": TimestampType(), "lagMs": LongType(),
    },
    "files": {
        "brokerName": StringType(), "kind": StringType(), "path": StringType(),
        "topic": StringType(), "queueId": IntegerType(), "startOffset": LongType(),
        "size": LongType(), "modified": TimestampType(), "entries": LongType(),
        "coverageStart": LongType(), "coverageEnd": LongType(),
    },
}


def metadata_rows(
    table: str, columns: Sequence[str], stores: Sequence[Store], options: Options
) -> tuple[Row, ...]:
    """The wanted columns of a table, of all stores; topics are chosen by the options."""
    places = [list(METADATA_TYPES[table]).index(name) for name in columns]
    return tuple(
        tuple(row[place] for place in places)
        for store in stores for row in _TABLES[table](store, options)
    )


def _topics(store: Store, options: Options) -> Iterator[Row]:
    log_size = max(store.end - store.start, 1)
    by_topic: dict[str, list[QueueView]] = {}
    for view in _selected_views(store, options):
        by_topic.setdefault(view.topic, []).append(view)
    for topic, views in by_topic.items():
        size = sum(map(_log_size, views))
        firsts = [_stored_at(store, view, view.min_offset) for view in views if len(view)]
        lasts = [_stored_at(store, view, view.max_offset - 1) for view in views if len(view)]
        config = store.config.topics.get(topic)
        yield (
            store.broker_name, topic, len(views), sum(map(len, views)), size, size / log_size,
            min((time for time in firsts if time is not None), default=None),
            max((time for time in lasts if time is not None), default=None),
            None if config is None else config.perm,
            None if config is None else list(config.attributes.items()),
        )


def _queues(store: Store, options: Options) -> Iterator[Row]:
    for view in _selected_views(store, options):
        yield (
            store.broker_name, view.topic, view.queue_id, view.kind.value, view.min_offset,
            view.max_offset, view.tail.message_count,
            _stored_at(store, view, view.min_offset) if len(view) else None,
            _stored_at(store, view, view.max_offset - 1) if len(view) else None,
        )


def _groups(store: Store, options: Options) -> Iterator[Row]:
    """Lag as a count, and as the age of the oldest unconsumed message behind the newest one."""
    selection = select_topics(store, options)
    for (topic, group), offsets in sorted(store.config.consumer_offsets.items()):
        if options.topics is not None and not selection.includes(topic):
            continue
        views = {
            key.queue_id: store.queue_view(key)
            for key in {*store.files.queues, *store.tail} if key.topic == topic
        }
        for queue_id, offset in sorted(offsets.items()):
            view = views.get(queue_id)
            if view is None:
                yield store.broker_name, group, topic, queue_id, offset, None, None, None, None
                continue
            lag = max(0, view.max_offset - offset)
            oldest = newest = None
            if lag and len(view):
                oldest = _stored_at(store, view, max(offset, view.min_offset))
                newest = _stored_at(store, view, view.max_offset - 1)
            age = None if oldest is None or newest is None else _milliseconds(newest - oldest)
            yield (
                store.broker_name, group, topic, queue_id, offset, view.max_offset, lag, oldest,
                0 if lag == 0 else age,
            )


def _files(store: Store, options: Options) -> Iterator[Row]:
    name = store.broker_name
    for file in store.log.files.files:
        yield (
            name, "commitlog", file.path, None, None, file.start, file.size,
            _time(file.modified_ms), None, file.start, min(file.end, max(store.end, file.start)),
        )
    for view in _selected_views(store, options):
        if view.files is not None:
            unit_size = view.files.unit_dtype.itemsize
            for file in view.files.files.files:
                yield (
                    name, "consumequeue", file.path, view.topic, view.queue_id, file.start,
                    file.size, _time(file.modified_ms), file.size // unit_size, None, None,
                )
    for index in store.index.files:
        header = index.header
        yield (
            name, "index", index.path, None, None, None, store.access.open(index.path).size(),
            _time(header.end_timestamp), max(header.index_count - 1, 0),
            header.begin_physical_offset, header.end_physical_offset,
        )


_TABLES: dict[str, Callable[[Store, Options], Iterator[Row]]] = {
    "topics": _topics, "queues": _queues, "groups": _groups, "files": _files,
}


def _selected_views(store: Store, options: Options) -> Iterator[QueueView]:
    """The queues of the wanted topics; of all topics, system ones too, when none is named."""
    selection = select_topics(store, options)
    is_chosen = options.topics is not None or options["topicsPattern"] is not None
    for key in sorted({*store.files.queues, *store.tail}):
        if not is_chosen or selection.includes(key.topic):
            yield store.queue_view(key)


def _log_size(view: QueueView) -> int:
    """How many bytes of the log a queue's messages take; all of its units are read for it."""
    return sum(int(units.sizes.sum()) for units in view.scan())


def _stored_at(store: Store, view: QueueView, queue_offset: int) -> datetime | None:
    """When a message was stored; ``None`` if its record cannot be read any more."""
    try:
        unit = next(view.scan(queue_offset, queue_offset + 1))
        return _time(store.log.record(int(unit.offsets[0])).store_timestamp)
    except (StoreError, StopIteration):
        return None


def _time(milliseconds: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def _milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)
