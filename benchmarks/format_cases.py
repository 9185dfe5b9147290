"""Reading the bytes: the columnar decoder, queue scans, key lookups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Case, Pair, seconds, timed
from benchmarks.messages import TOPIC, write_store
from benchmarks.workspace import Workspace
from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.hashing import java_hash
from rmqlog.commitlog_format.log_walk import LogWalk
from rmqlog.commitlog_format.lookup import TopicKeys
from rmqlog.commitlog_format.message_reader import BATCH_ROW_COUNT
from rmqlog.commitlog_format.records import RecordDecoder
from rmqlog.commitlog_format.segment import FileQueue, Window
from rmqlog.commitlog_format.store import Store

ALL_COLUMNS = tuple(name for name in MESSAGE_COLUMNS if name != "brokerName")
_NO_PROPERTIES = tuple(
    name for name in ALL_COLUMNS
    if name not in {"properties", "tags", "keys", "uniqKey", "tagsCode"}
)
_FIXED_COLUMNS = (
    "queueId", "queueOffset", "flag", "sysFlag", "bornTimestamp", "storeTimestamp",
    "reconsumeTimes", "preparedTransactionOffset", "commitLogOffset", "storeSize", "bodyCrc",
)
Runs = list[tuple[Window, NDArray[np.int64]]]


def _decode_store(workspace: Workspace) -> Path:
    count = workspace.scaled(1_000_000, 200_000)
    return workspace.make("decode", lambda path: write_store(path, count, properties=3))


def record_runs(path: Path) -> Runs:
    """The records of the first segment in batches: finding them is not part of decoding."""
    store = Store(str(path))
    end = min(store.end, store.log.files.files[0].end)
    found: Runs = []
    for run in LogWalk(store.log, 0, end):
        for first in range(0, len(run.offsets), BATCH_ROW_COUNT):
            found.append((run.window, run.offsets[first : first + BATCH_ROW_COUNT]))
    return found


def decode_runs(runs: Runs, columns: Sequence[str], *, check_crc: bool = False) -> int:
    """Decode all batches; returns how many rows there were."""
    decoder = RecordDecoder(columns, check_crc=check_crc)
    return sum(
        decoder.decode(window.data, window.start, offsets).num_rows for window, offsets in runs
    )


def _against_java(check_crc: bool) -> Case:
    def prepare(workspace: Workspace) -> Pair:
        path = _decode_store(workspace)
        runs = record_runs(path)
        segment = min((path / "commitlog").iterdir())
        warm_up = iter([workspace.scaled(5000, 3000)])

        def reference() -> float:
            answer = workspace.java.request(
                "bench-decode", file=str(segment), checkCrc=check_crc, rounds=1,
                warmUpMs=next(warm_up, 0),
            )
            counted.append(answer["records"])
            return float(answer["seconds"][0])

        counted: list[int] = []

        def check() -> None:
            assert counted[0] == decode_runs(runs, ("queueId",))

        return Pair(
            timed(lambda: decode_runs(runs, ALL_COLUMNS, check_crc=check_crc)), reference, check,
            {"records": sum(len(offsets) for _, offsets in runs)},
        )

    suffix = "CRC checked" if check_crc else "CRC unchecked"
    return Case(
        f"decode, all columns, {suffix}", "RocketMQ's MessageDecoder, warmed up",
        0.8 if check_crc else 1.0, prepare,
    )


def _against_full_width(name: str, columns: Sequence[str], goal: float) -> Case:
    def prepare(workspace: Workspace) -> Pair:
        runs = record_runs(_decode_store(workspace))
        return Pair(
            timed(lambda: decode_runs(runs, columns)), timed(lambda: decode_runs(runs, ALL_COLUMNS))
        )

    return Case(f"decode, {name}", "the same records at full width", goal, prepare)


def _tag_scan(workspace: Workspace) -> Pair:
    """Units of one queue, one in a thousand with the wanted tag."""
    count = workspace.scaled(10_000_000, 3_000_000)
    wanted = java_hash("PAID")

    def build(path: Path) -> None:
        from rmqlog.commitlog_format.layout import CONSUME_QUEUE_FILE_UNITS, CONSUME_QUEUE_UNIT

        units = np.zeros(CONSUME_QUEUE_FILE_UNITS, CONSUME_QUEUE_UNIT)
        for first in range(0, count, CONSUME_QUEUE_FILE_UNITS):
            numbers = np.arange(first, first + CONSUME_QUEUE_FILE_UNITS)
            units["commit_log_offset"] = numbers * 400
            units["size"] = 400
            units["tags_code"] = np.where(numbers % 1000 == 7, wanted, numbers % 50)
            units.tofile(path / f"{first * CONSUME_QUEUE_UNIT.itemsize:020d}")

    from rmqlog.commitlog_format.consume_queue import ConsumeQueue

    path = workspace.make("queue", build)
    queue = ConsumeQueue(FileQueue.open(LocalFiles(), [str(path)]))
    stop = queue.stop_index
    target = np.zeros(queue.files.end, np.uint8)

    def copy() -> None:
        for file in queue.files.files:
            data = queue.files.window(file.start, file.size).data
            np.copyto(target[file.start : file.end], data)

    def check() -> None:
        found, _ = queue.matching_units(0, stop, {wanted})
        assert np.array_equal(found, np.arange(7, stop, 1000))

    return Pair(
        timed(lambda: queue.matching_units(0, stop, {wanted})), timed(copy), check,
        {"units": stop},
    )


def _indexed_store(workspace: Workspace) -> Path:
    count = workspace.scaled(3_333_000, 400_000)
    return workspace.make("index", lambda path: write_store(path, count))


def _keys(workspace: Workspace, path: Path) -> list[str]:
    """Distinct keys, in no order."""
    store = Store(str(path))
    count = sum(len(view) for view in store.queues_of(TOPIC))
    # Not the first and the last message: the index does not cover its own ends.
    inner = np.arange(1, count - 1)
    numbers = workspace.random.choice(inner, workspace.scaled(10_000, 2_000), replace=False)
    return [f"order-{number}" for number in numbers]


def _key_lookup(workspace: Workspace) -> Pair:
    path = _indexed_store(workspace)
    keys = _keys(workspace, path)
    keys_file = workspace.folder / "keys.tsv"
    keys_file.write_text("".join(f"{TOPIC}\t{key}\n" for key in keys))
    topic_keys = TopicKeys(Store(str(path)), TOPIC)
    warm_up = iter([3000])

    def ours() -> float:
        def look_up() -> None:
            for key in keys:
                assert len(topic_keys.offsets(key)) == 1

        return seconds(look_up)

    def reference() -> float:
        answer = workspace.java.request(
            "bench-query", store=str(path), keysFile=str(keys_file), settings={}, rounds=1,
            warmUpMs=next(warm_up, 0),
        )
        assert answer["matches"] >= len(keys)
        return float(answer["seconds"][0])

    return Pair(ours, reference, details={"keys": len(keys)})


def _many_keys(workspace: Workspace) -> Pair:
    path = _indexed_store(workspace)
    keys = _keys(workspace, path)[:1000]
    topic_keys = TopicKeys(Store(str(path)), TOPIC)

    def look_up(some: list[str]) -> int:
        lookup = topic_keys.look_up(some)
        assert lookup is not None
        return sum(len(units) for units in lookup.units.values())

    def one_by_one() -> int:
        return sum(look_up([key]) for key in keys)

    def together() -> int:
        return look_up(keys)

    def check() -> None:
        assert one_by_one() == together() == len(keys)

    return Pair(timed(together), timed(one_by_one), check, {"keys": len(keys)})


CASES = [
    _against_java(check_crc=False),
    _against_java(check_crc=True),
    _against_full_width("without properties", _NO_PROPERTIES, 2.5),
    _against_full_width("fixed columns alone", _FIXED_COLUMNS, 4.0),
    Case("tag scan, 1 unit in 1,000", "numpy copy of the queue's bytes", 1.0, _tag_scan),
    Case("key lookup, one by one, record verified",
         "RocketMQ's in-process queryOffset, warmed up", 1 / 40, _key_lookup),
    Case("key lookup, 1,000 keys in one call", "the same keys one by one", 3.0, _many_keys),
]
