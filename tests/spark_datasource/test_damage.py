"""Damaged bytes and expired segments: named, or dropped and counted; never a silent gap."""

from __future__ import annotations

import struct
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
from in_process import InProcessScan
from query_reference import all_of, as_bag, leaf, store_rows
from query_stores import write_query_store

from rmqlog.commitlog_format.errors import (
    CorruptQueueError,
    CorruptRecordError,
    SegmentExpiredError,
    StoreError,
)
from rmqlog.spark_datasource.partitions import Partition
from rmqlog.spark_datasource.planning import plan_scan
from rmqlog.spark_datasource.snapshots import Snapshot, open_pinned

PLACE = ("brokerName", "topic", "queueId", "queueOffset")
DROPPING = {"topic": "orders", "mode": "DROPMALFORMED"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_query_store(tmp_path_factory.mktemp("damage") / "store")


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(copytree(whole, tmp_path / "store"))


@pytest.fixture(scope="module")
def rows(whole: Path) -> list[dict[str, Any]]:
    return [row for row in store_rows(whole) if row["topic"] == "orders"]


def _damaged(path: Path, offset: int, by: bytes = b"\xff\xff") -> None:
    file = max(name for name in (path / "commitlog").iterdir() if int(name.name) <= offset)
    data = bytearray(file.read_bytes())
    place = offset - int(file.name)
    data[place : place + len(by)] = by
    file.write_bytes(bytes(data))


def test_a_damaged_record_fails_with_file_and_offset_or_is_dropped(tmp_path: Path) -> None:
    path = write_query_store(tmp_path / "store", count=60)
    rows = [row for row in store_rows(path) if row["topic"] == "orders"]
    victim = rows[len(rows) // 2]
    _damaged(path, victim["commitLogOffset"] + 4)
    with pytest.raises(CorruptRecordError, match=r"commitlog.*at offset") as caught:
        InProcessScan(path, {"topic": "orders"}).rows()
    assert caught.value.offset == victim["commitLogOffset"]
    found = InProcessScan(path, {"topic": "orders", "mode": "DROPMALFORMED"}).rows()
    rest = [row for row in rows if row is not victim]
    assert as_bag(found, PLACE) == as_bag(rest, PLACE)


def test_a_wrong_checksum_is_seen_when_the_body_is_read(tmp_path: Path) -> None:
    path = write_query_store(tmp_path / "store", count=30)
    victim = next(row for row in store_rows(path) if row["topic"] == "orders")
    place = victim["commitLogOffset"] + 88
    _damaged(path, place + 4, b"#")
    with pytest.raises(CorruptRecordError, match="BODYCRC"):
        InProcessScan(path, {"topic": "orders"}, columns=["body"]).rows()
    for options in ({"checkCrc": "false"}, {"mode": "DROPMALFORMED"}):
        InProcessScan(path, {"topic": "orders", **options}, columns=["body"]).rows()


# --- Units ------------------------------------------------------------------------------------


def _replace_unit(path: Path, row: dict[str, Any], unit: bytes) -> None:
    folder = path / "consumequeue" / row["topic"] / str(row["queueId"])
    place = row["queueOffset"] * len(unit)
    file = max(name for name in folder.iterdir() if int(name.name) <= place)
    data = bytearray(file.read_bytes())
    start = place - int(file.name)
    data[start : start + len(unit)] = unit
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("columns", [("topic", "queueId", "queueOffset", "brokerName"),
                                     (*PLACE, "body")])
@pytest.mark.parametrize(("offset", "size"), [
    (0, 0), (-1, 200), (100, -5), (2**60, 200), (7, 200), (0, 2**31 - 1), (16_384 * 2, 300)])
def test_a_bad_unit_is_named_or_dropped_and_counted(
    path: Path, rows: list[dict[str, Any]], columns: tuple[str, ...], offset: int, size: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    victim = [row for row in rows if row["queueId"] == 1][20]
    _replace_unit(path, victim, struct.pack(">qiq", offset, size, 0))
    # Columns of the queue alone trust a unit that points somewhere.
    is_seen = "body" in columns or offset < 0 or size <= 0
    if is_seen:
        with pytest.raises((CorruptQueueError, CorruptRecordError)):
            InProcessScan(path, {"topic": "orders"}, columns=columns).rows()
    found = InProcessScan(path, DROPPING, columns=columns).rows()
    rest = [row for row in rows if row is not victim or not is_seen]
    assert as_bag(found, columns) == as_bag(rest, columns)
    assert ("dropped 1 malformed" in caplog.text) == is_seen


# --- The log itself ---------------------------------------------------------------------------


def test_a_log_scan_goes_on_behind_damage(
    path: Path, rows: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    rmtree(path / "consumequeue")
    in_order = sorted(rows, key=lambda row: row["commitLogOffset"])
    first, second, third = in_order[5], in_order[40], in_order[41]
    _damaged(path, first["commitLogOffset"] + 4)
    _damaged(path, second["commitLogOffset"], b"\x7f")  # an endless record
    _damaged(path, third["commitLogOffset"] + 28, bytes(8))  # one that says it lies elsewhere
    with pytest.raises(StoreError, match="commitlog"):
        InProcessScan(path, {"topic": "orders"}).rows()
    found = InProcessScan(path, DROPPING).rows()
    rest = [row for row in rows if row not in (first, second, third)]
    assert as_bag(found, (*PLACE, "body")) == as_bag(rest, (*PLACE, "body"))
    assert "malformed" in caplog.text


def test_a_copy_of_a_record_in_a_body_is_not_taken_for_one(path: Path) -> None:
    rows = sorted(store_rows(path), key=lambda row: row["commitLogOffset"])
    first_segment = min((path / "commitlog").iterdir())
    data = first_segment.read_bytes()
    copied = min(rows[:9], key=lambda row: row["storeSize"])
    host = max(rows[9:30], key=lambda row: row["storeSize"])
    # The host becomes one long record with a sound copy of another in its middle.
    record = data[copied["commitLogOffset"] :][: copied["storeSize"]]
    _damaged(path, host["commitLogOffset"] + 4)
    _damaged(path, host["commitLogOffset"] + host["storeSize"] - len(record), record)
    rmtree(path / "consumequeue")
    options = {"mode": "DROPMALFORMED", "includeSystemTopics": "true"}
    found = InProcessScan(path, options, columns=PLACE).rows()
    assert as_bag(found, PLACE) == as_bag([row for row in rows if row is not host], PLACE)


# --- Expiry -----------------------------------------------------------------------------------


class Expired:
    """A frame that was loaded before the first segment of its store went."""

    def __init__(self, path: Path, rows: list[dict[str, Any]]) -> None:
        _, self.snapshot = InProcessScan(path).open()
        self.planned = {
            loss: InProcessScan(path, {"topic": "orders", "failOnDataLoss": loss}).plan()
            for loss in ("true", "false")
        }
        first, second = sorted((path / "commitlog").iterdir())[:2]
        first.unlink()
        self.path = path
        self.start = int(second.name)
        self.lost = [row for row in rows if row["commitLogOffset"] < self.start]
        self.left = [row for row in rows if row["commitLogOffset"] >= self.start]

    def partitions(self, scan: InProcessScan) -> list[Partition]:
        """The plan that a later query of the frame gets."""
        again = Snapshot.from_json(self.snapshot.to_json())
        stores = open_pinned(scan.request.options, again)
        return plan_scan(scan.request, scan.columns, stores, again).partitions

    def rows(self, tree: dict[str, Any] | None = None, **options: Any) -> list[dict[str, Any]]:
        """What a later query of the frame gives."""
        scan = InProcessScan(self.path, {"topic": "orders", **options}, tree)
        return scan.read(self.partitions(scan))


@pytest.fixture
def expired(path: Path, rows: list[dict[str, Any]]) -> Expired:
    return Expired(path, rows)


def test_a_segment_that_expires_under_a_query_is_an_error_or_is_skipped(
    expired: Expired, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SegmentExpiredError, match=f"{expired.path}/commitlog at offset"):
        InProcessScan(expired.path, {"topic": "orders"}).read(expired.planned["true"].partitions)
    lenient = InProcessScan(expired.path, {"topic": "orders", "failOnDataLoss": "false"})
    found = lenient.read(expired.planned["false"].partitions)
    assert as_bag(found, PLACE) == as_bag(expired.left, PLACE)
    assert f"skipped {len(expired.lost)} expired" in caplog.text


def test_a_later_query_that_needs_what_expired_is_an_error_or_skips_it(expired: Expired) -> None:
    trees = [
        None,
        leaf("eq", "tags", "PAID"),
        leaf("eq", "msgId", expired.lost[0]["msgId"]),
        leaf("lt", "commitLogOffset", expired.start + 1),
        leaf("le", "storeTimestamp", expired.left[0]["storeTimestamp"]),
    ]
    for tree in trees:
        with pytest.raises(SegmentExpiredError, match="since the frame was loaded"):
            expired.rows(tree)
    found = expired.rows(failOnDataLoss="false")
    assert as_bag(found, PLACE) == as_bag(expired.left, PLACE)
    scan = InProcessScan(expired.path, {"topic": "orders", "failOnDataLoss": "false"})
    report = expired.partitions(scan)[0].report
    assert f"at most {len(expired.lost)} messages" in report


def test_a_count_of_what_expired_is_an_error_or_what_is_left(expired: Expired) -> None:
    wanted = {"groupBy": [], "aggregates": [{"func": "count"}]}
    strict = InProcessScan(expired.path, {"topic": "orders"}, aggregate=wanted)
    with pytest.raises(SegmentExpiredError):
        expired.partitions(strict)
    lenient = InProcessScan(
        expired.path, {"topic": "orders", "failOnDataLoss": "false"}, aggregate=wanted)
    (piece,) = expired.partitions(lenient)[0].pieces
    assert piece.rows == ((len(expired.left),),)  # type: ignore[union-attr]


def test_a_later_query_that_does_not_need_what_expired_is_answered(expired: Expired) -> None:
    middle = {
        queue: next(row["queueOffset"] for row in expired.left if row["queueId"] == queue)
        for queue in (0, 1)
    }
    of_queue = [row for row in expired.left if row["queueId"] == 1]
    last = max(row["storeTimestamp"] for row in expired.left)
    questions = [
        (leaf("ge", "commitLogOffset", expired.start), {}, expired.left),
        (all_of(leaf("eq", "queueId", 1), leaf("ge", "queueOffset", middle[1])), {}, of_queue),
        (leaf("eq", "msgId", expired.left[0]["msgId"]), {}, expired.left[:1]),
        (leaf("ge", "storeTimestamp", last), {"timeSlack": "1s"},
         [row for row in expired.left if row["storeTimestamp"] >= last]),
        (None, {"tailMessages": 3}, [
            row for row in expired.left
            if sum(other["queueId"] == row["queueId"]
                   and other["queueOffset"] > row["queueOffset"] for other in expired.left) < 3]),
    ]
    for tree, options, expected in questions:
        found = as_bag(expired.rows(tree, **options), PLACE)
        assert found >= as_bag(expected, PLACE), tree
        assert found <= as_bag(expired.left, PLACE), tree
