"""Tasks, workers, executors, commits and drivers die; a job is in the store once or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sink_driver import COMMIT_CALLS, PARTITIONS, POINTS, TOPIC, Fault, as_json
from standalone_cluster import standalone_cluster

from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.verify import verify_store

pytestmark = [pytest.mark.spark, pytest.mark.faults]

TESTS = Path(__file__).resolve().parents[1]
ROWS = 1000
TRANSACTION = {"txnAppId": "etl", "txnVersion": "7"}
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executorEnv.PYTHONPATH": str(TESTS),
    "spark.log.level": "OFF",
}


class SinkDriver:
    """A driver in a process group of its own."""

    def __init__(self, master: str, log: Path, settings: Mapping[str, str]) -> None:
        environment = {
            **os.environ, "PYTHONPATH": str(TESTS), "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._log = log
        with log.open("wb") as target:
            self._process = subprocess.Popen(
                [sys.executable, str(TESTS / "sink_driver.py"), master,
                 json.dumps({**SETTINGS, **settings})],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=target, text=True,
                env=environment, start_new_session=True,
            )

    def run(self, store: Path, fault: Fault | None = None, **job: Any) -> str | None:
        """Run a job; the error that the user gets, or ``None``. A driver that dies says so."""
        self.start(store, fault, **job)
        return self.answer()

    def start(self, store: Path, fault: Fault | None = None, **job: Any) -> None:
        """Start a job; its end is the next answer."""
        line = {"store": str(store), "rows": ROWS, **job}
        if fault is not None:
            line["fault"] = as_json(fault)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def answer(self) -> str | None:
        """How the job that was started first ended."""
        assert self._process.stdout is not None
        for answer in self._process.stdout:
            if answer.startswith("answer "):
                error: str | None = json.loads(answer.removeprefix("answer "))["error"]
                return error
        self._process.wait()
        if self._process.returncode == -signal.SIGKILL:
            return "the driver was killed"
        raise AssertionError(self._log.read_text(errors="replace")[-3000:])

    def close(self) -> None:
        """End the driver and all that it started."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextmanager
def sink_driver(master: str, folder: Path, **settings: str) -> Iterator[SinkDriver]:
    """A driver that is ended in any case."""
    driver = SinkDriver(master, folder / "driver.log", settings)
    try:
        yield driver
    finally:
        driver.close()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkDriver]:
    """Two threads that try a task four times."""
    with sink_driver("local[2,4]", tmp_path_factory.mktemp("local")) as driver:
        yield driver


def check(store: Path, times: int = 1, dead_jobs: int = 0) -> None:
    """Every row is there so many times, queue offsets are dense, and no staging is left but
    that of jobs whose driver died before their commit: it goes by age."""
    bodies: list[int] = []
    found = Store(str(store))
    for view in found.queues_of(TOPIC):
        rows = [row for batch in found.read(TOPIC, view.queue_id) for row in batch.to_pylist()]
        assert [row["queueOffset"] for row in rows] == list(range(len(rows)))
        bodies += [int(row["body"]) for row in rows]
    assert sorted(bodies) == sorted(list(range(ROWS)) * times)
    assert list(verify_store(found)) == []
    assert len(os.listdir(store / "rmqlog" / "staging")) == dead_jobs
    assert not (store / "abort").exists()


def staged(store: Path) -> list[str]:
    """What is left of staging."""
    folder = store / "rmqlog" / "staging"
    return sorted(str(path) for path in folder.rglob("*")) if folder.is_dir() else []


def reached(trace: Path, point: str) -> list[int]:
    """The numbers of the attempts at partition 1 that got to a point."""
    names = [name.split(",") for name in os.listdir(trace)]
    return sorted(int(name[2]) for name in names if name[:2] == [point, "1"])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Where attempts say how far they got."""
    folder = tmp_path / "trace"
    folder.mkdir()
    return folder


# --- tasks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
def test_a_task_that_fails_is_tried_again_and_its_rows_are_there_once(
    local: SinkDriver, tmp_path: Path, trace: Path, point: str, attempts: int
) -> None:
    assert local.run(tmp_path / "s", Fault(point, attempts, trace=str(trace))) is None

    assert reached(trace, point) == list(range(attempts + 1))
    check(tmp_path / "s")


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_is_killed_is_replaced_and_its_rows_are_there_once(
    local: SinkDriver, tmp_path: Path, trace: Path, point: str
) -> None:
    assert local.run(tmp_path / "s", Fault(point, how="kill", trace=str(trace))) is None

    assert reached(trace, point) == [0, 1]
    check(tmp_path / "s")


@pytest.mark.parametrize("point", [POINTS[0], POINTS[1], POINTS[3], POINTS[4]])
def test_when_all_attempts_fail_nothing_is_left(
    local: SinkDriver, tmp_path: Path, point: str
) -> None:
    error = local.run(tmp_path / "s", Fault(point, attempts=4))

    assert error is not None
    assert "a fault at" in error
    assert staged(tmp_path / "s") == []
    assert not (tmp_path / "s" / "commitlog").exists()


# --- commits --------------------------------------------------------------------------------

#: A few of the durable calls of a commit, from its first to its last: the name, a part of the
#: path, and which of the calls that match.
BEFORE_MANIFEST = ("fsync", "/abort", 0)
COPYING = ("store", "/commitlog/", 5)
GATE = ("store", "/commitlog/", -1)
BEHIND_GATE = ("sync", "/commitlog/", -1)
NOTING = ("rename", "/commits.json", 0)
BOUNDARIES = [
    BEFORE_MANIFEST,
    ("rename", "/commit.json", 0),
    ("fsync", "/topics.json", 0),
    COPYING,
    ("sync", "/consumequeue/", -1),
    GATE,
    BEHIND_GATE,
    ("scatter", "/index/", 3),
    ("pwrite", "/checkpoint", 0),
    NOTING,
    ("unlink", "/commit.json", 0),
    ("unlink", "/abort", 0),
    ("rmdir", "/staging/", 0),
]
Boundary = tuple[str, str, int]


@pytest.fixture(scope="module")
def commit_calls(
    local: SinkDriver, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[str, str]]:
    """Name and path of every durable call of a commit; those of all commits here are alike."""
    folder = tmp_path_factory.mktemp("calls")
    assert local.run(folder / "s", Fault(trace=str(folder))) is None
    check(folder / "s")
    calls = [(name, path) for name, path in json.loads((folder / COMMIT_CALLS).read_text())]
    assert len(calls) > 200
    return calls


def number_of(calls: list[tuple[str, str]], boundary: Boundary, *, opens: bool = False) -> int:
    """The number of a call for a kill, which does not count where files are opened."""
    counted = [call for call in calls if opens or call[0] != "open"]
    name, part, index = boundary
    matches = [
        number for number, call in enumerate(counted, 1) if call[0] == name and part in call[1]
    ]
    return matches[index]


@pytest.mark.parametrize("boundary", BOUNDARIES, ids=str)
def test_a_commit_that_is_killed_is_aborted_by_spark_and_run_again_once(
    local: SinkDriver, tmp_path: Path, commit_calls: list[tuple[str, str]], boundary: Boundary
) -> None:
    store = tmp_path / "s"
    fault = Fault(commit_call=number_of(commit_calls, boundary))

    assert local.run(store, fault, options=TRANSACTION) is not None
    assert staged(store) == []
    assert local.run(store, options=TRANSACTION) is None

    check(store)


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
    call = number_of(commit_calls, boundary, opens=True)

    found = local.run(store, Fault(commit_call=call, commit_how="error"), options=TRANSACTION)
    assert (error is None) == (found is None)
    assert (error or "") in (found or "")
    assert local.run(store, options=TRANSACTION) is None

    check(store)


@pytest.mark.parametrize(
    ("boundary", "version", "times"),
    [(BEFORE_MANIFEST, "7", 1), (COPYING, "7", 1), (NOTING, "7", 1), (GATE, "8", 1),
     (BEHIND_GATE, "8", 2)],
    ids=str,
)
def test_a_driver_whose_processes_are_all_killed_is_run_again(
    local: SinkDriver, tmp_path: Path, commit_calls: list[tuple[str, str]],
    boundary: Boundary, version: str, times: int,
) -> None:
    store = tmp_path / "s"
    fault = Fault(commit_call=number_of(commit_calls, boundary), commit_how="kill group")
    with sink_driver("local[2]", tmp_path) as driver:
        assert driver.run(store, fault, options=TRANSACTION) == "the driver was killed"
    assert staged(store) != []

    assert local.run(store, options={**TRANSACTION, "txnVersion": version}) is None

    check(store, times, dead_jobs=int(boundary == BEFORE_MANIFEST))


def test_two_drivers_with_one_transaction_write_it_once(
    local: SinkDriver, tmp_path: Path
) -> None:
    store = tmp_path / "s"
    with sink_driver("local[1]", tmp_path) as other:
        for version in range(10):
            options = {"txnAppId": "etl", "txnVersion": str(version)}
            for driver in (local, other):
                driver.start(store, options=options)
            assert [driver.answer() for driver in (local, other)] == [None, None]

    check(store, times=10)


# --- clusters -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def executors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkDriver]:
    """Three executors; one that dies is replaced."""
    with sink_driver("local-cluster[3,1,1024]", tmp_path_factory.mktemp("executors")) as driver:
        yield driver


@pytest.mark.cluster
@pytest.mark.parametrize("point", ["between rows", "before message"])
def test_an_executor_that_is_killed_is_replaced(
    executors: SinkDriver, tmp_path: Path, trace: Path, point: str
) -> None:
    fault = Fault(point, how="kill executor", trace=str(trace))
    assert executors.run(tmp_path / "s", fault) is None

    assert reached(trace, point) == [0, 1]
    check(tmp_path / "s")


@pytest.mark.cluster
def test_rows_are_there_once_when_a_stage_runs_again_because_shuffled_rows_were_lost(
    executors: SinkDriver, tmp_path: Path, trace: Path
) -> None:
    fault = Fault("between rows", how="kill executor", trace=str(trace))
    assert executors.run(tmp_path / "s", fault, shuffled=True) is None

    # The attempts of a stage that runs again are numbered anew.
    assert reached(trace, "before rows").count(0) == 2
    check(tmp_path / "s")


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkDriver]:
    """Two workers with addresses of their own: Spark copies a slow task to another host only."""
    settings = {
        "spark.speculation": "true", "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "50ms", "spark.executor.memory": "512m",
    }
    folder = tmp_path_factory.mktemp("hosts")
    with (
        standalone_cluster(folder, ["127.0.0.2", "127.0.0.3"]) as master,
        sink_driver(master, folder, **settings) as driver,
    ):
        yield driver


@pytest.mark.cluster
@pytest.mark.parametrize("point", ["between rows", "before message"])
def test_of_a_task_and_its_copy_one_counts(
    two_hosts: SinkDriver, tmp_path: Path, trace: Path, point: str
) -> None:
    fault = Fault(point, how="await copy", trace=str(trace))
    assert two_hosts.run(tmp_path / "s", fault) is None

    assert {0, 1} <= set(reached(trace, point))
    check(tmp_path / "s")
