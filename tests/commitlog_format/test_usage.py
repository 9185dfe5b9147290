"""Bytes, times and the next expiry of topics, and how far groups are behind."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from built_stores import SEGMENT_SIZE, build_store, numbered_records

from rmqlog.commitlog_format.lag import QueueLag, group_lags
from rmqlog.commitlog_format.message import Record
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.usage import next_expiry, queue_usage, stored_at, topic_usages

BUILT = build_store(numbered_records(60))
HOUR_MS = 3_600_000


def records_of(topic: str, queue_id: int | None = None) -> list[Record]:
    """The records of a topic, or of one of its queues."""
    return [
        record for record in BUILT.records
        if record.topic == topic.encode() and queue_id in (None, record.queue_id)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of two topics with two queues each, over several segments."""
    return BUILT.write(tmp_path)


def drop_first_segment(path: Path) -> None:
    (path / "commitlog" / f"{0:020d}").unlink()


def test_a_topic_uses_the_bytes_of_its_records(path: Path) -> None:
    usages = topic_usages(Store(str(path)))

    assert [usage.topic for usage in usages] == ["topic-0", "topic-1"]
    for usage in usages:
        expected = records_of(usage.topic)
        assert (usage.queue_count, usage.message_count) == (2, len(expected))
        assert usage.size == sum(record.total_size for record in expected)
        assert usage.first_ms == expected[0].store_timestamp
        assert usage.last_ms == expected[-1].store_timestamp


def test_only_the_queues_that_were_named_are_counted(path: Path) -> None:
    store = Store(str(path))
    (usage,) = topic_usages(store, [store.queue("topic-1", 1)])
    expected = records_of("topic-1", 1)

    assert (usage.queue_count, usage.message_count) == (1, len(expected))
    assert usage.size == sum(record.total_size for record in expected)


def test_after_an_expiry_only_what_is_left_counts(path: Path) -> None:
    drop_first_segment(path)
    (usage, _) = topic_usages(Store(str(path)))
    left = [record for record in records_of("topic-0") if record.physical_offset >= SEGMENT_SIZE]

    assert usage.message_count == len(left)
    assert usage.size == sum(record.total_size for record in left)
    assert usage.first_ms == left[0].store_timestamp


def test_a_queue_without_messages_has_no_times(path: Path) -> None:
    folder = path / "consumequeue" / "idle" / "0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(bytes(320))
    store = Store(str(path))
    usage = queue_usage(store, store.queue("idle", 0))

    assert (usage.size, usage.first_ms, usage.last_ms) == (0, None, None)
    total = next(usage for usage in topic_usages(store) if usage.topic == "idle")
    assert (total.message_count, total.first_ms, total.last_ms) == (0, None, None)


def test_a_record_that_is_damaged_or_not_there_has_no_time(path: Path) -> None:
    victim = records_of("topic-0", 0)[2]
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(victim.physical_offset)
        file.write(b"\xff" * 8)
    store = Store(str(path))
    view = store.queue("topic-0", 0)

    assert stored_at(store, view, 1) == records_of("topic-0", 0)[1].store_timestamp
    assert stored_at(store, view, 2) is None
    assert stored_at(store, view, view.max_offset) is None


def test_the_oldest_segment_expires_next_and_its_bytes_are_told_by_topic(path: Path) -> None:
    store = Store(str(path))
    expiry = next_expiry(store, 72)
    assert expiry is not None
    sizes: Counter[str] = Counter()
    for record in BUILT.records:
        if record.physical_offset < SEGMENT_SIZE:
            sizes[record.topic.decode()] += record.total_size

    assert expiry.segment == store.log.files.files[0]
    assert expiry.expires_ms == expiry.segment.modified_ms + 72 * HOUR_MS
    assert expiry.size_by_topic == sizes


def test_the_last_segment_never_expires(tmp_path: Path) -> None:
    path = build_store(numbered_records(3)).write(tmp_path)
    assert next_expiry(Store(str(path)), 72) is None


# --- lag --------------------------------------------------------------------------------------


def lags(path: Path, offsets: dict[str, dict[int, int]]) -> list[QueueLag]:
    """What is said of groups with these offsets."""
    (path / "config").mkdir(exist_ok=True)
    (path / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    return list(group_lags(Store(str(path))))


def test_a_group_lags_by_messages_and_by_the_age_of_the_oldest(path: Path) -> None:
    expected = records_of("topic-0", 1)
    (lag,) = lags(path, {"topic-0@g": {1: 4}})

    assert (lag.group, lag.topic, lag.queue_id, lag.consumer_offset) == ("g", "topic-0", 1, 4)
    assert (lag.max_offset, lag.lag) == (len(expected), len(expected) - 4)
    assert lag.oldest_unconsumed_ms == expected[4].store_timestamp
    assert lag.age_ms == expected[-1].store_timestamp - expected[4].store_timestamp


def test_a_group_that_is_done_or_ahead_has_no_lag(path: Path) -> None:
    end = len(records_of("topic-0", 0))
    for offset in (end, end + 7):
        (lag,) = lags(path, {"topic-0@g": {0: offset}})
        assert (lag.lag, lag.age_ms, lag.oldest_unconsumed_ms) == (0, 0, None)


def test_a_queue_that_is_gone_has_no_end(path: Path) -> None:
    (lag,) = lags(path, {"gone@g": {3: 4}})

    assert lag == QueueLag("g", "gone", 3, 4, None, None, None, None)


def test_messages_that_expired_unread_count_and_the_oldest_is_the_first_left(path: Path) -> None:
    drop_first_segment(path)
    left = [record for record in records_of("topic-0", 0)
            if record.physical_offset >= SEGMENT_SIZE]
    (lag,) = lags(path, {"topic-0@g": {0: 1}})

    assert lag.lag == len(records_of("topic-0", 0)) - 1
    assert lag.oldest_unconsumed_ms == left[0].store_timestamp


def test_a_queue_whose_messages_all_expired_has_a_lag_but_no_age(path: Path) -> None:
    for file in sorted((path / "commitlog").iterdir())[:-1]:
        file.unlink()
    last = max(record.physical_offset for record in BUILT.records) // SEGMENT_SIZE * SEGMENT_SIZE
    (path / "commitlog" / f"{last:020d}").write_bytes(bytes(SEGMENT_SIZE))
    (lag,) = lags(path, {"topic-0@g": {0: 1}})

    assert lag.age_ms is None
    assert lag.oldest_unconsumed_ms is None


def test_a_damaged_record_leaves_the_age_unknown(path: Path) -> None:
    victim = records_of("topic-0", 0)[2]
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(victim.physical_offset)
        file.write(b"\xff" * 8)
    (lag,) = lags(path, {"topic-0@g": {0: 2}})

    assert lag.lag == len(records_of("topic-0", 0)) - 2
    assert (lag.oldest_unconsumed_ms, lag.age_ms) == (None, None)


def test_groups_come_by_name_then_topic_then_queue(path: Path) -> None:
    found = lags(path, {"topic-1@b": {1: 0, 0: 0}, "topic-0@b": {0: 0}, "topic-1@a": {0: 0}})

    assert [(lag.group, lag.topic, lag.queue_id) for lag in found] == [
        ("a", "topic-1", 0), ("b", "topic-0", 0), ("b", "topic-1", 0), ("b", "topic-1", 1)
    ]
