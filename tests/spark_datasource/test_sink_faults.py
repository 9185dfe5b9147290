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
from sink_driver import PARTITIONS, POINTS, TOPIC, Fault, as_json

from rmqlog.commitlog_format.store import Store

pytestmark = [pytest.mark.spark, pytest.mark.faults]

TESTS = Path(__file__).resolve().parents[1]
ROWS = 1000
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
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
    assert len(os.listdir(store / "rmqlog" / "staging")) <= dead_jobs
    assert not (store / "abort").exists()


def staged(store: Path) -> list[str]:
    """What is left of staging."""
    folder = store / "rmqlog" / "staging"
    return sorted(str(path) for path in folder.rglob("*")) if folder.is_dir() else []


@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
def test_a_task_that_fails_is_tried_again_and_its_rows_are_there_once(
    local: SinkDriver, tmp_path: Path, point: str, attempts: int
) -> None:
    assert local.run(tmp_path / "s", Fault(point, attempts)) is None
    check(tmp_path / "s")


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_is_killed_is_replaced_and_its_rows_are_there_once(
    local: SinkDriver, tmp_path: Path, point: str
) -> None:
    assert local.run(tmp_path / "s", Fault(point, how="kill")) is None
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


@pytest.mark.parametrize("call", [3, 9, 15, 20, 26, 32, 38, 46, 54, 62])
def test_a_commit_that_is_killed_is_aborted_by_spark_and_run_again_once(
    local: SinkDriver, tmp_path: Path, call: int
) -> None:
    store = tmp_path / "s"
    options = {"txnAppId": "etl", "txnVersion": "7"}

    assert local.run(store, Fault(commit_call=call), options=options) is not None
    assert staged(store) == []
    assert local.run(store, options=options) is None

    check(store)


def test_the_calls_of_a_commit_end_behind_those_that_are_sampled(
    local: SinkDriver, tmp_path: Path
) -> None:
    assert local.run(tmp_path / "s", Fault(commit_call=10_000)) is None
    check(tmp_path / "s")


@pytest.mark.parametrize(("call", "version"), [(10, "7"), (30, "7"), (56, "7"), (30, None)])
def test_a_driver_whose_processes_are_all_killed_is_run_again(
    tmp_path: Path, call: int, version: str | None
) -> None:
    store = tmp_path / "s"
    options = {} if version is None else {"txnAppId": "etl", "txnVersion": version}
    with sink_driver("local[2]", tmp_path) as driver:
        fault = Fault(commit_call=call, commit_group=True)
        assert driver.run(store, fault, options=options) == "the driver was killed"

    with sink_driver("local[2]", tmp_path) as driver:
        assert driver.run(store, options=options) is None

    is_before_manifest = call == 10
    check(store, dead_jobs=int(is_before_manifest))


def test_two_drivers_with_one_transaction_write_it_once(tmp_path: Path) -> None:
    store = tmp_path / "s"
    options = {"txnAppId": "etl", "txnVersion": "1"}
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    with (
        sink_driver("local[1]", tmp_path / "1") as first,
        sink_driver("local[1]", tmp_path / "2") as second,
    ):
        for version in range(1, 6):
            options["txnVersion"] = str(version)
            for driver in (first, second):
                driver.start(store, options=options)
            assert [driver.answer() for driver in (first, second)] == [None, None]

    check(store, times=5)


@pytest.mark.cluster
@pytest.mark.parametrize("point", ["between rows", "before message"])
def test_an_executor_that_is_killed_is_replaced(tmp_path: Path, point: str) -> None:
    with sink_driver("local-cluster[2,1,1024]", tmp_path) as driver:
        assert driver.run(tmp_path / "s", Fault(point, how="kill executor"), shuffled=True) is None
    check(tmp_path / "s")
