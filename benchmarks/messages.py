"""The messages that benchmarks write and read: the same ones that the Java side makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.store_writer import StoreWriter

TOPIC = "bench"
QUEUE_COUNT = 4
BODY_SIZE = 300
BATCH_COUNT = 10_000


def message_batch(first: int, count: int, *, properties: int = 0) -> pa.RecordBatch:
    """Messages ``first`` to ``first + count`` by the rule that the Java driver knows.

    Byte j of the body of message i is (31 i + 7 j) mod 256. ``properties`` adds so many further
    properties to each message.
    """
    numbers = np.arange(first, first + count, dtype=np.int64)
    bodies = (31 * numbers[:, None] + 7 * np.arange(BODY_SIZE)).astype(np.uint8)
    bounds = np.arange(count + 1, dtype=np.int32) * BODY_SIZE
    columns = {
        "topic": pa.repeat(TOPIC, count),
        "queueId": pa.array((numbers % QUEUE_COUNT).astype(np.int32)),
        "tags": pa.array([f"Tag{number % 10}" for number in numbers.tolist()]),
        "keys": pa.array([f"order-{number}" for number in numbers.tolist()]),
        "uniqKey": pa.array([f"{number:032X}" for number in numbers.tolist()]),
        "body": pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(bodies)]
        ),
    }
    if properties:
        pairs = [(f"name{index}", f"value-{index}") for index in range(properties)]
        columns["properties"] = pa.array(
            [pairs] * count, pa.map_(pa.string(), pa.string())
        )
    return pa.RecordBatch.from_pydict(columns)


def write_store(
    path: Path, count: int, *, properties: int = 0, settings: StoreSettings | None = None
) -> None:
    """A store with so many messages."""
    with StoreWriter(path, settings) as writer:
        for first in range(0, count, BATCH_COUNT):
            step = min(BATCH_COUNT, count - first)
            writer.append(message_batch(first, step, properties=properties))


def small_messages(
    first: int, count: int, queue_count: int = QUEUE_COUNT
) -> pa.RecordBatch:
    """Messages of a few bytes, one in a thousand with the tag ``RARE``."""
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.repeat(TOPIC, count),
            "queueId": pa.array([number % queue_count for number in numbers], pa.int32()),
            "tags": pa.array(["RARE" if number % 1000 == 7 else "COMMON" for number in numbers]),
            "keys": pa.array([f"order-{number}" for number in numbers]),
            "body": pa.array([b"%d" % number for number in numbers], pa.binary()),
        }
    )


def write_small_store(path: Path, count: int) -> None:
    """A store of so many small messages."""
    with StoreWriter(path) as writer:
        for first in range(0, count, BATCH_COUNT):
            writer.append(small_messages(first, min(BATCH_COUNT, count - first)))
