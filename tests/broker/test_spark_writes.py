"""Spark writes, ``expire`` removes, and a real broker serves what there is, at every stage.

One store a line: one job makes it and a broker serves it; many jobs go on with what that left,
and a second broker serves it; its oldest segments expire, and a third one serves the rest; Spark
goes on, and a fourth one boots.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from broker.features import Comparisons, features_in
from broker.java_toolchain import LINE_5, Line
from broker.reading_ways import run_command
from broker.served_stores import (
    OUR_FOLDER,
    SETTINGS,
    Service,
    StartBroker,
    assert_pulled,
    assert_served,
    look_at,
    serve,
)
from broker.traffic import HOT_COUNT, HOT_KEY
from broker.written_stores import (
    COMPRESSIONS,
    SMALL_FILES,
    SOON,
    SOON_COUNT,
    compressed_messages,
    new_ordinary_messages,
    other_messages,
)
from pyspark.sql import SparkSession

from rmqlog.commitlog_format.store import Store
from rmqlog.writer.message_columns import NewMessage

COLUMNS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("topic", "tags", "keys", "bornHost")),
        *(pa.field(name, pa.int32()) for name in ("queueId", "flag", "delayLevel")),
        pa.field("body", pa.binary()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
    ]
)
#: Only in the oldest segment, and so in none that stays.
GONE = [NewMessage("gone", b"gone %d" % number, queue_id=0, keys="gone") for number in range(20)]
#: Only V2 records can name it, which 4.9 cannot read.
LONG_TOPIC = "%RETRY%".ljust(200, "g")
EXPIRED_SEGMENT_COUNT = 2
RESERVED_HOURS = 72
AGAIN = [NewMessage("orders", b"again", queue_id=queue_id, keys="again") for queue_id in range(4)]
#: What a frame can hold: no client batches and no transactions.
FEATURES_OF_FRAMES = {
    *("no tag", "unicode tag", "tags of equal hash", "no key", "several keys", "unicode key"),
    *("keys of equal hash", "one key in 250 messages", "properties of users", "empty body"),
    *("body of 1 byte", "body of 100 KB to 1 MB", "zlib", "LZ4", "zstd", "IPv6 client"),
    *("IPv6 broker", "delay level, pending", "delay level, delivered"),
}


@dataclass(frozen=True)
class Life:
    """What was seen in the life of one store."""

    one_job: Service
    many_jobs: Service
    many_jobs_log: tuple[int, int]
    expired: Service
    expired_log: tuple[int, int]
    continued: Service
    pulled_again: list[dict[str, Any]]


class SparkJobs:
    """Writes messages to a store, a job each time."""

    def __init__(self, spark: SparkSession, store: Path) -> None:
        self.spark = spark
        self.store = store

    def write(self, messages: list[NewMessage], **options: str) -> None:
        """One job of two tasks, in the order of the messages."""
        rows = [
            {
                "topic": message.topic, "tags": message.tags, "keys": message.keys,
                "bornHost": message.born_host, "queueId": message.queue_id,
                "flag": message.flag, "delayLevel": message.delay_level, "body": message.body,
                "properties": dict(message.properties),
            }
            for message in messages
        ]  # fmt: skip
        frame = self.spark.createDataFrame(pa.Table.from_pylist(rows, COLUMNS))
        sizes = {name: str(size) for name, size in SMALL_FILES.items()}
        writing = frame.write.format("rmqlog").options(**sizes, **options)
        writing.mode("append").save(str(self.store))

    def write_plain(self, topic: str, messages: list[NewMessage]) -> None:
        """One job of columns that the bridge makes records of without Python."""
        rows = [
            {"body": message.body, "keys": message.keys, "tags": message.tags,
             "queueId": message.queue_id, "flag": message.flag}
            for message in messages
        ]  # fmt: skip
        schema = pa.schema([COLUMNS.field(name) for name in rows[0]])
        frame = self.spark.createDataFrame(pa.Table.from_pylist(rows, schema))
        writing = frame.write.format("rmqlog")
        writing.option("topic", topic).mode("append").save(str(self.store))

    def write_all_in_one(self) -> None:
        """Every kind of message, over several segments."""
        messages = [*GONE, *new_ordinary_messages(), *other_messages()]
        messages += compressed_messages("zlib")
        self.write([*messages, *[SOON] * SOON_COUNT], compression="zlib")

    def write_many(self, line: Line) -> None:
        """A job for each compression, some of every other kind, and one that comes twice."""
        for kind in COMPRESSIONS:
            self.write(list(compressed_messages(kind)), compression=kind, queueBy="keys")
        self.write([NewMessage("kinds", b"from IPv6")], storeHost="[2001:db8::1]:10911")
        if line == LINE_5:
            self.write([NewMessage(LONG_TOPIC, b"V2")], messageVersion="V2")
        ordinary = new_ordinary_messages()
        self.write_plain("plain", ordinary)
        for start in range(0, len(ordinary), 300):
            self.write([*ordinary[start : start + 300], *other_messages()])
        for _ in range(2):
            self.write([SOON] * SOON_COUNT, txnAppId="judge", txnVersion="1")


@pytest.fixture(scope="module")
def lives(
    for_both_lines: Callable[[Callable[[Line], Life]], dict[Line, Future[Life]]],
    module_broker: StartBroker,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[Line, Future[Life]]:
    """The life of one store of each line."""
    return for_both_lines(
        lambda line: live_through(
            *(line, module_broker, spark),
            tmp_path_factory.mktemp(f"spark-{line.version}") / "store",
        )
    )


@pytest.fixture
def life(lives: dict[Line, Future[Life]], line: Line) -> Life:
    """The life of the store of one line."""
    return lives[line].result()


def live_through(line: Line, start_broker: StartBroker, spark: SparkSession, store: Path) -> Life:
    """Write with Spark, let brokers of a line serve it, and look at every stage."""
    jobs = SparkJobs(spark, store)
    jobs.write_all_in_one()
    one_job = serve(line, start_broker, store, SOON_COUNT)
    jobs.write_many(line)
    many_jobs_log = log_bounds(store)
    many_jobs = serve(line, start_broker, store, SOON_COUNT)
    expire_oldest(store)
    expired_log = log_bounds(store)
    expired = serve(line, start_broker, store, extended_topics=("orders", "gone"))
    jobs.write(AGAIN)
    continued = look_at(line, store)
    last = start_broker(line, store, SETTINGS)
    pulled_again = last.pull(continued.bounds)
    last.kill()
    return Life(
        *(one_job, many_jobs, many_jobs_log, expired, expired_log, continued, pulled_again)
    )


def log_bounds(store: Path) -> tuple[int, int]:
    """Where the log begins and ends."""
    snapshot = Store(str(store))
    return snapshot.start, snapshot.end


def expire_oldest(store: Path) -> None:
    """Let the oldest segments be too old, and ``expire``."""
    old = time.time() - (RESERVED_HOURS + 1) * 3600
    for segment in sorted((store / "commitlog").iterdir())[:EXPIRED_SEGMENT_COUNT]:
        os.utime(segment, (old, old))
    run_command("expire", store, "--hours", RESERVED_HOURS, "--yes", "--json")


def test_a_broker_serves_a_store_that_one_job_wrote(life: Life, comparisons: Comparisons) -> None:
    assert_served(life.one_job, comparisons, "Spark, one job")
    assert len(life.one_job.found[("orders", HOT_KEY)]) == HOT_COUNT


def test_a_broker_serves_what_many_jobs_added_to_what_it_left(
    life: Life, line: Line, comparisons: Comparisons
) -> None:
    assert_served(life.many_jobs, comparisons, "Spark, many jobs")
    assert len(life.many_jobs.found[("orders", HOT_KEY)]) == 2 * HOT_COUNT
    only_5 = {"V2 record", "retry"} if line == LINE_5 else set()
    assert features_in(life.many_jobs.written) == FEATURES_OF_FRAMES | only_5


def test_the_job_that_came_twice_is_there_once(life: Life) -> None:
    assert len(life.many_jobs.written[("SCHEDULE_TOPIC_XXXX", 1)]) == 2 * SOON_COUNT


def test_a_broker_serves_what_java_staged(life: Life, spark: SparkSession) -> None:
    queues = [rows for (topic, _), rows in life.many_jobs.written.items() if topic == "plain"]
    made_by = {row["properties"]["UNIQ_KEY"][8:12] for rows in queues for row in rows}
    # Unique keys name the process that made them.
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    assert made_by == {f"{java & 0xFFFF:04X}"}
    assert sum(map(len, queues)) == len(new_ordinary_messages())


def test_the_jobs_rolled_over_many_segments(life: Life) -> None:
    start, end = life.many_jobs_log
    assert start == 0
    assert end > 3 * int(SMALL_FILES["mappedFileSizeCommitLog"])


def test_a_broker_serves_what_expire_left(life: Life, comparisons: Comparisons) -> None:
    assert_served(life.expired, comparisons, "after expire")
    start, _ = life.expired_log
    assert start == EXPIRED_SEGMENT_COUNT * int(SMALL_FILES["mappedFileSizeCommitLog"])
    assert any(first > 0 for first, _ in life.expired.bounds.values())


def test_a_queue_whose_messages_all_expired_goes_on_counting(life: Life) -> None:
    assert ("gone", 0) not in life.expired.written
    assert life.expired.new_offsets[("gone", 0)] == len(GONE)
    assert [row["body"] for row in life.expired.left[("gone", 0)]] == [b"new"]


def test_spark_continues_what_the_broker_left_and_it_boots_again(life: Life) -> None:
    for queue in (("orders", queue_id) for queue_id in range(4)):
        before, after = life.expired.left[queue], life.continued.written[queue]
        assert after[: len(before)] == before
        assert [row["body"] for row in after[len(before) :]] == [b"again"]
    assert_pulled(life.continued, life.pulled_again)


def test_our_own_folder_is_in_the_store_that_the_broker_serves(life: Life) -> None:
    assert life.many_jobs.our_files, f"no {OUR_FOLDER}"
