"""The store of a small shop: a day of orders, payments, shipments and clicks, made quickly.

What a real store has is there: tags, hot keys, delayed reminders, an open transaction, and a
consumer group that lags. The same seed gives the same shop.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqlog.commitlog_format.config_files import CONSUMER_OFFSETS
from rmqlog.writer.message_columns import NewMessage
from rmqlog.writer.posix import Posix
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.store_writer import StoreWriter

DAY_MS = 24 * 3_600_000
#: Appends of the day, one every five minutes: store times are as fine as this.
_APPEND_COUNT = 288
_SEED = 2026
_QUEUE_COUNT = 4
_CUSTOMER_COUNT = 5_000
#: Every order with a multiple of this number is the big customer's: a hot key.
_HOT_STEP = 50
#: Spreads orders over customers.
_SPREAD = 7_919
HOT_CUSTOMER = 7
_CITIES = np.array(["Berlin", "Hangzhou", "Lagos", "Lima", "Oslo", "Pune"])
#: Each topic's share of the messages, and its tags with their weights.
_TOPICS: dict[str, tuple[float, dict[str, float]]] = {
    "orders": (0.4, {"CREATED": 0.55, "PAID": 0.35, "SHIPPED": 0.08, "CANCELLED": 0.02}),
    "payments": (0.3, {"CARD": 0.7, "WALLET": 0.28, "REFUND": 0.02}),
    "shipments": (0.2, {"PACKED": 0.5, "SENT": 0.5}),
    "clicks": (0.1, {"VIEW": 0.9, "BUY": 0.1}),
}
REMINDER_TOPIC = "reminders"
_REMINDER_COUNT = 200
#: Levels 17 and 18: an hour and two.
_REMINDER_LEVELS = (17, 18)
LAGGING_GROUP = "billing"
_KEPT_UP_GROUP = "warehouse"
#: The group consumed so much of the orders and stopped.
_LAGGING_PART = 0.9
_SETTINGS = StoreSettings(
    mappedFileSizeCommitLog=64 * 1024 * 1024,
    maxHashSlotNum=500_000,
    maxIndexNum=2_000_000,
    defaultTopicQueueNums=_QUEUE_COUNT,
    brokerName="shop",
)


@dataclass(frozen=True, slots=True)
class Shop:
    """The store that was made: where, how many messages, and from when to when."""

    path: str
    message_count: int
    start_ms: int
    end_ms: int


def make_shop(path: str, message_count: int, now_ms: int) -> Shop:
    """Make the store in a directory that does not exist yet; its day ends at ``now_ms``."""
    clock = _Clock(now_ms - DAY_MS)
    sizes = _append_sizes(message_count - _REMINDER_COUNT - 1)
    with StoreWriter(path, _SETTINGS, now_ms=clock.read, background=False) as writer:
        for topic in (*_TOPICS, REMINDER_TOPIC):
            writer.create_topic(topic, _QUEUE_COUNT)
        for number, batch in enumerate(_batches(sizes, clock.start_ms)):
            clock.now_ms = clock.start_ms + (number + 1) * DAY_MS // _APPEND_COUNT
            writer.append(batch)
        clock.now_ms = now_ms
        writer.append(_reminders(now_ms))
        writer.prepare(
            NewMessage("orders", b'{"order": "order-open"}', tags="CREATED", keys="order-open"),
            producer_group="checkout",
        )
        _save_consumer_offsets(writer)
    return Shop(path, message_count, clock.start_ms, now_ms)


class _Clock:
    """The shop's time: the writer stamps messages with it."""

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.now_ms = start_ms

    def read(self) -> int:
        """The time now."""
        return self.now_ms


def _append_sizes(count: int) -> NDArray[np.int64]:
    """How many messages each append of the day has: quiet nights, busy evenings."""
    hours = np.linspace(0, 24, _APPEND_COUNT, endpoint=False)
    weights = 1.2 + np.sin((hours - 9) / 24 * 2 * np.pi) + 0.8 * np.exp(-((hours - 20) ** 2))
    ends = np.round(np.cumsum(weights) / weights.sum() * count).astype(np.int64)
    sizes: NDArray[np.int64] = np.diff(ends, prepend=0)
    return sizes


def _batches(sizes: NDArray[np.int64], start_ms: int) -> Iterator[pa.RecordBatch]:
    random = np.random.default_rng(_SEED)
    names = np.array(list(_TOPICS))
    shares = [share for share, _ in _TOPICS.values()]
    next_order = 0
    for number, count in enumerate(sizes.tolist()):
        topics = random.choice(len(names), count, p=shares)
        is_order = topics == 0
        orders = np.where(
            is_order, next_order + np.cumsum(is_order),
            random.integers(0, next_order + 1, count),
        )
        next_order += int(is_order.sum())
        born = start_ms + (number * DAY_MS + random.integers(0, DAY_MS, count)) // _APPEND_COUNT
        yield _batch(random, names[topics], orders, np.sort(born))


def _batch(
    random: np.random.Generator, topics: NDArray[np.str_], orders: NDArray[np.int64],
    born_ms: NDArray[np.int64],
) -> pa.RecordBatch:
    count = len(topics)
    customers = np.where(
        orders % _HOT_STEP == 0, HOT_CUSTOMER, orders * _SPREAD % _CUSTOMER_COUNT
    )
    order_keys = _joined("order-", orders)
    customer_keys = _joined("customer-", customers)
    body = _text(
        '{"order": "', order_keys, '", "customer": "', customer_keys,
        '", "city": "', pa.array(_CITIES[customers % len(_CITIES)]),
        '", "amount": ', _as_text(random.integers(500, 50_000, count) / 100), "}",
    )
    return pa.RecordBatch.from_pydict({
        "topic": pa.array(topics),
        "queueId": pa.array((customers % _QUEUE_COUNT).astype(np.int32)),
        "tags": pa.array(_tags(random, topics)),
        "keys": _text(order_keys, " ", customer_keys),
        "body": pc.cast(body, pa.binary()),
        "bornTimestamp": pa.array(born_ms * 1000).cast(pa.timestamp("us", "UTC")),
    })


def _tags(random: np.random.Generator, topics: NDArray[np.str_]) -> NDArray[np.str_]:
    tags = np.empty(len(topics), "<U16")
    for topic, (_, weights) in _TOPICS.items():
        places = np.flatnonzero(topics == topic)
        tags[places] = random.choice(list(weights), len(places), p=list(weights.values()))
    return tags


def _reminders(now_ms: int) -> pa.RecordBatch:
    """Delayed messages: some are due in an hour, some in two."""
    numbers = np.arange(_REMINDER_COUNT)
    return pa.RecordBatch.from_pydict({
        "topic": [REMINDER_TOPIC] * _REMINDER_COUNT,
        "keys": _joined("order-", numbers),
        "tags": ["UNPAID"] * _REMINDER_COUNT,
        "body": pc.cast(_joined("please pay order-", numbers), pa.binary()),
        "delayLevel": pa.array(np.array(_REMINDER_LEVELS, np.int32)[numbers % 2]),
        "bornTimestamp": pa.array(np.full(_REMINDER_COUNT, now_ms * 1000)).cast(
            pa.timestamp("us", "UTC")
        ),
    })


def _save_consumer_offsets(writer: StoreWriter) -> None:
    """One group that kept up with the orders, and one that stopped some hours ago."""
    ends = {queue: writer.next_offset("orders", queue) for queue in range(_QUEUE_COUNT)}
    table = {
        f"orders@{_KEPT_UP_GROUP}": ends,
        f"orders@{LAGGING_GROUP}": {
            queue: int(end * _LAGGING_PART) for queue, end in ends.items()
        },
    }
    content = json.dumps({"offsetTable": table}, indent=2).encode()
    Posix().replace_file(f"{writer.path}/config/{CONSUMER_OFFSETS}", content)


def _joined(prefix: str, numbers: NDArray[np.int64]) -> pa.Array:
    return _text(prefix, _as_text(numbers))


def _as_text(numbers: NDArray[np.int64] | NDArray[np.float64]) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _text(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")
