"""Workers under a limit of memory: it counts mappings, and a segment is larger than it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from rmqlog.writer.store_writer import StoreWriter

pytestmark = pytest.mark.spark

SEGMENT_SIZE = 1 << 30
LARGE_BODY_SIZE = 4 << 20
BODY_SIZE = 64 << 10
COUNT = 1_000

#: The driver is a process of its own: the limit is a setting of a whole session.
DRIVER = """
import json, sys
import rmqlog

spark = rmqlog.session(master="local[1]", settings={
    "spark.executor.pyspark.memory": "512m", "spark.ui.enabled": "false",
})
frame = spark.read.format("rmqlog").option("topic", "orders").load(sys.argv[1])
sizes = frame.selectExpr("length(body) AS size").groupBy("size").count().collect()

def limit(_):
    import resource
    return resource.getrlimit(resource.RLIMIT_AS)[0]

answer = {
    "limit": spark.sparkContext.parallelize([0], 1).map(limit).first(),
    "sizes": {row["size"]: row["count"] for row in sizes},
}
print("ANSWER " + json.dumps(answer))
spark.stop()
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A segment of 1 GiB, filled with some 70 MB of messages, one of them of 4 MiB."""
    with StoreWriter(tmp_path / "store") as writer:
        for number in range(0, COUNT, 100):
            bodies = [bytes([number % 251]) * BODY_SIZE] * 100
            if number == COUNT // 2:
                bodies[50] = bytes(LARGE_BODY_SIZE)
            writer.append(pa.RecordBatch.from_pydict({"topic": ["orders"] * 100, "body": bodies}))
    return tmp_path / "store"


def test_a_worker_of_512_mib_reads_a_segment_of_a_gibibyte(store: Path) -> None:
    assert min((store / "commitlog").iterdir()).stat().st_size == SEGMENT_SIZE
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    finished = subprocess.run(
        [sys.executable, "-c", DRIVER, str(store)], env=environment, capture_output=True,
        text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    line = next(one for one in finished.stdout.splitlines() if one.startswith("ANSWER "))
    answer = json.loads(line.removeprefix("ANSWER "))
    assert answer["limit"] == 512 << 20
    assert answer["sizes"] == {str(LARGE_BODY_SIZE): 1, str(BODY_SIZE): COUNT - 1}
