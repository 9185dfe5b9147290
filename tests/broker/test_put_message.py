"""What no client can send, put into RocketMQ's own store: V2 records, hosts of all kinds."""

from __future__ import annotations

from pathlib import Path

from broker.java_driver import JavaDriver
from broker.message_rows import assert_same_rows, opened_queue_rows, our_queue_rows
from broker.traffic import message
from broker.written_stores import SMALL_FILES

from rmqlog.commitlog_format.layout import MAGIC_V1, MAGIC_V2
from rmqlog.commitlog_format.store import Store

HOSTS = ("127.0.0.1:10911", "[::1]:1234", "[fe80::2]:65535", "192.168.0.10:0")
TOPIC_SIZES = (1, 127, 128, 200, 255)


def test_long_topics_and_hosts_of_all_kinds_are_read_as_rocketmq_reads_them(
    java5: JavaDriver, tmp_path: Path
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
    ours = our_queue_rows(Store(str(store)))
    magics = {
        len(row["topic"]): Store(str(store)).log.record(row["commitLogOffset"]).magic
        for rows in ours.values()
        for row in rows
    }
    (opened,) = java5.open_stores([store], SMALL_FILES, messages=True)

    assert {answer["status"] for answer in answers} == {"PUT_OK"}
    assert magics == {size: MAGIC_V2 if size > 127 else MAGIC_V1 for size in TOPIC_SIZES}
    assert sum(map(len, ours.values())) == len(messages)
    assert_same_rows(ours, opened_queue_rows(opened))
