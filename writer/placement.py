"""Where records go in the log: a record never crosses a segment's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout

#: Rows and bytes that are written at once: their columns and bytes stay in the cache.
CHUNK_ROWS = 16_384
CHUNK_SIZE = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Placement:
    """Rows of a batch that go into one segment: where, how many bytes, and which rows."""

    physical_offset: int
    size: int
    first_row: int
    stop_row: int


def place_records(
    sizes: NDArray[np.int64], offset: int, segment_size: int, *, in_one_segment: bool = False
) -> list[Placement]:
    """Where records of these sizes go, one behind the other from a physical offset on.

    A record that leaves no room for a filler goes to the next segment, as do all of them if
    they must lie ``in_one_segment``.
    """
    placements: list[Placement] = []
    ends = np.cumsum(sizes)
    row = 0
    while row < len(sizes):
        done = int(ends[row] - sizes[row])
        left = segment_size - offset % segment_size
        room = left - layout.SEGMENT_END_RESERVE
        fitting = int(np.searchsorted(ends, done + room, side="right"))
        if fitting == row or (in_one_segment and fitting < len(sizes)):
            offset += left
            continue
        stop = min(fitting, row + CHUNK_ROWS)
        in_chunk = int(np.searchsorted(ends, done + CHUNK_SIZE, side="right"))
        stop = min(stop, max(in_chunk, row + 1))
        size = int(ends[stop - 1]) - done
        placements.append(Placement(offset, size, row, stop))
        offset, row = offset + size, stop
    return placements


def physical_offsets(
    placements: Sequence[Placement], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The physical offset of each record."""
    offsets = np.cumsum(sizes) - sizes
    for placement in placements:
        rows = slice(placement.first_row, placement.stop_row)
        offsets[rows] += placement.physical_offset - offsets[placement.first_row]
    return offsets
