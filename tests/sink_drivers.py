"""Drivers that write with faults, asked from a test, and what must be true of a store after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sink_driver import (
    BATCH_ROWS,
    OUTCOME,
    PARTITIONS,
    SOURCE,
    TOPIC,
    Fault,
    as_json,
    body_of,
    is_of_java,
)
from standalone_cluster import QUICK_JAVA

import rmqlog
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.verify import verify_store

TESTS = Path(__file__).resolve().parent
ROWS = 1000
#: A driver that says nothing for so long hangs; before pytest gives up on everything.
_SILENCE_S = 480.0
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executorEnv.PYTHONPATH": str(TESTS),
    "spark.log.level": "OFF",
    "spark.jars": rmqlog.jar_path(),
    "spark.rmqlog.pythonSource": SOURCE,
}


class SinkDriver:
    """A driver in a session of its own. It takes jobs at once, and runs them when it is up."""

    def __init__(self, master: str, log: Path, settings: Mapping[str, str]) -> None:
        environment = {
            **os.environ, **QUICK_JAVA, "PYTHONPATH": str(TESTS),
            "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._log = log
        self._was_silent = False
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
        silence = threading.Timer(_SILENCE_S, self._give_up)
        silence.start()
        try:
            for answer in self._process.stdout:
                if answer.startswith("answer "):
                    error: str | None = json.loads(answer.removeprefix("answer "))["error"]
                    return error
            self._process.wait()
        finally:
            silence.cancel()
        if self._process.returncode == -signal.SIGKILL and not self._was_silent:
            return "the driver was killed"
        raise AssertionError(self._log.read_text(errors="replace")[-3000:])

    def _give_up(self) -> None:
        self._was_silent = True
        self._kill()

    def _kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the driver and all that it started."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()


@contextmanager
def sink_driver(master: str, folder: Path, **settings: str) -> Iterator[SinkDriver]:
    """A driver that is ended in any case."""
    driver = SinkDriver(master, folder / "driver.log", settings)
    try:
        yield driver
    finally:
        driver.close()


class Spares:
    """Drivers to be killed. One is always started ahead: it takes longer than a test."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._left = count
        self._taken: list[SinkDriver] = []
        self.waiting = self._start()

    def take(self) -> SinkDriver:
        """The driver that waits; the next one is started."""
        self._taken.append(self.waiting)
        if self._left:
            self.waiting = self._start()
        return self._taken[-1]

    def _start(self) -> SinkDriver:
        self._left -= 1
        return SinkDriver("local[2]", self._folder / f"driver-{self._left}.log", {})

    def close(self) -> None:
        """End those that are still there."""
        for driver in {*self._taken, self.waiting}:
            driver.close()


# --- what must be true ----------------------------------------------------------------------


def check(store: Path, times: int = 1, dead_jobs: int = 0, body_size: int = 0) -> None:
    """Every row is there so many times, queue offsets are dense, and no staging is left but
    that of jobs whose driver died before their commit: it goes by age."""
    rows: Counter[tuple[str, str, str]] = Counter()
    found = Store(str(store))
    for view in found.queues_of(TOPIC):
        of_queue = [row for batch in found.read(TOPIC, view.queue_id) for row in batch.to_pylist()]
        assert [row["queueOffset"] for row in of_queue] == list(range(len(of_queue)))
        rows.update((row["body"].decode(), row["keys"], row["tags"]) for row in of_queue)
    assert rows == {
        (body_of(number, body_size), f"key-{number}", "tag"): times for number in range(ROWS)
    }
    assert list(verify_store(found)) == []
    assert len(os.listdir(store / "rmqlog" / "staging")) == dead_jobs
    assert not (store / "abort").exists()


def seen(store: Path) -> int:
    """How many rows a reader sees, whatever state the store is in."""
    if not (store / "commitlog").is_dir():
        return 0
    return sum(len(view) for view in Store(str(store)).queues.values())


def staged(store: Path) -> list[str]:
    """What is left of staging."""
    folder = store / "rmqlog" / "staging"
    return sorted(str(path) for path in folder.rglob("*")) if folder.is_dir() else []


def reached(trace: Path, point: str) -> list[int]:
    """The numbers of the attempts at partition 1 that got to a point."""
    names = [name.split(",") for name in os.listdir(trace)]
    return sorted(int(name[2]) for name in names if name[:2] == [point, "1"])


def losers(trace: Path) -> list[str]:
    """The attempts with staged files that no message named when the commit began."""
    return [attempt for commit in _commits(trace) for attempt in commit["losers"]]


def java_rows(trace: Path) -> int:
    """How many of the rows that commits were given Java has staged."""
    return sum(
        rows for commit in _commits(trace) for name, rows in commit["rows"].items()
        if is_of_java(name)
    )


def _commits(trace: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in trace.glob(f"{OUTCOME},*")]
    assert found, "no commit has begun"
    return found
