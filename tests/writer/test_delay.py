"""Delayed messages are delivered once, when they are due, as a broker delivers them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from golden_stores import GoldenStore
from small_stores import SMALL, START_MS, Clock, batch, open_writer, rows_of

from rmqlog.commitlog_format.hashing import java_hash
from rmqlog.commitlog_format.message import Record
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.store_writer import NewMessage


def delay_offsets(path: Path) -> dict[str, int]:
    table: dict[str, int] = json.loads((path / "config" / "delayOffset.json").read_text())[
        "offsetTable"
    ]
    return table


def test_messages_are_delivered_when_they_are_due_and_never_twice(tmp_path: Path) -> None:
    clock = Clock()
    with open_writer(tmp_path, now_ms=clock) as writer:
        writer.append(batch(30, delayLevel=[1 + number % 3 for number in range(30)]))
        assert writer.deliver_due() == 0
        assert writer.deliver_due(START_MS + 999) == 0
        assert writer.deliver_due(START_MS + 1_000) == 10
        assert writer.deliver_due(START_MS + 1_000) == 0
    clock.now_ms += 10_000
    with open_writer(tmp_path, now_ms=clock) as writer:
        assert writer.deliver_due() == 20
        assert writer.deliver_due() == 0

    rows = rows_of(tmp_path, "orders")
    assert sorted(row["body"] for row in rows) == sorted(batch(30)["body"].to_pylist())
    assert delay_offsets(tmp_path) == {"1": 10, "2": 10, "3": 10}


def test_a_delivered_message_is_the_waiting_one_in_its_own_queue(tmp_path: Path) -> None:
    clock = Clock()
    with open_writer(tmp_path, now_ms=clock) as writer:
        writer.put(
            NewMessage(
                "orders", b"x" * 200, tags="A", keys="k", queue_id=3, flag=9, delay_level=1,
                born_host="[::1]:7", born_timestamp_ms=5, compression="zlib",
            )
        )
        clock.now_ms += 1_000
        assert writer.deliver_due() == 1

    store = Store(str(tmp_path))
    (waiting,) = rows_of(tmp_path, "SCHEDULE_TOPIC_XXXX")
    (row,) = rows_of(tmp_path, "orders")
    before: Record = store.log.record(waiting["commitLogOffset"])
    after: Record = store.log.record(row["commitLogOffset"])
    # DELAY, REAL_TOPIC and REAL_QID stay: only the topic tells that it was delivered.
    assert after.properties == before.properties
    same = ("body", "body_crc", "flag", "sys_flag", "born_host", "born_timestamp")
    assert all(getattr(after, name) == getattr(before, name) for name in same)
    assert (after.topic, after.queue_id, after.queue_offset) == (b"orders", 3, 0)
    assert after.store_timestamp == START_MS + 1_000
    assert row["tagsCode"] == java_hash("A")


def test_a_due_time_that_its_level_cannot_have_is_due_at_once(tmp_path: Path) -> None:
    clock = Clock(START_MS + 3_600_000)
    with open_writer(tmp_path, now_ms=clock) as writer:
        writer.put(NewMessage("orders", b"x", delay_level=1))

        # The clock was set back by an hour.
        assert writer.deliver_due(START_MS) == 1


def test_a_store_with_waiting_messages_has_its_delay_offsets_from_the_start(
    tmp_path: Path,
) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(NewMessage("orders", b"x", delay_level=4))
    assert delay_offsets(tmp_path) == {}
    topics = json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]
    assert topics["SCHEDULE_TOPIC_XXXX"]["readQueueNums"] == 18
    assert topics["orders"]["readQueueNums"] == SMALL.defaultTopicQueueNums


def test_a_store_without_waiting_messages_has_no_delay_offsets(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(1))

    assert not (tmp_path / "config" / "delayOffset.json").exists()


def test_our_delayed_records_look_like_a_brokers(
    golden_store: Callable[[str], GoldenStore], tmp_path: Path
) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(NewMessage("delay", b"x", tags="L0", keys="k", queue_id=0, delay_level=1))

    (ours,) = rows_of(tmp_path, "SCHEDULE_TOPIC_XXXX")
    (theirs, *_) = [
        unit for unit in golden_store("rmq-5.5.0-clean").units
        if unit["topic"] == "SCHEDULE_TOPIC_XXXX" and unit["msg"]["properties"]["DELAY"] == "1"
    ]
    acting = ("DELAY", "REAL_TOPIC", "REAL_QID", "TAGS")
    found = dict(ours["properties"])
    assert {name: found[name] for name in acting} == {
        name: theirs["msg"]["properties"][name] for name in acting
    }
    assert ours["queueId"] == theirs["queueId"] == 0
    due_ms = theirs["unitTagsCode"] - theirs["msg"]["storeTimestamp"]
    assert ours["tagsCode"] - START_MS == due_ms == 1_000
