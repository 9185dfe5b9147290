"""A standalone cluster of two workers reads and writes the rows of a local session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from query_reference import is_system, store_rows
from query_stores import write_query_store
from standalone_cluster import standalone_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.spark]

#: The driver is a process of its own: the tests' Java process belongs to a local session.
DRIVER = """
import json, sys
import rmqlog

master, path = sys.argv[1:]
spark = rmqlog.session(path, master=master, settings={
    "spark.ui.enabled": "false", "spark.cores.max": "2", "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2",
})
frame = spark.read.format("rmqlog").option("minPartitions", "4").load(path)
place = ["topic", "queueId", "queueOffset"]
from pyspark.sql.functions import spark_partition_id
answer = {
    "rows": [tuple(row) for row in frame.select(*place, "tags", "keys", "msgId").collect()],
    "paid": frame.where("tags = 'PAID'").count(),
    "partitions": frame.select("body").withColumn("part", spark_partition_id()).select("part")
        .distinct().count(),
    "table": spark.sql("SELECT count(*) FROM rmq.orders").first()[0],
    "executors": spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos().__len__() - 1,
}
print("ANSWER " + json.dumps(answer))
spark.stop()
"""

#: Writes with the jar where a setting has it; tells which programs made the unique keys.
WRITER = """
import json, os, sys
from pathlib import Path
from pyspark.sql import SparkSession
import rmqlog

master, path, setting = sys.argv[1:]
builder = SparkSession.builder.master(master)
for name, text in {
    setting: rmqlog.jar_path(), "spark.ui.enabled": "false", "spark.cores.max": "2",
    "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}.items():
    builder = builder.config(name, text)
spark = builder.getOrCreate()
frame = spark.range(0, 1000, 1, 4).selectExpr("cast(id as string) as body")
frame.write.format("rmqlog").option("topic", "orders").mode("append").save(path)
rows = spark.read.format("rmqlog").option("topic", "orders").load(path).collect()
processes = {int(row["uniqKey"][8:12], 16) for row in rows}
makers = {
    Path("/proc", name, "comm").read_text().strip() for name in os.listdir("/proc")
    if name.isdigit() and int(name) & 0xFFFF in processes
}
print("ANSWER " + json.dumps([sorted(int(row["body"]) for row in rows), sorted(makers)]))
spark.stop()
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers."""
    with standalone_cluster(tmp_path, ["127.0.0.1", "127.0.0.1"]) as address:
        yield address


def answer_of(program: str, *arguments: str) -> Any:
    """What a driver has to say."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    finished = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True,
        text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    line = next(one for one in finished.stdout.splitlines() if one.startswith("ANSWER "))
    return json.loads(line.removeprefix("ANSWER "))


def test_a_cluster_gives_the_rows_of_a_local_session(master: str, tmp_path: Path) -> None:
    path = write_query_store(tmp_path / "store", count=120)
    rows = [row for row in store_rows(path) if not is_system(row["topic"])]
    answer = answer_of(DRIVER, master, str(path))
    names = ("topic", "queueId", "queueOffset", "tags", "keys", "msgId")
    expected = sorted(([row[name] for name in names] for row in rows), key=lambda row: row[:3])
    assert sorted(answer["rows"], key=lambda row: row[:3]) == expected
    assert answer["paid"] == sum(row["tags"] == "PAID" for row in rows)
    assert answer["partitions"] == 4
    assert answer["table"] == sum(row["topic"] == "orders" for row in rows)
    assert answer["executors"] == 2


@pytest.mark.parametrize(
    ("setting", "is_java"), [("spark.jars", True), ("spark.driver.extraClassPath", False)]
)
def test_executors_stage_rows_in_java_where_they_have_the_jar(
    master: str, tmp_path: Path, setting: str, is_java: bool
) -> None:
    bodies, makers = answer_of(WRITER, master, str(tmp_path / "store"), setting)

    assert bodies == list(range(1000))
    assert ("java" in makers) is is_java
