"""A real client writes through a real broker, and we read: every field of every message.

The truth is what RocketMQ's own classes find in the same files: a client that pulls from the
running broker, and ``DefaultMessageStore`` opened on a copy. One broker a line lives through it
all: every kind of message, a copy in mid-traffic, an orderly stop; then a second one with IPv6
hosts, killed in mid-traffic.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from broker.java_driver import JavaDriver
from broker.java_toolchain import Line
from broker.message_rows import (
    QueueRows,
    arrow_rows,
    assert_same_rows,
    java_row,
    opened_queue_rows,
    our_queue_rows,
    pulled_queue_rows,
)
from broker.real_broker import RealBroker
from broker.traffic import (
    COMMITTED_OFFSETS,
    GROUP,
    HOT_COUNT,
    HOT_KEY,
    message,
    ordinary_messages,
    send_everything,
    stream,
)

from rmqlog.commitlog_format.lookup import find_by_key
from rmqlog.commitlog_format.store import Store

IPV6_LOOPBACK = {"brokerIP1": "0:0:0:0:0:0:0:1", "bindAddress": "::1"}
ORDERS = [("orders", queue_id) for queue_id in range(4)]
PULLED = [
    *ORDERS,
    *(("kinds", 0), ("kinds", 1), ("trans", 0)),
    *((f"%RETRY%{GROUP}", 0), (f"%DLQ%{GROUP}", 0)),
]
KEYS = [("orders", HOT_KEY), ("orders", "order-Aa"), ("orders", "order-BB"), ("kinds", "b-3")]


@dataclass
class History:
    """What was seen in the life of one store, ours and theirs."""

    answers: list[dict[str, Any]]
    pulled: list[dict[str, Any]]
    by_hot_key: list[dict[str, Any]]
    idle_snapshot: Store
    idle_rows: QueueRows
    busy_rows: QueueRows
    busy_copy: Path
    clean_store: Path
    clean_opened: dict[str, Any]
    killed_store: Path
    killed_opened: dict[str, Any]


@pytest.fixture(scope="module")
def histories(
    for_both_lines: Callable[[Callable[[Line], History]], dict[Line, Future[History]]],
    module_broker: Callable[..., RealBroker],
    java_driver: Callable[[Line], JavaDriver],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[Line, Future[History]]:
    """The life of one store of each line."""
    return for_both_lines(
        lambda line: live_through(
            *(line, module_broker, java_driver(line)),
            tmp_path_factory.mktemp(f"history-{line.version}"),
        )
    )


@pytest.fixture
def history(histories: dict[Line, Future[History]], line: Line) -> History:
    """The life of the store of one line."""
    return histories[line].result()


def live_through(
    line: Line, start_broker: Callable[..., RealBroker], driver: JavaDriver, root: Path
) -> History:
    """Write with a broker of a line, and look at every stage."""
    store = root / "store"
    seen: dict[str, Any] = {}
    first = start_broker(line, store)

    seen["answers"] = send_everything(first)
    seen["pulled"] = first.pull(PULLED)
    seen["by_hot_key"] = first.ask("query-key", topic="orders", key=HOT_KEY, maxCount=10_000)
    seen["idle_snapshot"] = Store(str(store))
    seen["idle_rows"] = our_queue_rows(seen["idle_snapshot"])

    with stream(first, list(ordinary_messages())[:600]):
        time.sleep(0.5)
        seen["busy_rows"] = our_queue_rows(Store(str(store)))
        seen["busy_copy"] = Path(shutil.copytree(store, root / "busy"))
        time.sleep(0.5)
    first.stop()
    seen["clean_store"] = Path(shutil.copytree(store, root / "clean"))

    second = start_broker(line, store, IPV6_LOOPBACK)
    with stream(second, [message("orders", 1, b"killed", keys="last")] * 500, chunk=20):
        time.sleep(1.0)
        second.kill()
    seen["killed_store"] = store

    judged = [
        shutil.copytree(seen[name], root / f"{name}-judged")
        for name in ("clean_store", "killed_store")
    ]
    seen["clean_opened"], seen["killed_opened"] = driver.open_stores(
        [Path(path) for path in judged], first.store_settings, messages=True, keys=KEYS
    )
    return History(**seen)


def test_a_running_broker_serves_what_we_read_from_its_files(history: History) -> None:
    for queue in history.pulled:
        view = history.idle_snapshot.queue(queue["topic"], queue["queueId"])
        assert (view.min_offset, view.max_offset) == (queue["minOffset"], queue["maxOffset"])
    ours = {queue: history.idle_rows[queue] for queue in PULLED}
    assert_same_rows(ours, pulled_queue_rows(history.pulled))


def test_what_the_client_was_told_is_where_we_find_its_messages(history: History) -> None:
    told = {(answer["msgId"], answer["queueOffset"]) for answer in history.answers}
    found = {
        (row["msgId"], row["queueOffset"]) for queue in ORDERS for row in history.idle_rows[queue]
    }
    assert found == told


def test_we_find_more_messages_of_a_hot_key_than_the_broker_returns(history: History) -> None:
    found = arrow_rows(find_by_key(history.idle_snapshot, "orders", HOT_KEY))
    theirs = {row["msgId"] for row in map(java_row, history.by_hot_key)}

    assert len(found) == HOT_COUNT > len(theirs) > 0
    assert theirs < {row["msgId"] for row in found}


def test_a_snapshot_in_mid_traffic_is_a_prefix_of_every_queue(history: History) -> None:
    complete = our_queue_rows(Store(str(history.clean_store)))
    copied = our_queue_rows(Store(str(history.busy_copy)))
    idle_count, busy_count, copied_count, complete_count = (
        sum(len(rows[queue]) for queue in ORDERS)
        for rows in (history.idle_rows, history.busy_rows, copied, complete)
    )

    for earlier in (history.busy_rows, copied):
        prefix = {queue: complete[queue][: len(rows)] for queue, rows in earlier.items()}
        assert_same_rows(earlier, prefix)
    assert idle_count < busy_count <= copied_count < complete_count


def test_after_an_orderly_stop_every_field_of_every_message_is_the_same(history: History) -> None:
    snapshot = Store(str(history.clean_store))

    assert not snapshot.was_killed
    assert snapshot.end == history.clean_opened["maxPhyOffset"]
    assert_same_rows(our_queue_rows(snapshot), opened_queue_rows(history.clean_opened))


def test_committed_offsets_of_consumers_are_read(history: History) -> None:
    offsets = Store(str(history.clean_store)).config.consumer_offsets
    assert offsets[("orders", GROUP)] == COMMITTED_OFFSETS


def test_messages_of_a_deleted_topic_are_still_in_the_log(history: History) -> None:
    snapshot = Store(str(history.clean_store))
    bodies = [row["body"] for row in arrow_rows(snapshot.scan()) if row["topic"] == "doomed"]

    assert "doomed" not in snapshot.config.topics
    assert bodies == [b"doomed %d" % number for number in range(20)]


def test_every_key_that_the_broker_finds_we_find(history: History) -> None:
    snapshot = Store(str(history.clean_store))
    rows = [row for queue in our_queue_rows(snapshot).values() for row in queue]
    for (topic, key), offsets in zip(KEYS, history.clean_opened["keyOffsets"], strict=True):
        found = {row["commitLogOffset"] for row in arrow_rows(find_by_key(snapshot, topic, key))}
        having = {
            row["commitLogOffset"]
            for row in rows
            if row["topic"] == topic and key in (row["keys"] or "").split(" ")
        }
        assert found == having != set()
        # The index holds hashes: what it gives beyond that has another key of the same hash.
        assert found <= set(offsets)


def test_after_kill_9_we_show_what_rocketmq_recovers(history: History) -> None:
    snapshot = Store(str(history.killed_store))
    ours = our_queue_rows(snapshot)
    theirs = opened_queue_rows(history.killed_opened)
    # Recovery makes queues anew from the log, those of deleted topics too. (4.9 deletes the
    # queue of half messages with any topic: its topics.json does not know it.)
    deleted = {queue: theirs.pop(queue) for queue in theirs.keys() - ours.keys()}

    assert snapshot.was_killed
    assert snapshot.end == history.killed_opened["maxPhyOffset"]
    assert_same_rows(ours, theirs)
    assert ("doomed", 0) in deleted
    in_log: QueueRows = {queue: [] for queue in deleted}
    for row in arrow_rows(snapshot.scan()):
        in_log.get((row["topic"], row["queueId"]), []).append(row)
    assert_same_rows(in_log, deleted)


def test_ipv6_hosts_of_a_real_client_and_broker_are_read(history: History) -> None:
    rows = our_queue_rows(Store(str(history.killed_store)))[("orders", 1)]
    last = [row for row in rows if row["keys"] == "last"]

    assert last
    assert all(row["bornHost"].startswith("[::1]:") for row in last)
    assert all(row["storeHost"].startswith("[::1]:") for row in last)
