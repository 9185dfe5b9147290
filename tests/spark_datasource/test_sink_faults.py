"""Tasks, workers, commits and drivers die; a job is in the store once or not at all."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from sink_driver import BRIDGE_POINTS, COMMIT_CALLS, POINTS, STAGED_BY_JAVA, Fault, Numbered
from sink_drivers import (
    ROWS,
    SinkDriver,
    Spares,
    check,
    java_rows,
    reached,
    seen,
    sink_driver,
    staged,
)

pytestmark = [pytest.mark.spark, pytest.mark.faults]

TRANSACTION = {"txnAppId": "etl", "txnVersion": "7"}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkDriver]:
    """Two threads that try a task four times."""
    with sink_driver("local[2,4]", tmp_path_factory.mktemp("local")) as driver:
        yield driver


# --- tasks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bridge", "point", "attempts"),
    [*((False, point, attempts) for point in POINTS for attempts in (1, 2, 3)),
     *((True, point, 1) for point in BRIDGE_POINTS)],
)
def test_a_task_that_fails_is_tried_again_and_its_rows_are_there_once(
    local: SinkDriver, tmp_path: Path, trace: Path, bridge: bool, point: str, attempts: int
) -> None:
    fault = Fault(point, attempts, trace=str(trace))
    assert local.run(tmp_path / "s", fault, bridge=bridge) is None

    assert reached(trace, point) == list(range(attempts + 1))
    assert java_rows(trace) == (ROWS if bridge else 0)
    check(tmp_path / "s", body_size=fault.body_size)


def test_a_task_that_fails_when_java_has_left_rows_to_python_is_tried_again(
    local: SinkDriver, tmp_path: Path, trace: Path
) -> None:
    fault = Fault("between rows", trace=str(trace))
    assert local.run(tmp_path / "s", fault, bridge=True, handover=True) is None

    assert reached(trace, "between rows") == [0, 1]
    assert java_rows(trace) == ROWS // 2
    check(tmp_path / "s")


@pytest.mark.parametrize(
    ("bridge", "point"),
    [*((False, point) for point in POINTS), *((True, point) for point in BRIDGE_POINTS)],
)
def test_a_worker_that_is_killed_is_replaced_and_its_rows_are_there_once(
    local: SinkDriver, tmp_path: Path, trace: Path, bridge: bool, point: str
) -> None:
    fault = Fault(point, how="kill", trace=str(trace))
    assert local.run(tmp_path / "s", fault, bridge=bridge) is None

    assert reached(trace, point) == [0, 1]
    assert java_rows(trace) == (ROWS if bridge else 0)
    check(tmp_path / "s", body_size=fault.body_size)


@pytest.mark.parametrize(
    ("bridge", "point"),
    [*((False, point) for point in POINTS if point != "staged"),
     (True, "rows"), (True, "before message")],
)
def test_when_all_attempts_fail_nothing_is_left(
    local: SinkDriver, tmp_path: Path, trace: Path, bridge: bool, point: str
) -> None:
    error = local.run(tmp_path / "s", Fault(point, 4, trace=str(trace)), bridge=bridge)

    assert error is not None
    assert "a fault at" in error
    assert reached(trace, point) == [0, 1, 2, 3]
    assert reached(trace, STAGED_BY_JAVA) == ([0, 1, 2, 3] if bridge else [])
    assert staged(tmp_path / "s") == []
    assert not (tmp_path / "s" / "commitlog").exists()


# --- commits --------------------------------------------------------------------------------

#: Durable calls of a commit, from its first to its last: the name, a part of the path, and how
#: far it is on the way from the first of the calls that match to the last.
Boundary = tuple[str, str, float]
MARKING: Boundary = ("", "/abort", 0.0)
COPYING: Boundary = ("store", "/commitlog/", 0.5)
GATE: Boundary = ("store", "/commitlog/", 1.0)
BEHIND_GATE: Boundary = ("sync", "/commitlog/", 1.0)
NOTING: Boundary = ("rename", "/commits.json", 0.0)
BEFORE = [
    MARKING, ("rename", "/commit.json", 0.0), ("", "/topics.json", 0.5), COPYING,
    ("", "/consumequeue/", 0.5), GATE,
]
BEHIND: list[Boundary] = [
    BEHIND_GATE, ("", "/index/", 0.5), ("", "/checkpoint", 0.5), NOTING,
    ("unlink", "/commit.json", 0.0), ("unlink", "/abort", 0.0), ("rmdir", "/staging/", 0.0),
]
#: Besides them, one call of each of so many equal parts of a commit, by the seed.
PARTS = 6


@pytest.fixture(scope="module")
def commit_calls(
    local: SinkDriver, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[str, str]]:
    """Name and path of every durable call of a commit; all commits of what Python has staged do
    the same."""
    return find_commit_calls(local, tmp_path_factory.mktemp("calls"))


def find_commit_calls(
    local: SinkDriver, folder: Path, *, bridge: bool = False
) -> list[tuple[str, str]]:
    """Name and path of every durable call of a commit that nothing happens to."""
    assert local.run(folder / "s", Fault(trace=str(folder)), bridge=bridge) is None
    check(folder / "s")
    calls = [(name, path) for name, path in json.loads((folder / COMMIT_CALLS).read_text())]
    assert len(calls) > 100
    return calls


def number_of(calls: list[tuple[str, str]], boundary: Boundary) -> Numbered:
    """The call that is meant."""
    name, part, share = boundary
    count = sum(name in ("", call[0]) and part in call[1] for call in calls)
    assert count, boundary
    return name, part, 1 + round(share * (count - 1))


def kill_and_run_again(
    local: SinkDriver, store: Path, fault: Fault, *, bridge: bool = False
) -> int:
    """How many rows are seen after the commit was killed and Spark has aborted the job."""
    assert local.run(store, fault, options=TRANSACTION, bridge=bridge) is not None
    assert staged(store) == []
    count = seen(store)
    assert local.run(store, options=TRANSACTION, bridge=bridge) is None
    check(store)
    return count


@pytest.mark.parametrize(
    ("boundary", "rows"), [*((at, 0) for at in BEFORE), *((at, ROWS) for at in BEHIND)], ids=str
)
def test_a_commit_that_is_killed_is_aborted_by_spark_and_run_again_once(
    local: SinkDriver, tmp_path: Path, commit_calls: list[tuple[str, str]],
    boundary: Boundary, rows: int,
) -> None:
    fault = Fault(commit_call=number_of(commit_calls, boundary))

    assert kill_and_run_again(local, tmp_path / "s", fault) == rows


def test_a_commit_of_what_java_has_staged_is_killed_and_run_again_once(
    local: SinkDriver, tmp_path: Path, trace: Path
) -> None:
    # There are fewer of them: Python stages a batch as it comes, Java puts them together.
    calls = find_commit_calls(local, tmp_path, bridge=True)
    fault = Fault(commit_call=number_of(calls, COPYING), trace=str(trace))

    assert kill_and_run_again(local, tmp_path / "t", fault, bridge=True) == 0

    assert java_rows(trace) == ROWS


@pytest.mark.parametrize("part", range(PARTS))
def test_a_commit_that_is_killed_anywhere_is_there_once_when_it_is_run_again(
    local: SinkDriver, tmp_path: Path, commit_calls: list[tuple[str, str]], part: int, seed: int
) -> None:
    share = (part + random.Random(f"{seed}-{part}").random()) / PARTS
    call = number_of(commit_calls, ("", "", share))

    assert kill_and_run_again(local, tmp_path / "s", Fault(commit_call=call)) in (0, ROWS), call


@pytest.mark.parametrize(
    ("boundary", "error"),
    [(COPYING, "CommitFailedError"), (BEHIND_GATE, "CommitStateUnknownError"), (NOTING, None)],
    ids=str,
)
def test_a_commit_that_fails_says_what_became_of_it(
    local: SinkDriver, tmp_path: Path, commit_calls: list[tuple[str, str]],
    boundary: Boundary, error: str | None,
) -> None:
    store = tmp_path / "s"
    call = number_of(commit_calls, boundary)

    found = local.run(store, Fault(commit_call=call, commit_how="error"), options=TRANSACTION)
    assert (error is None) == (found is None)
    assert (error or "") in (found or "")
    assert local.run(store, options=TRANSACTION) is None

    check(store)


# --- drivers --------------------------------------------------------------------------------

#: Where a driver dies, the version of the job that is run then, and how often its rows are there.
DEATHS = [
    (MARKING, "7", 1), (COPYING, "7", 1), (NOTING, "7", 1), (GATE, "8", 1), (BEHIND_GATE, "8", 2)
]


@pytest.fixture(scope="module")
def spares(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spares]:
    """A driver for each death."""
    drivers = Spares(tmp_path_factory.mktemp("spares"), len(DEATHS))
    yield drivers
    drivers.close()


@pytest.mark.parametrize(("bridge", "versions"), [(False, 10), (True, 3)])
def test_two_drivers_that_commit_one_transaction_at_once_write_it_once(
    local: SinkDriver, spares: Spares, tmp_path: Path, bridge: bool, versions: int
) -> None:
    store = tmp_path / "s"
    both = (local, spares.waiting)
    for version in range(versions):
        meeting = tmp_path / str(version)
        meeting.mkdir()
        options = {"txnAppId": "etl", "txnVersion": str(version)}
        for driver in both:
            fault = Fault(meet=2, trace=str(meeting))
            driver.start(store, fault, options=options, bridge=bridge)
        assert [driver.answer() for driver in both] == [None, None]
        assert java_rows(meeting) == (2 * ROWS if bridge else 0)
        assert seen(store) == ROWS * (version + 1)

    check(store, times=versions)


@pytest.mark.parametrize(("boundary", "version", "times"), DEATHS, ids=str)
def test_a_driver_whose_processes_are_all_killed_is_run_again(
    local: SinkDriver, spares: Spares, tmp_path: Path, commit_calls: list[tuple[str, str]],
    boundary: Boundary, version: str, times: int,
) -> None:
    store = tmp_path / "s"
    fault = Fault(commit_call=number_of(commit_calls, boundary), commit_how="kill group")
    assert spares.take().run(store, fault, options=TRANSACTION) == "the driver was killed"
    assert staged(store) != []

    assert local.run(store, options={**TRANSACTION, "txnVersion": version}) is None

    check(store, times, dead_jobs=int(boundary == MARKING))
