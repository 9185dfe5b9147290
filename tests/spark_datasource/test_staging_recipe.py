"""When the bridge stages rows itself, what it is told, and what is read of what it has staged."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from rmqlog.commitlog_format.errors import CorruptStagingError
from rmqlog.commitlog_format.message import decode_record
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.spark_datasource.sink_plan import plan_write
from rmqlog.spark_datasource.staging_recipe import staged_by_bridge
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.staging import StagingPlan

BRIDGE = {"__rmqlog.bridge": "1", "__rmqlog.queryid": "q-1"}
PLAIN: dict[str, DataType] = {"body": BinaryType(), "keys": StringType(), "queueId": LongType()}


def recipe(path: Path, columns: dict[str, DataType] = PLAIN, **options: str) -> str:
    """What a write of these columns leaves for the bridge."""
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    given = {"path": str(path / "store"), "topic": "orders", **BRIDGE, **options}
    return plan_write(given, schema, overwrite=False).recipe


def content_of(text: str) -> dict[str, Any]:
    """The JSON between the markers."""
    begin, end = "<rmqlog-recipe>", "</rmqlog-recipe>"
    assert text.startswith(begin)
    assert text.endswith(end)
    found: dict[str, Any] = json.loads(text[len(begin) : -len(end)])
    return found


def test_a_recipe_tells_the_place_of_each_column(tmp_path: Path) -> None:
    columns = {"msgId": StringType(), "tags": NullType(), **PLAIN, "topic": StringType()}
    found = content_of(recipe(tmp_path, columns))

    assert found["columns"] == {
        "body": 2, "keys": 3, "tags": -1, "uniqKey": -1, "queueId": 4, "flag": -1,
        "bornTimestamp": -1,
    }
    assert found["folder"] == f"{tmp_path}/store/rmqlog/staging/q-1"


@pytest.mark.parametrize("host", ["10.1.2.3:4567", "[2001:db8::1]:4567"])
def test_header_positions_and_topic_of_a_recipe_make_a_record(tmp_path: Path, host: str) -> None:
    found = content_of(recipe(tmp_path, storeHost=host))
    header = bytearray(base64.b64decode(found["header"]))
    tail = base64.b64decode(found["topicField"]) + bytes(2)
    values = {
        "totalSize": len(header) + 3 + len(tail), "bodyCrc": 11, "queueId": 22, "flag": 33,
        "bodySize": 3, "bornTimestamp": 55,
    }
    for name, value in values.items():
        size = 8 if name == "bornTimestamp" else 4
        position = found["positions"][name]
        header[position : position + size] = value.to_bytes(size, "big")

    record = decode_record(bytes(header) + b"abc" + tail, 0)

    assert (record.topic, record.body) == (b"orders", b"abc")
    assert (record.queue_id, record.flag, record.born_timestamp) == (22, 33, 55)
    assert record.sys_flag == found["sysFlag"]
    assert record.born_host == record.store_host


def test_a_text_cannot_end_a_recipe_or_begin_another(tmp_path: Path) -> None:
    path = tmp_path / "</rmqlog-recipe><rmqlog-recipe>"
    text = recipe(path)

    assert text.count("<") == 2
    assert content_of(text)["folder"].startswith(str(path))


@pytest.mark.parametrize(
    "options",
    [
        {"topic": ""}, {"compression": "zstd"}, {"queueBy": "keys"}, {"queueBy": "column:keys"},
        {"__rmqlog.bridge": ""},
    ],
    ids=str,
)
def test_other_rules_are_for_python(tmp_path: Path, options: dict[str, str]) -> None:
    given = {"path": str(tmp_path), "topic": "orders", **BRIDGE, **options}
    given = {name: text for name, text in given.items() if text}
    columns = [StructField(name, kind) for name, kind in PLAIN.items()]
    schema = StructType([*columns, StructField("topic", StringType())])

    assert plan_write(given, schema, overwrite=False).recipe == ""


@pytest.mark.parametrize("name", ["bornHost", "delayLevel", "properties"])
def test_other_columns_are_for_python(tmp_path: Path, name: str) -> None:
    kinds: dict[str, DataType] = {"delayLevel": IntegerType()}
    columns = {**PLAIN, name: kinds.get(name, NullType())}

    assert recipe(tmp_path, columns) == ""
    assert recipe(tmp_path) != ""


def test_a_path_that_java_may_have_no_name_for_is_for_python(tmp_path: Path) -> None:
    assert recipe(tmp_path / "grün") == ""


# --- what was staged ------------------------------------------------------------------------


@pytest.fixture
def staging(tmp_path: Path) -> StagingPlan:
    """A plan whose folder is there."""
    plan = StagingPlan(str(tmp_path), "job", StoreSettings(), topic="orders")
    Path(plan.folder).mkdir(parents=True)
    return plan


def test_what_was_staged_is_told_by_its_summary(staging: StagingPlan) -> None:
    summary = {"rowCount": 5, "recordsSize": 700, "dealtRows": 4, "counts": [[0, 3], [2, 2]]}
    Path(staging.folder, "3-17-plain.summary").write_text(json.dumps(summary))

    found = staged_by_bridge(staging, 3, 17)

    assert found.dealt_rows == 4
    assert (found.file.name, found.file.partition) == ("3-17-plain", 3)
    assert (found.file.row_count, found.file.records_size) == (5, 700)
    assert found.file.counts == ((QueueKey("orders", 0), 3), (QueueKey("orders", 2), 2))


def test_without_a_summary_nothing_was_staged(staging: StagingPlan) -> None:
    found = staged_by_bridge(staging, 3, 17)

    assert (found.file.row_count, found.dealt_rows) == (0, 0)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"rowCount": "x"}', "\xff"], ids=repr)
def test_a_summary_that_cannot_be_read_is_named(staging: StagingPlan, text: str) -> None:
    path = Path(staging.folder, "3-17-plain.summary")
    path.write_text(text)

    with pytest.raises(CorruptStagingError) as caught:
        staged_by_bridge(staging, 3, 17)

    assert str(path) in str(caught.value)
