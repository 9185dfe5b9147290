"""Units of several queues in the order of the log: all of them, each queue in its own order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqlog.commitlog_format import merged_units
from rmqlog.commitlog_format.merged_units import merge_by_offset
from rmqlog.commitlog_format.units import NO_UNITS, Units, concatenate


@pytest.fixture(autouse=True)
def _few_units_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_units, "_LEAST_COUNT", 3)


def _units(offsets: list[int]) -> Units:
    """Units of one queue, each of its fields another number."""
    places = np.array(offsets, np.int64)
    return Units(np.arange(len(offsets)), places, places + 1, places + 2)


def _steps(units: Units, sizes: list[int]) -> Iterator[Units]:
    """The units in steps of the given sizes, the rest at the end."""
    first = 0
    for size in sizes:
        yield units.take(slice(first, first + size))
        first += size
    yield units.take(slice(first, None))


#: Of each record of a log the queue it is in, and sizes of the steps in which queues are read.
LOGS = st.lists(st.integers(0, 4), max_size=60)
STEPS = st.lists(st.lists(st.integers(0, 7), max_size=8), min_size=5, max_size=5)


@given(LOGS, STEPS)
def test_records_come_in_the_order_of_the_log(log: list[int], steps: list[list[int]]) -> None:
    queues = [
        _units([10 * place for place, owner in enumerate(log) if owner == queue])
        for queue in range(5)
    ]
    merged = concatenate(list(merge_by_offset([*map(_steps, queues, steps)])))

    assert merged.offsets.tolist() == [10 * place for place in range(len(log))]
    if log:
        assert merged.owners is not None
        assert merged.owners.tolist() == log
    assert (merged.sizes == merged.offsets + 1).all()
    assert (merged.tags_codes == merged.offsets + 2).all()
    for number, queue in enumerate(queues):
        own = merged.queue_offsets[np.array(log, np.int64) == number]
        assert own.tolist() == queue.queue_offsets.tolist()


@given(st.lists(st.lists(st.integers(0, 50), max_size=20), min_size=5, max_size=5), STEPS)
def test_of_damaged_queues_every_unit_comes_once_and_in_its_order(
    offsets: list[list[int]], steps: list[list[int]]
) -> None:
    queues = [_units(of_queue) for of_queue in offsets]
    merged = concatenate(list(merge_by_offset([*map(_steps, queues, steps)])))
    for number, of_queue in enumerate(offsets):
        owners = merged.owners if merged.owners is not None else np.empty(0, np.intp)
        own = merged.take(owners == number)
        assert own.queue_offsets.tolist() == list(range(len(of_queue)))
        assert own.offsets.tolist() == of_queue


def test_queues_that_end_a_step_at_nearly_the_same_place_give_no_tiny_runs() -> None:
    queues = [_units(list(range(queue, 4000, 4))) for queue in range(4)]
    runs = list(merge_by_offset([_steps(queue, [100] * 9) for queue in queues]))
    assert sum(map(len, runs)) == 4000
    assert min(map(len, runs[:-1])) > 300


def test_no_queues_have_no_units() -> None:
    assert not list(merge_by_offset([]))
    assert not list(merge_by_offset([iter([NO_UNITS]), iter([])]))
