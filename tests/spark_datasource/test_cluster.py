"""A standalone cluster of two workers gives the rows of a local session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers."""
    with standalone_cluster(tmp_path, ["127.0.0.1", "127.0.0.1"]) as address:
        yield address


def test_a_cluster_gives_the_rows_of_a_local_session(master: str, tmp_path: Path) -> None:
    path = write_query_store(tmp_path / "store", count=120)
    rows = [row for row in store_rows(path) if not is_system(row["topic"])]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    finished = subprocess.run(
        [sys.executable, "-c", DRIVER, master, str(path)], env=environment, capture_output=True,
        text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    line = next(one for one in finished.stdout.splitlines() if one.startswith("ANSWER "))
    answer = json.loads(line.removeprefix("ANSWER "))
    names = ("topic", "queueId", "queueOffset", "tags", "keys", "msgId")
    expected = sorted(([row[name] for name in names] for row in rows), key=lambda row: row[:3])
    assert sorted(answer["rows"], key=lambda row: row[:3]) == expected
    assert answer["paid"] == sum(row["tags"] == "PAID" for row in rows)
    assert answer["partitions"] == 4
    assert answer["table"] == sum(row["topic"] == "orders" for row in rows)
    assert answer["executors"] == 2
