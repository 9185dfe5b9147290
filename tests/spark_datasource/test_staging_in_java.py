"""What the bridge stages has the very bytes of what Python stages."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from small_stores import files_below, rows_of

from rmqlog.commitlog_format.layout import (
    BORN_TIMESTAMP_POSITION,
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    STORE_TIMESTAMP_POSITIONS,
)
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.verify import verify_store

pytestmark = pytest.mark.spark

TOPIC = "orders"
SLOTS, ENTRIES = 5_000, 20_000
SIZES = {
    "mappedFileSizeCommitLog": "4m", "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": str(SLOTS), "maxIndexNum": str(ENTRIES),
}
#: Frames of plain columns, each with unique keys of its own, in one partition or more.
FRAMES = {
    "bodies alone": "select cast(id as string) as body from range(0, 100, 1, 3)",
    "texts": """
        select encode(repeat('x', cast(id * 7 % 900 as int)), 'UTF-8') as body,
               element_at(array(null, '', 'k', 'k-1  k-2 ', ' ', 'grün 钥匙', '🔑 🔑', 'k k'),
                          cast(id % 8 + 1 as int)) as keys,
               element_at(array('PAID', null, '', '标签', '🏷', repeat('t', 300)),
                          cast(id % 6 + 1 as int)) as tags
        from range(0, 3000, 1, 3)""",
    "numbers": """
        select 'b' as body, if(id % 3 = 0, null, cast(id % 11 as smallint)) as queueId,
               if(id % 5 = 0, null, cast(id - 50 as tinyint)) as flag,
               if(id % 7 = 0, null, id - 30) as bornTimestamp
        from range(0, 100, 1, 2)""",
    "large numbers": """
        select 'b' as body, 65535 - id * 997 as queueId, cast(2147483647 - id as bigint) as flag,
               if(id % 2 = 0, null, timestamp_micros(id * 1001 - 7777)) as bornTimestamp
        from range(0, 60, 1, 1)""",
    "several batches": """
        select repeat('y', 20) as body, concat('order-', id) as keys, concat('T', id % 10) as tags
        from range(0, 40000, 1, 2)""",
    "large bodies": """
        select cast(repeat(char(65 + id), cast(300000 * id as int)) as binary) as body,
               concat('k', id) as keys
        from range(0, 13, 1, 1)""",
    "columns that the store assigns": """
        select 'b' as body, 'm' as msgId, id as queueOffset, timestamp'2020-01-01' as storeTimestamp
        from range(0, 10, 1, 1)""",
    "columns without a type": """
        select 'b' as body, null as keys, null as tags, null as flag from range(0, 10, 1, 1)""",
}

Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Writes a frame to a store named like the source; returns where it is."""

    def write(frame: DataFrame, name: str = "rmqlog", **given: str) -> Path:
        options = {"topic": TOPIC, **SIZES, **given}
        path = tmp_path / name
        frame.write.format(name).options(**options).mode("append").save(str(path))
        return path

    return write


@pytest.fixture
def is_made_in_java(spark: SparkSession) -> Callable[[dict[str, Any]], bool]:
    """Whether a message got its unique key in Spark's Java process, which is named in it."""
    process = int(spark._jvm.java.lang.ProcessHandle.current().pid()) & 0xFFFF  # type: ignore[union-attr]
    return lambda row: str(row["uniqKey"])[8:12] == f"{process:04X}"


def timeless_log(path: Path) -> bytes:
    """The log with zeros where its times are that depend on when it was written."""
    log = np.array(bytearray(b"".join(content for _, content in files_below(path, "commitlog"))))
    for row in rows_of(path, TOPIC):
        start = row["commitLogOffset"]
        positions = [STORE_TIMESTAMP_POSITIONS[row["sysFlag"] & 0x30]]
        if row["bornTimestamp"] == row["storeTimestamp"]:
            positions.append(BORN_TIMESTAMP_POSITION)
        for position in positions:
            log[start + position : start + position + 8] = 0
    return log.tobytes()


def timeless_index(path: Path) -> list[bytes]:
    """Slots and entries of all index files, without times."""
    found = []
    for _, content in files_below(path, "index"):
        header = np.frombuffer(content, INDEX_HEADER, 1)[0]
        slots_end = INDEX_HEADER.itemsize + SLOTS * INDEX_SLOT.itemsize
        entries = np.frombuffer(content, INDEX_ENTRY, int(header["index_count"]), slots_end).copy()
        entries["time_diff_s"] = 0
        found += [content[INDEX_HEADER.itemsize : slots_end], entries.tobytes()]
    return found


def with_uniq_keys(frame: DataFrame) -> DataFrame:
    """The frame with a unique key for each row, so that it comes out the same twice."""
    return frame.selectExpr("*", "concat('U', monotonically_increasing_id(), 'é') as uniqKey")


@pytest.mark.parametrize("host", ["10.0.0.1:99", "[2001:db8::1]:99"], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("query", FRAMES.values(), ids=FRAMES)
def test_a_store_is_the_same_whoever_stages_it(
    spark: SparkSession, save: Save, query: str, host: str
) -> None:
    frame = with_uniq_keys(spark.sql(query))

    ours, plain = (save(frame, name, storeHost=host) for name in ("rmqlog", "rmqlog_plain"))

    assert timeless_log(ours) == timeless_log(plain)
    assert list(files_below(ours, "consumequeue")) == list(files_below(plain, "consumequeue"))
    assert timeless_index(ours) == timeless_index(plain)
    assert len(rows_of(ours, TOPIC)) == frame.count()


@pytest.mark.parametrize("query", FRAMES.values(), ids=FRAMES)
def test_plain_columns_are_staged_in_java(
    spark: SparkSession, save: Save, query: str,
    is_made_in_java: Callable[[dict[str, Any]], bool],
) -> None:
    path = save(spark.sql(query))

    rows = rows_of(path, TOPIC)
    assert all(map(is_made_in_java, rows))
    assert len({row["uniqKey"] for row in rows}) == len(rows)
    assert not list(verify_store(Store(str(path))))
    assert os.listdir(path / "rmqlog" / "staging") == []


def test_rows_of_a_driver_that_makes_no_unsafe_rows_are_staged_too(
    spark: SparkSession, save: Save, is_made_in_java: Callable[[dict[str, Any]], bool]
) -> None:
    frame = spark.createDataFrame([("one", "k"), ("two", None)], "body string, keys string")

    rows = rows_of(save(frame), TOPIC)

    assert [(row["body"], row["keys"]) for row in rows] == [(b"one", "k"), (b"two", None)]
    assert all(map(is_made_in_java, rows))


def test_more_keys_than_a_counter_counts_are_all_different(
    spark: SparkSession, save: Save
) -> None:
    path = save(spark.sql("select '' as body from range(0, 140000, 1, 1)"))

    assert len({row["uniqKey"] for row in rows_of(path, TOPIC)}) == 140_000


def test_from_the_first_row_that_is_not_plain_on_python_stages(
    spark: SparkSession, save: Save, is_made_in_java: Callable[[dict[str, Any]], bool]
) -> None:
    # Python takes the least number for no time at all.
    frame = spark.sql("""
        select cast(id as string) as body,
               if(id = 70, -9223372036854775807 - 1, id + 1) as bornTimestamp,
               if(id % 10 = 9, 3, null) as queueId
        from range(0, 200, 1, 2)""")

    rows = rows_of(save(frame), TOPIC)

    assert [int(row["body"]) for row in rows] == list(range(200))
    assert [is_made_in_java(row) for row in rows] == [
        number < 70 or number >= 100 for number in range(200)
    ]
    for partition in (0, 1):
        mine = rows[100 * partition : 100 * (partition + 1)]
        dealt = [row["queueId"] for row in mine if not row["body"].endswith(b"9")]
        assert dealt == [(partition + number) % 4 for number in range(90)]


@pytest.mark.parametrize("name", ["rmqlog", "rmqlog_plain"])
@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("if(id = 77, concat('a', char(1)), 'fine') as keys", "neither 0x01 nor 0x02"),
        ("if(id = 77, cast(x'6bff' as string), 'fine') as keys", r"UTF-8; found keys b'k.xff'"),
        ("if(id = 77, cast(x'c3' as string), 'fine') as tags", r"UTF-8; found tags b'.xc3'"),
        ("if(id = 77, concat('ä', char(2)), 'fine') as tags", "neither 0x01 nor 0x02"),
        ("if(id = 77, concat('ä', char(2)), 'fine') as uniqKey", "neither 0x01 nor 0x02"),
        ("if(id = 77, repeat('k', 33000), 'fine') as keys", "at most 32767 bytes"),
        ("if(id = 77, -1, 0) as queueId", "queueId is from 0 to 65535"),
        ("if(id = 77, 65536, 0) as queueId", "queueId is from 0 to 65535"),
        ("if(id = 77, 5000000000, 0) as flag", "its field; found flag 5000000000"),
    ],
)
def test_a_broken_rule_is_told_with_its_row(
    spark: SparkSession, save: Save, name: str, column: str, text: str
) -> None:
    frame = spark.range(0, 100, 1, 1).selectExpr("cast(id as string) as body", column)

    with pytest.raises(PySparkException, match=f"row 77 of partition 0 breaks a rule: .*{text}"):
        save(frame, name)


@pytest.mark.parametrize("name", ["rmqlog", "rmqlog_plain"])
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("if(id = 77, cast(null as string), 'b')", "a message has a body"),
        ("if(id = 77, repeat('b', 4194305), 'b')", "at most maxMessageSize bytes"),
        ("if(id = 77, repeat('b', 70000), 'b')", "fit into a segment"),
    ],
)
def test_a_broken_rule_of_bodies_is_told_with_its_row(
    spark: SparkSession, save: Save, tmp_path: Path, name: str, body: str, text: str
) -> None:
    frame = spark.range(0, 100, 1, 1).selectExpr(f"{body} as body")

    with pytest.raises(PySparkException, match=f"row 77 of partition 0 breaks a rule: .*{text}"):
        save(frame, name, mappedFileSizeCommitLog="64k")

    assert os.listdir(tmp_path / name / "rmqlog" / "staging") == []


def test_rows_that_fail_in_java_fail_the_job_and_leave_nothing(
    spark: SparkSession, save: Save, tmp_path: Path
) -> None:
    body = "if(id = 30000, raise_error('no such row'), 'b') as body"
    frame = spark.range(0, 40_000, 1, 1).selectExpr(body)

    with pytest.raises(PySparkException, match="no such row"):
        save(frame)

    assert os.listdir(tmp_path / "rmqlog" / "rmqlog" / "staging") == []


def test_a_write_that_fails_in_java_names_its_file_and_leaves_nothing(
    spark: SparkSession, save: Save, tmp_path: Path
) -> None:
    process = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    frame = spark.range(0, 20_000, 1, 1).selectExpr("repeat('b', 100) as body")
    allowed, most = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (100_000, most))
    try:
        text = r"/staging/.*-plain\.0 at offset 100000: write failed: File too large"
        with pytest.raises(Py4JJavaError, match=text):
            save(frame)
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, (allowed, most))

    assert os.listdir(tmp_path / "rmqlog" / "rmqlog" / "staging") == []
    assert len(rows_of(save(frame), TOPIC)) == 20_000


def test_a_transaction_that_is_done_stages_nothing(
    spark: SparkSession, save: Save
) -> None:
    frame = spark.sql("select 'b' as body from range(0, 10, 1, 2)")
    for _ in range(2):
        path = save(frame, txnAppId="a", txnVersion="1")

    assert len(rows_of(path, TOPIC)) == 10
    assert os.listdir(path / "rmqlog" / "staging") == []
