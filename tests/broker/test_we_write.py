"""We write a store, and a real broker serves it: every message, every key, delays, transactions.

One store a line lives through it all: written by us while a broker tries to start on it, served by
a broker that also takes new messages, opened and continued by us, served again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from broker.java_driver import JavaDriver
from broker.java_toolchain import Line
from broker.message_rows import (
    QueueRows,
    assert_same_rows,
    java_row,
    our_queue_rows,
    pulled_queue_rows,
)
from broker.real_broker import BrokerStartError, RealBroker
from broker.traffic import HOT_COUNT, HOT_KEY, await_until, max_offset, message
from broker.written_stores import SMALL_FILES, settings_for, write_everything

from rmqlog.commitlog_format.errors import StoreLockedError
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.message_columns import NewMessage, batch_of
from rmqlog.writer.store_writer import StoreWriter

PRODUCER_GROUP = "judge-transactions"
SERVED = [
    *(("orders", queue_id) for queue_id in range(4)),
    *(("kinds", 0), ("kinds", 1), ("batch", 0), ("trans", 0), ("contested", 0)),
]
SOON_COUNT = 3
CONTESTED = [NewMessage("contested", b"%d" % number, queue_id=0) for number in range(50)]
NEW = [message("orders", queue_id, b"new", keys="new") for queue_id in range(4)]
# Open transactions are asked about within seconds; a key lookup is not capped.
SETTINGS = {
    **SMALL_FILES,
    "transactionCheckInterval": 2_000,
    "transactionTimeOut": 500,
    "maxMsgsNumBatch": 10_000,
}


@dataclass
class Served:
    """What was seen in the life of one store."""

    start_error: BrokerStartError | None = None
    java_got_our_lock: bool = True
    written: QueueRows = field(default_factory=dict)
    open_transaction: str = ""
    refusal: Exception | None = None
    answers: list[dict[str, Any]] = field(default_factory=list)
    pulled: list[dict[str, Any]] = field(default_factory=list)
    by_key: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    kinds_counts: list[int] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    after_broker: QueueRows = field(default_factory=dict)
    after_us: QueueRows = field(default_factory=dict)
    pulled_again: list[dict[str, Any]] = field(default_factory=list)


def write_store(store: Path, line: Line) -> str:
    """A store with all kinds of messages; returns the id of its open transaction."""
    write_everything(store, line)
    with StoreWriter(store, settings_for(line)) as writer:
        soon = NewMessage("kinds", b"soon", queue_id=0, tags="SOON", delay_level=2)
        writer.append(batch_of([soon] * SOON_COUNT))
        outcomes = [
            writer.prepare(NewMessage("trans", body, queue_id=0), PRODUCER_GROUP)
            for body in (b"commit", b"rollback", b"open")
        ]
        writer.commit(outcomes[0])
        writer.rollback(outcomes[1])
    return outcomes[2].transaction_id


@pytest.fixture(scope="module")
def lives(
    for_both_lines: Callable[[Callable[[Line], Served]], dict[Line, Future[Served]]],
    module_broker: Callable[..., RealBroker],
    java_driver: Callable[[Line], JavaDriver],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[Line, Future[Served]]:
    """The life of one store of each line."""
    return for_both_lines(
        lambda line: live_through(
            *(line, module_broker, java_driver(line)),
            tmp_path_factory.mktemp(f"served-{line.version}") / "store",
        )
    )


@pytest.fixture
def served(lives: dict[Line, Future[Served]], line: Line) -> Served:
    """The life of the store of one line."""
    return lives[line].result()


def live_through(
    line: Line, start_broker: Callable[..., RealBroker], driver: JavaDriver, store: Path
) -> Served:
    """Write a store, let brokers of a line serve it, and look at every stage."""
    seen = Served()
    _contest(line, start_broker, driver, store, seen)
    seen.open_transaction = write_store(store, line)
    seen.written = our_queue_rows(Store(str(store)))

    first = start_broker(line, store, SETTINGS)
    _watch(first, store, seen)
    first.stop()
    seen.after_broker = our_queue_rows(Store(str(store)))

    with StoreWriter(store, settings_for(line)) as writer:
        ours = NewMessage("orders", b"ours again", queue_id=0, keys="again")
        writer.append(batch_of([ours] * 10))
    seen.after_us = our_queue_rows(Store(str(store)))
    second = start_broker(line, store, SETTINGS)
    seen.pulled_again = second.pull(SERVED)
    second.kill()
    return seen


def _contest(
    line: Line,
    start_broker: Callable[..., RealBroker],
    driver: JavaDriver,
    store: Path,
    seen: Served,
) -> None:
    """Try to start a broker on a store that we are writing."""
    with StoreWriter(store, settings_for(line)) as writer:
        writer.append(batch_of(CONTESTED))
        with driver.store_lock(store) as java_got_it:
            seen.java_got_our_lock = java_got_it
        try:
            start_broker(line, store, SETTINGS)
        except BrokerStartError as error:
            seen.start_error = error
        writer.append(batch_of(CONTESTED))


def _watch(broker: RealBroker, store: Path, seen: Served) -> None:
    try:
        StoreWriter(store).close()
    except StoreLockedError as refusal:
        seen.refusal = refusal
    broker.ask("checked-transactions", topic="trans")  # the producer that the broker can ask back
    seen.pulled = broker.pull(SERVED)
    for key in (HOT_KEY, "order-Aa", "size-1000000"):
        seen.by_key[key] = broker.ask("query-key", topic="orders", key=key, maxCount=10_000)
    seen.answers = broker.send(NEW)
    before = len(seen.written[("kinds", 0)])
    await_until(lambda: max_offset(broker, "kinds", 0) >= before + SOON_COUNT)
    await_until(lambda: seen.open_transaction in broker.ask("checked-transactions", topic="trans"))
    time.sleep(1.0)  # anything that were delivered twice would be here by now
    seen.kinds_counts = [before, max_offset(broker, "kinds", 0)]
    seen.checked = broker.ask("checked-transactions", topic="trans")


def test_a_client_pulls_every_message_that_we_wrote(served: Served) -> None:
    rows = pulled_queue_rows(served.pulled)
    for queue, written in served.written.items():
        if queue in SERVED:
            # Delayed ones may have been delivered behind ours before the pull.
            assert_same_rows({queue: written}, {queue: rows[queue][: len(written)]})
    assert all(queue["minOffset"] == 0 for queue in served.pulled)


def test_a_client_finds_every_key_that_we_wrote(served: Served) -> None:
    for key, found in served.by_key.items():
        written = {
            row["msgId"]
            for queue, rows in served.written.items()
            for row in rows
            if queue[0] == "orders" and key in (row["keys"] or "").split(" ")
        }
        assert {row["msgId"] for row in map(java_row, found)} == written
    assert len(served.by_key[HOT_KEY]) == HOT_COUNT


def test_new_messages_go_behind_ours(served: Served) -> None:
    expected = [len(served.written[("orders", queue_id)]) for queue_id in range(4)]
    assert [answer["queueOffset"] for answer in served.answers] == expected


def test_pending_delayed_messages_are_delivered_once(served: Served) -> None:
    before, after = served.kinds_counts
    delivered = served.after_broker[("kinds", 0)][before:]

    assert after == before + SOON_COUNT
    assert [row["body"] for row in delivered] == [b"soon"] * SOON_COUNT
    assert {row["tags"] for row in delivered} == {"SOON"}


def test_only_the_open_transaction_is_checked_back(served: Served) -> None:
    assert served.checked == [served.open_transaction]
    assert [row["body"] for row in served.after_broker[("trans", 0)]] == [b"commit"]


def test_the_broker_loses_nothing_of_ours(served: Served) -> None:
    rows = served.after_broker
    prefixes = {queue: rows[queue][: len(written)] for queue, written in served.written.items()}
    assert_same_rows(served.written, prefixes)


def test_we_continue_what_the_broker_left_and_it_boots_again(served: Served) -> None:
    before = served.after_broker[("orders", 0)]
    after = served.after_us[("orders", 0)]

    assert after[: len(before)] == before
    assert [row["body"] for row in after[len(before) :]] == [b"ours again"] * 10
    assert [row["queueOffset"] for row in after] == list(range(len(after)))
    pulled = pulled_queue_rows(served.pulled_again)
    assert_same_rows({queue: served.after_us[queue] for queue in SERVED}, pulled)


def test_we_refuse_to_write_while_a_broker_runs(served: Served) -> None:
    assert isinstance(served.refusal, StoreLockedError)
    assert "java" in str(served.refusal)


def test_a_broker_cannot_start_while_we_write(served: Served) -> None:
    assert served.start_error is not None
    assert not served.java_got_our_lock


def test_a_broker_that_could_not_start_has_done_no_harm(served: Served) -> None:
    bodies = [row["body"] for row in served.written[("contested", 0)]]
    assert bodies == [message.body for message in CONTESTED] * 2
