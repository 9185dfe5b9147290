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

from rmqlog.commitlog_format.lag import group_lags
from rmqlog.commitlog_format.queue_view import QueueView
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.usage import stored_at, topic_usages
from rmqlog.spark_datasource.options import Options
from rmqlog.spark_datasource.schema import message_types
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


def table_types(options: Options) -> dict[str, DataType]:
    """The columns of the table that the options mean, of messages or of metadata."""
    name = options["metadata"]
    return METADATA_TYPES[name] if name is not None else message_types(options)


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
    for usage in topic_usages(store, _selected_views(store, options)):
        config = store.config.topics.get(usage.topic)
        yield (
            store.broker_name, usage.topic, usage.queue_count, usage.message_count, usage.size,
            usage.size / log_size, _time(usage.first_ms), _time(usage.last_ms),
            None if config is None else config.perm,
            None if config is None else list(config.attributes.items()),
        )


def _queues(store: Store, options: Options) -> Iterator[Row]:
    for view in _selected_views(store, options):
        first_ms = stored_at(store, view, view.min_offset) if len(view) else None
        last_ms = stored_at(store, view, view.max_offset - 1) if len(view) else None
        yield (
            store.broker_name, view.topic, view.queue_id, view.kind.value, view.min_offset,
            view.max_offset, view.tail.message_count, _time(first_ms), _time(last_ms),
        )


def _groups(store: Store, options: Options) -> Iterator[Row]:
    """Lag as a count, and as the age of the oldest unconsumed message behind the newest one."""
    selection = select_topics(store, options)
    for found in group_lags(store):
        if not _are_chosen(options) or selection.includes(found.topic):
            yield (
                store.broker_name, found.group, found.topic, found.queue_id,
                found.consumer_offset, found.max_offset, found.lag,
                _time(found.oldest_unconsumed_ms), found.age_ms,
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
    for key in sorted({*store.files.queues, *store.tail}):
        if not _are_chosen(options) or selection.includes(key.topic):
            yield store.queue_view(key)


def _are_chosen(options: Options) -> bool:
    return options.topics is not None or options["topicsPattern"] is not None


def _time(milliseconds: int | None) -> datetime | None:
    """A moment; ``None`` for none, and for one that is beyond the calendar."""
    if milliseconds is None:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
