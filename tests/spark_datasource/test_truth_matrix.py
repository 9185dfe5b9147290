"""Every path gives the rows of a full scan: the matrix, in process, against plain Python."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_stores import GOLDEN_NAMES, GoldenStore
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import InProcessScan
from query_filters import FILTER_NAMES, columns_in, query_filters
from query_reference import answers, as_bag, explode, is_system, kept, leaf, store_rows
from query_stores import write_query_store
from random_trees import TREES

from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS

PLACE = ("brokerName", "topic", "queueId", "queueOffset")
COLUMN_SETS = {
    "place": PLACE,
    "units": (*PLACE, "commitLogOffset", "storeSize", "tagsCode"),
    "text": ("queueOffset", "queueId", "topic", "tags", "keys", "uniqKey", "msgId"),
    "all": MESSAGE_COLUMNS,
}


class Stores:
    """One store with a whole index, half of one and none; three as a cluster; and their rows."""

    def __init__(self, folder: Path, golden: Callable[[str], GoldenStore]) -> None:
        whole = write_query_store(folder / "whole" / "store-a")
        other = write_query_store(folder / "three" / "store-b", seed=2)
        self.paths = {"whole": [whole]}
        for index in ("half", "none"):
            path = folder / index / "store-a"
            shutil.copytree(whole, path)
            for file in sorted((path / "index").iterdir())[:: 2 if index == "half" else 1]:
                file.unlink()
            self.paths[index] = [path]
        self.paths["three"] = [whole, other, golden("rmq-5.5.0-bcq").path]
        rows = {path: store_rows(path) for path in self.paths["three"]}
        self.all_rows = {
            name: [row for path in paths for row in rows.get(path, rows[whole])]
            for name, paths in self.paths.items()
        }
        self.rows = {
            name: [row for row in rows if not is_system(row["topic"])]
            for name, rows in self.all_rows.items()
        }
        self.opened = {
            name: InProcessScan(list(paths)).open() for name, paths in self.paths.items()
        }


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, golden_store: Any) -> Stores:
    return Stores(tmp_path_factory.mktemp("matrix"), golden_store)


@pytest.mark.parametrize("name", FILTER_NAMES)
def test_a_filter_gives_the_rows_of_a_full_scan_on_every_path(stores: Stores, name: str) -> None:
    for index, columns in itertools.product(stores.paths, COLUMN_SETS.values()):
        rows = stores.rows[index]
        tree = query_filters(rows)[name]
        if index in ("half", "none") and columns_in(tree).isdisjoint(("keys", "uniqKey")):
            continue  # no path that the index could change
        wanted = list(dict.fromkeys([*columns, *columns_in(tree)]))
        scan = InProcessScan(list(stores.paths[index]), {"minPartitions": 2}, tree, wanted)
        found = kept(tree, scan.rows(stores.opened[index]))
        assert as_bag(found, wanted) == as_bag(kept(tree, rows), wanted), (index, wanted)


#: The folders of the log, where it is not ``commitlog``.
LOGS = {
    "rmq-5.5.0-multipath": ("cl_a", "cl_b"),
    "rmq-5.5.0-dledger": ("dledger-n0/data",),
}


def _golden(golden_store: Any, store: str) -> tuple[Path, dict[str, Any], list[dict[str, Any]]]:
    """A broker's store, the options to read all of it, and its rows."""
    path = golden_store(store).path
    options = {"includeSystemTopics": "true"}
    if "multipath" in store:
        options["storePathCommitLog"] = ",".join(f"{path}/{log}" for log in LOGS[store])
    return path, options, store_rows(path, logs=LOGS.get(store, ("commitlog",)))


@pytest.mark.parametrize("store", GOLDEN_NAMES)
def test_a_filter_gives_the_rows_of_a_full_scan_of_a_brokers_store(
    golden_store: Any, store: str
) -> None:
    path, options, rows = _golden(golden_store, store)
    opened = InProcessScan(path, options).open()
    for name, tree in query_filters(_with_topic_orders(rows)).items():
        columns = list(dict.fromkeys([*PLACE, *columns_in(tree)]))
        found = kept(tree, InProcessScan(path, options, tree, columns).rows(opened))
        assert as_bag(found, columns) == as_bag(kept(tree, rows), columns), name


def _with_topic_orders(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows to take literals from: the largest topic is called orders, one row has two keys."""
    topics = [row["topic"] for row in rows]
    largest = "orders" if "orders" in topics else max(topics, key=topics.count)
    named = [{**row, "topic": "orders"} for row in rows if row["topic"] == largest]
    return [*named, {**named[-1], "keys": "two keys"}]


@pytest.mark.parametrize("store", GOLDEN_NAMES)
def test_a_brokers_store_is_read_whole_and_exactly(golden_store: Any, store: str) -> None:
    path, options, rows = _golden(golden_store, store)
    found = InProcessScan(path, {**options, "minPartitions": 5}).rows()
    assert as_bag(found, MESSAGE_COLUMNS) == as_bag(rows, MESSAGE_COLUMNS)


def test_filters_on_exact_columns_are_applied_without_spark(stores: Stores) -> None:
    for index, name in itertools.product(stores.paths, FILTER_NAMES):
        rows = stores.rows[index]
        tree = query_filters(rows)[name]
        if columns_in(tree) <= {"brokerName", "topic", "queueId"}:
            scan = InProcessScan(list(stores.paths[index]), tree=tree, columns=PLACE)
            found = scan.rows(stores.opened[index])
            assert as_bag(found, PLACE) == as_bag(kept(tree, rows), PLACE), (index, name)


OPTIONS = {
    "tags": ({"tags": "PAID || Aa"}, lambda row: row["tags"] in ("PAID", "Aa")),
    "all tags": ({"tags": "*"}, lambda row: True),
    "key": ({"key": "hot"}, lambda row: "hot" in (row["keys"] or "").split(" ")),
    "key of nobody": ({"key": "nobody"}, lambda row: False),
    "key and tags": (
        {"key": "hot", "tags": "CREATED"},
        lambda row: "hot" in (row["keys"] or "").split(" ") and row["tags"] == "CREATED"),
    "topic": ({"topic": "orders"}, lambda row: row["topic"] == "orders"),
    "topics": ({"topics": "orders, batch"}, lambda row: row["topic"] in ("orders", "batch")),
    "pattern": ({"topicsPattern": "o.*"}, lambda row: row["topic"].startswith("o")),
}


@pytest.mark.parametrize("use_index", ["true", "false"])
@pytest.mark.parametrize("name", list(OPTIONS))
def test_options_choose_rows_exactly(stores: Stores, name: str, use_index: str) -> None:
    options, wanted = OPTIONS[name]
    for index, columns in itertools.product(stores.paths, (PLACE, MESSAGE_COLUMNS)):
        given = {**options, "useIndex": use_index}
        scan = InProcessScan(list(stores.paths[index]), given, columns=columns)
        found = scan.rows(stores.opened[index])
        assert as_bag(found, columns) == as_bag(filter(wanted, stores.rows[index]), columns), index


def test_times_as_options_are_half_open(stores: Stores) -> None:
    rows = [row for row in stores.rows["whole"] if row["topic"] == "orders"]
    times = sorted({row["storeTimestamp"] // 1000 for row in rows})
    start, stop = times[len(times) // 3], times[2 * len(times) // 3]
    for slack in ("0", "60s"):
        scan = InProcessScan(
            stores.paths["whole"][0],
            {"topic": "orders", "startingTimestamp": start, "endingTimestamp": stop,
             "timeSlack": slack},
            columns=PLACE,
        )
        expected = [row for row in rows if start <= row["storeTimestamp"] // 1000 < stop]
        assert as_bag(scan.rows(), PLACE) == as_bag(expected, PLACE)


def test_exploded_keys_are_distinct_tokens(stores: Stores) -> None:
    columns = [*PLACE, "keys", "key"]
    rows = stores.rows["three"]
    paths = list(stores.paths["three"])
    found = InProcessScan(paths, {"explodeKeys": "true"}, columns=columns).rows()
    assert as_bag(found, columns) == as_bag(explode(rows), columns)
    tree = leaf("in", "key", ["hot", "order-Aa", "", "a b"])
    scan = InProcessScan(paths, {"explodeKeys": "true"}, tree, columns)
    assert as_bag(kept(tree, scan.rows()), columns) == as_bag(
        kept(tree, explode(rows)), columns)


def test_system_topics_are_read_when_named_or_asked_for(stores: Stores) -> None:
    path = stores.paths["whole"][0]
    rows = stores.all_rows["whole"]
    found = InProcessScan(path, {"includeSystemTopics": "true"}, columns=PLACE).rows()
    assert as_bag(found, PLACE) == as_bag(rows, PLACE)
    assert len(stores.rows["whole"]) < len(rows)
    for topic in ("%RETRY%g", "orders"):
        tree = leaf("eq", "tags", "PAID")
        columns = [*PLACE, "tags"]
        scan = InProcessScan(path, {"topic": topic}, tree, columns)
        expected = [row for row in rows if row["topic"] == topic]
        assert as_bag(kept(tree, scan.rows()), columns) == as_bag(kept(tree, expected), columns)
        found = InProcessScan(path, {"topic": topic}, columns=PLACE).rows()
        assert as_bag(found, PLACE) == as_bag(expected, PLACE)


def test_a_store_without_queues_gives_the_same_rows(stores: Stores, tmp_path: Path) -> None:
    bare = tmp_path / "store-a"
    bare.mkdir()
    for folder in ("commitlog", "index", "config"):
        (bare / folder).symlink_to(stores.paths["whole"][0] / folder)
    rows = stores.rows["whole"]
    opened = InProcessScan(bare).open()
    for name, tree in query_filters(rows).items():
        columns = list(dict.fromkeys([*PLACE, "tagsCode", *columns_in(tree)]))
        found = kept(tree, InProcessScan(bare, tree=tree, columns=columns).rows(opened))
        assert as_bag(found, columns) == as_bag(kept(tree, rows), columns), name


@pytest.mark.parametrize("options", [
    {"startingOffsets": '{"orders": {"1": 5}}', "endingOffsets": '{"orders": {"0": 7, "1": -1}}'},
    {"startingOffsets": '{"orders": {"1": -1, "0": -2}}'},
    {"tailMessages": 4},
    {"topic": "orders", "startingOffsets": "latest"},
])
def test_offsets_bound_queues_with_and_without_queue_files(
    stores: Stores, tmp_path: Path, options: dict[str, Any]
) -> None:
    bare = tmp_path / "store-a"
    bare.mkdir()
    for folder in ("commitlog", "config"):
        (bare / folder).symlink_to(stores.paths["whole"][0] / folder)
    expected = [row for row in stores.rows["whole"] if _is_within(row, options, stores)]
    for path in (stores.paths["whole"][0], bare):
        found = InProcessScan(path, options, columns=PLACE).rows()
        assert as_bag(found, PLACE) == as_bag(expected, PLACE), path


def _is_within(row: dict[str, Any], options: dict[str, Any], stores: Stores) -> bool:
    queue = [one["queueOffset"] for one in stores.rows["whole"]
             if (one["topic"], one["queueId"]) == (row["topic"], row["queueId"])]
    if "tailMessages" in options:
        return row["queueOffset"] >= len(queue) - options["tailMessages"]
    if options["startingOffsets"] == "latest" or row["topic"] != "orders":
        return options["startingOffsets"] != "latest"
    if "endingOffsets" in options:
        return row["queueOffset"] >= 5 if row["queueId"] == 1 else row["queueOffset"] < 7
    return bool(row["queueId"] == 0)


def test_the_reference_itself_can_tell_right_from_wrong(stores: Stores) -> None:
    rows = stores.rows["whole"]
    tree = leaf("eq", "tags", "PAID")
    right = kept(tree, rows)
    assert 0 < len(right) < len(rows)
    assert as_bag(right[1:], PLACE) != as_bag(right, PLACE)
    assert answers(leaf("eq", "tags", None), rows[0]) is None


@given(TREES, st.sampled_from(["whole", "half", "none", "three"]), st.sampled_from([1, 4]))
@settings(max_examples=150)
def test_a_random_query_gives_the_rows_of_plain_python(
    stores: Stores, tree: dict[str, Any], index: str, partitions: int
) -> None:
    columns = list(dict.fromkeys([*PLACE, *columns_in(tree)]))
    options = {"minPartitions": partitions}
    scan = InProcessScan(list(stores.paths[index]), options, tree, columns)
    found = kept(tree, scan.rows(stores.opened[index]))
    assert as_bag(found, columns) == as_bag(kept(tree, stores.rows[index]), columns)
