"""Reading a full segment of a gibibyte in little memory: mappings are counted too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rmqlog.writer.store_writer import StoreWriter

SEGMENT_SIZE = 1 << 30
LARGE_BODY_SIZE = 4 << 20
BODY_SIZE = 4000
BATCH_COUNT = 4_096
MIB = 1 << 20

#: The driver is a process of its own: the limit is a setting of a whole session.
DRIVER = """
import json, sys
import rmqlog

spark = rmqlog.session(master="local[1]", settings={
    "spark.executor.pyspark.memory": "512m", "spark.ui.enabled": "false",
})
frame = spark.read.format("rmqlog").option("topic", "orders").load(sys.argv[1])
found = frame.selectExpr(
    "count(*) AS count", "sum(length(body)) AS size", "sum(crc32(body)) AS crc",
    "max(length(body)) AS largest").first()

def limit(_):
    import resource
    return resource.getrlimit(resource.RLIMIT_AS)[0]

memory = spark.sparkContext.parallelize([0], 1).map(limit).first()
print("ANSWER " + json.dumps({"limit": memory, **found.asDict()}))
spark.stop()
"""

#: Every column of every record; VmHWM counts the pages of mapped files as well as memory.
SCANNER = """
import json, sys, zlib
import rmqlog

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

before = peak()
store = rmqlog.open_store(sys.argv[1])
answer = {"count": 0, "size": 0, "crc": 0, "largest": 0}
for batch in store.scan() if sys.argv[2] == "scan" else store.read("orders"):
    sizes = [len(body) for body in batch["body"].to_pylist()]
    answer["count"] += batch.num_rows
    answer["size"] += sum(sizes)
    answer["crc"] += sum(map(zlib.crc32, batch["body"].to_pylist()))
    answer["largest"] = max(answer["largest"], *sizes)
print("ANSWER " + json.dumps({**answer, "peak": peak(), "growth": peak() - before}))
"""


@dataclass
class FullStore:
    """A store whose first segment is full, and what its bodies add up to."""

    path: Path
    count: int = 0
    size: int = 0
    crc: int = 0

    def append(self, writer: StoreWriter, bodies: pa.BinaryArray) -> None:
        """Write messages and count them."""
        writer.append(pa.RecordBatch.from_pydict(
            {"topic": pa.repeat("orders", len(bodies)), "body": bodies}))
        plain = bodies.to_pylist()
        self.count += len(plain)
        self.size += sum(map(len, plain))
        self.crc += sum(map(zlib.crc32, plain))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullStore]:
    """Messages of 4 kB until the log is in its second segment; one has 4 MiB."""
    full = FullStore(tmp_path_factory.mktemp("memory") / "store")
    block = np.random.default_rng(1).integers(0, 256, (BATCH_COUNT, BODY_SIZE), np.uint8)
    bounds = pa.py_buffer(np.arange(BATCH_COUNT + 1, dtype=np.int32) * BODY_SIZE)
    log = full.path / "commitlog"
    with StoreWriter(full.path, background=False) as writer:
        while full.count == 0 or len(list(log.iterdir())) == 1:
            numbers = np.arange(full.count, full.count + BATCH_COUNT, dtype=">u8")
            block[:, :8] = numbers.view(np.uint8).reshape(BATCH_COUNT, 8)
            full.append(writer, pa.BinaryArray.from_buffers(
                pa.binary(), BATCH_COUNT, [None, bounds, pa.py_buffer(block)]))
            if full.count == 20 * BATCH_COUNT:
                full.append(writer, pa.array([bytes(range(256)) * (LARGE_BODY_SIZE >> 8)]))
    first = min(log.iterdir()).stat()
    assert first.st_size == SEGMENT_SIZE
    assert first.st_blocks * 512 > SEGMENT_SIZE * 0.99, "the segment is not sparse"
    yield full
    shutil.rmtree(full.path)


def _answer(program: str, *arguments: str) -> dict[str, int]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    finished = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True,
        text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    line = next(one for one in finished.stdout.splitlines() if one.startswith("ANSWER "))
    return dict(json.loads(line.removeprefix("ANSWER ")))


@pytest.mark.spark
def test_a_worker_of_512_mib_reads_a_full_segment_of_a_gibibyte(full: FullStore) -> None:
    assert _answer(DRIVER, str(full.path)) == {
        "limit": 512 * MIB, "count": full.count, "size": full.size,
        "crc": full.crc, "largest": LARGE_BODY_SIZE,
    }


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak")
@pytest.mark.parametrize("path", ["scan", "queues"])
def test_a_full_segment_of_a_gibibyte_is_read_in_less_than_200_mib(
    full: FullStore, path: str
) -> None:
    found = _answer(SCANNER, str(full.path), path)
    assert (found["count"], found["size"], found["crc"], found["largest"]) == (
        full.count, full.size, full.crc, LARGE_BODY_SIZE)
    # By the queues a window of 64 MiB is mapped, in a scan one of 16: with the interpreter and
    # its libraries only the latter stays below 200.
    assert found["growth"] < 200 * MIB
    assert path == "queues" or found["peak"] < 200 * MIB
