"""A real client writes through a real broker, and we read: every field of every message.

The truth is what RocketMQ's own classes find in the same files: a client that pulls from the
running broker, and ``DefaultMessageStore`` opened on a copy. Ours is read by Python, by the
command line and by Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path

import pyarrow as pa
import pytest
from broker.features import FEATURES, THEY_WRITE, Comparisons, features_in
from broker.java_driver import JavaDriver
from broker.java_toolchain import LINE_4, Line
from broker.message_rows import (
    QueueRows,
    arrow_rows,
    assert_same_rows,
    by_queue,
    java_row,
    opened_queue_rows,
    pulled_queue_rows,
)
from broker.reading_ways import WAYS, ReadStore, json_row, run_command, ways_to_read
from broker.real_broker import RealBroker
from broker.traffic import COMMITTED_OFFSETS, GROUP, HOT_COUNT, HOT_KEY
from broker.written_by_brokers import ORDERS, PULLED, History, live_through
from pyspark.sql import SparkSession

from rmqlog.commitlog_format.lookup import TopicKeys, find_by_key
from rmqlog.commitlog_format.store import Store

#: What no client sends.
OTHER_FEATURES = {"empty body", "V2 record"}
TIMER_FEATURES = {name for name in FEATURES if name.startswith("timer")}


@pytest.fixture(scope="module")
def ways(spark: SparkSession) -> dict[str, ReadStore]:
    """Each way to read a store."""
    return ways_to_read(spark)


@pytest.fixture(scope="module")
def histories(
    for_both_lines: Callable[[Callable[[Line], History]], dict[Line, Future[History]]],
    module_broker: Callable[..., RealBroker],
    java_driver: Callable[[Line], JavaDriver],
    ways: dict[str, ReadStore],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[Line, Future[History]]:
    """The life of one store of each line."""
    return for_both_lines(
        lambda line: live_through(
            *(line, module_broker, java_driver(line)),
            tmp_path_factory.mktemp(f"history-{line.version}"),
            ways,
        )
    )


@pytest.fixture
def history(histories: dict[Line, Future[History]], line: Line) -> History:
    """The life of the store of one line."""
    return histories[line].result()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Each way to read in turn."""
    return str(request.param)


@pytest.fixture
def compare(
    comparisons: Comparisons, line: Line, way: str
) -> Callable[[str, QueueRows, QueueRows], None]:
    """A function that compares the rows of a situation, and counts them."""

    def same(situation: str, ours: QueueRows, theirs: QueueRows) -> None:
        assert_same_rows(ours, theirs)
        comparisons.messages(THEY_WRITE, line, f"{situation}: {way}", "history", theirs)

    return same


def test_a_running_broker_serves_what_we_read_from_its_files(
    history: History, way: str, compare: Callable[[str, QueueRows, QueueRows], None]
) -> None:
    for queue in history.pulled:
        view = history.idle_snapshot.queue(queue["topic"], queue["queueId"])
        assert (view.min_offset, view.max_offset) == (queue["minOffset"], queue["maxOffset"])
    ours = {queue: history.idle_rows[way][queue] for queue in PULLED}
    compare("while the broker runs", ours, pulled_queue_rows(history.pulled))


def test_what_the_client_was_told_is_where_we_find_its_messages(history: History) -> None:
    told = {(answer["msgId"], answer["queueOffset"]) for answer in history.answers}
    rows = history.idle_rows["Python"]
    found = {(row["msgId"], row["queueOffset"]) for queue in ORDERS for row in rows[queue]}
    assert found == told


def test_we_find_more_messages_of_a_hot_key_than_the_broker_returns(history: History) -> None:
    found = arrow_rows(find_by_key(history.idle_snapshot, "orders", HOT_KEY))
    theirs = {row["msgId"] for row in map(java_row, history.by_hot_key)}

    assert len(found) == HOT_COUNT > len(theirs) > 0
    assert theirs < {row["msgId"] for row in found}


def test_a_snapshot_in_mid_traffic_is_a_prefix_of_every_queue(
    history: History,
    ways: dict[str, ReadStore],
    way: str,
    compare: Callable[[str, QueueRows, QueueRows], None],
) -> None:
    complete = opened_queue_rows(history.clean_opened)
    copied = ways[way](history.busy_copy)
    idle_count, busy_count, copied_count, complete_count = (
        sum(len(rows[queue]) for queue in ORDERS)
        for rows in (history.idle_rows[way], history.busy_rows[way], copied, complete)
    )

    for situation, earlier in (
        ("while it takes messages", history.busy_rows[way]),
        ("a copy made while it takes messages", copied),
    ):
        prefix = {queue: complete[queue][: len(rows)] for queue, rows in earlier.items()}
        compare(situation, earlier, prefix)
    assert idle_count < busy_count <= copied_count < complete_count


def test_after_an_orderly_stop_every_field_of_every_message_is_the_same(
    history: History,
    ways: dict[str, ReadStore],
    way: str,
    compare: Callable[[str, QueueRows, QueueRows], None],
) -> None:
    snapshot = Store(str(history.clean_store))

    assert not snapshot.was_killed
    assert snapshot.end == history.clean_opened["maxPhyOffset"]
    theirs = opened_queue_rows(history.clean_opened)
    compare("after an orderly stop", ways[way](history.clean_store), theirs)


@pytest.mark.parametrize("topic", ["orders", "SCHEDULE_TOPIC_XXXX"])
def test_cat_prints_every_field_in_the_order_of_the_log(history: History, topic: str) -> None:
    printed = run_command("cat", history.clean_store, topic, "--format", "json", "--body")
    rows = [json_row(fields) for fields in printed]
    theirs = opened_queue_rows(history.clean_opened)

    assert rows == sorted(rows, key=lambda row: row["commitLogOffset"])
    assert_same_rows(by_queue(rows), {q: found for q, found in theirs.items() if q[0] == topic})


def test_committed_offsets_of_consumers_are_read(history: History) -> None:
    offsets = Store(str(history.clean_store)).config.consumer_offsets
    assert offsets[("orders", GROUP)] == COMMITTED_OFFSETS


def test_messages_of_a_deleted_topic_are_still_in_the_log(history: History) -> None:
    snapshot = Store(str(history.clean_store))
    bodies = [row["body"] for row in arrow_rows(snapshot.scan()) if row["topic"] == "doomed"]

    assert "doomed" not in snapshot.config.topics
    assert bodies == [b"doomed %d" % number for number in range(20)]


def test_every_key_that_the_broker_finds_we_find(
    history: History, line: Line, comparisons: Comparisons
) -> None:
    """The index holds hashes: what it gives beyond ours has another key of the same hash."""
    snapshot = Store(str(history.clean_store))
    theirs = dict(zip(history.all_keys, history.clean_opened["keyOffsets"], strict=True))
    for topic, keys in history.clean_keys.items():
        lookup = TopicKeys(snapshot, topic)
        for key, having in keys.items():
            assert offsets_in(lookup.find(key, ["commitLogOffset"])) == having, (topic, key)
            assert having <= set(theirs[topic, key]), (topic, key)
    for topic, keys in history.clean_uniq_keys.items():
        # All at once: no two messages of a topic have the same.
        found = offsets_in(TopicKeys(snapshot, topic).find(list(keys), ["commitLogOffset"]))
        assert found == set().union(*keys.values())
        assert all(having <= set(theirs[topic, key]) for key, having in keys.items())
    assert len(history.clean_keys["orders"][HOT_KEY]) == HOT_COUNT
    comparisons.count(THEY_WRITE, line, "keys looked up", len(history.all_keys))


def offsets_in(batches: Iterable[pa.RecordBatch]) -> set[int]:
    """The log offsets of messages that were found."""
    return {offset for batch in batches for offset in batch["commitLogOffset"].to_pylist()}


def test_spark_and_the_command_line_find_all_messages_of_a_hot_key(
    history: History, spark: SparkSession
) -> None:
    store = history.clean_store
    reading = spark.read.format("rmqlog").option("topic", "orders").option("key", HOT_KEY)
    by_spark = {row.commitLogOffset for row in reading.load(str(store)).collect()}
    printed = run_command("find", store, "--key", HOT_KEY, "--topic", "orders", "--json")

    having = history.clean_keys["orders"][HOT_KEY]
    assert by_spark == {row["commitLogOffset"] for row in printed} == having


def test_after_kill_9_we_show_what_rocketmq_recovers(
    history: History,
    ways: dict[str, ReadStore],
    way: str,
    compare: Callable[[str, QueueRows, QueueRows], None],
) -> None:
    snapshot = Store(str(history.killed_store))
    ours = ways[way](history.killed_store)
    theirs = opened_queue_rows(history.killed_opened)
    # As far back as it goes, recovery makes queues anew, those of deleted topics too. (4.9
    # deletes the queue of half messages with any topic: its topics.json does not know it.)
    for deleted in theirs.keys() - ours.keys():
        assert deleted[0] in ("doomed", "RMQ_SYS_TRANS_HALF_TOPIC")
        del theirs[deleted]

    assert snapshot.was_killed
    assert snapshot.end == history.killed_opened["maxPhyOffset"]
    compare("after kill -9 in mid-traffic", ours, theirs)


def test_all_records_of_the_log_are_those_that_rocketmq_dispatches(
    history: History, line: Line, comparisons: Comparisons
) -> None:
    theirs = opened_queue_rows(history.rebuilt_opened)
    ours = by_queue(arrow_rows(Store(str(history.killed_store)).scan()))

    for rows in theirs.values():
        for row in rows:
            del row["tagsCode"]  # of a queue's unit, not of a record
    assert ("doomed", 0) in theirs
    assert_same_rows(ours, theirs)
    comparisons.messages(THEY_WRITE, line, "the whole log, deleted topics too", "history", theirs)


def test_ipv6_hosts_of_a_real_client_and_broker_are_read(
    history: History, ways: dict[str, ReadStore]
) -> None:
    rows = ways["Python"](history.killed_store)[("orders", 1)]
    last = [row for row in rows if row["keys"] == "last"]

    assert last
    assert all(row["bornHost"].startswith("[::1]:") for row in last)
    assert all(row["storeHost"].startswith("[::1]:") for row in last)


def test_every_kind_of_message_is_really_there(history: History, line: Line) -> None:
    expected = FEATURES.keys() - OTHER_FEATURES
    if line == LINE_4:
        expected -= TIMER_FEATURES
    assert features_in(opened_queue_rows(history.rebuilt_opened)) == expected


def test_the_log_rolled_many_times(history: History) -> None:
    assert len(list(Path(history.clean_store, "commitlog").iterdir())) >= 4
