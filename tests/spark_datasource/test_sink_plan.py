"""What is refused before a task of a write starts, and how a write is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from small_stores import batch, open_writer

from rmqlog.commitlog_format.errors import (
    InvalidNameError,
    InvalidSettingError,
    StoreError,
    UnsupportedFormatError,
)
from rmqlog.spark_datasource.sink_options import WRITE_OPTIONS
from rmqlog.spark_datasource.sink_plan import SinkPlan, plan_write
from rmqlog.writer.batch_write import commit_job
from rmqlog.writer.commit import StagedJob
from rmqlog.writer.commit_records import JobId, Transaction

ALL_COLUMNS = (
    "topic string, queueId int, tags string, keys string, body binary, "
    "properties map<string,string>, flag int, bornTimestamp timestamp, bornHost string, "
    "uniqKey string, delayLevel int"
)


TYPES: dict[str, DataType] = {
    "binary": BinaryType(), "string": StringType(), "int": IntegerType(), "bigint": LongType(),
    "smallint": ShortType(), "double": DoubleType(), "void": NullType(),
    "timestamp": TimestampType(), "timestamp_ntz": TimestampNTZType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
}


def schema_of(text: str) -> StructType:
    """Columns as SQL writes them; Spark's own parser needs a session."""
    columns = [column.split(" ") for column in text.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in columns])


def plan(
    store: Path, schema: str = "body binary", overwrite: bool = False, **options: Any
) -> SinkPlan:
    """The plan of a write; an option that is ``None`` is left out."""
    given = {"path": str(store), "topic": "t", **options}
    wanted = {name: str(value) for name, value in given.items() if value is not None}
    return plan_write(wanted, schema_of(schema), overwrite=overwrite)


@pytest.mark.parametrize(
    "schema",
    ["body binary", "body string", ALL_COLUMNS, "body binary, queueId bigint, flag smallint",
     "body binary, bornTimestamp bigint", "body binary, tags void",
     "body binary, queueOffset bigint, msgId string, storeSize int, brokerName string"],
)
def test_every_column_that_makes_sense_is_taken(tmp_path: Path, schema: str) -> None:
    assert plan(tmp_path, schema).staging.topic == "t"


@pytest.mark.parametrize(
    ("schema", "options", "error", "sentence"),
    [
        ("body binary, kees string", {}, InvalidNameError, "; found kees, did you mean keys?"),
        ("body binary, TAGS string", {}, InvalidNameError, "; found TAGS, did you mean tags?"),
        ("body binary, zzz string", {}, InvalidNameError, "some of topic, queueId"),
        ("col1 string, col2 string", {}, InvalidNameError, "INSERT INTO … (body, tags) VALUES"),
        ("body binary, key string", {}, InvalidNameError, "did you mean keys?"),
        ("body binary, compression string", {}, InvalidNameError, "no such column"),
        ("body int", {}, InvalidNameError, "found int, expected binary or string"),
        ("body void", {}, InvalidNameError, "column body"),
        ("body binary, queueId string", {}, InvalidNameError, "column queueId"),
        ("body binary, bornTimestamp timestamp_ntz", {}, InvalidNameError, "bornTimestamp"),
        ("body binary, properties map<string,int>", {}, InvalidNameError, "map<string,string>"),
        ("tags string", {}, InvalidNameError, "needs a body"),
        ("body binary, body string", {}, InvalidNameError, "comes twice"),
        ("body binary", {"topic": None}, InvalidSettingError, "the option topic"),
        ("body binary", {"topc": "x"}, InvalidSettingError, "did you mean topic?"),
        ("body binary", {"topic": "a b"}, InvalidSettingError, "letters, digits"),
        ("body binary", {"topic": "t" * 128}, InvalidSettingError, "option topic"),
        ("body binary", {"txnAppId": "a"}, InvalidSettingError, "both or none"),
        ("body binary", {"txnVersion": 1}, InvalidSettingError, "both or none"),
        ("body binary", {"txnAppId": "a", "txnVersion": "x"}, InvalidSettingError, "number"),
        ("body binary", {"queueNums": 0}, InvalidSettingError, "at least 1"),
        ("body binary", {"queueBy": "hash"}, InvalidSettingError, "column:<name"),
        ("body binary, usr string", {"queueBy": "column:user"}, InvalidNameError, "usr"),
        ("body binary, tags string", {"queueBy": "column:tagz"}, InvalidSettingError, "tags?"),
        ("body binary, x double", {"queueBy": "column:x"}, InvalidNameError, "hashed"),
        ("body binary", {"compression": "gzip"}, InvalidSettingError, "zlib or lz4"),
        ("body binary", {"storeHost": "nowhere"}, InvalidSettingError, "10911"),
        ("body binary", {"path": "s3://bucket/store"}, InvalidSettingError, "this machine"),
        ("body binary", {"path": "/data/broker-*/store"}, InvalidSettingError, "one store"),
        ("body binary", {"paths": '["/a", "/b"]'}, InvalidSettingError, "paths cannot be"),
        ("body binary", {"storePathCommitLog": "/log"}, InvalidSettingError, "its log in it"),
        ("body binary", {"path": None}, InvalidSettingError, "needs the bridge's jar"),
        ("body binary", {"path": None}, InvalidSettingError, "no path"),
        ("body binary", {"lockTimeout": "soon"}, InvalidSettingError, "seconds"),
    ],
)
def test_what_cannot_be_written_is_refused_with_a_hint(
    tmp_path: Path, schema: str, options: dict[str, Any], error: type[StoreError], sentence: str
) -> None:
    with pytest.raises(error) as raised:
        plan(tmp_path, schema, **options)
    assert sentence in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_overwrite_is_for_new_stores_only(tmp_path: Path) -> None:
    plan(tmp_path / "new", overwrite=True)
    with open_writer(tmp_path / "old") as writer:
        writer.append(batch(1))

    with pytest.raises(InvalidSettingError, match=r'use mode\("append"\)'):
        plan(tmp_path / "old", overwrite=True)


@pytest.mark.parametrize(
    ("file", "sentence"),
    [("consumequeue/CURRENT", "queues in RocksDB"), ("consumequeue/t/0/0", "no log here"),
     ("dledger-n0/data/0", "a DLedger log")],
)
def test_a_store_that_only_brokers_write_is_refused(
    tmp_path: Path, file: str, sentence: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_bytes(b"x")
    if "CURRENT" in file:
        (tmp_path / "commitlog").mkdir()

    with pytest.raises(UnsupportedFormatError, match=sentence):
        plan(tmp_path)


def test_a_relative_path_is_that_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert plan(Path("a/store")).staging.store_path == f"{tmp_path}/a/store"


def test_sizes_must_be_those_of_the_store(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(1))

    assert plan(tmp_path).staging.settings.mappedFileSizeCommitLog == 16 * 1024
    plan(tmp_path, mappedFileSizeCommitLog="16k")
    with pytest.raises(InvalidSettingError, match="found 32768, expected 16384"):
        plan(tmp_path, mappedFileSizeCommitLog="32k")


def test_a_topic_that_exists_keeps_its_queues_unless_more_are_wanted(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.create_topic("t", 6)

    assert plan(tmp_path).staging.queue_count("t") == 6
    assert plan(tmp_path, queueNums=2).staging.queue_count("t") == 6
    assert plan(tmp_path, queueNums=9).staging.queue_count("t") == 9
    assert plan(tmp_path).staging.queue_count("new") == 4
    assert plan(tmp_path, queueNums=9).staging.queue_count("new") == 9


def test_a_transaction_that_is_done_is_known_before_a_task_starts(tmp_path: Path) -> None:
    done = StagedJob(JobId("job", Transaction("a", 3)), "", [])
    commit_job(str(tmp_path), done, plan(tmp_path).staging.settings)

    assert plan(tmp_path, txnAppId="a", txnVersion=3).is_done
    assert not plan(tmp_path, txnAppId="a", txnVersion=4).is_done


def test_options_of_reading_are_known_and_ignored(tmp_path: Path) -> None:
    assert plan(tmp_path, checkCrc="true", mode="FAILFAST").staging.topic == "t"


def test_every_option_has_a_default_that_can_be_read(tmp_path: Path) -> None:
    for option in WRITE_OPTIONS:
        if option.default:
            option.parse(option.default)
    assert len({option.name.lower() for option in WRITE_OPTIONS}) == len(WRITE_OPTIONS)


def test_each_write_has_an_id_of_its_own_or_that_of_the_query(tmp_path: Path) -> None:
    first, second = plan(tmp_path), plan(tmp_path)
    named = plan(tmp_path, **{"__rmqlog.queryid": "abc-1", "__rmqlog.bridge": "1"})

    assert first.job.job_id != second.job.job_id
    assert named.job.job_id == "abc-1"
    assert "/" not in plan(tmp_path, **{"__rmqlog.queryid": "../x"}).job.job_id
