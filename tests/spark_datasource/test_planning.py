"""Plans: which path is taken, how rows are dealt out, and what a retry or a later task sees."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import InProcessScan
from query_reference import all_of, any_of, as_bag, kept, leaf, negated, store_rows
from query_stores import write_query_store
from random_trees import TREES

from rmqlog.commitlog_format.errors import (
    InvalidSettingError,
)
from rmqlog.commitlog_format.store_files import LogFolders, QueueFolder, QueueKey, QueueKind
from rmqlog.spark_datasource import piece_reader
from rmqlog.spark_datasource.partitions import (
    LogSource,
    Partition,
    PartitionSizes,
    QueueBundle,
    QueueSlice,
    RowList,
    UnitFilter,
    bundle_queues,
    divide,
)
from rmqlog.spark_datasource.planning import plan_scan
from rmqlog.spark_datasource.reader import RmqlogReader
from rmqlog.spark_datasource.snapshots import Snapshot, open_pinned

PLACE = ("brokerName", "topic", "queueId", "queueOffset")


def _paths(scan: InProcessScan) -> set[str]:
    return set(scan.plan().report.description.split("path=")[1].split(", ")[0].split(" + "))


# --- The choice of the path -----------------------------------------------------------------


def test_a_tag_is_looked_for_in_the_units(store: Path) -> None:
    scan = InProcessScan(store, tree=leaf("eq", "tags", "PAID"))
    assert _paths(scan) == {"tag scan"}
    assert len(InProcessScan(store, tree=leaf("eq", "tags", "PAID")).rows()) < 40


def test_a_key_is_looked_up_in_the_index_and_the_rest_is_scanned(
    store: Path, rows: list[dict[str, Any]]
) -> None:
    keyed = next(row for row in rows if (row["keys"] or "").startswith("order-1 ") or
                 (row["keys"] or "").startswith("twice-"))
    scan = InProcessScan(store, {"topic": keyed["topic"]}, leaf("eq", "keys", keyed["keys"]))
    plan = scan.plan()
    assert "index lookup" in plan.report.description
    assert plan.report.metrics["index entries"] >= 1
    # Only what lies before the first and behind the last index entry is not covered.
    assert plan.report.metrics["units to read"] < 20
    without = InProcessScan(
        store, {"topic": keyed["topic"], "useIndex": "false"}, leaf("eq", "keys", keyed["keys"]))
    assert _paths(without) == {"queue scan"}


def test_a_message_id_opens_one_queue(store: Path, rows: list[dict[str, Any]]) -> None:
    scan = InProcessScan(store, tree=leaf("eq", "msgId", rows[50]["msgId"]))
    plan = scan.plan()
    assert plan.report.metrics["queues"] == 1
    assert plan.report.metrics["units to read"] == 1
    assert [row["msgId"] for row in scan.rows()] == [rows[50]["msgId"]]


def test_a_time_reads_only_what_the_slack_allows(store: Path, rows: list[dict[str, Any]]) -> None:
    last = max(row["storeTimestamp"] for row in rows)
    tree = leaf("ge", "storeTimestamp", last - 10_000_000)
    few = InProcessScan(store, {"timeSlack": "0"}, tree).plan().report.metrics["units to read"]
    more = InProcessScan(store, {"timeSlack": "20s"}, tree).plan().report.metrics["units to read"]
    assert few < more < len(rows)
    tree = leaf("ge", "bornTimestamp", last - 10_000_000)
    assert InProcessScan(store, tree=tree).plan().report.metrics["units to read"] == len(rows)


def test_other_queues_are_not_opened(store: Path) -> None:
    tree = all_of(leaf("eq", "topic", "orders"), leaf("eq", "queueId", 1))
    scan = InProcessScan(store, tree=tree)
    stores, snapshot = scan.open()
    pinned = open_pinned(scan.request.options, snapshot)
    plan_scan(scan.request, scan.columns, pinned, snapshot)
    assert [(key.topic, key.queue_id) for key in pinned[0]._views] == [("orders", 1)]
    assert stores[0].end == pinned[0].end


def test_queue_columns_alone_never_open_the_log(store: Path, tmp_path: Path) -> None:
    scan = InProcessScan(store, columns=[*PLACE, "commitLogOffset", "storeSize", "tagsCode"])
    assert scan.plan().report.metrics["log bytes to read"] == 0


def test_what_cannot_be_used_is_left_to_spark(store: Path, rows: list[dict[str, Any]]) -> None:
    for tree in ({"op": "unknown"}, any_of(leaf("eq", "tags", "PAID"), {"op": "unknown"})):
        assert len(InProcessScan(store, tree=tree).rows()) == len(rows)


BORN = leaf("lt", "bornTimestamp", 5)
TAG, KEY, TOPIC = leaf("eq", "tags", "PAID"), leaf("eq", "keys", "hot"), leaf("eq", "topic", "a")


@pytest.mark.parametrize(("tree", "used"), [
    (TAG, "tags eq 'PAID'"),
    (all_of(negated(leaf("isNull", "tags")), TAG, BORN), "tags eq 'PAID'"),
    (negated(TAG), "none"),
    (any_of(TAG, BORN), "none"),
    (any_of(TAG, leaf("isNull", "tags")), "(tags eq 'PAID' OR tags isNull)"),
    (any_of(TAG, KEY), "none"),
    (any_of(all_of(TOPIC, BORN), TAG), "(topic eq 'a' OR tags eq 'PAID')"),
    (negated(any_of(TOPIC, BORN)), "NOT topic eq 'a'"),
    (all_of(leaf("ge", "queueOffset", 7), {"op": "unknown"}), "queueOffset ge 7"),
])
def test_the_report_names_the_filters_that_the_plan_used(
    store: Path, tree: dict[str, Any], used: str
) -> None:
    report = InProcessScan(store, tree=tree, columns=PLACE).plan().report
    assert report.details["Filters"] == used
    assert report.description.endswith(f"filters={used}")


def test_a_key_is_a_filter_that_is_used_where_it_is_looked_up(store: Path) -> None:
    for use_index, used in (("true", "(tags eq 'PAID' AND keys eq 'hot')"),
                            ("false", "tags eq 'PAID'")):
        report = InProcessScan(store, {"useIndex": use_index}, all_of(TAG, KEY)).plan().report
        assert report.details["Filters"] == used


def test_aggregates_are_answered_from_the_bounds(store: Path, rows: list[dict[str, Any]]) -> None:
    wanted = {"groupBy": ["topic"], "aggregates": [
        {"func": "count"}, {"func": "min", "column": "queueOffset"},
        {"func": "max", "column": "queueOffset"}]}
    scan = InProcessScan(store, tree={"op": "true"}, aggregate=wanted)
    plan = scan.plan()
    (piece,) = plan.partitions[0].pieces
    assert isinstance(piece, RowList)
    assert plan.report.rows == len(piece.rows)
    expected = {
        topic: (len(offsets), 0, max(offsets))
        for topic in {row["topic"] for row in rows}
        for offsets in [[row["queueOffset"] for row in rows if row["topic"] == topic]]
    }
    assert {row[0]: row[1:] for row in piece.rows} == expected
    wanted["groupBy"] = []
    tree = leaf("eq", "topic", "nobody")
    (piece,) = InProcessScan(store, tree=tree, aggregate=wanted).plan().partitions[0].pieces
    assert isinstance(piece, RowList)
    assert piece.rows == ((0, None, None),)


def test_a_limit_reads_no_more_than_it_needs(store: Path) -> None:
    scan = InProcessScan(store, tree=leaf("eq", "topic", "orders"), limit="3")
    assert len(scan.rows()) == 3
    scan = InProcessScan(store, {"tags": "PAID"}, {"op": "true"}, limit="3")
    assert {row["tags"] for row in scan.rows()} == {"PAID"}


# --- Partitions -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {"minPartitions": 1}, {"minPartitions": 7}, {"maxRecordsPerPartition": 13},
    {"maxPartitionBytes": 1000}, {"minPartitions": 1000},
])
def test_many_partitions_hold_the_rows_of_one(
    store: Path, rows: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    scan = InProcessScan(store, options, columns=PLACE)
    partitions = scan.plan().partitions
    assert as_bag(scan.read(partitions), PLACE) == as_bag(rows, PLACE)
    counts = [len(scan.read([partition])) for partition in partitions]
    if "minPartitions" in options:
        assert len(partitions) == min(options["minPartitions"], len(rows))
        assert max(counts) - min(counts) <= 2
    if "maxRecordsPerPartition" in options:
        assert max(counts) <= 13
    if "maxPartitionBytes" in options:
        # Only the units are read for these columns, 20 bytes each.
        assert len(partitions) == -(-len(rows) * 20 // 1000)


@given(TREES, st.integers(1, 9), st.booleans())
@settings(max_examples=50)
def test_a_partition_read_again_gives_the_same_bytes(
    store: Path, tree: dict[str, Any], partition_count: int, use_index: bool
) -> None:
    options = {"minPartitions": partition_count, "useIndex": str(use_index)}
    scan = InProcessScan(store, options, tree)
    for partition in scan.plan().partitions:
        assert _content(scan, partition) == _content(scan, partition)


def _content(scan: InProcessScan, partition: Partition) -> list[bytes]:
    reader = RmqlogReader(scan.options, scan.schema)
    return [batch.serialize().to_pybytes() for batch in reader.read(partition)]


def test_an_empty_plan_reads_nothing_and_reports(store: Path) -> None:
    plan = InProcessScan(store, tree={"op": "false"}).plan()
    assert [partition.pieces for partition in plan.partitions] == [()]
    report = plan.partitions[0].report
    assert report.startswith("<rmqlog-report>{")
    assert report.isascii()
    found = json.loads(report.removeprefix("<rmqlog-report>").removesuffix("</rmqlog-report>"))
    assert found["rows"] == 0
    assert "<" not in report[1:-len("</rmqlog-report>")]


@given(
    st.lists(st.integers(0, 40), max_size=6), st.integers(1, 9),
    st.none() | st.integers(1, 15), st.none() | st.integers(1, 9),
)
@settings(max_examples=200)
def test_dividing_loses_and_repeats_nothing(
    counts: list[int], tasks: int, row_max: int | None, least: int | None
) -> None:
    pieces = [
        RowList(tuple((number, row) for row in range(count)))
        for number, count in enumerate(counts)
    ]
    parts = divide(pieces, PartitionSizes(least, row_max, 10**6, tasks))
    dealt = [row for part in parts for piece in part for row in piece.rows]  # type: ignore[union-attr]
    assert dealt == [row for piece in pieces for row in piece.rows]
    assert all(parts)
    if row_max is not None:
        assert all(sum(piece.row_count for piece in part) <= row_max for part in parts)
    if least is not None:
        assert len(parts) >= min(least, len(dealt))


def _slice(store: Path, queue_id: int, count: int) -> QueueSlice:
    key = QueueKey("orders", queue_id)
    folder = QueueFolder(key, QueueKind.SIMPLE, f"{store}/{queue_id}")
    source = LogSource(LogFolders((f"{store}/commitlog",), ""), "broker")
    return QueueSlice(source, folder, 0, 100, 0, count, UnitFilter(), 20.0)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=8), st.data())
@settings(max_examples=300)
def test_a_bundle_is_cut_through_all_of_its_queues(
    store: Path, counts: list[int], data: st.DataObject
) -> None:
    (bundle,) = bundle_queues(
        _slice(store, number, count) for number, count in enumerate(counts))
    total = sum(counts)
    cuts = sorted({0, total, *data.draw(st.lists(st.integers(0, total)))})
    parts = [bundle.part(*bounds) for bounds in pairwise(cuts)]

    assert [part.row_count for part in parts] == [stop - first for first, stop in pairwise(cuts)]
    slices = [each for part in parts for each in part.slices]  # type: ignore[union-attr]
    for number, count in enumerate(counts):
        own = [each for each in slices if each.folder.key.queue_id == number]
        assert [0, *(each.stop for each in own)] == [*(each.start for each in own), count]
    # Behind each part all queues are equally far, but for a few rows.
    for stop, part in zip(cuts[1:], parts, strict=True):
        for each in part.slices:  # type: ignore[union-attr]
            even = counts[each.folder.key.queue_id] * stop / total
            assert abs(each.stop - even) <= len(counts) / 2


def test_queues_of_a_topic_are_read_in_the_order_of_the_log(store: Path) -> None:
    scan = InProcessScan(store, {"topic": "orders", "minPartitions": 3})
    partitions = scan.plan().partitions
    assert all(isinstance(one.pieces[0], QueueBundle) for one in partitions)
    for partition in partitions:
        rows = scan.read([partition])
        assert len({row["queueId"] for row in rows}) > 1
        offsets = [row["commitLogOffset"] for row in rows]
        assert offsets == sorted(offsets)


def test_pieces_that_cannot_be_read_together_are_left_alone(store: Path) -> None:
    others = [RowList(((1,),)), _slice(store, 9, 5)]
    many = [_slice(store, number, 5) for number in range(9)]
    assert list(bundle_queues(others)) == others
    # No more than eight at a time.
    assert list(bundle_queues([*many, others[0]])) == [
        QueueBundle(tuple(many[:8])), many[8], others[0]]


@pytest.mark.parametrize(("scan", "is_announced"), [
    ({"options": {"topic": "orders"}}, True),
    ({"options": {"topic": "orders"}, "columns": PLACE}, False),
    ({"options": {"topic": "orders", "tags": "PAID"}}, False),
    ({"options": {"topic": "orders"}, "tree": leaf("eq", "topic", "orders"), "limit": "3"}, False),
])
def test_a_task_announces_the_records_that_it_will_decode(
    store: Path, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch,
    scan: dict[str, Any], is_announced: bool,
) -> None:
    announced = [0]
    monkeypatch.setattr(piece_reader, "expect_rows", announced.append)
    InProcessScan(store, **scan).rows()
    dispatched = [row for row in rows if row["topic"] == "orders"]
    # Records that no queue names yet are few, and not announced.
    assert len(dispatched) // 2 < sum(announced) <= len(dispatched) or not is_announced
    assert any(announced) is is_announced


# --- Snapshots ------------------------------------------------------------------------------


def test_a_frame_does_not_see_what_is_appended_later(tmp_path: Path) -> None:
    path = write_query_store(tmp_path / "store", count=60)
    scan = InProcessScan(path, columns=PLACE)
    _, snapshot = scan.open()
    before = scan.rows()
    write_query_store(path, count=60, seed=3, first=60)
    again = Snapshot.from_json(snapshot.to_json())
    pinned = open_pinned(scan.request.options, again)
    later = scan.read(plan_scan(scan.request, scan.columns, pinned, again).partitions)
    assert as_bag(later, PLACE) == as_bag(before, PLACE)
    assert len(InProcessScan(path, columns=PLACE).rows()) > len(before)


def test_a_version_is_the_store_as_it_was(store: Path, rows: list[dict[str, Any]]) -> None:
    ends = sorted(row["commitLogOffset"] + row["storeSize"] for row in rows)
    for end in (ends[0] - 1, ends[0], ends[100], ends[100] + 1, ends[-1]):
        found = InProcessScan(store, {"versionAsOf": end}, columns=PLACE).rows()
        expected = [row for row in rows if row["commitLogOffset"] + row["storeSize"] <= end]
        assert as_bag(found, PLACE) == as_bag(expected, PLACE), end
    with pytest.raises(InvalidSettingError, match="versionAsOf"):
        InProcessScan(store, {"versionAsOf": 10**12}).rows()


def test_one_version_of_several_stores_is_refused_however_they_are_named(
    store: Path, tmp_path: Path
) -> None:
    for name in ("broker-a", "broker-b"):
        copytree(store, tmp_path / name / "store")
    for path in (f"{tmp_path}/*/store", [tmp_path / "broker-a/store", tmp_path / "broker-b/store"]):
        with pytest.raises(InvalidSettingError, match="one physical offset for several stores"):
            InProcessScan(path, {"versionAsOf": 0}).rows()
        version = json.dumps({"broker-a": 0, "broker-b": 100})
        assert InProcessScan(path, {"versionAsOf": version}).rows() == []


def test_records_that_are_not_dispatched_yet_are_rows(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "store-a"
    copytree(store, copy)
    rows = store_rows(store)
    behind = sorted(rows, key=lambda row: row["commitLogOffset"])[-5:]
    for row in behind:
        # The newest units are taken away, as if a broker had been killed before it made them.
        folder = copy / "consumequeue" / row["topic"] / str(row["queueId"])
        units = sum(file.stat().st_size for file in sorted(folder.iterdir())) // 20
        assert units > row["queueOffset"]
        file = max(name for name in folder.iterdir() if int(name.name) <= row["queueOffset"] * 20)
        place = row["queueOffset"] * 20 - int(file.name)
        data = file.read_bytes()
        file.write_bytes(data[:place] + bytes(20) + data[place + 20 :])
    for tree in ({"op": "true"}, leaf("eq", "tags", behind[0]["tags"]) if behind[0]["tags"]
                 else leaf("isNull", "tags")):
        columns = (*PLACE, "tags", "commitLogOffset")
        scan = InProcessScan(copy, {"includeSystemTopics": "true"}, tree, columns)
        assert as_bag(kept(tree, scan.rows()), columns) == as_bag(kept(tree, rows), columns)
