"""Fixed-size items from scattered positions of a file, as one array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.files import ReadableFile
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS
from rmqlog.commitlog_format.mapped_windows import intact
from rmqlog.commitlog_format.segment import FileQueue

#: Fewer items than this are read one by one: a mapping costs as much as some 32 reads, but
#: touching a page in it only a tenth of one.
_MAPPED_COUNT = 32


def gather(
    file: ReadableFile,
    positions: NDArray[np.int64],
    dtype: np.dtype[Any],
    window_size: int = DEFAULT_LIMITS.window_size,
) -> NDArray[Any]:
    """The items of ``dtype`` at byte ``positions`` of a file, in the order of the positions.

    No more than ``window_size`` bytes are mapped at a time. A position whose item is not wholly
    in the file raises ``TruncatedFileError``.
    """
    order = np.argsort(positions, kind="stable")
    found = np.empty(len(positions), dtype)
    # Bytes are copied as opaque items: numpy copies a structured item field by field.
    opaque = found.view(f"V{dtype.itemsize}")
    opaque[order] = _gather_sorted(file, positions[order], dtype.itemsize, window_size)
    return found


def gather_from_queue(
    queue: FileQueue,
    offsets: NDArray[np.int64],
    dtype: np.dtype[Any],
    window_size: int = DEFAULT_LIMITS.window_size,
) -> NDArray[Any]:
    """The items at ``offsets`` of a run of files; each must lie wholly in one file."""
    order = np.argsort(offsets, kind="stable")
    ordered = offsets[order]
    found = np.empty(len(offsets), dtype)
    opaque = found.view(f"V{dtype.itemsize}")
    done = 0
    while done < len(ordered):
        file = queue.file_of(int(ordered[done]))
        stop = int(np.searchsorted(ordered, file.end))
        opaque[order[done:stop]] = _gather_sorted(
            queue.handle(file), ordered[done:stop] - file.start, dtype.itemsize, window_size
        )
        done = stop
    return found


def _gather_sorted(
    file: ReadableFile, positions: NDArray[np.int64], item_size: int, window_size: int
) -> NDArray[np.void]:
    found = np.empty(len(positions), f"V{item_size}")
    done = 0
    while done < len(positions):
        start = int(positions[done])
        last = start + max(window_size, item_size) - item_size
        stop = int(np.searchsorted(positions, last, "right"))
        found[done:stop] = (
            _mapped(file, positions[done:stop], item_size)
            if stop - done >= _MAPPED_COUNT
            else [file.read(position, item_size) for position in positions[done:stop].tolist()]
        )
        done = stop
    return found


def _mapped(
    file: ReadableFile, positions: NDArray[np.int64], item_size: int
) -> NDArray[np.void]:
    start = int(positions[0])
    size = int(positions[-1]) + item_size - start
    window = file.window(start, size)
    # A view in which every byte begins an item: indexing it copies whole items.
    items_at: NDArray[np.void] = np.ndarray(
        (size - item_size + 1,), f"V{item_size}", window, 0, (1,)
    )
    with intact(window):
        return items_at[positions - start]
