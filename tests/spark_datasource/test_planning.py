"""Plans: which path is taken, how rows are dealt out, and what a retry or a later task sees."""

from __future__ import annotations

import json
import re
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
    SegmentExpiredError,
    TopicNotFoundError,
)
from rmqlog.commitlog_format.store_files import LogFolders, QueueFolder, QueueKey, QueueKind
from rmqlog.spark_datasource import piece_reader
from rmqlog.spark_datasource.options import METADATA_TABLES
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
from rmqlog.spark_datasource.source import RmqlogDataSource

PLACE = ("brokerName", "topic", "queueId", "queueOffset")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_query_store(tmp_path_factory.mktemp("planning") / "store-a")


@pytest.fixture(scope="module")
def rows(store: Path) -> list[dict[str, Any]]:
    return [row for row in store_rows(store) if not row["topic"].startswith("%")]


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


# --- Mistakes and choices -------------------------------------------------------------------


def test_offsets_that_are_gone_are_an_error_unless_allowed(store: Path) -> None:
    far = {"topic": "orders", "startingOffsets": '{"orders": {"0": 100000}}'}
    with pytest.raises(SegmentExpiredError, match="failOnDataLoss"):
        InProcessScan(store, far).rows()
    found = InProcessScan(store, {**far, "failOnDataLoss": "false"}).rows()
    assert {row["queueId"] for row in found} == {1}


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


# --- Stores without queues ----------------------------------------------------------------------


def _without_queues(store: Path, copy: Path, *folders: str) -> Path:
    for folder in folders:
        copytree(store / folder, copy / folder)
    return copy


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



def test_the_catalog_has_no_table_for_a_name_that_is_none(store: Path) -> None:
    question = {"path": str(store), "__rmqlog.bridge": "1", "__rmqlog.catalog": "table"}
    assert RmqlogDataSource({**question, "metadata": "nope"}).schema().fieldNames() == []
    assert RmqlogDataSource({**question, "topic": "nope"}).schema().fieldNames() == []
    assert "topic" in RmqlogDataSource({**question, "metadata": "Topics"}).schema().fieldNames()
    assert "body" in RmqlogDataSource({**question, "topic": "orders"}).schema().fieldNames()
    with pytest.raises(InvalidSettingError, match="metadata"):
        RmqlogDataSource({"path": str(store), "metadata": "nope"}).schema()


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
