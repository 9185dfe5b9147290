"""Messages by key or id in all topics, deleted ones too, with the sentence that says how."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_stores import GoldenStore

from rmqlog.commitlog_format.find_messages import (
    Search,
    find_by_id,
    find_everywhere,
    scan_deleted,
)
from rmqlog.commitlog_format.store import Store

pytestmark = pytest.mark.usefixtures("loops")

NAME = "rmq-5.5.0-clean"


@pytest.fixture
def golden(golden_store: Callable[[str], GoldenStore]) -> GoldenStore:
    """The clean 5.5 store; its topic ``doomed`` was deleted by the broker."""
    return golden_store(NAME)


def records(golden: GoldenStore) -> list[dict[str, Any]]:
    """The records of the log, the batches among them left out."""
    return [line for line in golden.log if line["kind"] == "record"]


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["commitLogOffset"] for row in rows)


def with_key(golden: GoldenStore, key: str, topics: set[str]) -> list[int]:
    """Where the records with a key lie, by the golden log alone."""
    return sorted(
        line["commitLogOffset"] for line in records(golden)
        if line["msg"]["topic"] in topics
        and (key == line["msg"]["uniqKey"] or key in (line["msg"]["keys"] or "").split(" "))
    )


def test_a_key_is_found_in_every_topic_and_counted(golden: GoldenStore) -> None:
    store = Store(str(golden.path))
    search = Search(store)
    rows = list(find_everywhere(search, "hot"))

    assert rows
    assert offsets(rows) == with_key(golden, "hot", set(store.topics))
    assert search.found_count == len(rows)
    assert search.summary().startswith(f"{len(rows)} messages; the index covers ")


def test_a_topic_restricts_the_search(golden: GoldenStore) -> None:
    store = Store(str(golden.path))
    in_orders = list(find_everywhere(Search(store, topic="orders"), "hot"))
    elsewhere = list(find_everywhere(Search(store, topic="lag"), "hot"))

    assert {row["topic"] for row in in_orders} == {"orders"}
    assert offsets(in_orders) == with_key(golden, "hot", {"orders"})
    assert elsewhere == []


def test_without_an_index_the_same_messages_are_found_by_reading(
    golden: GoldenStore, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(golden.path, tmp_path / "store"))
    shutil.rmtree(path / "index")
    search = Search(Store(str(path)))
    rows = list(find_everywhere(search, "hot"))

    assert offsets(rows) == with_key(golden, "hot", set(search.store.topics))
    assert search.covered_part == 0
    assert search.scanned_count == sum(len(view) for view in search.store.queues.values())
    assert f"the index covers 0.0 % of the log, {search.scanned_count} messages outside it" in (
        search.summary()
    )


def test_an_empty_store_is_covered_whole(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert Search(Store(str(tmp_path))).covered_part == 1


def test_deleted_topics_are_searched_only_when_asked_for(golden: GoldenStore) -> None:
    store = Store(str(golden.path))
    assert "doomed" not in store.topics
    doomed = [line for line in records(golden) if line["msg"]["topic"] == "doomed"]
    key = doomed[0]["msg"]["uniqKey"]
    quiet, thorough = Search(store), Search(store, include_deleted=True)

    assert list(find_everywhere(quiet, key)) == []
    rows = list(find_everywhere(thorough, key))
    assert offsets(rows) == with_key(golden, key, {"doomed"})
    assert thorough.summary().endswith("and the whole log for deleted topics")
    only = Search(store, topic="doomed", include_deleted=True)
    assert offsets(list(find_everywhere(only, key))) == offsets(rows)


def test_the_records_of_deleted_topics_are_those_without_queues(golden: GoldenStore) -> None:
    store = Store(str(golden.path))
    found = [row for batch in scan_deleted(store) for row in batch.to_pylist()]
    doomed = [row for batch in scan_deleted(store, "doomed") for row in batch.to_pylist()]

    assert {row["topic"] for row in found}.isdisjoint(store.topics)
    assert offsets(doomed) == sorted(
        line["commitLogOffset"] for line in records(golden) if line["msg"]["topic"] == "doomed"
    )
    assert list(scan_deleted(store, "orders")) == []


def test_an_offset_id_gives_its_one_message(golden: GoldenStore) -> None:
    store = Store(str(golden.path))
    line = next(line for line in records(golden) if line["msg"]["topic"] == "orders")
    search = Search(store)
    (row,) = find_by_id(search, line["msg"]["msgId"])

    assert row["commitLogOffset"] == line["commitLogOffset"]
    assert row["brokerName"] == store.broker_name
    assert search.summary() == "1 message, by offset id"
    other = Search(store, topic="lag")
    assert list(find_by_id(other, line["msg"]["msgId"])) == []
    assert other.found_count == 0


def test_a_uniq_key_looks_like_an_id_and_is_found_as_one(golden: GoldenStore) -> None:
    store = Store(str(golden.path))
    line = next(line for line in records(golden) if line["msg"]["topic"] == "orders")
    search = Search(store)
    rows = list(find_by_id(search, line["msg"]["uniqKey"]))

    assert {row["uniqKey"] for row in rows} == {line["msg"]["uniqKey"]}
    assert line["commitLogOffset"] in offsets(rows)
    assert search.found_count == len(rows)


def test_a_key_that_is_no_uniq_key_is_no_id(golden: GoldenStore) -> None:
    search = Search(Store(str(golden.path)))

    assert list(find_by_id(search, "hot")) == []
    assert search.found_count == 0
