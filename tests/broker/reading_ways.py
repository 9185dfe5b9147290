"""Every message of every queue of a store, system topics too, by each way to read one."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from rmqlog.commitlog_format.store import Store

from .message_rows import QueueRows, Row, arrow_rows, by_queue, our_row

ReadStore = Callable[[Path], QueueRows]
WAYS = ("Python", "command line", "Spark")
COMMAND_LIMIT_SECONDS = 120
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def ways_to_read(spark: SparkSession) -> dict[str, ReadStore]:
    """A function for each of ``WAYS``."""
    readers = (read_by_python, read_by_command_line, lambda store: read_by_spark(spark, store))
    return dict(zip(WAYS, readers, strict=True))


def read_by_python(store: Path) -> QueueRows:
    """What our columnar reader gives."""
    return our_queue_rows(Store(str(store)))


def our_queue_rows(store: Store) -> QueueRows:
    """The same of a snapshot."""
    return by_queue(row for topic in store.topics for row in arrow_rows(store.read(topic)))


def read_by_command_line(store: Path) -> QueueRows:
    """What ``export`` writes as JSON lines, of the topics that ``topics`` lists."""
    topics = [fact["topic"] for fact in run_command("topics", store, "--json")]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "all.jsonl")
        run_command("export", store, *topics, "--to", target)
        with target.open(encoding="utf-8") as lines:
            return by_queue(json_row(json.loads(line)) for line in lines)


def run_command(*arguments: object) -> list[dict[str, Any]]:
    """Run ``rmqlog`` as users do, and give the JSON lines of its answer."""
    result = subprocess.run(
        [sys.executable, "-c", "from rmqlog.cli import main; main()", *map(str, arguments)],
        capture_output=True, timeout=COMMAND_LIMIT_SECONDS, stdin=subprocess.DEVNULL,
        env={**os.environ, "TZ": "UTC"}, check=False,
    )  # fmt: skip
    assert result.returncode == 0, (arguments, result.stderr.decode())
    lines = result.stdout.decode().split("\n")
    return [json.loads(line) for line in lines if line.startswith("{")]


def json_row(fields: Mapping[str, Any]) -> Row:
    """A message from a JSON line of the command line."""
    row = dict(fields)
    row["body"] = (
        base64.b64decode(row.pop("bodyBase64"))
        if "bodyBase64" in row
        else row["body"].encode()
    )
    assert len(row["body"]) == row.pop("bodySize")
    for name in ("bornTimestamp", "storeTimestamp"):
        moment = datetime.fromisoformat(row[name])
        row[name] = (moment - _EPOCH) // timedelta(milliseconds=1)
    return our_row(row)


def read_by_spark(spark: SparkSession, store: Path) -> QueueRows:
    """What a frame of all topics holds; a frame has no order."""
    frame = spark.read.format("rmqlog").option("includeSystemTopics", "true").load(str(store))
    rows = arrow_rows(frame.toArrow().to_batches())
    return by_queue(sorted(rows, key=lambda row: row["queueOffset"]))
