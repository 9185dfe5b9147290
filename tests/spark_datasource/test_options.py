"""Options: one list, every malformed one refused with what was expected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmqlog.commitlog_format.errors import InvalidSettingError
from rmqlog.spark_datasource.options import Options, options_table
from rmqlog.spark_datasource.request import parse_request

ROOT = Path(__file__).parent.parent.parent


def test_the_readme_shows_the_list_in_the_code() -> None:
    assert options_table() in (ROOT / "README.md").read_text("utf-8")


def test_names_are_case_insensitive_and_defaults_hold() -> None:
    options = Options({"PATH": "/store", "explodekeys": "TRUE"})
    assert options["explodeKeys"] is True
    assert options["mode"] == "FAILFAST"
    assert options["timeSlack"] == 60_000
    assert options["maxPartitionBytes"] == 128 * 2**20
    assert options["topic"] is None


@pytest.mark.parametrize(("given", "near"), [
    ("tpic", "topic"), ("startingOffset", "startingOffsets"), ("failondataloos", "failOnDataLoss"),
])
def test_an_unknown_option_names_the_nearest(given: str, near: str) -> None:
    with pytest.raises(InvalidSettingError, match=rf"; found {given}, did you mean {near}\?$"):
        Options({given: "x"})


@pytest.mark.parametrize(("name", "text"), [
    ("includeSystemTopics", "yes"), ("minPartitions", "0"), ("minPartitions", "many"),
    ("maxPartitionBytes", "12 parsecs"), ("timeSlack", "-1"), ("mode", "PERMISSIVE"),
    ("startingTimestamp", "2026-01-31T12:00:00"), ("startingTimestamp", "yesterday"),
    ("startingOffsets", "first"), ("startingOffsets", "group:"), ("startingOffsets", "[1]"),
    ("versionAsOf", "-1"), ("versionAsOf", '{"a": "b"}'), ("topicsPattern", "("),
    ("columns", "topic,topic"), ("columns", "tpic"), ("metadata", "secrets"), ("topic", ""),
    ("topics", "a,,b"), ("bodyFormat", "avro"), ("tags", " || "), ("key", "order-1 alt-1"),
    ("maxPartitionBytes", "0"), ("maxRecordSize", "0k"), ("maxDecompressedSize", "0"),
    *(("endingOffsets", json.dumps(offsets)) for offsets in (
        {"orders": 5}, {"orders": {"0": "a"}}, {"orders": {"0": 1.5}}, {"orders": {"0": True}},
        {"orders": {"0": -3}}, {"orders": {"zero": 1}}, {"orders": {"01": 1}},
        {"orders": {"0": 1}, "broker-a": {"orders": {"0": 1}}},
        {"broker-a": {"orders": {"0": 1}}, "broker-b": 7},
        {"broker-a": {"orders": {"0": {"1": 1}}}},
    )),
])
def test_a_malformed_option_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"malformed option {name}"):
        Options({name: text})


@pytest.mark.parametrize("offsets", [
    {}, {"orders": {}}, {"orders": {"0": -2, "10": -1}, "paid": {"3": 7}},
    {"broker-a": {}, "broker-b": {"orders": {"0": 1}}},
])
def test_offsets_may_be_by_topic_or_by_broker(offsets: dict[str, Any]) -> None:
    assert Options({"startingOffsets": json.dumps(offsets)})["startingOffsets"] == offsets


@pytest.mark.parametrize(("text", "milliseconds"), [
    ("1700000000123", 1_700_000_000_123),
    ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
    ("2023-11-15T06:13:20.123+08:00", 1_700_000_000_123),
    ("2023-11-14T22:13:20.123001+00:00", 1_700_000_000_124),
])
def test_times_are_milliseconds_or_iso_with_an_offset(text: str, milliseconds: int) -> None:
    assert Options({"startingTimestamp": text})["startingTimestamp"] == milliseconds


def test_two_ways_to_name_topics_exclude_each_other() -> None:
    with pytest.raises(InvalidSettingError, match="topic and topicsPattern"):
        Options({"topic": "a", "topicsPattern": "b"})


def test_only_local_paths_are_read() -> None:
    assert Options({"path": "file:///a/b"}).paths == ["/a/b"]
    assert Options({"paths": '["/a", "file:/b"]'}).paths == ["/a", "/b"]
    for text in ("hdfs://host/a", "s3a://bucket/a"):
        with pytest.raises(InvalidSettingError, match="only local"):
            Options({"path": text}).paths  # noqa: B018
    with pytest.raises(InvalidSettingError, match="no path"):
        Options({}).paths  # noqa: B018


def test_a_word_of_the_bridge_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="another version"):
        parse_request({"path": "/a", "__rmqlog.bridge": "1", "__rmqlog.sample": "0.1"})
    with pytest.raises(InvalidSettingError, match="another version"):
        parse_request({"path": "/a", "__rmqlog.bridge": "2"})


def test_pushdown_off_hears_no_filter_and_no_limit() -> None:
    words = {
        "__rmqlog.bridge": "1", "__rmqlog.limit": "3",
        "__rmqlog.filters": '{"op": "and", "args": [{"op": "false"}]}',
    }
    on = parse_request({"path": "/a", **words})
    off = parse_request({"path": "/a", "pushdown": "false", **words})
    assert on.limit == 3
    assert off.limit is None
    assert on.filters != off.filters
