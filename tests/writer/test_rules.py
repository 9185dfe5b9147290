"""Every rule of putMessage: what breaks it is refused by name, and nothing is written."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from small_stores import SMALL, batch, files_below, open_writer, rows_of

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import InvalidNameError, RuleViolationError
from rmqlog.writer import rules

MAP = pa.map_(pa.string(), pa.string())
LONG_RETRY = "%RETRY%" + "g" * 193


def with_row(value: Any, kind: pa.DataType | None = None, others: Any = None) -> pa.Array:
    """Three rows, the last of which is ``value``."""
    return pa.array([others, others, value], kind)


def malformed() -> pa.StringArray:
    """Three texts, the last of which ends in the middle of a character."""
    return pa.array([b"ok", "über".encode(), b"gr\xc3"], pa.binary()).view(pa.string())


def malformed_map(*, names: bool) -> pa.MapArray:
    """Three rows with a property each; the last name, or the last value, is no UTF-8."""
    good = pa.array(["a", "b", "c"])
    keys, items = (malformed(), good) if names else (good, malformed())
    return pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), keys, items)


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("no topic", {"topic": with_row(None, pa.string(), "t")}, rules.RULE_TOPIC_MISSING),
    ("empty topic", {"topic": with_row("", None, "t")}, rules.RULE_TOPIC_MISSING),
    ("space in topic", {"topic": with_row("a b", None, "t")}, rules.RULE_TOPIC_NAME),
    ("topic that leaves the store", {"topic": with_row("../x", None, "t")}, rules.RULE_TOPIC_NAME),
    ("topic outside ASCII", {"topic": with_row("tópico", None, "t")}, rules.RULE_TOPIC_NAME),
    ("topic too long", {"topic": with_row("x" * 128, None, "t")}, rules.RULE_TOPIC_LENGTH),
    ("dead letter topic too long", {"topic": with_row("%DLQ%" + "x" * 123, None, "t")},
     rules.RULE_TOPIC_LENGTH),
    ("retry topic too long for V1", {"topic": with_row(LONG_RETRY, None, "t")},
     rules.RULE_TOPIC_V2),
    ("retry topic too long for any", {"topic": with_row("%RETRY%" + "x" * 249, None, "t")},
     rules.RULE_TOPIC_LENGTH_RETRY),
    ("topic of delayed messages", {"topic": with_row(layout.SCHEDULE_TOPIC, None, "t")},
     rules.RULE_TOPIC_OWN),
    ("topic of half messages", {"topic": with_row(layout.TRANSACTION_HALF_TOPIC, None, "t")},
     rules.RULE_TOPIC_OWN),
    ("negative queue", {"queueId": with_row(-2, pa.int32(), 0)}, rules.RULE_QUEUE_ID),
    ("absurd queue", {"queueId": with_row(70_000, pa.int32(), 0)}, rules.RULE_QUEUE_ID),
    *((f"{name} too large for its field", {name: with_row(2**31, pa.int64(), 0)},
       rules.RULE_INTEGER) for name in ("flag", "queueId", "delayLevel")),
    ("a time too large for its field", {"bornTimestamp": with_row(2**63, pa.uint64(), 0)},
     rules.RULE_INTEGER),
    ("null body", {"body": with_row(None, pa.binary(), b"x")}, rules.RULE_BODY_MISSING),
    ("body too large", {"body": with_row(b"x" * 5001, None, b"x")}, rules.RULE_BODY_SIZE),
    ("record larger than a segment", {"body": with_row(b"x" * 3950, None, b"x")},
     rules.RULE_RECORD_SIZE),
    *((f"{name} that are no UTF-8", {name: malformed()}, rules.RULE_TEXT)
      for name in ("keys", "tags", "uniqKey", "topic", "bornHost")),
    ("a name that is no UTF-8", {"properties": malformed_map(names=True)}, rules.RULE_TEXT),
    ("a value that is no UTF-8", {"properties": malformed_map(names=False)}, rules.RULE_TEXT),
    ("separator in tags", {"tags": with_row("a\x01b", pa.string())}, rules.RULE_SEPARATOR),
    ("separator in keys", {"keys": with_row("a\x02", pa.string())}, rules.RULE_SEPARATOR),
    ("separator in uniqKey", {"uniqKey": with_row("\x01", pa.string())}, rules.RULE_SEPARATOR),
    ("separator in a name", {"properties": with_row([("a\x01", "b")], MAP)},
     rules.RULE_SEPARATOR),
    ("separator in a value", {"properties": with_row([("a", "b\x02")], MAP)},
     rules.RULE_SEPARATOR),
    ("property without a name", {"properties": with_row([("", "b")], MAP)},
     rules.RULE_PROPERTY_NAME),
    ("property without a value", {"properties": with_row([("a", "")], MAP)},
     rules.RULE_PROPERTY_VALUE),
    ("null property", {"properties": with_row([("a", None)], MAP)}, rules.RULE_PROPERTY_VALUE),
    ("negative delay", {"delayLevel": with_row(-1, pa.int32(), 0)}, rules.RULE_DELAY_LEVEL),
    ("no host", {"bornHost": with_row("somewhere", None, "127.0.0.1:1")}, rules.RULE_HOST),
    ("unknown compression", {"compression": with_row("snappy", pa.string())},
     rules.RULE_COMPRESSION),
]


@pytest.mark.parametrize(
    ("columns", "rule"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_broken_rule_is_named_with_its_row_and_column_and_the_whole_batch_is_refused(
    tmp_path: Path, columns: dict[str, Any], rule: str
) -> None:
    settings = SMALL.with_changes(mappedFileSizeCommitLog=4096, maxMessageSize=5000)
    with open_writer(tmp_path, settings) as writer:
        writer.append(batch(5, queueId=[0] * 5))
        before = (writer.end, dict(files_below(tmp_path, "commitlog", "consumequeue", "index")))

        with pytest.raises(RuleViolationError) as caught:
            writer.append(batch(3, **columns))

        assert (caught.value.rule, caught.value.row) == (rule, 2)
        (column,) = columns
        assert column in str(caught.value)
        after = (writer.end, dict(files_below(tmp_path, "commitlog", "consumequeue", "index")))
        assert after == before
        assert writer.statistics.snapshot().failures_by_reason == {rule: 1}
        # The writer goes on as if nothing had happened.
        writer.append(batch(2, 5, queueId=[0] * 2))
    assert [row["queueOffset"] for row in rows_of(tmp_path, "orders")] == list(range(7))


def with_property(size: int) -> pa.RecordBatch:
    """One message whose only property of its own has a value of so many bytes."""
    properties = pa.array([[("x", "y" * size)]], MAP)
    return batch(1, keys=[None], tags=[None], properties=properties)


def test_properties_of_more_than_32767_bytes_together_are_refused(tmp_path: Path) -> None:
    settings = SMALL.with_changes(mappedFileSizeCommitLog=1 << 17)
    overhead = len("x\x01\x02") + len("UNIQ_KEY\x01\x02") + 32
    with open_writer(tmp_path, settings) as writer:
        writer.append(with_property(32_767 - overhead))

        with pytest.raises(RuleViolationError) as caught:
            writer.append(with_property(32_768 - overhead))

    assert caught.value.rule == rules.RULE_PROPERTIES_SIZE
    assert caught.value.value == 32_768
    (row,) = rows_of(tmp_path, "orders")
    assert len(dict(row["properties"])["x"]) == 32_767 - overhead


def test_a_client_batch_that_fits_into_no_segment_is_refused(tmp_path: Path) -> None:
    with open_writer(tmp_path, SMALL.with_changes(mappedFileSizeCommitLog=4096)) as writer:
        with pytest.raises(RuleViolationError) as caught:
            writer.append(batch(40), client_batch=True)

        assert caught.value.rule == rules.RULE_BATCH_SIZE
        assert writer.end == 0


def test_retry_topics_of_more_than_127_bytes_are_written_as_v2_records_when_asked(
    tmp_path: Path,
) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(2, topic=LONG_RETRY), message_version="V2")

    assert len(rows_of(tmp_path, LONG_RETRY)) == 2
    segment = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    assert segment[4:8] == layout.MAGIC_V2.to_bytes(4, "big")


def test_an_unknown_column_is_refused_and_columns_that_the_store_assigns_are_not(
    tmp_path: Path,
) -> None:
    with open_writer(tmp_path) as writer:
        with pytest.raises(InvalidNameError, match="colour"):
            writer.append(batch(1, colour=["red"]))
        assigned = {"msgId": ["x"], "queueOffset": [99], "storeSize": [1], "brokerName": ["b"]}
        result = writer.append(batch(1, **assigned))

    assert result.queue_offset.tolist() == [0]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("flag", pa.array(["seven"])),
        ("keys", pa.array([{"order": 1}])),
        ("bornTimestamp", pa.array([[1]])),
        ("body", pa.array([1.5])),
    ],
    ids=["text", "a struct", "a list", "a float"],
)
def test_a_column_that_cannot_be_what_it_must_be_is_named(
    tmp_path: Path, name: str, values: pa.Array
) -> None:
    columns = batch(1)
    arrays = dict(zip(columns.schema.names, columns.columns, strict=True)) | {name: values}

    with open_writer(tmp_path) as writer:
        with pytest.raises(InvalidNameError, match=f"column {name} cannot be written") as raised:
            writer.append(pa.RecordBatch.from_pydict(arrays))

        assert str(values.type) in str(raised.value)
        assert writer.append(columns).queue_offset.tolist() == [0]


def test_a_value_that_is_missing_is_shown_as_null(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer, pytest.raises(RuleViolationError, match="found null"):
        writer.append(batch(2, body=pa.array([b"b", None])))


def test_a_number_that_is_too_large_is_shown_with_what_its_field_takes(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer, pytest.raises(RuleViolationError) as caught:
        writer.append(batch(2, flag=pa.array([None, -5_000_000_000])))

    assert "found flag -5000000000, expected -2147483648 to 2147483647" in str(caught.value)
    assert caught.value.row == 1


def test_a_rule_violation_survives_pickling() -> None:
    error = RuleViolationError(rules.RULE_QUEUE_ID, 7, -3, "0 or more", partition=2)

    copy = pickle.loads(pickle.dumps(error))

    assert copy == error
    assert (copy.rule, copy.row, copy.value) == (rules.RULE_QUEUE_ID, 7, -3)
    assert (copy.partition, copy.expected) == (2, "0 or more")
    assert str(copy) == str(error)
    assert "row 7 of partition 2" in str(copy)
    assert "found -3" in str(copy)
