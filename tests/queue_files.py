"""Queue files for tests: units laid out over files of one size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.layout import CONSUME_QUEUE_UNIT, PRE_BLANK_SIZE
from rmqlog.commitlog_format.segment import FileQueue


def make_units(offsets: Sequence[int], tags_codes: Sequence[int] | None = None) -> np.ndarray:
    """Units of 100-byte records at these offsets of the log."""
    units = np.zeros(len(offsets), CONSUME_QUEUE_UNIT)
    units["commit_log_offset"] = offsets
    units["size"] = 100
    units["tags_code"] = [0] * len(offsets) if tags_codes is None else tags_codes
    return units


def pre_blank_units(count: int) -> np.ndarray:
    """What fills the first file of a queue below its first offset."""
    units = np.zeros(count, CONSUME_QUEUE_UNIT)
    units["size"] = PRE_BLANK_SIZE
    return units


def join_units(*parts: np.ndarray) -> np.ndarray:
    """Units one after another (numpy's concatenate would change the byte order)."""
    return np.frombuffer(b"".join(part.tobytes() for part in parts), CONSUME_QUEUE_UNIT)


def write_queue(
    directory: Path, units: np.ndarray, file_units: int = 10, first_index: int = 0
) -> FileQueue:
    """Write units from ``first_index`` on into files of ``file_units``, zeros behind them."""
    directory.mkdir(parents=True, exist_ok=True)
    file_size = file_units * units.itemsize
    content = units.tobytes()
    for position in range(0, max(len(content), 1), file_size):
        name = f"{first_index * units.itemsize + position:020d}"
        part = content[position : position + file_size]
        (directory / name).write_bytes(part.ljust(file_size, b"\0"))
    return FileQueue.open(LocalFiles(), [str(directory)])
