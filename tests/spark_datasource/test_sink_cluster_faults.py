"""Executors die, their shuffled rows are lost, slow tasks get copies; a job is there once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sink_driver import Fault
from sink_drivers import SinkDriver, check, losers, reached, sink_driver
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


@pytest.mark.parametrize("point", ["between rows", "before message"])
def test_an_executor_that_is_killed_is_replaced(
    executors: SinkDriver, tmp_path: Path, trace: Path, point: str
) -> None:
    fault = Fault(point, how="kill executor", trace=str(trace))
    assert executors.run(tmp_path / "s", fault) is None

    first, *others = reached(trace, point)
    assert first == 0
    assert others
    check(tmp_path / "s")


def test_rows_are_there_once_when_a_stage_runs_again_because_shuffled_rows_were_lost(
    executors: SinkDriver, tmp_path: Path, trace: Path
) -> None:
    fault = Fault("between rows", how="kill executors", trace=str(trace))
    assert executors.run(tmp_path / "s", fault, shuffled=True) is None

    # The attempts of a stage that runs again are numbered anew.
    assert reached(trace, "between rows").count(0) > 1
    check(tmp_path / "s")


def test_executors_that_are_killed_before_the_commit_are_not_missed(
    executors: SinkDriver, tmp_path: Path
) -> None:
    assert executors.run(tmp_path / "s", Fault(commit_how="kill executors")) is None

    check(tmp_path / "s")


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkDriver]:
    """Two workers with addresses of their own: Spark copies a slow task to another host only.

    No task is tried again, so the second attempt at a partition can only be a copy.
    """
    settings = {
        "spark.speculation": "true", "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "50ms", "spark.task.maxFailures": "1",
        "spark.executor.memory": "512m",
    }
    folder = tmp_path_factory.mktemp("hosts")
    with (
        standalone_cluster(folder, ["127.0.0.2", "127.0.0.3"]) as master,
        sink_driver(master, folder, **settings) as driver,
    ):
        yield driver


@pytest.mark.parametrize(
    ("point", "how"),
    [("between rows", "await copy"), ("before message", "await copy"),
     ("between rows", "outrun copy")],
)
def test_of_a_task_and_its_copy_one_counts(
    two_hosts: SinkDriver, tmp_path: Path, trace: Path, point: str, how: str
) -> None:
    assert two_hosts.run(tmp_path / "s", Fault(point, how=how, trace=str(trace))) is None

    assert reached(trace, point) == [0, 1]
    # A task that gets no further than this has staged everything, and so has its copy.
    assert losers(trace) or point != "before message"
    check(tmp_path / "s")
