"""What no client can send, put into RocketMQ's own store: V2 records, hosts of all kinds."""

from __future__ import annotations

import shutil
from pathlib import Path

from broker.features import THEY_WRITE, Comparisons
from broker.java_driver import JavaDriver
from broker.message_rows import assert_same_rows, opened_queue_rows
from broker.reading_ways import ways_to_read
from broker.traffic import message
from broker.written_stores import SMALL_FILES
from pyspark.sql import SparkSession

from rmqlog.commitlog_format.layout import MAGIC_V1, MAGIC_V2
from rmqlog.commitlog_format.store import Store

HOSTS = ("127.0.0.1:10911", "[::1]:1234", "[fe80::2]:65535", "192.168.0.10:0")
TOPIC_SIZES = (1, 127, 128, 200, 255)


def test_long_topics_and_hosts_of_all_kinds_are_read_as_rocketmq_reads_them(
    java5: JavaDriver, spark: SparkSession, comparisons: Comparisons, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    messages = [
        message(
            "%RETRY%".ljust(size, "g") if size > 127 else "t" * size,
            *(number % 2, f"{size} {born} {kept}".encode()),
            bornHost=born,
            storeHost=kept,
            tags=f"T{size}",
            keys=f"k-{size}",
        )
        for number, (size, born, kept) in enumerate(
            (size, born, kept) for size in TOPIC_SIZES for born in HOSTS for kept in HOSTS
        )
    ]
    answers = java5.put_messages(store, SMALL_FILES, messages)
    judged = Path(shutil.copytree(store, tmp_path / "judged"))
    (opened,) = java5.open_stores([judged], SMALL_FILES, messages=True)
    theirs = opened_queue_rows(opened)

    assert {answer["status"] for answer in answers} == {"PUT_OK"}
    assert sum(map(len, theirs.values())) == len(messages)
    for way, read in ways_to_read(spark).items():
        ours = read(store)
        assert_same_rows(ours, theirs)
        comparisons.messages(THEY_WRITE, java5.line, f"putMessage: {way}", "put", theirs)
    magics = {
        len(row["topic"]): Store(str(store)).log.record(row["commitLogOffset"]).magic
        for rows in ours.values()
        for row in rows
    }
    assert magics == {size: MAGIC_V2 if size > 127 else MAGIC_V1 for size in TOPIC_SIZES}
