"""A store as one snapshot: complete on what brokers wrote, and after what befell it since."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from golden_stores import GOLDEN_NAMES, GoldenStore, expected_row

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import (
    CorruptRecordError,
    MessageNotFoundError,
    StoreNotFoundError,
    TopicNotFoundError,
)
from rmqlog.commitlog_format.inner_batch import expand
from rmqlog.commitlog_format.lookup import find_by_key
from rmqlog.commitlog_format.message_reader import ReadPolicy, messages_to_batch
from rmqlog.commitlog_format.properties import split_keys
from rmqlog.commitlog_format.store import Store

Golden = Callable[[str], GoldenStore]
Row = dict[str, Any]
Place = tuple[str, int, int]


def open_store(path: Path, **options: Any) -> Store:
    """A store, with the log folders of the one that has several."""
    folders = [str(folder) for folder in sorted(path.glob("cl_*"))]
    return Store(str(path), log_directories=folders, **options)


def copy_of(golden: GoldenStore, target: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(golden.path, target / "store"))


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Batches as rows: times in milliseconds, properties a dictionary, without brokerName."""
    rows = []
    for batch in batches:
        for row in batch.to_pylist():
            row.pop("brokerName", None)
            for name in ("bornTimestamp", "storeTimestamp"):
                if name in row:
                    row[name] = round(row[name].timestamp() * 1000)
            if "properties" in row:
                row["properties"] = dict(row["properties"])
            rows.append(row)
    return rows


def rows_by_place(store: Store) -> dict[Place, Row]:
    """Every message of every queue."""
    rows = [row for topic in store.topics for row in rows_of(store.read(topic))]
    found = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def expected_rows(golden: GoldenStore) -> dict[Place, Row]:
    """What RocketMQ's decoder found through every unit whose record is still there."""
    found = {}
    for unit in golden.units:
        if unit["kind"] == "unit" and "error" not in unit:
            row = expected_row(unit)
            if "ext" in unit:
                row["tagsCode"] = unit["ext"]["tagsCode"]
            found[(unit["topic"], unit["queueId"], unit["queueOffset"])] = row
    return found


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_unit_gives_the_row_that_rocketmq_gives(name: str, golden_store: Golden) -> None:
    golden = golden_store(name)
    expected = expected_rows(golden)
    found = rows_by_place(open_store(golden.path))
    inner = {place for place in found if place[0] == "bcq"}

    assert {place: row for place, row in found.items() if place not in inner} == expected
    assert len(inner) == (265 if name == "rmq-5.5.0-bcq" else 0)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_log_scan_gives_the_log(name: str, golden_store: Golden) -> None:
    golden = golden_store(name)
    store = open_store(golden.path)
    records = [line for line in golden.log if line["kind"] == "record"]
    (end,) = (line for line in golden.log if line["kind"] == "end")
    scanned = rows_of(store.scan())

    assert list(dict.fromkeys(row["commitLogOffset"] for row in scanned)) == [
        line["commitLogOffset"] for line in records
    ]
    assert store.end == end["commitLogOffset"]
    expected = {line["commitLogOffset"]: expected_row(line) for line in records}
    for row in scanned:
        if not row["sysFlag"] & layout.SysFlag.INNER_BATCH:
            row.pop("tagsCode")
            assert row == expected[row["commitLogOffset"]]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_key_gives_every_message_that_has_it(name: str, golden_store: Golden) -> None:
    golden = golden_store(name)
    store = open_store(golden.path)
    all_rows = rows_by_place(store).values()
    index = {(line["topic"], line["key"]): line["offsets"]
             for line in golden.index if line["kind"] == "key"}
    compared = 0
    for topic, key, _is_uniq in golden.keys:
        if topic not in store.topics:
            continue
        found = rows_of(find_by_key(store, topic, key))
        expected = [
            row for row in all_rows
            if row["topic"] == topic and (key == row["uniqKey"] or key in split_keys(row["keys"]))
        ]
        in_order = sorted(found, key=lambda row: (row["queueId"], row["queueOffset"]))
        assert in_order == sorted(expected, key=lambda row: (row["queueId"], row["queueOffset"]))
        if topic != "bcq":  # keys of inner batches are in no index
            live = {offset for offset in index[(topic, key)] if offset >= store.start}
            assert {row["commitLogOffset"] for row in found} <= live
        compared += 1
    assert compared >= 50


def test_many_keys_in_one_call_give_what_each_gives_alone(golden_store: Golden) -> None:
    store = open_store(golden_store("rmq-5.5.0-clean").path)
    keys = sorted({token for row in rows_of(store.read("orders", columns=["keys"]))
                   for token in split_keys(row["keys"])})
    together = rows_of(find_by_key(store, "orders", keys, ["commitLogOffset"]))
    alone = {row["commitLogOffset"] for key in keys
             for row in rows_of(find_by_key(store, "orders", key, ["commitLogOffset"]))}

    offsets = [row["commitLogOffset"] for row in together]
    assert len(offsets) == len(set(offsets))
    assert set(offsets) == alone
    assert len(alone) > 1000


def test_without_an_index_the_whole_topic_is_searched(
    golden_store: Golden, tmp_path: Path
) -> None:
    golden = golden_store("rmq-5.5.0-clean")
    path = copy_of(golden, tmp_path)
    shutil.rmtree(path / "index")

    with_index = rows_of(find_by_key(open_store(golden.path), "orders", "hot"))
    without = rows_of(find_by_key(open_store(path), "orders", "hot"))
    place = lambda row: row["commitLogOffset"]  # noqa: E731
    assert sorted(without, key=place) == sorted(with_index, key=place)
    assert len(without) == 400


def test_half_an_index_finds_everything(golden_store: Golden, tmp_path: Path) -> None:
    path = copy_of(golden_store("rmq-5.5.0-clean"), tmp_path)
    files = sorted((path / "index").iterdir())
    for file in (files[0], files[2]):
        file.unlink()

    found = rows_of(find_by_key(open_store(path), "orders", "hot", ["commitLogOffset"]))
    assert len({row["commitLogOffset"] for row in found}) == len(found) == 400


def test_inner_messages_are_rows_of_their_own(golden_store: Golden) -> None:
    golden = golden_store("rmq-5.5.0-bcq")
    store = open_store(golden.path)
    found = rows_of(store.read("bcq"))
    expected = []
    for unit in golden.units:
        if unit["kind"] == "batchUnit":
            expected += expand(store.log.message(unit["commitLogOffset"]))
    columns = [name for name in pa.schema(store.reader().schema).names if name != "brokerName"]

    assert found == rows_of([messages_to_batch(expected, columns)])
    inner = [row for row in found if row["sysFlag"] & layout.SysFlag.INNER_BATCH]
    assert (len(found), len(inner)) == (265, 255)
    assert {row["storeSize"] for row in inner} == {row["bodyCrc"] for row in inner} == {None}
    assert [row["queueOffset"] for row in found if row["queueId"] == 0] == list(
        range(store.queue("bcq", 0).max_offset)
    )


def test_a_range_may_begin_and_end_within_an_inner_batch(golden_store: Golden) -> None:
    store = open_store(golden_store("rmq-5.5.0-bcq").path)
    whole = rows_of(store.read("bcq", 0))

    for columns in (None, ["queueOffset", "commitLogOffset"]):
        part = rows_of(store.read("bcq", 0, 7, 23, columns=columns))
        assert [row["queueOffset"] for row in part] == list(range(7, 23))
        if columns is None:
            assert part == whole[7:23]


def test_the_true_minimum_is_the_first_record_that_is_still_there(golden_store: Golden) -> None:
    golden = golden_store("rmq-5.5.0-retention")
    store = open_store(golden.path)
    live: dict[tuple[str, int], list[int]] = {}
    for unit in golden.units:
        if "error" not in unit:
            live.setdefault((unit["topic"], unit["queueId"]), []).append(unit["queueOffset"])

    assert live
    for (topic, queue_id), offsets in live.items():
        view = store.queue(topic, queue_id)
        assert (view.min_offset, view.max_offset) == (min(offsets), max(offsets) + 1)
    gone = [view for view in store.queues.values() if (view.topic, view.queue_id) not in live]
    assert all(len(view) == 0 for view in gone)


def test_a_snapshot_travels_by_pickle(golden_store: Golden) -> None:
    store = open_store(golden_store("rmq-5.5.0-clean").path, end=1_500_000)
    again = pickle.loads(pickle.dumps(store))

    assert again.end == 1_500_000
    assert rows_by_place(again) == rows_by_place(store)


@pytest.mark.parametrize("end", [0, 1, 1753, 1_048_576, 1_500_000])
def test_a_pinned_end_bounds_every_path(golden_store: Golden, end: int) -> None:
    golden = golden_store("rmq-5.5.0-clean")
    store = open_store(golden.path, end=end)
    expected = {
        place: row for place, row in expected_rows(golden).items()
        if row["commitLogOffset"] + row["storeSize"] <= end
    }

    assert rows_by_place(store) == expected
    hot = rows_of(find_by_key(store, "orders", "hot")) if "orders" in store.topics else []
    assert len(hot) == sum("hot" in split_keys(row["keys"]) for row in expected.values()
                           if row["topic"] == "orders")


@pytest.mark.parametrize("name", ["rmq-5.5.0-clean", "rmq-5.5.0-bcq", "rmq-5.5.0-dledger"])
def test_a_log_without_queues_gives_the_rows_that_its_queues_gave(
    name: str, golden_store: Golden, tmp_path: Path
) -> None:
    golden = golden_store(name)
    whole = rows_by_place(open_store(golden.path))
    path = copy_of(golden, tmp_path)
    shutil.rmtree(path / "consumequeue")
    shutil.rmtree(path / "batchconsumequeue", ignore_errors=True)
    found = rows_by_place(open_store(path))

    deleted = {place for place in found if place[0] == "doomed"}
    assert {place: row for place, row in found.items() if place not in deleted} == whole
    assert len(deleted) == (120 if name == "rmq-5.5.0-clean" else 0)


def test_a_rocksdb_queue_is_told_and_the_log_is_read(golden_store: Golden, tmp_path: Path) -> None:
    golden = golden_store("rmq-5.5.0-multipath")
    path = copy_of(golden, tmp_path)
    shutil.rmtree(path / "consumequeue")
    (path / "consumequeue").mkdir()
    (path / "consumequeue" / "CURRENT").write_text("MANIFEST-000004\n")
    store = open_store(path)

    assert store.files.rocksdb_queues
    assert rows_by_place(store) == expected_rows(golden)


def zero_units(path: Path, behind: int) -> None:
    """Undo the dispatch of every record at or behind a physical offset."""
    for file in path.glob("consumequeue/*/*/*"):
        units = np.fromfile(file, layout.CONSUME_QUEUE_UNIT)
        units[units["commit_log_offset"] >= behind] = np.zeros((), layout.CONSUME_QUEUE_UNIT)
        units.tofile(file)


@pytest.mark.parametrize("behind", [2_390_000, 2_000_000, 900_000, 0])
def test_records_that_were_not_dispatched_are_rows_all_the_same(
    golden_store: Golden, tmp_path: Path, behind: int
) -> None:
    golden = golden_store("rmq-5.5.0-clean")
    path = copy_of(golden, tmp_path)
    zero_units(path, behind)
    found = rows_by_place(open_store(path))

    visible = {place: row for place, row in found.items() if place[0] != "doomed"}
    assert visible == expected_rows(golden)


def last_record(golden: GoldenStore) -> tuple[int, int]:
    """Offset and size of the last record of the log."""
    line = [line for line in golden.log if line["kind"] == "record"][-1]
    return line["commitLogOffset"], line["storeSize"]


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Write into the log at a physical offset (segments of 1 MiB)."""
    start = offset - offset % 1_048_576
    with (path / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(offset - start)
        file.write(data)


@pytest.mark.parametrize("kept", [0, 4, 50, 100])
def test_a_torn_tail_ends_the_snapshot(golden_store: Golden, tmp_path: Path, kept: int) -> None:
    golden = golden_store("rmq-5.5.0-clean")
    path = copy_of(golden, tmp_path)
    offset, size = last_record(golden)
    overwrite(path, offset + kept, bytes(size - kept))
    store = open_store(path)

    assert store.end == offset
    expected = {place: row for place, row in expected_rows(golden).items()
                if row["commitLogOffset"] < offset}
    assert rows_by_place(store) == expected


def test_a_copy_whose_last_file_is_cut_off_ends_there(
    golden_store: Golden, tmp_path: Path
) -> None:
    golden = golden_store("rmq-5.5.0-clean")
    path = copy_of(golden, tmp_path)
    last = path / "commitlog" / "00000000000002097152"
    with last.open("r+b") as file:
        file.truncate(100_000)
    store = open_store(path)

    expected = {place: row for place, row in expected_rows(golden).items()
                if row["commitLogOffset"] + row["storeSize"] <= 2_097_152 + 100_000}
    assert rows_by_place(store) == expected
    assert store.end <= 2_097_152 + 100_000


def test_damage_in_the_middle_names_file_and_offset(golden_store: Golden, tmp_path: Path) -> None:
    golden = golden_store("rmq-5.5.0-clean")
    path = copy_of(golden, tmp_path)
    victim = next(row for row in expected_rows(golden).values()
                  if row["topic"] == "orders" and row["commitLogOffset"] > 500_000)
    overwrite(path, victim["commitLogOffset"] + 100, b"\xff" * 8)
    store = open_store(path)

    with pytest.raises(CorruptRecordError) as caught:
        list(store.read("orders"))
    assert caught.value.offset == victim["commitLogOffset"]
    assert caught.value.path.endswith("commitlog/00000000000000000000")
    reader_policy = ReadPolicy(drop_malformed=True)
    kept = rows_of(store.read("orders", policy=reader_policy))
    assert len(kept) == 2047


def test_units_behind_the_end_are_no_rows(golden_store: Golden, tmp_path: Path) -> None:
    golden = golden_store("rmq-5.5.0-clean")
    path = copy_of(golden, tmp_path)
    file = sorted((path / "consumequeue" / "orders" / "0").iterdir())[-1]
    units = np.fromfile(file, layout.CONSUME_QUEUE_UNIT)
    used = int((units["size"] > 0).sum())
    for step in range(5):  # what a truncated log leaves: units that point behind its end
        units[used + step] = (3_000_000 + 400 * step, 400, 7)
    units.tofile(file)

    assert rows_by_place(open_store(path)) == expected_rows(golden)


def test_dledger_shows_what_is_committed(golden_store: Golden, tmp_path: Path) -> None:
    golden = golden_store("rmq-5.5.0-dledger")
    path = copy_of(golden, tmp_path)
    (path / "dledger-n0" / "checkpoint").write_text("committedIndex=99\nendIndex=299\n")

    assert len(rows_by_place(open_store(path))) == 100
    assert len(rows_by_place(open_store(golden.path))) == 300


def test_an_unfinished_commit_of_ours_bounds_the_snapshot(
    golden_store: Golden, tmp_path: Path
) -> None:
    golden = golden_store("rmq-5.5.0-clean")
    path = copy_of(golden, tmp_path)
    start = next(row["commitLogOffset"] for row in expected_rows(golden).values()
                 if row["commitLogOffset"] > 2_300_000)
    (path / "rmqlog").mkdir()
    (path / "rmqlog" / layout.COMMIT_MANIFEST_FILE).write_text(f'{{"startOffset": {start}}}')

    assert len(rows_by_place(open_store(path))) == 2771
    overwrite(path, start + 4, bytes(4))
    store = open_store(path)
    assert store.end == start
    assert all(row["commitLogOffset"] < start for row in rows_by_place(store).values())


def test_tags_are_compared_by_text_although_hashes_collide(golden_store: Golden) -> None:
    store = open_store(golden_store("rmq-5.5.0-clean").path)
    rows = rows_of(store.read("orders", columns=["tags", "tagsCode"]))

    for expression in ("Aa", "BB", "Aa || BB", "已支付", "😀tag", "a b", "PAID||CREATED", "none"):
        wanted = {tag.strip() for tag in expression.split("||")}
        found = rows_of(store.read("orders", tags=expression, columns=["tags", "tagsCode"]))
        assert found == [row for row in rows if row["tags"] in wanted]
    assert rows_of(store.read("orders", tags="*", columns=["tags", "tagsCode"])) == rows


def test_tags_are_found_where_units_hold_other_things(golden_store: Golden) -> None:
    for name, topic in (("rmq-5.5.0-cqext", "orders"), ("rmq-5.5.0-bcq", "bcq"),
                        ("rmq-5.5.0-clean", layout.SCHEDULE_TOPIC)):
        store = open_store(golden_store(name).path)
        rows = rows_of(store.read(topic))
        tags = sorted({row["tags"] for row in rows if row["tags"]})
        for tag in tags:
            assert rows_of(store.read(topic, tags=tag)) == [
                row for row in rows if row["tags"] == tag
            ]
        assert tags


def test_queue_columns_never_touch_the_log(golden_store: Golden, tmp_path: Path) -> None:
    golden = golden_store("rmq-5.5.0-clean")
    path = copy_of(golden, tmp_path)
    store = open_store(path)
    views = store.queues_of("orders")
    shutil.rmtree(path / "commitlog")
    columns = ["queueId", "queueOffset", "commitLogOffset", "storeSize", "tagsCode", "topic"]
    reader = store.reader(columns)
    found = [row for view in views for units in view.scan()
             for row in rows_of(reader.read(view.key, view.kind, units))]

    expected = [row for row in expected_rows(golden).values() if row["topic"] == "orders"]
    assert found == [{name: row[name] for name in columns} for row in expected]


def test_the_offset_of_a_time_is_the_first_message_stored_then(golden_store: Golden) -> None:
    store = open_store(golden_store("rmq-5.5.0-clean").path)
    rows = rows_of(store.read("orders", 1, columns=["queueOffset", "storeTimestamp"]))
    times = sorted({row["storeTimestamp"] for row in rows})

    for time in (0, times[0], times[len(times) // 2], times[-1], times[-1] + 1):
        expected = next((row["queueOffset"] for row in rows if row["storeTimestamp"] >= time),
                        rows[-1]["queueOffset"] + 1)
        assert store.offset_by_time("orders", 1, time) == expected


def test_a_message_is_found_by_its_offset_id(golden_store: Golden) -> None:
    golden = golden_store("rmq-5.5.0-clean")
    store = open_store(golden.path)
    for row in list(expected_rows(golden).values())[::200]:
        assert store.message_by_id(row["msgId"]).commit_log_offset == row["commitLogOffset"]

    with pytest.raises(MessageNotFoundError, match="another id"):
        store.message_by_id("7F00000200002A9F0000000000000000")
    with pytest.raises(MessageNotFoundError, match="no message at this physical offset"):
        store.message_by_id("7F00000100002A9F0000000099000000")


def test_an_unknown_topic_suggests_the_nearest(golden_store: Golden) -> None:
    store = open_store(golden_store("rmq-5.5.0-clean").path)

    with pytest.raises(TopicNotFoundError, match="expected 'orders' or 'orderly'"):
        list(store.read("ordrs"))
    with pytest.raises(TopicNotFoundError, match="has no such queue; found 9"):
        store.queue("orders", 9)


def test_what_is_no_store_says_so(golden_store: Golden, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="no such directory"):
        Store(str(tmp_path / "missing"))
    with pytest.raises(StoreNotFoundError, match="not a RocketMQ store"):
        Store(str(tmp_path))
    with pytest.raises(StoreNotFoundError, match="perhaps cl_a, cl_b"):
        Store(str(golden_store("rmq-5.5.0-multipath").path))


def test_an_empty_store_is_empty(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    store = Store(str(tmp_path))

    assert (store.topics, store.start, store.end) == ([], 0, 0)
    assert list(store.scan()) == []
