"""Counts, minima and maxima that the bounds of the queues answer without reading a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructType

from rmqlog.commitlog_format.queue_view import QueueView
from rmqlog.spark_datasource.access_paths import StorePaths
from rmqlog.spark_datasource.constraints import ANYTHING
from rmqlog.spark_datasource.predicates import columns_of
from rmqlog.spark_datasource.request import Aggregate, Request
from rmqlog.spark_datasource.row_filters import RowFilter
from rmqlog.spark_datasource.schema import QUEUE_COLUMNS, schema_of

#: What each queue's bounds tell of its messages.
_KNOWN_TYPES: dict[str, DataType] = {
    "brokerName": StringType(),
    "topic": StringType(),
    "queueId": IntegerType(),
    "queueOffset": LongType(),
}


def aggregate_schema(request: Request) -> StructType:
    """The schema of the answer; without fields when Spark must do it itself."""
    wanted = request.aggregate
    if wanted is None or not _can_answer(request, wanted):
        return StructType([])
    types = {name: _KNOWN_TYPES[name] for name in wanted.group_by}
    for index, (function, column) in enumerate(wanted.functions):
        kind = LongType() if function == "count" else _KNOWN_TYPES[str(column)]
        types[f"{function}{index}"] = kind
    return schema_of(types)


def aggregate_rows(wanted: Aggregate, stores: Iterable[StorePaths]) -> tuple[tuple[Any, ...], ...]:
    """One row for each group: its columns, then the functions in order."""
    groups: dict[tuple[Any, ...], list[tuple[dict[str, Any], range]]] = {}
    if not wanted.group_by:
        groups[()] = []
    for known, offsets in _queues(stores):
        key = tuple(known[name] for name in wanted.group_by)
        groups.setdefault(key, []).append((known, offsets))
    return tuple(
        (*key, *(_value(function, column, queues) for function, column in wanted.functions))
        for key, queues in groups.items()
    )


def _can_answer(request: Request, wanted: Aggregate) -> bool:
    options = request.options
    columns = {column for _, column in wanted.functions if column is not None}
    return (
        options["pushdown"]
        and options["metadata"] is None
        and not options["explodeKeys"]
        and not options["includeDeletedTopics"]
        and RowFilter.of(request).is_everything
        and set(wanted.group_by) <= set(QUEUE_COLUMNS)
        and columns <= _KNOWN_TYPES.keys()
        and columns_of(request.filters) <= set(QUEUE_COLUMNS)
    )


def _queues(stores: Iterable[StorePaths]) -> Iterator[tuple[dict[str, Any], range]]:
    """What is constant in each queue that has messages, and the offsets of those."""
    for paths in stores:
        for key, _ in paths.queue_keys():
            view: QueueView = paths.store.queue_view(key)
            paths.check_expired(view, ANYTHING)
            start, stop = paths.bounds.of_queue(paths.store.broker_name, view)
            if start < stop:
                paths.findings.queues_read += 1
                known = {
                    "brokerName": paths.store.broker_name, "topic": key.topic,
                    "queueId": key.queue_id,
                }
                yield known, range(start, stop)


def _value(
    function: str, column: str | None, queues: Sequence[tuple[dict[str, Any], range]]
) -> Any:
    if function == "count":
        return sum(len(offsets) for _, offsets in queues)
    if column == "queueOffset":
        values = [offsets[0] if function == "min" else offsets[-1] for _, offsets in queues]
    else:
        values = [known[str(column)] for known, _ in queues]
    return (min if function == "min" else max)(values, default=None)
