"""Frames are written to stores by Spark, through the bridge, without it, and by SQL."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from small_stores import rows_of

from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.verify import verify_store

pytestmark = pytest.mark.spark

SIZES = {
    "mappedFileSizeCommitLog": "256k", "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "500", "maxIndexNum": "2000",
}
MESSAGES = """
    select 'orders' as topic, cast(id % 3 as int) as queueId, concat('tag', id % 2) as tags,
           concat('key-', id, ' also-', id) as keys, cast(id as string) as body,
           map('name', concat('v', id), 'DELAY', '3') as properties, cast(id as int) as flag,
           timestamp_millis(1700000000000 + id) as bornTimestamp, '10.0.0.1:99' as bornHost,
           concat('U', id) as uniqKey
    from range(0, 1000, 1, 4)
"""

Save = Callable[..., None]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Writes a frame to the store of this test."""

    def write(frame: DataFrame, name: str = "rmqlog", mode: str = "append", **given: str) -> None:
        writing = frame.write.format(name).options(**SIZES).options(**given)
        writing.mode(mode).save(str(tmp_path / "store"))

    return write


@pytest.mark.parametrize("name", ["rmqlog", "rmqlog_plain"])
def test_every_column_of_every_row_is_written(
    spark: SparkSession, save: Save, tmp_path: Path, name: str
) -> None:
    save(spark.sql(MESSAGES), name)

    rows = rows_of(tmp_path / "store", "orders")
    assert [row["body"] for row in rows] == [b"%d" % number for number in range(1000)]
    row = rows[7]
    assert {name: row[name] for name in ("queueId", "queueOffset", "tags", "keys", "flag")} == {
        "queueId": 1, "queueOffset": 2, "tags": "tag1", "keys": "key-7 also-7", "flag": 7,
    }
    assert row["bornHost"] == "10.0.0.1:99"
    assert row["uniqKey"] == "U7"
    assert row["bornTimestamp"] == datetime(2023, 11, 14, 22, 13, 20, 7000, tzinfo=timezone.utc)
    # A property that would make the store act is dropped.
    assert {"name": "v7"}.items() <= dict(row["properties"]).items()
    assert "DELAY" not in dict(row["properties"])
    assert len({row["storeTimestamp"] for row in rows}) == 1
    assert not list(verify_store(Store(str(tmp_path / "store"))))
    assert os.listdir(tmp_path / "store" / "rmqlog" / "staging") == []


def test_a_body_is_enough(spark: SparkSession, save: Save, tmp_path: Path) -> None:
    save(spark.sql("select 'grüße' as body"), topic="t")

    (row,) = rows_of(tmp_path / "store", "t")
    assert row["body"].decode() == "grüße"
    assert row["tags"] is None
    assert row["bornTimestamp"] == row["storeTimestamp"]
    assert row["uniqKey"]


def test_what_was_read_can_be_written(spark: SparkSession, save: Save, tmp_path: Path) -> None:
    save(spark.sql(MESSAGES))
    read = spark.read.format("rmqlog").option("topic", "orders").load(str(tmp_path / "store"))

    save(read.where("tags = 'tag1'"), topic="copy")

    originals = [row for row in rows_of(tmp_path / "store", "orders") if row["tags"] == "tag1"]
    copies = rows_of(tmp_path / "store", "copy")
    kept = ("tags", "keys", "body", "flag", "bornTimestamp", "bornHost", "uniqKey", "queueId")
    assert sorted([[row[name] for name in kept] for row in copies]) == sorted(
        [[row[name] for name in kept] for row in originals]
    )


def test_delayed_rows_wait_in_the_schedule_topic(
    spark: SparkSession, save: Save, tmp_path: Path
) -> None:
    save(spark.sql("select 'b' as body, 3 as delayLevel"), topic="later")

    (row,) = rows_of(tmp_path / "store", "SCHEDULE_TOPIC_XXXX")
    assert row["queueId"] == 2
    assert dict(row["properties"])["REAL_TOPIC"] == "later"


def test_a_topic_of_the_catalog_is_inserted_into(
    spark: SparkSession, save: Save, new_catalog: str, tmp_path: Path
) -> None:
    spark.conf.set(f"spark.sql.catalog.{new_catalog}.path", str(tmp_path / "store"))
    save(spark.sql("select 'first' as body"), topic="orders")

    values = "values (cast('second' as binary), 'T')"
    spark.sql(f"insert into {new_catalog}.orders (body, tags) {values}")
    frame = spark.sql("select 'U' as tags, cast('third' as binary) as body")
    frame.writeTo(f"{new_catalog}.orders").append()

    rows = rows_of(tmp_path / "store", "orders")
    assert [(row["body"], row["tags"]) for row in rows] == [
        (b"first", None), (b"second", "T"), (b"third", "U"),
    ]


def test_the_catalog_takes_the_columns_and_types_that_save_takes(
    spark: SparkSession, save: Save, new_catalog: str, tmp_path: Path
) -> None:
    spark.conf.set(f"spark.sql.catalog.{new_catalog}.path", str(tmp_path / "store"))
    save(spark.sql("select 'first' as body"), topic="orders")

    values = "values ('T', 'text')"
    spark.sql(f"insert into {new_catalog}.orders (tags, body) {values}")
    spark.sql(f"insert into {new_catalog}.orders select 'by its name' as body")
    delayed = spark.sql("select 'later' as body, 3 as delayLevel")
    delayed.writeTo(f"{new_catalog}.orders").append()
    with pytest.raises(Exception, match="did you mean tags"):
        spark.sql("select 'b' as body, 'T' as tag").writeTo(f"{new_catalog}.orders").append()

    rows = rows_of(tmp_path / "store", "orders")
    assert [(row["body"], row["tags"]) for row in rows] == [
        (b"first", None), (b"text", "T"), (b"by its name", None),
    ]
    assert len(rows_of(tmp_path / "store", "SCHEDULE_TOPIC_XXXX")) == 1


def test_the_same_transaction_again_writes_nothing(
    spark: SparkSession, save: Save, tmp_path: Path
) -> None:
    frame = spark.range(10).selectExpr("cast(id as string) as body")

    for version in ("1", "1", "2"):
        save(frame, topic="t", txnAppId="etl", txnVersion=version)

    assert len(rows_of(tmp_path / "store", "t")) == 20


def test_an_empty_frame_makes_a_store_that_can_be_written(
    spark: SparkSession, save: Save, tmp_path: Path
) -> None:
    save(spark.sql("select 'x' as body where false"), topic="t", mode="overwrite")
    save(spark.sql("select 'x' as body"), topic="t")

    assert len(rows_of(tmp_path / "store", "t")) == 1


def test_a_row_that_breaks_a_rule_fails_the_job_and_nothing_is_written(
    spark: SparkSession, save: Save, tmp_path: Path
) -> None:
    save(spark.sql("select 'x' as body"), topic="t")
    frame = spark.range(0, 100, 1, 3).selectExpr(
        "cast(id as string) as body", "if(id = 77, concat('a', char(1)), 'fine') as keys"
    )

    with pytest.raises(PySparkException, match=r"neither 0x01 nor 0x02; found keys .*a.x01"):
        save(frame, topic="t")
    with pytest.raises(PySparkException, match="body"):
        save(spark.sql("select cast(null as binary) as body"), topic="t")

    assert len(rows_of(tmp_path / "store", "t")) == 1
    assert os.listdir(tmp_path / "store" / "rmqlog" / "staging") == []


@pytest.mark.parametrize("mode", ["error", "ignore"])
def test_other_modes_get_the_refusal_of_spark(
    spark: SparkSession, save: Save, mode: str
) -> None:
    with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        save(spark.sql("select 'x' as body"), topic="t", mode=mode)


def test_a_wrong_column_or_option_is_refused_with_a_hint(
    spark: SparkSession, save: Save, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match=r"did you mean tags\?"):
        save(spark.sql("select 'x' as body, 'y' as tgs"), topic="t")
    with pytest.raises(PySparkException, match=r"did you mean compression\?"):
        save(spark.sql("select 'x' as body"), topic="t", compresion="zstd")
    assert not (tmp_path / "store").exists()
