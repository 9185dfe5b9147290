"""What waits, by the files alone: delayed messages, timers, and transactions in every state."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from built_stores import build_store
from golden_stores import GoldenStore
from random_records import PLAIN_RECORD, with_body
from small_stores import START_MS, Clock, batch, open_writer

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.message import Record
from rmqlog.commitlog_format.pending import (
    PendingKind,
    PendingMessage,
    TransactionState,
    pending_messages,
)
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.store_writer import NewMessage


def waiting(path: Path, kind: PendingKind, *, include_ended: bool = False) -> list[PendingMessage]:
    """What waits for one reason."""
    found = pending_messages(Store(str(path)), include_ended=include_ended)
    return [message for message in found if message.kind is kind]


def record(topic: str, body: bytes = b"", **properties: str) -> Record:
    """A record of a topic with properties."""
    pairs = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return replace(with_body(PLAIN_RECORD, body), topic=topic.encode(), properties=pairs.encode())


def test_a_brokers_store_has_all_three_kinds(
    golden_store: Callable[[str], GoldenStore]
) -> None:
    golden = golden_store("rmq-5.5.0-clean")
    found = list(pending_messages(Store(str(golden.path)), include_ended=True))

    assert Counter(message.kind for message in found if message.state is None) == {
        PendingKind.DELAYED: 10, PendingKind.TIMER: 10
    }
    assert Counter(message.state for message in found if message.state is not None) == {
        TransactionState.OPEN: 8, TransactionState.COMMITTED: 11, TransactionState.ROLLED_BACK: 11
    }
    records = {line["commitLogOffset"]: line["msg"] for line in golden.log if "msg" in line}
    for message in found:
        half = records[message.commit_log_offset]
        assert message.topic == half["properties"]["REAL_TOPIC"]
        assert message.queue_id == int(half["properties"]["REAL_QID"])
        assert message.uniq_key == half["uniqKey"]
        assert message.stored_ms == half["storeTimestamp"]


def test_a_store_without_topics_of_the_brokers_own_has_nothing_waiting(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(3))

    assert list(pending_messages(Store(str(tmp_path)), include_ended=True)) == []


def test_delayed_messages_wait_until_they_are_delivered(tmp_path: Path) -> None:
    clock = Clock()
    with open_writer(tmp_path, now_ms=clock) as writer:
        writer.append(batch(4, delayLevel=[1, 2, 1, 2]))
    found = waiting(tmp_path, PendingKind.DELAYED)
    assert [message.due_ms for message in found] == [
        START_MS + 1_000, START_MS + 1_000, START_MS + 5_000, START_MS + 5_000
    ]
    assert {message.topic for message in found} == {"orders"}

    clock.now_ms += 1_000
    with open_writer(tmp_path, now_ms=clock) as writer:
        assert writer.deliver_due() == 2
    left = waiting(tmp_path, PendingKind.DELAYED)
    assert [(message.due_ms, message.queue_offset) for message in left] == [
        (START_MS + 5_000, 0), (START_MS + 5_000, 1)
    ]


def test_transactions_are_open_until_they_are_committed_or_rolled_back(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        prepared = [
            writer.prepare(NewMessage("trans", b"x", keys=f"tx-{n}", queue_id=1), "group")
            for n in range(3)
        ]
        writer.commit(prepared[0])
        writer.rollback(prepared[1])
    ended = waiting(tmp_path, PendingKind.HALF, include_ended=True)
    (only,) = waiting(tmp_path, PendingKind.HALF)

    assert {message.keys: message.state for message in ended} == {
        "tx-0": TransactionState.COMMITTED,
        "tx-1": TransactionState.ROLLED_BACK,
        "tx-2": TransactionState.OPEN,
    }
    assert (only.keys, only.topic, only.queue_id, only.due_ms) == ("tx-2", "trans", 1, None)


def test_a_transaction_that_was_checked_past_is_discarded_and_told_once(tmp_path: Path) -> None:
    half = layout.TRANSACTION_HALF_TOPIC
    first = record(half, REAL_TOPIC="t", REAL_QID="2", UNIQ_KEY="a")
    again = record(half, REAL_TOPIC="t", REAL_QID="2", UNIQ_KEY="a", TRANSACTION_CHECK_TIMES="15")
    path = build_store([first, again, record(half, REAL_TOPIC="t", REAL_QID="wild")]).write(
        tmp_path
    )
    (path / "config").mkdir()
    (path / "config" / "consumerOffset.json").write_text(json.dumps(
        {"offsetTable": {f"{half}@{layout.TRANSACTION_GROUP}": {str(first.queue_id): 2}}}
    ))
    discarded, nameless = waiting(path, PendingKind.HALF, include_ended=True)

    assert discarded.state is TransactionState.DISCARDED
    assert (discarded.check_count, discarded.queue_offset, discarded.queue_id) == (15, 1, 2)
    # Without a uniq key it is a transaction of its own; a queue that is no number is the first.
    assert nameless.state is TransactionState.OPEN
    assert (nameless.uniq_key, nameless.queue_id) == (None, 0)


def test_an_op_message_of_garbage_ends_no_transaction(tmp_path: Path) -> None:
    half = record(layout.TRANSACTION_HALF_TOPIC, REAL_TOPIC="t", UNIQ_KEY="a")
    op = replace(
        record(layout.TRANSACTION_OP_TOPIC, b"\xff,x,-0,,7,"), queue_id=half.queue_id
    )
    path = build_store([half, op]).write(tmp_path)

    (message,) = waiting(path, PendingKind.HALF)
    assert message.state is TransactionState.OPEN


def timer(key: str, due: str = "1700000009000", **properties: str) -> Record:
    """A timer for topic ``t``."""
    return record(
        layout.TIMER_TOPIC, REAL_TOPIC="t", UNIQ_KEY=key, TIMER_OUT_MS=due, **properties
    )


def test_timers_wait_until_the_real_topic_has_their_message(tmp_path: Path) -> None:
    delivered = record("t", UNIQ_KEY="a")
    path = build_store([timer("a"), timer("b"), delivered]).write(tmp_path)

    (message,) = waiting(path, PendingKind.TIMER)
    assert (message.uniq_key, message.topic, message.due_ms) == ("b", "t", 1_700_000_009_000)


def test_a_timer_that_is_put_again_behind_its_delivery_waits_again(tmp_path: Path) -> None:
    delivered = record("t", UNIQ_KEY="a")
    path = build_store([timer("a"), delivered, timer("a", "1700000010000")]).write(tmp_path)

    (message,) = waiting(path, PendingKind.TIMER)
    assert (message.due_ms, message.queue_offset) == (1_700_000_010_000, 1)


@pytest.mark.parametrize("name", ["a", "t+a"], ids=["before 5.3", "with its topic"])
def test_a_timer_that_was_taken_back_does_not_wait(tmp_path: Path, name: str) -> None:
    taken_back = record(layout.TIMER_TOPIC, REAL_TOPIC="t", TIMER_DEL_UNIQKEY=name)
    path = build_store([timer("a"), timer("b"), taken_back]).write(tmp_path)

    assert [message.uniq_key for message in waiting(path, PendingKind.TIMER)] == ["b"]


@pytest.mark.parametrize("due", ["soon", "9" * 40, "\u0663"])
def test_a_due_time_that_is_no_number_is_unknown(tmp_path: Path, due: str) -> None:
    path = build_store([timer("a", due)]).write(tmp_path)

    (message,) = waiting(path, PendingKind.TIMER)
    assert message.due_ms is None
