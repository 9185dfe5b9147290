"""Messages for commands: several queues in the order of the log, and one message as text."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from rich.cells import cell_len

from rmqlog.commands.output import (
    body_fields,
    body_preview,
    format_time,
    json_time,
    print_fields,
    print_line,
    printable,
)
from rmqlog.commitlog_format.queue_view import QueueView
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import QueueKey

Row = dict[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: How far back a broker's clock may have stepped; seeks by time allow for it.
_TIME_SLACK_MS = 60_000
_LINE_WIDTH = 80
_PREVIEW_WIDTH_MIN = 16
#: Beside a name of usual length.
_FIELD_PREVIEW_WIDTH = 52
#: Shown under names of their own.
_KNOWN_PROPERTIES = frozenset({"TAGS", "KEYS", "UNIQ_KEY"})
_TIME_COLUMNS = ("bornTimestamp", "storeTimestamp")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages of a topic are wanted; ``None`` is no bound."""

    topic: str
    queue_id: int | None = None
    offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tags: str | None = None

    def views(self, store: Store) -> list[QueueView]:
        """The queues that are meant."""
        if self.queue_id is None:
            return store.queues_of(self.topic)
        return [store.queue(self.topic, self.queue_id)]


def read_in_log_order(
    store: Store, wanted: Selection, starts: Mapping[QueueKey, int] | None = None
) -> Iterator[Row]:
    """The wanted messages of all queues in the order in which they were stored.

    ``starts`` are queue offsets to begin at instead of the selection's.
    """
    streams = [
        _read_queue(store, view, wanted, (starts or {}).get(view.key))
        for view in wanted.views(store)
    ]
    return heapq.merge(*streams, key=lambda row: row["commitLogOffset"])


def _read_queue(
    store: Store, view: QueueView, wanted: Selection, start: int | None
) -> Iterator[Row]:
    if start is None:
        start = wanted.offset
    stop = None
    if wanted.since_ms is not None:
        since = wanted.since_ms - _TIME_SLACK_MS
        start = max(start or 0, store.offset_by_time(view.topic, view.queue_id, since))
    if wanted.until_ms is not None:
        until = wanted.until_ms + _TIME_SLACK_MS
        stop = store.offset_by_time(view.topic, view.queue_id, until)
    for batch in store.read(view.topic, view.queue_id, start, stop, tags=wanted.tags):
        for row in batch.to_pylist():
            stored_ms = milliseconds(row["storeTimestamp"])
            is_late = wanted.since_ms is None or stored_ms >= wanted.since_ms
            if is_late and (wanted.until_ms is None or stored_ms < wanted.until_ms):
                yield row


def milliseconds(moment: datetime) -> int:
    """A time of a message as it is on disk."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def row_as_json(row: Row, zone: tzinfo | None, *, whole_body: bool) -> Row:
    """A message for JSON, under the columns' names."""
    fields = {name: value for name, value in row.items() if name != "body"}
    fields["properties"] = dict(row["properties"])
    for name in _TIME_COLUMNS:
        fields[name] = json_time(milliseconds(row[name]), zone)
    return {**fields, **body_fields(row["body"], is_whole=whole_body)}


def row_as_line(row: Row, zone: tzinfo | None, *, whole_body: bool) -> str:
    """A message on one line of 80 columns, unless its keys are long or its body wanted whole."""
    parts = [
        format_time(milliseconds(row["storeTimestamp"]), zone),
        f"{row['queueId']}:{row['queueOffset']}",
        row["tags"] or "-",
        row["keys"] or "-",
    ]
    line = "  ".join(map(printable, parts))
    room = max(_PREVIEW_WIDTH_MIN, _LINE_WIDTH - cell_len(line) - 2)
    return f"{line}  {body_preview(row['body'], None if whole_body else room)}".rstrip()


def print_message(row: Row, zone: tzinfo | None, *, whole_body: bool) -> None:
    """A message with everything that is known of it, a field a line."""
    body = row["body"]
    print_line(
        f"{printable(row['topic'])}  queue {row['queueId']} offset {row['queueOffset']}  "
        f"log offset {row['commitLogOffset']}"
    )
    known = [
        ("id", row["msgId"]),
        ("uniq key", row["uniqKey"]),
        ("keys", row["keys"]),
        ("tags", row["tags"]),
        ("stored", f"{format_time(milliseconds(row['storeTimestamp']), zone)} "
                   f"by {row['storeHost']}"),
        ("born", f"{format_time(milliseconds(row['bornTimestamp']), zone)} "
                 f"at {row['bornHost']}"),
        ("retries", str(row["reconsumeTimes"]) if row["reconsumeTimes"] else None),
        *((name, value) for name, value in row["properties"] if name not in _KNOWN_PROPERTIES),
        ("body", f"{len(body)} bytes: "
                 f"{body_preview(body, None if whole_body else _FIELD_PREVIEW_WIDTH)}"),
    ]
    print_fields(
        [(printable(name), printable(text)) for name, text in known if text is not None], "  "
    )
