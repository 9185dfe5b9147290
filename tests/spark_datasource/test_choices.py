"""What options choose, and what is refused: topics, offsets, consumer groups, metadata."""

from __future__ import annotations

import json
import re
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from in_process import InProcessScan
from query_reference import as_bag, leaf, negated, store_rows

from rmqlog.commitlog_format.errors import (
    InvalidSettingError,
    SegmentExpiredError,
    TopicNotFoundError,
)
from rmqlog.spark_datasource.options import METADATA_TABLES
from rmqlog.spark_datasource.source import RmqlogDataSource

PLACE = ("brokerName", "topic", "queueId", "queueOffset")


# --- Offsets --------------------------------------------------------------------------------


def test_offsets_that_are_gone_are_an_error_unless_allowed(store: Path) -> None:
    far = {"topic": "orders", "startingOffsets": '{"orders": {"0": 100000}}'}
    with pytest.raises(SegmentExpiredError, match="failOnDataLoss"):
        InProcessScan(store, far).rows()
    found = InProcessScan(store, {**far, "failOnDataLoss": "false"}).rows()
    assert {row["queueId"] for row in found} == {1}


def _offsets(**given: Any) -> dict[str, str]:
    return {name: json.dumps(value) for name, value in given.items()}


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_offsets_of_a_topic_or_broker_that_is_not_there_are_refused(store: Path, name: str) -> None:
    for mistyped in ({"ordres": {"0": 5}}, {"store-a": {"orders": {"0": 5}, "ordres": {"0": 5}}}):
        with pytest.raises(TopicNotFoundError, match=f"{name} name.*'ordres'.*'orders'"):
            RmqlogDataSource({"path": str(store), **_offsets(**{name: mistyped})}).schema()
        with pytest.raises(TopicNotFoundError):
            InProcessScan(store, _offsets(**{name: mistyped})).plan()
        # A topic may have been deleted since the offsets were noted down.
        forgiving = {"failOnDataLoss": "false", **_offsets(**{name: mistyped})}
        assert InProcessScan(store, forgiving).rows()
    with pytest.raises(InvalidSettingError, match=r"broker.*'store-b'.*'store-a'"):
        InProcessScan(store, _offsets(**{name: {"store-b": {"orders": {"0": 5}}}})).plan()
    # Offsets of one load serve a load of fewer topics, and of topics that it does not select.
    for known in ({"orders": {"0": 5}, "batch": {"0": 1}}, {"store-a": {"orders": {"0": 5}}}, {}):
        assert InProcessScan(store, {"topic": "orders", **_offsets(**{name: known})}).rows()


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_offsets_of_a_queue_that_is_not_there_are_refused_unless_it_may_be_new(
    store: Path, name: str
) -> None:
    for mistyped in ({"orders": {"11": 5}}, {"store-a": {"orders": {"0": 5, "11": 5}}}):
        given = _offsets(**{name: mistyped})
        with pytest.raises(TopicNotFoundError, match=f"{name} name a queue.*'orders' queue 11"):
            RmqlogDataSource({"path": str(store), **given}).schema()
        assert InProcessScan(store, {**given, "failOnDataLoss": "false"}).rows()
    for offset in (-2, -1, 0):
        assert InProcessScan(store, _offsets(**{name: {"orders": {"11": offset}}})).rows()


# --- Topics and metadata --------------------------------------------------------------------


def test_a_topic_that_is_not_there_suggests_the_nearest(store: Path) -> None:
    with pytest.raises(TopicNotFoundError, match="'orders'"):
        InProcessScan(store, {"topic": "ordres"}).rows()


@pytest.mark.parametrize("table", METADATA_TABLES)
def test_metadata_of_a_topic_that_is_not_there_suggests_the_nearest(
    store: Path, table: str
) -> None:
    options = {"metadata": table, "topic": "ordres"}
    with pytest.raises(TopicNotFoundError, match="'orders'"):
        RmqlogDataSource({"path": str(store), **options}).schema()
    with pytest.raises(TopicNotFoundError, match="'orders'"):
        InProcessScan(store, options, columns=["topic"]).plan()


def test_metadata_is_of_the_topics_that_are_chosen(golden_store: Any, tmp_path: Path) -> None:
    path = golden_store("rmq-5.5.0-clean").path

    def topics(path: Path, table: str, **options: str) -> set[str]:
        scan = InProcessScan(path, {"metadata": table, **options}, columns=["topic"])
        assert scan.plan().report.rows == len(scan.rows())
        return {row["topic"] for row in scan.rows()}

    for table in ("topics", "queues", "groups"):
        assert topics(path, table, topicsPattern="la.") == {"lag"}, table
        assert topics(path, table) > {"lag", "orders"}, table
    # A broker keeps the offsets of groups in topics that are gone.
    copy = tmp_path / "store"
    copytree(path, copy)
    (copy / "config" / "consumerOffset.json").write_text('{"offsetTable": {"gone@g": {0: 5}}}')
    assert topics(copy, "groups", topic="gone") == {"gone"}
    with pytest.raises(TopicNotFoundError):
        topics(copy, "queues", topic="gone")


def test_a_consumer_group_bounds_a_read(golden_store: Any) -> None:
    path = golden_store("rmq-5.5.0-clean").path
    tables = json.loads(_quoted((path / "config" / "consumerOffset.json").read_text()))
    name = next(key for key in tables["offsetTable"] if key.startswith("lag@"))
    offsets = {int(queue): offset for queue, offset in tables["offsetTable"][name].items()}
    group = name.split("@")[1]
    rows = [row for row in store_rows(path) if row["topic"] == "lag"]
    left = InProcessScan(path, {"topic": "lag", "startingOffsets": f"group:{group}"}).rows()
    done = InProcessScan(path, {"topic": "lag", "endingOffsets": f"group:{group}"}).rows()
    assert as_bag(left, PLACE) == as_bag(
        [row for row in rows if row["queueOffset"] >= offsets.get(row["queueId"], 0)], PLACE)
    assert as_bag([*left, *done], PLACE) == as_bag(rows, PLACE)
    assert left
    with pytest.raises(InvalidSettingError, match="no such consumer group"):
        InProcessScan(path, {"startingOffsets": "group:nobody"}).rows()


def _quoted(text: str) -> str:
    return re.sub(r"([{,]\s*)(\d+)(\s*:)", r'\1"\2"\3', text)


def test_deleted_topics_are_read_when_asked_for(golden_store: Any) -> None:
    golden = golden_store("rmq-5.5.0-clean")
    doomed = [line for line in golden.log if line["kind"] == "record"
              and line["msg"]["topic"] == "doomed"]
    options = {"topic": "doomed", "includeDeletedTopics": "true"}
    found = InProcessScan(golden.path, options).rows()
    assert sorted(row["commitLogOffset"] for row in found) == [
        line["commitLogOffset"] for line in doomed]
    tree = negated(leaf("eq", "topic", "doomed"))
    found = InProcessScan(golden.path, {"includeDeletedTopics": "true"}, tree).rows()
    assert "doomed" not in {row["topic"] for row in found}
    with pytest.raises(InvalidSettingError, match="deleted topics"):
        InProcessScan(golden.path, {**options, "tailMessages": 3}).rows()


def test_a_body_as_text_replaces_what_is_no_utf8(store: Path, golden_store: Any) -> None:
    found = InProcessScan(store, {"topic": "orders", "bodyFormat": "string"}).rows()
    assert all(row["body"].startswith("body ") for row in found)
    path = golden_store("rmq-5.5.0-clean").path
    rows = InProcessScan(path, {"topic": "orders", "bodyFormat": "string"}).rows()
    expected = {(row["queueId"], row["queueOffset"]): row["body"].decode("utf-8", "replace")
                for row in store_rows(path) if row["topic"] == "orders"}
    assert {(row["queueId"], row["queueOffset"]): row["body"] for row in rows} == expected


def test_the_catalog_has_no_table_for_a_name_that_is_none(store: Path) -> None:
    question = {"path": str(store), "__rmqlog.bridge": "1", "__rmqlog.catalog": "table"}
    assert RmqlogDataSource({**question, "metadata": "nope"}).schema().fieldNames() == []
    assert RmqlogDataSource({**question, "topic": "nope"}).schema().fieldNames() == []
    assert "topic" in RmqlogDataSource({**question, "metadata": "Topics"}).schema().fieldNames()
    assert "body" in RmqlogDataSource({**question, "topic": "orders"}).schema().fieldNames()
    with pytest.raises(InvalidSettingError, match="metadata"):
        RmqlogDataSource({"path": str(store), "metadata": "nope"}).schema()


# --- Stores without queues ----------------------------------------------------------------------


def _without_queues(store: Path, copy: Path, *folders: str) -> Path:
    for folder in folders:
        copytree(store / folder, copy / folder)
    return copy


def _tables(path: Path) -> list[str]:
    options = {"path": str(path), "__rmqlog.bridge": "1", "__rmqlog.catalog": "tables"}
    return RmqlogDataSource(options).schema().fieldNames()


@pytest.mark.parametrize("folders", [("commitlog",), ("commitlog", "config")])
def test_a_store_without_queues_has_its_topics(
    store: Path, rows: list[dict[str, Any]], tmp_path: Path, folders: tuple[str, ...]
) -> None:
    bare = _without_queues(store, tmp_path / "store-a", *folders)
    assert _tables(bare) == _tables(store) == sorted({row["topic"] for row in rows})
    with pytest.raises(TopicNotFoundError, match="'orders'"):
        InProcessScan(bare, {"topic": "ordres"}).rows()
    found = InProcessScan(bare, {"topic": "batch"}).rows()
    assert as_bag(found, PLACE) == as_bag([row for row in rows if row["topic"] == "batch"], PLACE)
