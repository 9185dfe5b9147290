"""A Spark driver whose writes go wrong on purpose: ``python sink_driver.py`` runs jobs that come
as JSON lines and answers each with a line.

A line is ``{"store": …, "rows": n, "fault": {…}, "options": {…}}``, or ``{"stop": true}``. The rows
of a job are numbers; the ``fault`` says where an attempt fails, sleeps or dies (:class:`Fault`).
With ``"bridge": true`` tasks stage in Java what they can; without it Python stages everything.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from glob import glob
from pathlib import Path
from typing import Any

import pyarrow as pa
from faults import FaultyPosix
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.functions import expr, udf
from pyspark.sql.types import StructType

from rmqlog.spark_datasource.sink import RmqlogWriter, StagedMessage
from rmqlog.spark_datasource.sink_plan import SinkPlan, plan_write
from rmqlog.spark_datasource.source import RmqlogDataSource
from rmqlog.writer.batch_write import commit_job
from rmqlog.writer.commit import StagedJob
from rmqlog.writer.posix import Action, Call

TOPIC = "orders"
PARTITIONS = 4
SIZES = {
    "mappedFileSizeCommitLog": "64k", "mappedFileSizeConsumeQueue": "4000",
    "maxHashSlotNum": "500", "maxIndexNum": "2000",
}
#: The name of the faulty source, without the bridge and behind it.
SOURCE = "rmqlog_faulty"
#: Points of a task, in their order.
POINTS = ("before rows", "between rows", "staged", "before message", "message")
#: The same with the bridge: ``rows`` is while Java takes them, and none is left to Python.
BRIDGE_POINTS = ("rows", "before rows", "staged", "before message", "message")
#: What an attempt goes through, without harm, when Java has staged rows of it.
STAGED_BY_JAVA = "staged by Java"
#: So many rows go to Python, and come from it, at once.
BATCH_ROWS = 100
#: A batch of such bodies is more than Java keeps before it writes.
WIDE_BODY_SIZE = 12_000
WIDE_SEGMENT_SIZE = "1m"
#: In the folder of traces: name and path of every call of a commit that was not killed.
COMMIT_CALLS = "commit-calls.json"
#: In the folder of traces, for each commit, when it begins: the attempts that no message names,
#: and how many rows are in each staged file that counts.
OUTCOME = "outcome"
#: What waits for so long waits in vain.
PATIENCE_S = 240.0

#: The name of a durable call, a part of its path, and which of the calls that match, from 1;
#: an empty text matches all.
Numbered = tuple[str, str, int]
NO_CALL: Numbered = ("", "", 0)


@dataclass(frozen=True)
class Fault:
    """What goes wrong.

    At ``point``, the first ``attempts`` attempts at ``partition`` fail; ``how`` is ``raise``,
    ``kill`` (the worker), ``kill executor``, ``kill executors`` (all of them), or what slows a
    task down so that Spark runs a copy of it: ``await copy`` goes on when the copy has staged
    the partition, ``outrun copy`` when it is at the point too, where it then stays. At the point
    ``rows`` bodies are made by :class:`StrikingBodies`.

    The commit strikes before ``commit_call``: it dies, the driver's whole process group if
    ``commit_how`` is ``kill group``, or the call fails if it is ``error``. Before it begins
    ``kill executors`` kills those, and it waits until ``meet`` drivers are about to commit.

    Each attempt leaves a file in the folder ``trace`` at each point that it gets to.
    """

    point: str = ""
    attempts: int = 1
    partition: int = 1
    how: str = "raise"
    commit_call: Numbered = NO_CALL
    commit_how: str = "kill"
    meet: int = 0
    trace: str = ""

    @property
    def body_size(self) -> int:
        """How wide the bodies are of the job that it is in."""
        return WIDE_BODY_SIZE if self.point == "rows" else 0

    def strike(self, point: str, staging: str = "") -> None:
        """Fail here, if this is the place and it has not happened yet."""
        context = TaskContext.get()
        if context is None:
            return
        partition, attempt = context.partitionId(), context.attemptNumber()
        # When a stage runs again, its attempts are numbered from 0 again.
        is_again = self.trace != "" and self._was_at(point, attempt)
        if self.trace:
            Path(self.trace, f"{point},{partition},{attempt},{context.taskAttemptId()}").touch()
        if partition != self.partition:
            return
        if self.how in ("await copy", "outrun copy"):
            self._with_copy(point, attempt, staging)
        elif point == self.point and not is_again and attempt < self.attempts:
            self._fail(point)

    def _fail(self, point: str) -> None:
        if self.how == "raise":
            raise ZeroDivisionError(f"a fault at {point!r}")
        if self.how == "kill executor":
            os.kill(_executor(), signal.SIGKILL)
        elif self.how == "kill executors":
            kill_executors()
        os.kill(os.getpid(), signal.SIGKILL)

    def _with_copy(self, point: str, attempt: int, staging: str) -> None:
        """Keep a task and its copy together: neither may end before the other is in its way."""
        if attempt > 0 and point == "before rows":
            wait_until(lambda: self._was_at(self.point, 0), "the original at the point")
        if point != self.point:
            return
        if attempt == 0:
            goal = "before message" if self.how == "await copy" else self.point
            wait_until(lambda: self._was_at(goal, 1), f"a copy at {goal!r}")
        elif self.how == "outrun copy":
            wait_until(lambda: not os.path.exists(staging), "the end of the job")

    def _was_at(self, point: str, attempt: int) -> bool:
        return any(Path(self.trace).glob(f"{point},{self.partition},{attempt},*"))

    def before_commit(self) -> None:
        """What happens on the driver when all tasks have ended."""
        if self.commit_how == "kill executors":
            kill_executors()
        if self.meet:
            Path(self.trace, f"commit,{os.getpid()}").touch()
            wait_until(
                lambda: len(list(Path(self.trace).glob("commit,*"))) >= self.meet,
                "the other driver's commit",
            )


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for another process; in vain is an error."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.01)


def _executor() -> int:
    """The Java process above this worker."""
    pid = os.getpid()
    while True:
        pid = int(_status(pid)[1])
        with open(f"/proc/{pid}/comm", encoding="ascii") as file:
            if file.read().strip() == "java":
                return pid


def _status(pid: int) -> list[str]:
    """State, parent, group, session and so on of a process."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def kill_executors() -> None:
    """Kill all executors that this driver started; a driver is a session of its own."""
    session, killed = os.getsid(0), 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path("/proc", name, "cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" in command and int(_status(int(name))[3]) == session:
                os.kill(int(name), signal.SIGKILL)
                killed += 1
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended by itself
    assert killed, "there is no executor to kill"


@dataclass(frozen=True)
class FaultyMessage(StagedMessage):
    """A message that fails while it is sent."""

    fault: Fault

    def __reduce__(self) -> tuple[Any, ...]:
        self.fault.strike("message")
        return FaultyMessage, (self.files, self.fault)


class CommitPosix(FaultyPosix):
    """Strikes before one call of a commit, whichever thread makes it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self._fault = fault
        self._matches = 0

    def _perform(self, call: Call, action: Action) -> int | None:
        if not self._is_struck(call):
            return action(call.size)
        if self._fault.commit_how == "error":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self._fault.commit_how == "kill group":
            os.killpg(int(os.environ["SINK_DRIVER_GROUP"]), signal.SIGKILL)
        # Spark's Python processes are in a group of their own.
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a killed process goes on")

    def _is_struck(self, call: Call) -> bool:
        name, part, number = self._fault.commit_call
        with self._counting:
            self.calls.append((call.name, call.path))
            is_match = name in ("", call.name) and part in call.path
            self._matches += is_match
            return is_match and self._matches == number


class FaultyWriter(RmqlogWriter):
    """The writer with a fault in it."""

    def __init__(self, plan: SinkPlan, fault: Fault) -> None:
        super().__init__(plan)
        self.fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FaultyMessage:
        """Write, failing on the way."""
        self._strike("before rows")
        message = super().write(self._between(iterator))
        if any(is_of_java(file.name) and file.row_count for file in message.files):
            self._strike(STAGED_BY_JAVA)
        self._strike("before message")
        return FaultyMessage(message.files, self.fault)

    def _between(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            self._strike("between rows")
            yield batch.slice(half)
        self._strike("staged")

    def _strike(self, point: str) -> None:
        self.fault.strike(point, self.plan.staging.folder)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit, dying on the way."""
        fault, staging = self.fault, self.plan.staging
        job, posix = self.staged_job(messages), CommitPosix(fault)
        if fault.trace:
            self._note_staged(job, messages)
        fault.before_commit()
        commit_job(
            staging.store_path, job, staging.settings,
            lock_timeout_s=self.plan.lock_timeout_s, posix=posix,
        )
        if fault.trace:
            Path(fault.trace, COMMIT_CALLS).write_text(json.dumps(posix.calls))

    def _note_staged(
        self, job: StagedJob, messages: Sequence[WriterCommitMessage | None]
    ) -> None:
        winners = {
            _attempt_of(file.name)
            for message in messages if isinstance(message, StagedMessage)
            for file in message.files  # files without a row are no part of the job
        }
        losers = {_attempt_of(name) for name in os.listdir(job.folder)} - winners
        rows = {file.name: file.row_count for file in job.files}
        # Two drivers may commit with one trace at once.
        Path(self.fault.trace, f"{OUTCOME},{os.getpid()}").write_text(
            json.dumps({"losers": sorted(losers), "rows": rows})
        )


def is_of_java(file_name: str) -> bool:
    """Whether a staged file is one of those that Java writes."""
    return "-plain" in file_name


def _attempt_of(file_name: str) -> str:
    """Partition and attempt: all names of the files of an attempt begin with them."""
    found = re.match(r"\d+-\d+", file_name)
    assert found, file_name
    return found[0]


class FaultySource(RmqlogDataSource):
    """The source under a name of its own; its option ``fault`` is a fault's JSON."""

    @classmethod
    def name(cls) -> str:
        """Its own name: the jar takes ``rmqlog``."""
        return SOURCE

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer, with the fault."""
        given = dict(self.options)
        fault = Fault(**json.loads(given.pop("fault", "{}")))
        return FaultyWriter(plan_write(given, schema, overwrite=overwrite), fault)


class StrikingBodies:
    """Makes wide bodies, and strikes when Java has written some of them and takes the next.

    Every attempt gets a copy of its own, so each counts its rows from 0.
    """

    def __init__(self, fault: Fault, store: str) -> None:
        self._fault = fault
        self._staging = f"{store}/rmqlog/staging"
        self._made_rows = 0

    def __call__(self, number: int) -> str:
        # The batch before may still be on its way, but the one before that has arrived.
        if self._made_rows == 2 * BATCH_ROWS:
            self._strike()
        self._made_rows += 1
        return body_of(number, self._fault.body_size)

    def _strike(self) -> None:
        context = TaskContext.get()
        assert context is not None
        written = f"{self._staging}/*/{context.partitionId()}-{context.taskAttemptId()}*"
        wait_until(lambda: bool(glob(written)), "rows that were written")
        (folder,) = glob(f"{self._staging}/*")
        if any(map(is_of_java, glob(written))):
            self._fault.strike(STAGED_BY_JAVA, folder)
        self._fault.strike("rows", folder)


def body_of(number: int, size: int = 0) -> str:
    """The body of a row: its number, and spaces up to a size."""
    return str(number).ljust(size)


def frame(spark: SparkSession, rows: int, body: Column, job: dict[str, Any]) -> DataFrame:
    """So many numbered rows in four partitions; a few batches each."""
    numbers = spark.range(0, rows, 1, PARTITIONS)
    if job.get("shuffled", False):
        numbers = numbers.repartition(PARTITIONS, "id")
    columns = ["body", "concat('key-', id) as keys", "'tag' as tags"]
    if job.get("handover", False):
        # Java leaves the time that stands for none, and all rows behind it, to Python.
        of_partition = rows // PARTITIONS
        columns.append(
            f"if(id % {of_partition} = {of_partition // 2}, {-2**63}, id) as bornTimestamp"
        )
    return numbers.withColumn("body", body).selectExpr(*columns)


def run(spark: SparkSession, job: dict[str, Any]) -> dict[str, Any]:
    """Write the rows of a job; what went wrong is the answer."""
    fault, store = Fault(**job.get("fault", {})), job["store"]
    options = {"topic": TOPIC, "fault": json.dumps(as_json(fault)), **SIZES}
    body = expr("cast(id as string)")
    if fault.point == "rows":
        body = udf(StrikingBodies(fault, store), "string")("id")
        options["mappedFileSizeCommitLog"] = WIDE_SEGMENT_SIZE
    writing = frame(spark, job["rows"], body, job).write
    writing = writing.format("rmqlog" if job.get("bridge", False) else SOURCE)
    try:
        writing.options(**options, **job.get("options", {})).mode("append").save(store)
    except Exception as error:
        return {"error": str(error)}
    return {"error": None}


def main() -> None:
    """Answer job after job."""
    master, settings = sys.argv[1], json.loads(sys.argv[2])
    os.environ["SINK_DRIVER_GROUP"] = str(os.getpgrp())
    builder = SparkSession.builder.master(master).appName("sink driver")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(FaultySource)
    for line in sys.stdin:
        job = json.loads(line)
        if "stop" in job:
            break
        print("answer " + json.dumps(run(spark, job)), flush=True)
    spark.stop()


def as_json(fault: Fault) -> dict[str, Any]:
    """A fault as a job's line has it."""
    return asdict(fault)


if __name__ == "__main__":
    # The workers import this file by its name, so its classes must be of that name here too.
    import sink_driver

    sink_driver.main()
