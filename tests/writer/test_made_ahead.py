"""Work done ahead: in order, not too far, and errors where their item would be."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from rmqlog.writer.made_ahead import made_ahead


def test_items_come_in_order_from_another_thread() -> None:
    def threads() -> Iterator[tuple[int, int]]:
        for number in range(50):
            yield number, threading.get_ident()

    found = list(made_ahead(threads(), 2))

    assert [number for number, _ in found] == list(range(50))
    assert threading.get_ident() not in {thread for _, thread in found}


def test_no_more_items_are_made_than_may_be_ahead() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(20):
            made.append(number)
            yield number

    for number in made_ahead(items(), 3):
        assert len(made) <= number + 1 + 3


def test_an_error_comes_behind_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise ZeroDivisionError

    ahead = made_ahead(items(), 2)

    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        next(ahead)


def test_closed_early_it_leaves_no_thread() -> None:
    before = set(threading.enumerate())

    with contextlib.closing(made_ahead(iter(range(100)), 2)) as ahead:
        assert next(ahead) == 0

    assert set(threading.enumerate()) == before
