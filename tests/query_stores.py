"""Small stores with everything that a query can be about, made by our own writer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from small_stores import START_MS, Clock, open_writer

TAGS = ("PAID", "CREATED", "CANCELLED", None, "已支付", "Aa", "BB", "a b", "😀tag", "Z")
TOPICS = ("orders", "orders", "orders", "orders", "batch", "orderly", "%RETRY%g")


def write_query_store(path: Path, count: int = 200, seed: int = 1, first: int = 0) -> Path:
    """Messages of several topics: tags and keys with equal hashes, unicode, none, many, hot ones.

    The clock moves a second every few messages; appending again goes on with ``first``.
    """
    chosen = random.Random(seed)
    clock = Clock(START_MS + first * 1000)
    with open_writer(path, now_ms=clock) as writer:
        for number in range(first, first + count):
            if number % 3 == 0:
                clock.now_ms += 1000
            writer.append(_batch(number, chosen))
    return path


def _batch(number: int, chosen: random.Random) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({
        "topic": [chosen.choice(TOPICS)],
        "queueId": pa.array([chosen.randrange(2)], pa.int32()),
        "body": [f"body {number} ".encode() + b"." * chosen.randrange(120)],
        "tags": pa.array([chosen.choice(TAGS)], pa.string()),
        "keys": pa.array([_keys(number, chosen)], pa.string()),
    })


def _keys(number: int, chosen: random.Random) -> str | None:
    kind = chosen.randrange(8)
    forms: Sequence[str | None] = (
        None, f"order-{number}", f"order-{number} alt-{number}", "hot", f"hot order-{number % 9}",
        "order-Aa" if number % 2 else "order-BB", f"ключ-{number} 键", f"twice-{number} hot hot",
    )
    return forms[kind]
