"""Small stores built from records, as a broker lays them out: segments, fillers, queue units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from random_records import PLAIN_RECORD, with_body

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.layout import CONSUME_QUEUE_UNIT, PREFIX
from rmqlog.commitlog_format.message import Record, encode_record, to_message

ROOT = "store"
SEGMENT_SIZE = 4096
QUEUE_FILE_UNITS = 16


def offset_name(offset: int) -> str:
    """The file name of an offset."""
    return f"{offset:0{layout.OFFSET_NAME_DIGITS}d}"


@dataclass(frozen=True)
class BuiltStore:
    """The files of a store by their paths, and its records with their true offsets."""

    files: dict[str, bytes]
    records: list[Record]

    def write(self, directory: Path) -> Path:
        """Put the files on disk; returns the store's path."""
        for path, data in self.files.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        return directory / ROOT


def numbered_records(count: int, topics: int = 2, queues: int = 2) -> list[Record]:
    """Records that can be told apart by their bodies, of several sizes."""
    return [
        with_body(
            replace(
                PLAIN_RECORD, topic=f"topic-{number % topics}".encode(),
                queue_id=number // topics % queues,
                store_timestamp=PLAIN_RECORD.store_timestamp + number,
            ),
            f"message {number} ".encode() * (1 + number % 5),
        )
        for number in range(count)
    ]


def build_store(
    records: Iterable[Record], segment_size: int = SEGMENT_SIZE, dispatched_count: int | None = None
) -> BuiltStore:
    """Lay records out as a broker would; queue offsets are given out here.

    Only the first ``dispatched_count`` records get queue units.
    """
    next_offsets: Counter[tuple[bytes, int]] = Counter()
    log = bytearray()
    placed: list[Record] = []
    units: dict[tuple[bytes, int], list[tuple[int, int, int]]] = {}
    for record in records:
        left = segment_size - len(log) % segment_size
        if record.total_size + layout.SEGMENT_END_RESERVE > left:
            log += PREFIX.pack(left, layout.MAGIC_BLANK).ljust(left, b"\0")
        queue = (record.topic, record.queue_id)
        record = replace(
            record, physical_offset=len(log), queue_offset=next_offsets[queue]
        )
        next_offsets[queue] += 1
        if dispatched_count is None or len(placed) < dispatched_count:
            code = to_message(record).tags_code
            units.setdefault(queue, []).append((len(log), record.total_size, code))
        placed.append(record)
        log += encode_record(record)
    files = _split(f"{ROOT}/{layout.COMMIT_LOG_DIRECTORY}", bytes(log), segment_size)
    for (topic, queue_id), rows in units.items():
        folder = f"{ROOT}/{layout.CONSUME_QUEUE_DIRECTORY}/{topic.decode()}/{queue_id}"
        data = np.array(rows, CONSUME_QUEUE_UNIT).tobytes()
        files |= _split(folder, data, QUEUE_FILE_UNITS * CONSUME_QUEUE_UNIT.itemsize)
    return BuiltStore(files, placed)


def _split(folder: str, data: bytes, file_size: int) -> dict[str, bytes]:
    """Bytes over files of one size, the last one filled up with zeros."""
    return {
        f"{folder}/{offset_name(start)}": data[start : start + file_size].ljust(file_size, b"\0")
        for start in range(0, max(len(data), 1), file_size)
    }
