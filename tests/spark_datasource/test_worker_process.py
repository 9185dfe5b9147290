"""What processes of Spark do for us, which other processes must not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

#: A process that takes itself for a worker of Spark, as ``begin_task`` would know one.
WORKER = """
import gc, socket, sys
from importlib.machinery import ModuleSpec
from rmqlog.spark_datasource.worker_process import begin_task

server = socket.create_server(("127.0.0.1", 0))
connection = socket.create_connection(server.getsockname())
pair = socket.socketpair()
counts, at_once = [], []
for name in ("elsewhere", "pyspark.daemon"):
    sys.modules["__main__"].__spec__ = ModuleSpec(name, None)
    begin_task()
    counts.append(gc.get_freeze_count())
    at_once.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
import fractions, wave  # modules that a later task needs
begin_task()
connection.send(b"still open")
print(*counts, gc.get_freeze_count(), *at_once)
"""


def test_tasks_spare_the_collector_and_send_at_once_in_workers_alone(spark: SparkSession) -> None:
    def main_module(_: int) -> str:
        import sys

        return str(sys.modules["__main__"].__spec__.name)  # type: ignore[union-attr]

    assert spark.sparkContext.parallelize([0], 1).map(main_module).first() == "pyspark.daemon"
    found = subprocess.run(
        [sys.executable, "-c", WORKER], capture_output=True, text=True, check=True)
    elsewhere, worker, later, *sent_at_once = map(int, found.stdout.split())
    assert elsewhere == 0
    assert 10_000 < worker < later
    assert sent_at_once == [0, 1]


#: Plans a write in a process that takes itself for a worker of Spark.
PLANNING_WORKER = """
import gc, sys
from importlib.machinery import ModuleSpec
from pyspark.sql.types import BinaryType, StructType
from rmqlog.spark_datasource.source import RmqlogDataSource

sys.modules["__main__"].__spec__ = ModuleSpec("pyspark.daemon", None)
source = RmqlogDataSource({"path": sys.argv[1], "topic": "orders"})
before = gc.get_freeze_count()
source.writer(StructType().add("body", BinaryType()), False)
print(before, gc.get_freeze_count())
"""


def test_a_worker_that_plans_a_write_spares_the_collector(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", PLANNING_WORKER, str(tmp_path)],
        capture_output=True, text=True, check=True)
    before, behind = map(int, found.stdout.split())
    assert before == 0
    assert behind > 10_000


#: Says something as a writer would, in a process that takes itself for a worker of Spark.
TALKING_WORKER = """
import logging, sys
from importlib.machinery import ModuleSpec
from rmqlog.spark_datasource.worker_process import show_log

if sys.argv[1] == "configured":
    logging.basicConfig(format="mine: %(message)s")
sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[2], None)
for text in ("once", "and again"):
    show_log()
    logging.getLogger("rmqlog.writer.commit").info(text)
"""


@pytest.mark.parametrize(
    ("logging", "module", "pattern"),
    [
        ("default", "pyspark.daemon", r"[-\d]+ [:,\d]+ INFO once\n[-\d]+ [:,\d]+ INFO and again\n"),
        ("configured", "pyspark.daemon", "mine: once\nmine: and again\n"),
        ("default", "elsewhere", ""),
    ],
)
def test_workers_show_what_a_commit_says(logging: str, module: str, pattern: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", TALKING_WORKER, logging, module],
        capture_output=True, text=True, check=True)
    assert re.fullmatch(pattern, found.stderr)
