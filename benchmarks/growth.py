"""How cost grows: the same work on 1, 3, 10 and 30 times the messages, and on ten times the queues.

Every point is measured in a process of its own, so that its peak of memory is its own too. The
slope is that of a line through the points on logarithmic scales: 1 is linear, 0 is constant.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness import seconds
from benchmarks.messages import BATCH_COUNT, TOPIC, small_messages
from benchmarks.workspace import Workspace
from rmqlog.commitlog_format.lookup import TopicKeys
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.rebuild import rebuild
from rmqlog.writer.store_writer import StoreWriter

FIRST_COUNT = 200_000
QUICK_FIRST_COUNT = 20_000
FACTORS = (1, 3, 10, 30)
QUICK_FACTORS = (1, 3, 10)
QUEUE_COUNT = 4
KEY_COUNT = 200
_BY_QUEUES = ", by queues"
#: What a point of this curve costs should not depend on how many messages there are.
CONSTANT = ("key lookup, 200 keys one by one", "planning a Spark scan")


@dataclass(frozen=True)
class Point:
    """One measurement: how many messages in how many queues, seconds, and the peak of memory."""

    messages: int
    queues: int
    seconds: float
    peak_mib: float


@dataclass(frozen=True)
class Curve:
    """What some work costs at growing sizes."""

    name: str
    points: Sequence[Point]

    @property
    def slope(self) -> float:
        """By how much the logarithm of the cost grows with that of the size."""
        sizes = [math.log(point.messages * point.queues) for point in self.points]
        costs = [math.log(point.seconds) for point in self.points]
        size_mean, cost_mean = sum(sizes) / len(sizes), sum(costs) / len(costs)
        spread = sum((size - size_mean) ** 2 for size in sizes)
        pairs = zip(sizes, costs, strict=True)
        return sum((size - size_mean) * (cost - cost_mean) for size, cost in pairs) / spread

    def as_json(self) -> dict[str, object]:
        """The curve as plain values."""
        return {**asdict(self), "slope": self.slope}


# --- the work, each in a process of its own -------------------------------------------------


def append(path: Path, messages: int, queues: int) -> float:
    """Write the store that the other curves read; making the messages is not measured."""
    took = 0.0
    with StoreWriter(path) as writer:
        for first in range(0, messages, BATCH_COUNT):
            batch = small_messages(first, BATCH_COUNT, queues)
            took += seconds(lambda batch=batch: writer.append(batch))
    return took


def scan(path: Path, messages: int, queues: int) -> float:
    """Every column of every message."""

    def read() -> None:
        rows = sum(batch.num_rows for batch in Store(str(path)).read(TOPIC))
        assert rows == messages

    return seconds(read)


def tag_filter(path: Path, messages: int, queues: int) -> float:
    """One message in a thousand, by its tag."""

    def read() -> None:
        batches = Store(str(path)).read(TOPIC, tags="RARE")
        assert sum(batch.num_rows for batch in batches) == messages // 1000

    return seconds(read)


def key_lookup(path: Path, messages: int, queues: int) -> float:
    """Keys from everywhere in the log."""
    topic_keys = TopicKeys(Store(str(path)), TOPIC)
    keys = [f"order-{number}" for number in range(1, messages - 1, messages // KEY_COUNT)]
    topic_keys.offsets(keys[0])

    def look_up() -> None:
        for key in keys[:KEY_COUNT]:
            assert len(topic_keys.offsets(key)) == 1

    return seconds(look_up)


def plan(path: Path, messages: int, queues: int) -> float:
    """What the driver does before the first task starts."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from rmqlog.commitlog_format.columns import MESSAGE_SCHEMA
    from rmqlog.spark_datasource.reader import RmqlogReader

    schema = from_arrow_schema(MESSAGE_SCHEMA)
    options = {"path": str(path), "topic": TOPIC}
    return min(seconds(RmqlogReader(options, schema).partitions) for _ in range(5))


def rebuild_store(path: Path, messages: int, queues: int) -> float:
    """Queues and index made anew from the log alone; the last thing done to a store."""
    for name in ("consumequeue", "index"):
        shutil.rmtree(path / name)
    return seconds(lambda: rebuild(path))


WORK: dict[str, Callable[[Path, int, int], float]] = {
    "append": append,
    "scan, all columns": scan,
    "tag filter, 1 in 1,000": tag_filter,
    CONSTANT[0]: key_lookup,
    CONSTANT[1]: plan,
    "rebuild": rebuild_store,
}


def _measured(name: str, path: Path, messages: int, queues: int) -> Point:
    took = WORK[name](path, messages, queues)
    with open("/proc/self/status", encoding="ascii") as status:
        peak = next(line for line in status if line.startswith("VmHWM:"))
    return Point(messages, queues, took, int(peak.split()[1]) / 1024)


# --- the curves -----------------------------------------------------------------------------


def measure_growth(workspace: Workspace) -> list[Curve]:
    """All curves: by messages, by queues, and of writing through Spark."""
    first = workspace.scaled(FIRST_COUNT, QUICK_FIRST_COUNT)
    factors = QUICK_FACTORS if workspace.quick else FACTORS
    by_messages = [(first * factor, QUEUE_COUNT) for factor in factors]
    by_queues = [(first * 3, QUEUE_COUNT * factor) for factor in (1, 10)]
    return [
        *_curves(workspace, by_messages, ""), *_curves(workspace, by_queues, _BY_QUEUES),
        _spark_write(workspace, by_messages, ""), _spark_write(workspace, by_queues, _BY_QUEUES),
    ]


def _curves(
    workspace: Workspace, sizes: Sequence[tuple[int, int]], suffix: str
) -> Iterator[Curve]:
    points: dict[str, list[Point]] = {name: [] for name in WORK}
    for messages, queues in sizes:
        path = workspace.fresh("growth")
        for name in WORK:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                points[name].append(pool.apply(_measured, (name, path, messages, queues)))
        shutil.rmtree(path)
    return (Curve(name + suffix, found) for name, found in points.items())


def _spark_write(
    workspace: Workspace, sizes: Sequence[tuple[int, int]], suffix: str
) -> Curve:
    """The memory is that of Spark's largest Python process: tasks stage, one commits."""
    points = []
    for messages, queues in (sizes[0], *sizes):  # the first one twice: Spark needs a warm-up
        frame = workspace.spark.range(0, messages, 1, 4).selectExpr(
            "cast(id as string) as body", "concat('order-', id) as keys",
            "if(id % 1000 = 7, 'RARE', 'COMMON') as tags",
        )
        path = workspace.fresh("growth")
        options = {"topic": TOPIC, "queueNums": queues}
        writing = frame.write.format("rmqlog").options(**options).mode("append")
        took = seconds(lambda writing=writing, path=path: writing.save(str(path)))
        points.append(Point(messages, queues, took, _peak_of_spark_python()))
        shutil.rmtree(path)
    return Curve("Spark write" + suffix, points[1:])


def _peak_of_spark_python() -> float:
    """In MiB; left out are the JVM between them and this process, which has done other work."""
    parents: dict[int, int] = {}
    peaks: dict[int, float] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue  # it has ended
        process = int(fields["Pid"])
        parents[process] = int(fields["PPid"])
        if fields["Name"].strip() != "java":
            peaks[process] = int(fields.get("VmHWM", "0").split()[0]) / 1024
    ours = {os.getpid()}
    while found := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= found
    return max(peaks.get(process, 0.0) for process in ours - {os.getpid()})
