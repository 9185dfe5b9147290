"""Executors die, their shuffled rows are lost, slow tasks get copies; a job is there once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sink_driver import Fault
from sink_drivers import ROWS, SinkDriver, check, java_rows, losers, reached, sink_driver
from standalone_cluster import standalone_cluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.faults]


@pytest.fixture(scope="module")
def executors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkDriver]:
    """Two executors; one that dies is replaced."""
    with sink_driver(
        "local-cluster[2,1,1024]", tmp_path_factory.mktemp("executors"),
        **{"spark.deploy.maxExecutorRetries": "-1"},
    ) as driver:
        yield driver


@pytest.mark.parametrize(
    ("bridge", "point"), [(False, "between rows"), (False, "before message"), (True, "rows")]
)
def test_an_executor_that_is_killed_is_replaced(
    executors: SinkDriver, tmp_path: Path, trace: Path, bridge: bool, point: str
) -> None:
    fault = Fault(point, how="kill executor", trace=str(trace))
    assert executors.run(tmp_path / "s", fault, bridge=bridge) is None

    first, *others = reached(trace, point)
    assert first == 0
    assert others
    assert java_rows(trace) == (ROWS if bridge else 0)
    if bridge:
        # Nobody was left to clear away what Java had written.
        assert losers(trace)
    check(tmp_path / "s", body_size=fault.body_size)


@pytest.mark.parametrize(("bridge", "point"), [(False, "between rows"), (True, "rows")])
def test_rows_are_there_once_when_a_stage_runs_again_because_shuffled_rows_were_lost(
    executors: SinkDriver, tmp_path: Path, trace: Path, bridge: bool, point: str
) -> None:
    fault = Fault(point, how="kill executors", trace=str(trace))
    assert executors.run(tmp_path / "s", fault, shuffled=True, bridge=bridge) is None

    # The attempts of a stage that runs again are numbered anew.
    assert reached(trace, point).count(0) > 1
    assert java_rows(trace) == (ROWS if bridge else 0)
    check(tmp_path / "s", body_size=fault.body_size)


def test_executors_that_are_killed_before_the_commit_are_not_missed(
    executors: SinkDriver, tmp_path: Path
) -> None:
    assert executors.run(tmp_path / "s", Fault(commit_how="kill executors")) is None

    check(tmp_path / "s")


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkDriver]:
    """Two workers with addresses of their own: Spark copies a slow task to another host only.

    One failure is allowed: where a task and its copy would commit, Spark denies it to the one that
    comes later, and counts that as one. The first attempt waits for the second, so that is a copy.
    """
    settings = {
        "spark.speculation": "true", "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "50ms", "spark.task.maxFailures": "2",
        "spark.executor.memory": "512m",
    }
    folder = tmp_path_factory.mktemp("hosts")
    with (
        standalone_cluster(folder, ["127.0.0.2", "127.0.0.3"]) as master,
        sink_driver(master, folder, **settings) as driver,
    ):
        yield driver


@pytest.mark.parametrize(
    ("bridge", "point", "how"),
    [(False, "between rows", "await copy"), (False, "before message", "await copy"),
     (False, "between rows", "outrun copy"), (True, "before message", "await copy"),
     (True, "rows", "outrun copy")],
)
def test_of_a_task_and_its_copy_one_counts(
    two_hosts: SinkDriver, tmp_path: Path, trace: Path, bridge: bool, point: str, how: str
) -> None:
    fault = Fault(point, how=how, trace=str(trace))
    assert two_hosts.run(tmp_path / "s", fault, bridge=bridge) is None

    assert reached(trace, point) == [0, 1]
    assert java_rows(trace) == (ROWS if bridge else 0)
    # A task that gets no further than this has staged everything, and so has its copy.
    assert losers(trace) or point != "before message"
    check(tmp_path / "s", body_size=fault.body_size)
