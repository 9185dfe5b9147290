"""Every input that once broke a reader, through every reader of bytes.

A file in ``regressions/`` is named after what it broke. New findings are added there as they
are: whatever reads bytes must take each of them for a value or refuse it by a typed error.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bad_input import value_or_error
from built_stores import ROOT, offset_name
from memory_files import MemoryFiles

from rmqlog.commitlog_format.batch_consume_queue import BatchConsumeQueue
from rmqlog.commitlog_format.checkpoint import decode_checkpoint
from rmqlog.commitlog_format.compression import decompress
from rmqlog.commitlog_format.config_files import parse_json
from rmqlog.commitlog_format.consume_queue import ConsumeQueue
from rmqlog.commitlog_format.index_file import IndexFile
from rmqlog.commitlog_format.message import decode_message
from rmqlog.commitlog_format.properties import parse_properties
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.text import decode_text

pytestmark = pytest.mark.fuzz

INPUTS = sorted((Path(__file__).parent / "regressions").iterdir())


def read_log(data: bytes) -> None:
    """A segment: scanned, and read by its queues."""
    store = Store(ROOT, access=MemoryFiles({f"{ROOT}/commitlog/{offset_name(0)}": data}))
    list(store.scan())
    for topic in store.topics:
        for columns in (None, ["queueOffset"]):
            list(store.read(topic, columns=columns))
        for view in store.queues_of(topic):
            assert len(view) >= 0


def read_units(data: bytes) -> None:
    """Units of both kinds of queues."""
    files = FileQueue.open(MemoryFiles({f"queue/{offset_name(0)}": data}), ["queue"])
    for kind in (ConsumeQueue, BatchConsumeQueue):
        queue = kind(files)
        end = queue.find_end(lambda unit, _: bool(unit["size"] > 0))
        queue.units(queue.find_start(0, end), end)
        if isinstance(queue, BatchConsumeQueue):
            queue.offset_range(queue.first_index, end)


def read_index(data: bytes) -> None:
    """An index file."""
    file = IndexFile(MemoryFiles({"index": data}), "index")
    file.lookup(1)
    file.lookup_many(np.arange(64))


TARGETS: dict[str, Callable[[bytes], object]] = {
    "message": decode_message,
    "properties": lambda data: parse_properties(decode_text(data)),
    "log": read_log,
    "queue": read_units,
    "index": read_index,
    "checkpoint": decode_checkpoint,
    "config": parse_json,
    "body": lambda data: [value_or_error(lambda: decompress(data, kind)) for kind in range(5)],  # noqa: B023
}


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name)
@pytest.mark.parametrize("target", TARGETS)
def test_what_broke_a_reader_once_breaks_none(path: Path, target: str) -> None:
    data = path.read_bytes()
    value_or_error(lambda: TARGETS[target](data))


def test_findings_are_kept() -> None:
    assert INPUTS
