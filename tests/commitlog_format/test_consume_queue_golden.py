"""Every unit that real brokers wrote is read back, with the end and the minimum of its queue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from golden_stores import GOLDEN_NAMES, GoldenStore

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.batch_consume_queue import BatchConsumeQueue
from rmqlog.commitlog_format.bloom import is_hit
from rmqlog.commitlog_format.consume_queue import ConsumeQueue
from rmqlog.commitlog_format.consume_queue_ext import ConsumeQueueExt
from rmqlog.commitlog_format.errors import MessageNotFoundError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.segment import FileQueue

OpenGolden = Callable[[str], GoldenStore]
Lines = list[dict[str, Any]]


def queues_of(store: GoldenStore, kind: str) -> dict[tuple[str, int], Lines]:
    found: dict[tuple[str, int], Lines] = defaultdict(list)
    for line in store.units:
        if line["kind"] == kind:
            found[line["topic"], line["queueId"]].append(line)
    assert found or kind == "batchUnit"
    return found


def run_of_files(store: GoldenStore, folder: str, topic: str, queue_id: int) -> FileQueue:
    return FileQueue.open(LocalFiles(), [str(store.path / folder / topic / str(queue_id))])


def open_queue(store: GoldenStore, topic: str, queue_id: int) -> ConsumeQueue:
    ext = None
    if (store.path / layout.CONSUME_QUEUE_EXT_DIRECTORY / topic).exists():
        ext = ConsumeQueueExt(
            run_of_files(store, layout.CONSUME_QUEUE_EXT_DIRECTORY, topic, queue_id)
        )
    return ConsumeQueue(
        run_of_files(store, layout.CONSUME_QUEUE_DIRECTORY, topic, queue_id), ext
    )


def verify_against(lines: Lines) -> Callable[[np.void, int], bool]:
    """Says of a unit what RocketMQ's decoder found at its offset."""
    readable = {line["commitLogOffset"] for line in lines if "msg" in line}
    return lambda unit, _index: int(unit["commit_log_offset"]) in readable


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_unit_of_every_queue_is_read_back(golden_store: OpenGolden, name: str) -> None:
    store = golden_store(name)
    for (topic, queue_id), lines in queues_of(store, "unit").items():
        queue = open_queue(store, topic, queue_id)
        first = lines[0]["queueOffset"]
        units = queue.units(first, first + len(lines))
        assert queue.first_offset <= first
        assert units["commit_log_offset"].tolist() == [line["commitLogOffset"] for line in lines]
        assert units["size"].tolist() == [line["storeSize"] for line in lines]
        assert units["tags_code"].tolist() == [line["unitTagsCode"] for line in lines]
        assert [line["queueOffset"] for line in lines] == list(range(first, first + len(lines)))


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_end_and_the_minimum_of_every_queue_are_found(
    golden_store: OpenGolden, name: str
) -> None:
    store = golden_store(name)
    log_start = 280_000 if name == "rmq-5.5.0-retention" else 0
    for (topic, queue_id), lines in queues_of(store, "unit").items():
        queue = open_queue(store, topic, queue_id)
        end = queue.find_end(verify_against(lines), log_start)
        assert end == lines[-1]["queueOffset"] + 1
        live = [line["queueOffset"] for line in lines if "msg" in line]
        assert queue.find_start(log_start, end) == (live[0] if live else end)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_a_scan_for_each_tags_code_gives_exactly_its_units(
    golden_store: OpenGolden, name: str
) -> None:
    store = golden_store(name)
    for (topic, queue_id), lines in queues_of(store, "unit").items():
        queue = open_queue(store, topic, queue_id)
        first = lines[0]["queueOffset"]
        expected: dict[int, list[int]] = defaultdict(list)
        for line in lines:
            code = line["ext"]["tagsCode"] if "ext" in line else line["unitTagsCode"]
            expected[code].append(line["queueOffset"])
        for code, offsets in expected.items():
            found, units = queue.matching_units(first, first + len(lines), {code})
            assert found.tolist() == offsets
            assert set(queue.tags_codes(units).tolist()) == {code}


def test_a_searched_physical_offset_is_found_in_every_queue(golden_store: OpenGolden) -> None:
    store = golden_store("rmq-5.5.0-clean")
    for (topic, queue_id), lines in queues_of(store, "unit").items():
        queue = open_queue(store, topic, queue_id)
        for line in lines:
            offset = line["queueOffset"]
            physical = line["commitLogOffset"]
            assert queue.first_at_or_after(physical, 0, len(lines)) == offset
            assert queue.first_at_or_after(physical + 1, 0, len(lines)) == offset + 1


def test_ext_units_give_tags_code_store_time_and_bitmap(golden_store: OpenGolden) -> None:
    store = golden_store("rmq-5.5.0-cqext")
    bitmaps = 0
    for (topic, queue_id), lines in queues_of(store, "unit").items():
        ext = open_queue(store, topic, queue_id).ext
        assert ext is not None
        addresses = np.array([line["unitTagsCode"] for line in lines], np.int64)
        codes, timestamps = ext.resolve(addresses)
        assert codes.tolist() == [line["ext"]["tagsCode"] for line in lines]
        assert timestamps.tolist() == [line["ext"]["msgStoreTime"] for line in lines]
        for line in lines:
            bitmap = ext.bitmap(line["unitTagsCode"])
            assert bitmap.hex() == line["ext"]["bitMap"].lower()
            bitmaps += bool(bitmap)
    assert bitmaps == 250


def test_a_bitmap_has_the_bits_of_the_groups_whose_expression_is_true(
    golden_store: OpenGolden,
) -> None:
    store = golden_store("rmq-5.5.0-cqext")
    wanted = {
        "gen_sql_0": lambda values: float(values.get("amount", "nan")) > 50,
        "gen_sql_1": lambda values: values.get("region") == "eu",
        "gen_sql_2": lambda values: (
            values.get("TAGS") == "PAID" and float(values.get("amount", "nan")) < 30
        ),
        "gen_sql_3": lambda values: "city" in values,
    }
    hits = misses = 0
    for line in store.units:
        bitmap = bytes.fromhex(line["ext"]["bitMap"])
        if not bitmap:
            continue
        for group, is_wanted in wanted.items():
            hit = is_hit(bitmap, group, "orders")
            # No two of these four groups share bits enough for a false positive.
            assert hit == is_wanted(line["msg"]["properties"])
            hits, misses = hits + hit, misses + (not hit)
    assert hits
    assert misses


def test_batch_queues_are_read_back_and_searched_by_queue_offset(
    golden_store: OpenGolden,
) -> None:
    store = golden_store("rmq-5.5.0-bcq")
    fields = {
        "commit_log_offset": "commitLogOffset",
        "size": "storeSize",
        "tags_code": "unitTagsCode",
        "store_timestamp": "unitStoreTimestamp",
        "base_offset": "queueOffset",
        "batch_count": "batchSize",
        "compacted_offset": "compactedOffset",
        "reserved": "reserved",
    }
    queues = queues_of(store, "batchUnit")
    assert sum(map(len, queues.values())) == 50
    for (topic, queue_id), lines in queues.items():
        queue = BatchConsumeQueue(
            run_of_files(store, layout.BATCH_CONSUME_QUEUE_DIRECTORY, topic, queue_id)
        )
        end = queue.find_end(verify_against(lines))
        assert end == len(lines)
        units = queue.units(0, end)
        for ours, theirs in fields.items():
            assert units[ours].tolist() == [line[theirs] for line in lines]
        last = lines[-1]
        assert queue.offset_range(0, end) == (0, last["queueOffset"] + last["batchSize"])
        for index, line in enumerate(lines):
            for offset in range(line["queueOffset"], line["queueOffset"] + line["batchSize"]):
                assert queue.find(offset, 0, end) == index
        with pytest.raises(MessageNotFoundError):
            queue.find(last["queueOffset"] + last["batchSize"], 0, end)
