"""Nothing that is read is ever unpickled; what we raise survives pickling."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from bad_input import value_or_error
from built_stores import build_store, numbered_records

from rmqlog.commitlog_format import errors
from rmqlog.commitlog_format.errors import RuleViolationError, StoreError
from rmqlog.commitlog_format.lookup import find_by_key
from rmqlog.commitlog_format.store import Store

pytestmark = pytest.mark.fuzz

BUILT = build_store(numbered_records(8))
ERROR_CLASSES = [getattr(errors, name) for name in errors.__all__]


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


def test_the_bomb_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(str(tmp_path / "exploded"))))

    assert (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "place",
    [
        "config/topics.json", "config/consumerOffset.json", "checkpoint", "rmqlog/commit.json",
        "commitlog/00000000000000000000", "consumequeue/topic-0/0/00000000000000000000",
        "index/20260101000000000", "consumequeue_ext/topic-0/0/00000000000000000000", "abort",
    ],
)
def test_a_pickle_in_place_of_a_file_is_bytes_like_any_other(tmp_path: Path, place: str) -> None:
    path = BUILT.write(tmp_path)
    (path / place).parent.mkdir(parents=True, exist_ok=True)
    bomb = pickle.dumps(Bomb(str(tmp_path / "exploded")))
    (path / place).write_bytes(bomb.ljust(4096 if "index" not in place else 40 + 84, b"\0"))
    store = value_or_error(lambda: Store(str(path)))
    if isinstance(store, Store):
        for use in (
            lambda: store.config, lambda: store.checkpoint, lambda: store.index,
            lambda: list(store.scan()), lambda: list(find_by_key(store, "topic-0", "k1")),
            lambda: pickle.loads(pickle.dumps(store)),
        ):
            value_or_error(use)

    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("kind", ERROR_CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_is_equal_after_its_journey(kind: type[StoreError]) -> None:
    if kind is RuleViolationError:
        error: StoreError = RuleViolationError("a topic has a name", 3, "", "1 to 127 bytes")
    else:
        error = kind("reason", "store/commitlog/0", 42, "found", 7)
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is kind
    assert again == error
    assert hash(again) == hash(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
    assert error != kind.__new__(kind)
    assert isinstance(error, StoreError)


def test_an_error_says_only_what_it_knows() -> None:
    assert str(StoreError("reason")) == "reason"
    assert str(StoreError("reason", offset=7)) == "offset 7: reason"
    assert str(StoreError("reason", "file", 7, 1)) == "file at offset 7: reason; found 1"
    assert str(StoreError("reason", found=1, expected=2)) == "reason; found 1, expected 2"
    assert str(StoreError("reason", "file", expected=2)) == "file: reason; expected 2"


def test_every_public_error_is_listed_and_no_other_leaves_the_package() -> None:
    defined = {
        name for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert defined == set(errors.__all__)
