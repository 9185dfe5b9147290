"""What a written row means: columns, properties, defaults, queues, keys, delays, compression."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from small_stores import SMALL, START_MS, Clock, batch, open_writer, rows_of

from rmqlog.commitlog_format.address import parse_host
from rmqlog.commitlog_format.hashing import java_hash
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.store_writer import NewMessage
from rmqlog.writer.uniq_keys import UniqKeys

MAP = pa.map_(pa.string(), pa.string())
BORN = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=timezone.utc)


def test_every_column_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    columns = {
        "topic": ["orders", "orders", "other"],
        "queueId": [3, 0, 1],
        "tags": ["PAID", None, "已支付"],
        "keys": ["a b", "😀", None],
        "body": [b"one", b"", b"\x00\x01\x02"],
        "properties": pa.array([[("x", "1"), ("y", "中文")], [], None], MAP),
        "flag": [7, None, -1],
        "bornTimestamp": pa.array([BORN, None, BORN], pa.timestamp("us", "UTC")),
        "bornHost": ["10.1.2.3:45678", None, "[::1]:5"],
        "uniqKey": ["my-key", None, None],
    }
    with open_writer(tmp_path) as writer:
        writer.append(pa.RecordBatch.from_pydict(columns))

    rows = [*rows_of(tmp_path, "orders"), *rows_of(tmp_path, "other")]
    for name in ("topic", "queueId", "tags", "keys", "body"):
        assert [row[name] for row in rows] == columns[name]
    assert [row["flag"] for row in rows] == [7, 0, -1]
    # Milliseconds are what a record has room for.
    assert rows[0]["bornTimestamp"] == BORN.replace(microsecond=123000)
    assert int(rows[1]["bornTimestamp"].timestamp() * 1000) == START_MS
    assert [row["bornHost"] for row in rows] == ["10.1.2.3:45678", "127.0.0.1:10911", "[::1]:5"]
    assert rows[0]["uniqKey"] == "my-key"
    assert dict(rows[0]["properties"]) == {
        "KEYS": "a b", "TAGS": "PAID", "UNIQ_KEY": "my-key", "x": "1", "y": "中文",
    }
    assert [len(row["uniqKey"]) for row in rows[1:]] == [32, 32]
    assert rows[0]["tagsCode"] == java_hash("PAID")


def test_what_was_read_can_be_written(tmp_path: Path) -> None:
    with open_writer(tmp_path / "one") as writer:
        writer.append(batch(50))
    (read,) = Store(str(tmp_path / "one")).read("orders", 0)

    with open_writer(tmp_path / "two") as writer:
        writer.append(read)

    again = rows_of(tmp_path / "two", "orders")
    kept = ("topic", "queueId", "tags", "keys", "body", "uniqKey", "bornTimestamp", "bornHost")
    assert [[row[name] for name in kept] for row in again] == [
        [row[name] for name in kept] for row in read.to_pylist()
    ]


def test_a_column_beats_the_property_of_the_same_meaning_and_an_absent_one_takes_it(
    tmp_path: Path,
) -> None:
    inner = [("TAGS", "inner"), ("KEYS", "inner key"), ("UNIQ_KEY", "U"), ("z", "1")]
    with open_writer(tmp_path) as writer:
        writer.append(
            batch(
                3,
                tags=["outer", None, ""],
                keys=[None, "outer", None],
                uniqKey=[None, None, "V"],
                properties=pa.array([inner] * 3, MAP),
            )
        )

    rows = rows_of(tmp_path, "orders")
    assert [row["tags"] for row in rows] == ["outer", "inner", "inner"]
    assert [row["keys"] for row in rows] == ["inner key", "outer", "inner key"]
    assert [row["uniqKey"] for row in rows] == ["U", "U", "V"]
    assert all(dict(row["properties"])["z"] == "1" for row in rows)
    assert [len(row["properties"]) for row in rows] == [4, 4, 4]


def test_properties_that_would_make_the_store_act_are_dropped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    acting = [
        *("DELAY", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "__CRC32#", "INNER_NUM"),
        *("INNER_MULTI_DISPATCH", "TIMER_DELAY_SEC", "TIMER_OUT_MS", "__RMQ.TRANSIENT.x"),
    ]
    properties = [(name, "1") for name in acting] + [("mine", "2")]
    with open_writer(tmp_path) as writer:
        writer.append(batch(2, properties=pa.array([properties, [("DELAY", "3")]], MAP)))

        assert writer.statistics.snapshot().dropped_properties == {
            **dict.fromkeys(acting, 1), "DELAY": 2,
        }
    rows = rows_of(tmp_path, "orders")
    assert set(dict(rows[0]["properties"])) == {"KEYS", "TAGS", "UNIQ_KEY", "mine"}
    assert "DELAY" in caplog.text


def test_a_sliced_map_column_gives_each_row_its_own_properties(tmp_path: Path) -> None:
    properties = pa.array([[("a", str(number))] * (number % 3) for number in range(9)], MAP)
    whole = batch(9, properties=properties, queueId=[0] * 9)
    with open_writer(tmp_path) as writer:
        writer.append(whole[2:8])

    found = [dict(row["properties"]).get("a") for row in rows_of(tmp_path, "orders")]
    assert found == ["2", None, "4", "5", None, "7"]


def test_rows_without_a_queue_take_turns(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        first = writer.append(batch(6))
        second = writer.append(batch(3, queueId=pa.array([None, 1, None], pa.int32())))

    assert first.queue_id.tolist() == [0, 1, 2, 3, 0, 1]
    assert second.queue_id.tolist() == [2, 1, 3]


@pytest.mark.parametrize("as_column", [True, False])
def test_rows_with_a_sharding_key_go_by_its_hash(tmp_path: Path, as_column: bool) -> None:
    keys = ["customer-1", "customer-2", "polygenelubricants", "customer-1"]
    if as_column:
        columns = {"shardingKey": keys}
    else:
        columns = {"properties": pa.array([[("__SHARDINGKEY", key)] for key in keys], MAP)}
    with open_writer(tmp_path) as writer:
        result = writer.append(batch(4, **columns))

    assert result.queue_id.tolist() == [abs(java_hash(key)) % 4 for key in keys]
    stored = [dict(row["properties"])["__SHARDINGKEY"] for row in rows_of(tmp_path, "orders")]
    assert stored == keys


def test_the_queues_of_a_topic_are_those_that_topics_json_says(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.create_topic("orders", 2)
    with open_writer(tmp_path) as writer:
        result = writer.append(batch(5))

    assert result.queue_id.tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_bodies_are_compressed_as_wanted_and_read_back_plain(tmp_path: Path, kind: str) -> None:
    bodies = [b"a" * 1000, b"", b"b" * 500]
    with open_writer(tmp_path) as writer:
        writer.append(batch(3, body=bodies), compression=kind)
        writer.append(batch(3, body=bodies, compression=[None, kind, kind]))

    rows = rows_of(tmp_path, "orders")
    bits = {"lz4": 0x101, "zstd": 0x201, "zlib": 0x301}[kind]
    assert [row["body"] for row in rows] == bodies * 2
    # An empty body stays as it is.
    assert [row["sysFlag"] for row in rows] == [bits, 0, bits, 0, 0, bits]
    assert rows[0]["storeSize"] < 400


def test_a_delayed_message_waits_in_the_schedule_topic(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        result = writer.append(
            batch(4, queueId=[2] * 4, delayLevel=pa.array([3, None, 99, 0], pa.int32()))
        )

    assert result.queue_id.tolist() == [2, 2, 17, 2]
    waiting = rows_of(tmp_path, "SCHEDULE_TOPIC_XXXX")
    assert [row["tagsCode"] for row in waiting] == [START_MS + 10_000, START_MS + 7_200_000]
    properties = [dict(row["properties"]) for row in waiting]
    assert [found["DELAY"] for found in properties] == ["3", "18"]
    assert {(found["REAL_TOPIC"], found["REAL_QID"]) for found in properties} == {("orders", "2")}
    assert [row["tagsCode"] for row in rows_of(tmp_path, "orders")] == [
        java_hash("CREATED"), java_hash("PAID"),
    ]


def test_one_message_is_put_like_a_batch_of_one(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        result = writer.put(
            NewMessage("orders", b"hi", tags="A", keys="k", queue_id=1, properties={"p": "q"})
        )

    (row,) = rows_of(tmp_path, "orders")
    assert row["msgId"] == result.msg_id
    assert (row["queueId"], row["queueOffset"], row["commitLogOffset"]) == (
        result.queue_id, result.queue_offset, result.physical_offset,
    )
    assert dict(row["properties"])["p"] == "q"


def test_made_keys_are_unique_even_when_the_clock_stands_still() -> None:
    keys = UniqKeys(parse_host("10.1.2.3:10911"))

    made = [key for _ in range(3) for key in keys.make(70_000, START_MS).to_pylist()]

    assert len(set(made)) == 210_000
    assert all(len(key) == 32 and key.startswith("0A010203") for key in made[::1000])
    assert UniqKeys(parse_host("10.1.2.3:10911")).make(1, START_MS).to_pylist()[0] not in made


def test_the_topic_of_the_call_is_for_rows_without_one(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        result = writer.append(
            pa.RecordBatch.from_pydict({"topic": [None, "b"], "body": [b"1", b"2"]}), topic="a"
        )

    assert [result.topics[code] for code in result.topic_codes] == ["a", "b"]


def test_times_may_be_milliseconds_too(tmp_path: Path) -> None:
    with open_writer(tmp_path, now_ms=Clock()) as writer:
        writer.append(batch(2, bornTimestamp=np.array([0, 1234567890123])))

    born = [row["bornTimestamp"].timestamp() for row in rows_of(tmp_path, "orders")]
    assert born == [0.0, 1234567890.123]


def test_settings_of_delay_levels_are_followed(tmp_path: Path) -> None:
    settings = SMALL.with_changes(messageDelayLevel="2s 1d")
    with open_writer(tmp_path, settings) as writer:
        result = writer.append(batch(2, delayLevel=[1, 5]))

    assert result.queue_id.tolist() == [0, 1]
