"""Every path gives the rows of a full scan: the matrix, in process, against plain Python."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_stores import GoldenStore
from in_process import InProcessScan
from query_reference import (
    all_of,
    answers,
    any_of,
    as_bag,
    explode,
    is_system,
    kept,
    leaf,
    negated,
    store_rows,
)
from query_stores import write_query_store

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


def _filters(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """One filter of each kind; literals are taken from the middle of the store."""
    orders = [row for row in rows if row["topic"] == "orders"]
    some = orders[len(orders) // 2]
    keyed = next(row for row in orders[len(orders) // 4:] if row["keys"] and " " in row["keys"])
    times = sorted(row["storeTimestamp"] for row in orders)
    early, late = times[len(times) // 3], times[2 * len(times) // 3]
    return {
        "tag": leaf("eq", "tags", "PAID"),
        "tag that collides": leaf("eq", "tags", "Aa"),
        "tags in": leaf("in", "tags", ["BB", "已支付", "😀tag", None]),
        "tag null safe": leaf("eqNullSafe", "tags", "a b"),
        "tag null safe null": leaf("eqNullSafe", "tags", None),
        "tag is null": leaf("isNull", "tags"),
        "tag is not null": leaf("isNotNull", "tags"),
        "tag not": negated(leaf("eq", "tags", "PAID")),
        "tag not in": negated(leaf("in", "tags", ["PAID", "CREATED"])),
        "tag not in null": negated(leaf("in", "tags", ["PAID", None])),
        "tag or null": any_of(leaf("eq", "tags", "Aa"), leaf("isNull", "tags")),
        "tag starts": leaf("startsWith", "tags", "C"),
        "tag unheard of": leaf("eq", "tags", "nobody"),
        "tag equals null": leaf("eq", "tags", None),
        "tag thousand": leaf("in", "tags", [f"tag-{n}" for n in range(999)] + ["CREATED"]),
        "keys whole": leaf("eq", "keys", keyed["keys"]),
        "keys one token": leaf("eq", "keys", "hot"),
        "keys in": leaf("in", "keys", ["hot", "order-Aa", "nothing"]),
        "keys thousand": leaf("in", "keys", [f"order-{n}" for n in range(1000)]),
        "keys unheard of": leaf("eq", "keys", "nobody has this key"),
        "keys blank": leaf("eq", "keys", " "),
        "keys null": leaf("isNull", "keys"),
        "keys not": negated(leaf("eq", "keys", "hot")),
        "keys contains": leaf("contains", "keys", "order-7"),
        "uniq key": leaf("eq", "uniqKey", some["uniqKey"]),
        "uniq key or key": any_of(
            leaf("eq", "uniqKey", some["uniqKey"]), leaf("eq", "keys", "order-BB")),
        "key and tag": all_of(leaf("eq", "keys", "hot"), leaf("eq", "tags", "CANCELLED")),
        "key or tag": any_of(leaf("eq", "keys", "hot"), leaf("eq", "tags", "CANCELLED")),
        "message id": leaf("eq", "msgId", some["msgId"]),
        "message ids": leaf("in", "msgId", [some["msgId"], keyed["msgId"], "no id at all"]),
        "message id lower": leaf("eq", "msgId", some["msgId"].lower()),
        "message id of nothing": leaf("eq", "msgId", some["msgId"][:-2] + "01"),
        "physical offset": leaf("eq", "commitLogOffset", some["commitLogOffset"]),
        "physical offsets": all_of(
            leaf("ge", "commitLogOffset", some["commitLogOffset"]),
            leaf("lt", "commitLogOffset", some["commitLogOffset"] + 10_000)),
        "physical offset or id": any_of(
            leaf("eq", "commitLogOffset", some["commitLogOffset"]),
            leaf("eq", "msgId", keyed["msgId"])),
        "physical offset negative": leaf("lt", "commitLogOffset", 0),
        "physical offset not": negated(leaf("ge", "commitLogOffset", some["commitLogOffset"])),
        "queue offsets": all_of(leaf("ge", "queueOffset", 10), leaf("le", "queueOffset", 20)),
        "queue offsets in": leaf("in", "queueOffset", [0, 1, 5, 30, 10**12, -1]),
        "queue offset not": negated(leaf("gt", "queueOffset", 3)),
        "queue offset gap": negated(
            all_of(leaf("ge", "queueOffset", 3), leaf("lt", "queueOffset", 35))),
        "time from": leaf("ge", "storeTimestamp", early),
        "time behind": leaf("gt", "storeTimestamp", late),
        "time between": all_of(
            leaf("ge", "storeTimestamp", early), leaf("lt", "storeTimestamp", late)),
        "time equal": leaf("eq", "storeTimestamp", early),
        "times in": leaf("in", "storeTimestamp", times[:: max(1, len(times) // 30)]),
        "time long ago": leaf("lt", "storeTimestamp", 1),
        "time or tag": any_of(leaf("gt", "storeTimestamp", late), leaf("eq", "tags", "Z")),
        "size": leaf("gt", "storeSize", 300),
        "size between": all_of(leaf("ge", "storeSize", 230), leaf("le", "storeSize", 260)),
        "size not": negated(leaf("eq", "storeSize", some["storeSize"])),
        "size null": leaf("isNull", "storeSize"),
        "topic": leaf("eq", "topic", "orders"),
        "topics": leaf("in", "topic", ["batch", "orderly", "nothing"]),
        "topic not": negated(leaf("eq", "topic", "orders")),
        "topic starts": leaf("startsWith", "topic", "o"),
        "topic below": leaf("lt", "topic", "delay"),
        "queue": leaf("eq", "queueId", 1),
        "queues": leaf("in", "queueId", [0, 3, None]),
        "queue not null safe": negated(leaf("eqNullSafe", "queueId", 0)),
        "topic and queue": all_of(leaf("eq", "topic", "orders"), leaf("ge", "queueId", 2)),
        "topic with its queue": any_of(
            all_of(leaf("eq", "topic", "orders"), leaf("eq", "queueId", 2),
                   leaf("eq", "tags", "PAID")),
            all_of(leaf("eq", "topic", "batch"), leaf("eq", "queueId", 0))),
        "broker": leaf("eq", "brokerName", "store-b"),
        "broker null safe": leaf("eqNullSafe", "brokerName", None),
        "contradiction": all_of(leaf("eq", "tags", "PAID"), leaf("eq", "tags", "CREATED")),
        "contradiction of places": all_of(
            leaf("lt", "queueOffset", 5), leaf("gt", "queueOffset", 5)),
        "always": {"op": "true"},
        "never": {"op": "false"},
        "not never": negated({"op": "false"}),
        "deep": negated(any_of(
            negated(leaf("isNotNull", "keys")),
            all_of(leaf("eq", "tags", "PAID"), negated(leaf("gt", "queueOffset", 20))))),
    }


FILTER_NAMES = list(_filters([
    {"topic": "orders", "keys": "a b", "uniqKey": "U", "msgId": "0" * 32, "storeTimestamp": n,
     "commitLogOffset": n, "storeSize": n, "tags": None} for n in range(1000)
]))


@pytest.mark.parametrize("name", FILTER_NAMES)
def test_a_filter_gives_the_rows_of_a_full_scan_on_every_path(stores: Stores, name: str) -> None:
    for index, columns in itertools.product(stores.paths, COLUMN_SETS.values()):
        rows = stores.rows[index]
        tree = _filters(rows)[name]
        if index in ("half", "none") and _columns_in(tree).isdisjoint(("keys", "uniqKey")):
            continue  # no path that the index could change
        wanted = list(dict.fromkeys([*columns, *_columns_in(tree)]))
        scan = InProcessScan(list(stores.paths[index]), {"minPartitions": 3}, tree, wanted)
        found = kept(tree, scan.rows(stores.opened[index]))
        assert as_bag(found, wanted) == as_bag(kept(tree, rows), wanted), (index, wanted)


def _columns_in(tree: dict[str, Any]) -> set[str]:
    if "column" in tree:
        return {tree["column"]}
    return set().union(*(_columns_in(arg) for arg in tree.get("args", [])))


@pytest.mark.parametrize("store", [
    "rmq-5.5.0-clean", "rmq-4.9.5-clean", "rmq-5.5.0-retention", "rmq-5.5.0-cqext", "rmq-5.5.0-bcq",
])
def test_a_filter_gives_the_rows_of_a_full_scan_of_a_brokers_store(
    golden_store: Any, store: str
) -> None:
    path = golden_store(store).path
    rows = store_rows(path)
    options = {"includeSystemTopics": "true"}
    opened = InProcessScan(path, options).open()
    for name, tree in _filters(_with_topic_orders(rows)).items():
        columns = list(dict.fromkeys([*PLACE, *_columns_in(tree)]))
        found = kept(tree, InProcessScan(path, options, tree, columns).rows(opened))
        assert as_bag(found, columns) == as_bag(kept(tree, rows), columns), name


def _with_topic_orders(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows to take literals from: the largest topic is called orders, one row has two keys."""
    topics = [row["topic"] for row in rows]
    largest = "orders" if "orders" in topics else max(topics, key=topics.count)
    named = [{**row, "topic": "orders"} for row in rows if row["topic"] == largest]
    return [*named, {**named[-1], "keys": "two keys"}]


def test_a_brokers_store_is_read_whole_and_exactly(golden_store: Any) -> None:
    for store in ("rmq-5.5.0-clean", "rmq-5.5.0-retention", "rmq-5.5.0-cqext", "rmq-5.5.0-bcq"):
        path = golden_store(store).path
        found = InProcessScan(path, {"includeSystemTopics": "true", "minPartitions": 5}).rows()
        assert as_bag(found, MESSAGE_COLUMNS) == as_bag(store_rows(path), MESSAGE_COLUMNS), store


def test_filters_on_exact_columns_are_applied_without_spark(stores: Stores) -> None:
    for index, name in itertools.product(stores.paths, FILTER_NAMES):
        rows = stores.rows[index]
        tree = _filters(rows)[name]
        if _columns_in(tree) <= {"brokerName", "topic", "queueId"}:
            scan = InProcessScan(list(stores.paths[index]), tree=tree, columns=PLACE)
            found = scan.rows(stores.opened[index])
            assert as_bag(found, PLACE) == as_bag(kept(tree, rows), PLACE), (index, name)


OPTIONS = {
    "tags": ({"tags": "PAID || Aa"}, lambda row: row["tags"] in ("PAID", "Aa")),
    "all tags": ({"tags": "*"}, lambda row: True),
    "key": ({"key": "hot"}, lambda row: "hot" in (row["keys"] or "").split(" ")),
    "key of nobody": ({"key": "a b"}, lambda row: False),
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
    for name, tree in _filters(rows).items():
        columns = list(dict.fromkeys([*PLACE, "tagsCode", *_columns_in(tree)]))
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
