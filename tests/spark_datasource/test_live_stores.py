"""Stores that change while they are read: a log that grows, segments that expire."""

from __future__ import annotations

import base64
import random
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow as pa
import pytest
from in_process import InProcessScan
from query_reference import as_bag, store_rows
from query_stores import write_query_store

from rmqlog.commitlog_format.errors import SegmentExpiredError
from rmqlog.spark_datasource.snapshots import open_pinned
from rmqlog.writer.store_writer import StoreWriter

PLACE = ("brokerName", "topic", "queueId", "queueOffset")
EVERYTHING = {"includeSystemTopics": "true"}
ROUND_COUNT = 40
#: What stands in front of the body of a record with IPv4 hosts.
HEADER_SIZE = 88

#: Appends messages of 4 KiB and of 1 MiB whose bodies tell their number, one by one.
APPENDING = """
import sys
import pyarrow as pa
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.store_writer import StoreWriter

path, count = sys.argv[1], int(sys.argv[2])
settings = StoreSettings(mappedFileSizeCommitLog=8 << 20, mappedFileSizeConsumeQueue=20 * 50)
with StoreWriter(path, settings) as writer:
    for number in range(count):
        size = 1 << 20 if number % 10 == 9 else 4096
        body = (b"%08d" % number) * (size // 8)
        columns = {"topic": ["orders"], "queueId": pa.array([0], pa.int32()), "body": [body]}
        writer.append(pa.RecordBatch.from_pydict(columns))
        print(number, flush=True)
"""


def test_a_reader_of_a_log_that_is_being_written_sees_whole_records_only(tmp_path: Path) -> None:
    whole = write_query_store(tmp_path / "whole" / "store", count=60)
    rows = sorted(store_rows(whole), key=lambda row: row["commitLogOffset"])
    (source,) = (whole / "commitlog").iterdir()
    data = source.read_bytes()
    growing = tmp_path / "growing" / "store"
    copytree(whole, growing)
    target = growing / "commitlog" / source.name
    chosen = random.Random(1)
    for count in sorted(chosen.sample(range(len(rows)), ROUND_COUNT)):
        # Torn in its header or body. Whether properties are whole, no checksum tells.
        place = chosen.randrange(1, HEADER_SIZE + len(rows[count]["body"]))
        stop = rows[count]["commitLogOffset"] + place
        # The queues are ahead: a reader that believes them finds records that are not there yet.
        target.write_bytes(data[:stop] + bytes(len(data) - stop))
        found = InProcessScan(growing, EVERYTHING, columns=(*PLACE, "body")).rows()
        assert as_bag(found, (*PLACE, "body")) == as_bag(rows[:count], (*PLACE, "body")), stop


def test_a_reader_while_a_process_appends_sees_what_is_whole_and_misses_nothing(
    tmp_path: Path
) -> None:
    path, count = tmp_path / "store", 60
    writer = subprocess.Popen(
        [sys.executable, "-c", APPENDING, str(path), str(count)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    seen: list[int] = []
    with writer:
        for line in writer.stdout:
            found = _numbers(path)
            assert found == list(range(len(found)))
            # What append() returned for is there, and nothing that was seen goes away.
            assert len(found) > int(line)
            assert len(found) >= max(seen, default=0)
            seen.append(len(found))
    assert writer.returncode == 0
    assert _numbers(path) == list(range(count))
    assert len(set(seen)) > 2


@pytest.mark.parametrize(
    ("column", "value"), [(None, None), ("tags", "T3"), ("keys", "k-3"), ("body", b"3")]
)
def test_a_snapshot_keeps_what_is_dispatched_after_it(
    tmp_path: Path, column: str | None, value: object
) -> None:
    path = tmp_path / "store"
    tree = None
    if column is not None:
        kind, text = "string", value
        if isinstance(value, bytes):
            kind, text = "binary", base64.b64encode(value).decode()
        tree = {"op": "eq", "column": column, "type": kind, "value": text}
    scan = InProcessScan(
        path, {"topic": "orders"}, tree, columns=("queueOffset", "body", "tags", "keys")
    )

    def append(writer: StoreWriter, first: int, stop: int) -> None:
        digits = [str(number % 10) for number in range(first, stop)]
        writer.append(pa.table({
            "topic": ["orders"] * len(digits), "queueId": [0] * len(digits), "body": digits,
            "tags": [f"T{digit}" for digit in digits], "keys": [f"k-{digit}" for digit in digits],
        }))

    with StoreWriter(path, background=False) as writer:
        append(writer, 0, 20)
        writer.dispatch()
        append(writer, 20, 60)
        _, snapshot = scan.open()
        append(writer, 60, 70)
        writer.dispatch()
        stores = open_pinned(scan.request.options, snapshot)
        rows = scan.rows((stores, snapshot))

    found = sorted(row["queueOffset"] for row in rows if column is None or row[column] == value)
    assert found == [number for number in range(60) if column is None or number % 10 == 3]


def _numbers(path: Path) -> list[int]:
    """The messages' numbers in the order of their queue; each body must be whole."""
    rows = InProcessScan(path, {"topic": "orders"}, columns=("queueOffset", "body")).rows()
    numbers = []
    for row in sorted(rows, key=lambda row: int(row["queueOffset"])):
        number = row["body"][:8]
        assert row["body"] == number * (len(row["body"]) // 8)
        numbers.append(int(number))
    return numbers


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_query_store(tmp_path_factory.mktemp("live") / "store")


@pytest.mark.parametrize("loss", ["true", "false"])
def test_segments_unlinked_under_a_query_are_named_or_counted(
    store: Path, tmp_path: Path, loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [row for row in store_rows(store) if row["topic"] == "orders"]
    chosen = random.Random(2)
    outcomes = set()
    for turn in range(ROUND_COUNT // 2):
        path = Path(copytree(store, tmp_path / str(turn) / "store"))
        segments = sorted((path / "commitlog").iterdir())
        options = {"topic": "orders", "minPartitions": 6, "failOnDataLoss": loss}
        scan = InProcessScan(path, options)
        partitions = scan.plan().partitions
        at = {chosen.randrange(len(partitions) + 1): one for one in segments[:-1]}
        caplog.clear()
        found: list[dict[str, Any]] = []
        try:
            for number, partition in enumerate(partitions):
                if number in at:
                    # The oldest go first, as retention takes them.
                    for segment in segments[: segments.index(at[number]) + 1]:
                        segment.unlink(missing_ok=True)
                found += scan.read([partition])
        except SegmentExpiredError:
            outcomes.add("named")
            continue
        counted = sum(map(int, re.findall(r"skipped (\d+) expired", caplog.text)))
        assert len(found) + counted == len(rows)
        assert as_bag(found, PLACE) <= as_bag(rows, PLACE)
        assert loss == "false" or counted == 0
        outcomes.add("counted" if counted else "whole")
    assert outcomes - {"whole"} == {"named" if loss == "true" else "counted"}
