"""A Spark driver whose writes go wrong on purpose: ``python sink_driver.py`` runs jobs that come
as JSON lines and answers each with a line.

A line is ``{"store": …, "rows": n, "fault": {…}, "options": {…}}``, or ``{"stop": true}``. The rows
of a job are numbers; the ``fault`` says where an attempt fails, sleeps or dies (:class:`Fault`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from faults import FaultyPosix, Kind, Plan
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmqlog.spark_datasource.sink import RmqlogWriter, StagedMessage
from rmqlog.spark_datasource.sink_plan import SinkPlan, plan_write
from rmqlog.spark_datasource.source import RmqlogDataSource
from rmqlog.writer.batch_write import commit_job
from rmqlog.writer.posix import Action, Call

TOPIC = "orders"
PARTITIONS = 4
SIZES = {
    "mappedFileSizeCommitLog": "64k", "mappedFileSizeConsumeQueue": "4000",
    "maxHashSlotNum": "500", "maxIndexNum": "2000",
}
#: Points of a task, in their order.
POINTS = ("before rows", "between rows", "staged", "before message", "message")
#: In the folder of traces: name and path of every call of a commit that was not killed.
COMMIT_CALLS = "commit-calls.json"


@dataclass(frozen=True)
class Fault:
    """What goes wrong.

    At ``point``, the first ``attempts`` attempts at ``partition`` fail; ``how`` is ``raise``,
    ``kill`` (the worker), ``kill executor`` or ``await copy``, which goes on when another attempt
    has staged the partition. ``commit_call`` makes the commit die before so many durable calls,
    the driver's whole process group if ``commit_how`` is ``kill group``, or fail at it if it is
    ``error``. Each attempt leaves a file in the folder ``trace`` at each point that it gets to.
    """

    point: str = ""
    attempts: int = 1
    partition: int = 1
    how: str = "raise"
    commit_call: int = 0
    commit_how: str = "kill"
    trace: str = ""

    def strike(self, point: str) -> None:
        """Fail here, if this is the place and it has not happened yet."""
        context = TaskContext.get()
        if context is None:
            return
        partition, attempt = context.partitionId(), context.attemptNumber()
        trace = Path(self.trace, f"{point},{partition},{attempt}")
        # When a stage runs again, its attempts are numbered from 0 again.
        is_again = self.trace != "" and any(trace.parent.glob(f"{trace.name},*"))
        if self.trace:
            Path(f"{trace},{context.taskAttemptId()}").touch()
        if (point, partition) != (self.point, self.partition):
            return
        if is_again or attempt >= self.attempts:
            return
        if self.how == "await copy":
            while not any(trace.parent.glob(f"before message,{partition},{attempt + 1},*")):
                time.sleep(0.01)
        elif self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.how == "kill executor":
            os.kill(_executor(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            raise ZeroDivisionError(f"a fault at {point!r}")


def _executor() -> int:
    """The Java process above this worker."""
    pid = os.getpid()
    while True:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
        with open(f"/proc/{pid}/comm", encoding="ascii") as file:
            if file.read().strip() == "java":
                return pid


@dataclass(frozen=True)
class FaultyMessage(StagedMessage):
    """A message that fails while it is sent."""

    fault: Fault

    def __reduce__(self) -> tuple[Any, ...]:
        self.fault.strike("message")
        return FaultyMessage, (self.staged, self.fault)


class GroupKillingPosix(FaultyPosix):
    """Kills all processes of the driver, then its own."""

    def _perform(self, call: Call, action: Action) -> int | None:
        if self._fires(call):
            os.killpg(int(os.environ["SINK_DRIVER_GROUP"]), signal.SIGKILL)
            # Spark's Python processes are in a group of their own.
            os.kill(os.getpid(), signal.SIGKILL)
        return action(call.size)


class FaultyWriter(RmqlogWriter):
    """The writer with a fault in it."""

    def __init__(self, plan: SinkPlan, fault: Fault) -> None:
        super().__init__(plan)
        self.fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FaultyMessage:
        """Write, failing on the way."""
        self.fault.strike("before rows")
        message = super().write(self._between(iterator))
        self.fault.strike("before message")
        return FaultyMessage(message.staged, self.fault)

    def _between(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            self.fault.strike("between rows")
            yield batch.slice(half)
        self.fault.strike("staged")

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit, dying on the way."""
        fault, staging = self.fault, self.plan.staging
        kind = Kind.ERROR if fault.commit_how == "error" else Kind.KILL_BEFORE
        of_kind = GroupKillingPosix if fault.commit_how == "kill group" else FaultyPosix
        posix = of_kind(Plan(kind, fault.commit_call))
        commit_job(
            staging.store_path, self.staged_job(messages), staging.settings,
            lock_timeout_s=self.plan.lock_timeout_s, posix=posix,
        )
        if fault.trace:
            Path(fault.trace, COMMIT_CALLS).write_text(json.dumps(posix.calls))


class FaultySource(RmqlogDataSource):
    """The source under a name of its own; its option ``fault`` is a fault's JSON."""

    @classmethod
    def name(cls) -> str:
        """Its own name: the jar takes ``rmqlog``."""
        return "rmqlog_faulty"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer, with the fault."""
        given = dict(self.options)
        fault = Fault(**json.loads(given.pop("fault", "{}")))
        return FaultyWriter(plan_write(given, schema, overwrite=overwrite), fault)


def frame(spark: SparkSession, rows: int, *, shuffled: bool) -> DataFrame:
    """So many numbered rows in four partitions; a few batches each."""
    numbers = spark.range(0, rows, 1, PARTITIONS)
    if shuffled:
        numbers = numbers.repartition(PARTITIONS, "id")
    return numbers.selectExpr(
        "cast(id as string) as body", "concat('key-', id) as keys", "'tag' as tags"
    )


def run(spark: SparkSession, job: dict[str, Any]) -> dict[str, Any]:
    """Write the rows of a job; what went wrong is the answer."""
    options = {"topic": TOPIC, "fault": json.dumps(job.get("fault", {})), **SIZES}
    writing = frame(spark, job["rows"], shuffled=job.get("shuffled", False)).write
    writing = writing.format("rmqlog_faulty").options(**options, **job.get("options", {}))
    try:
        writing.mode("append").save(job["store"])
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
