"""Several stores as one: paths, globs, names."""

from __future__ import annotations

from pathlib import Path

import pytest
from built_stores import build_store, numbered_records

from rmqlog.commitlog_format.errors import InvalidNameError, StoreNotFoundError
from rmqlog.commitlog_format.store_set import StoreSet, broker_names, expand_paths


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Two brokers, the second with one topic more."""
    for number in (1, 2):
        build_store(numbered_records(6, topics=number)).write(tmp_path / f"broker-{number}")
    return tmp_path


def test_a_glob_opens_every_store_under_the_name_that_differs(cluster: Path) -> None:
    stores = StoreSet.open(f"{cluster}/broker-*/store")

    assert [store.broker_name for store in stores] == ["broker-1", "broker-2"]
    assert len(stores) == 2
    assert stores.topics == ["topic-0", "topic-1"]


def test_one_store_may_be_named(cluster: Path) -> None:
    path = f"{cluster}/broker-1/store"

    assert [store.broker_name for store in StoreSet.open([path], broker_name="b")] == ["b"]
    assert [store.broker_name for store in StoreSet.open(path)] == ["store"]


def test_one_name_for_two_stores_is_refused(cluster: Path) -> None:
    with pytest.raises(InvalidNameError, match="one broker name for several"):
        StoreSet.open(f"{cluster}/*/store", broker_name="b")


def test_a_glob_without_a_match_and_no_path_at_all_are_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="no directory matches"):
        StoreSet.open(f"{tmp_path}/none-*")
    with pytest.raises(StoreNotFoundError, match="no store was named"):
        StoreSet.open([])


def test_a_glob_does_not_match_files(cluster: Path) -> None:
    for name in ("broker-3", "notes.txt"):
        (cluster / name).touch()
    assert len(StoreSet.open(f"{cluster}/*/store")) == len(StoreSet.open(f"{cluster}/b*/*")) == 2
    assert expand_paths([f"{cluster}/*"]) == [f"{cluster}/broker-1", f"{cluster}/broker-2"]
    with pytest.raises(StoreNotFoundError, match="no directory matches"):
        StoreSet.open(f"{cluster}/*.txt")


def test_paths_are_named_once_and_without_a_trailing_slash() -> None:
    assert expand_paths(["/a/", "/a", "/", "b"]) == ["/a", "/", "b"]


def test_equal_names_are_refused() -> None:
    assert broker_names(["/x/a", "/x/y/b"]) == ["a", "b"]
    with pytest.raises(InvalidNameError, match="same broker name; give paths that differ"):
        broker_names(["/x/store", "/x/y/store"])
    with pytest.raises(InvalidNameError, match="same broker name"):
        broker_names(["/a/b/s", "/a/c/s", "/d/c/s"])
