"""Messages that consumers do not see yet: delayed ones, timers, and half messages.

They wait in topics of the broker's own and name the topic that they are meant for. What is
still waiting follows from the files alone: the delay offsets in ``config/``, and whether the
real topic has the message already (ScheduleMessageService, TimerMessageStore,
TransactionalMessageServiceImpl).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.lookup import find_by_key
from rmqlog.commitlog_format.store import Store

_COLUMNS = (
    "queueId", "queueOffset", "commitLogOffset", "storeTimestamp", "tagsCode", "uniqKey", "tags",
    "keys", "properties",
)
_OP_SEPARATOR = ","
#: Between topic and uniq key in TIMER_DEL_UNIQKEY; before 5.3 the key stands alone.
_DELETE_KEY_SEPARATOR = "+"

Row = dict[str, Any]


class PendingKind(Enum):
    """Why a message waits."""

    DELAYED = "delayed"
    TIMER = "timer"
    HALF = "half"


class TransactionState(Enum):
    """What became of a half message; discarded ones were checked too often without an answer."""

    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """A message that waits. ``topic`` and ``queue_id`` are where it will go.

    ``due_ms`` is ``None`` for half messages, ``state`` for all others. ``check_count`` is how
    often the broker has asked its producer. Offsets are those of the waiting record.
    """

    kind: PendingKind
    topic: str
    queue_id: int
    due_ms: int | None
    state: TransactionState | None
    check_count: int
    stored_ms: int
    queue_offset: int
    commit_log_offset: int
    uniq_key: str | None
    tags: str | None
    keys: str | None


def pending_messages(store: Store, *, include_ended: bool = False) -> Iterator[PendingMessage]:
    """Everything that waits; with ``include_ended`` also transactions that have ended."""
    yield from _delayed(store)
    yield from _timers(store)
    for message in _half_messages(store):
        if include_ended or message.state is TransactionState.OPEN:
            yield message


def _delayed(store: Store) -> Iterator[PendingMessage]:
    """Messages at or behind the delay offset of their level; the tags code is the due time."""
    delivered = store.config.delay_offsets
    for row in _rows(store, layout.SCHEDULE_TOPIC):
        level = row["queueId"] + 1
        if row["queueOffset"] >= delivered.get(level, 0):
            yield _pending(PendingKind.DELAYED, row, due_ms=row["tagsCode"])


def _timers(store: Store) -> Iterator[PendingMessage]:
    """Timers whose real topic does not have their message, and that were not taken back."""
    newest: dict[str, Row] = {}
    deleted: set[str] = set()
    for row in _rows(store, layout.TIMER_TOPIC):
        properties = row["properties"]
        if layout.PROPERTY_TIMER_DELETE in properties:
            key = properties[layout.PROPERTY_TIMER_DELETE]
            deleted |= {key, key.rpartition(_DELETE_KEY_SEPARATOR)[2]}
        else:
            # A timer beyond the wheel's days is put again, with the same uniq key.
            newest[row["uniqKey"] or f"@{row['commitLogOffset']}"] = row
    delivered = {
        found["uniqKey"]: found["commitLogOffset"]
        for found in _real_messages(store, newest.values())
    }
    for key, row in newest.items():
        is_delivered = delivered.get(key, -1) > row["commitLogOffset"]
        if key not in deleted and not is_delivered:
            yield _pending(
                PendingKind.TIMER, row,
                due_ms=_whole_number(row["properties"].get(layout.PROPERTY_TIMER_OUT)),
            )


def _half_messages(store: Store) -> Iterator[PendingMessage]:
    """Each transaction once, by the newest copy of its half message: checks put it again."""
    copies: dict[str, list[Row]] = {}
    for row in _rows(store, layout.TRANSACTION_HALF_TOPIC):
        copies.setdefault(row["uniqKey"] or f"@{row['commitLogOffset']}", []).append(row)
    checked = store.config.consumer_offsets.get(
        (layout.TRANSACTION_HALF_TOPIC, layout.TRANSACTION_GROUP), {}
    )
    ended = set(_ended_offsets(store))
    newest = [rows[-1] for rows in copies.values()]
    committed = {
        found["preparedTransactionOffset"]
        for found in _real_messages(store, newest)
        if found["sysFlag"] & layout.TRANSACTION_MASK == layout.SysFlag.TRANSACTION_COMMIT
    }
    for rows in copies.values():
        last = rows[-1]
        if any(row["commitLogOffset"] in committed for row in rows):
            state = TransactionState.COMMITTED
        elif any((row["queueId"], row["queueOffset"]) in ended for row in rows):
            state = TransactionState.ROLLED_BACK
        elif last["queueOffset"] < checked.get(last["queueId"], 0):
            state = TransactionState.DISCARDED
        else:
            state = TransactionState.OPEN
        yield _pending(PendingKind.HALF, last, state=state)


def _ended_offsets(store: Store) -> Iterator[tuple[int, int]]:
    """The queue and queue offset of every half message that an op message names."""
    if layout.TRANSACTION_OP_TOPIC not in store.topics:
        return
    for batch in store.read(layout.TRANSACTION_OP_TOPIC, columns=("queueId", "body")):
        for row in batch.to_pylist():
            for text in row["body"].decode("ascii", "replace").split(_OP_SEPARATOR):
                if text.isdigit():
                    yield row["queueId"], int(text)


def _real_messages(store: Store, rows: Iterable[Row]) -> Iterator[Row]:
    """The messages in the real topics of some rows that have their uniq keys."""
    by_topic: dict[str, list[str]] = {}
    for row in rows:
        topic = row["properties"].get(layout.PROPERTY_REAL_TOPIC, "")
        if row["uniqKey"] is not None:
            by_topic.setdefault(topic, []).append(row["uniqKey"])
    columns = ("uniqKey", "commitLogOffset", "sysFlag", "preparedTransactionOffset")
    for topic in by_topic.keys() & set(store.topics):
        for batch in find_by_key(store, topic, by_topic[topic], columns):
            yield from batch.to_pylist()


def _rows(store: Store, topic: str) -> Iterator[Row]:
    """The messages of a topic of the broker's own, in queue order; none where it is not used."""
    if topic not in store.topics:
        return
    for batch in store.read(topic, columns=_COLUMNS):
        for row in batch.to_pylist():
            yield {**row, "properties": dict(row["properties"])}


def _pending(
    kind: PendingKind, row: Row, *, due_ms: int | None = None,
    state: TransactionState | None = None,
) -> PendingMessage:
    properties = row["properties"]
    return PendingMessage(
        kind=kind,
        topic=properties.get(layout.PROPERTY_REAL_TOPIC, ""),
        queue_id=_whole_number(properties.get(layout.PROPERTY_REAL_QUEUE_ID)) or 0,
        due_ms=due_ms,
        state=state,
        check_count=_whole_number(properties.get(layout.PROPERTY_TRANSACTION_CHECKS)) or 0,
        stored_ms=round(row["storeTimestamp"].timestamp() * 1000),
        queue_offset=row["queueOffset"],
        commit_log_offset=row["commitLogOffset"],
        uniq_key=row["uniqKey"],
        tags=row["tags"],
        keys=row["keys"],
    )


def _whole_number(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 18):
        return None
    return int(text)
