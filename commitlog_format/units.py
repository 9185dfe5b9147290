"""Queue units in whole columns, whatever file or rule they come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Units:
    """Units of one queue, ascending: where each record is and what the queue says of it.

    ``counts`` is how many messages each unit stands for; ``None`` means one each. Where units of
    several queues are merged, ``owners`` says whose each one is.
    """

    queue_offsets: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]
    counts: NDArray[np.int64] | None = None
    owners: NDArray[np.intp] | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def message_count(self) -> int:
        """How many messages the units stand for."""
        return len(self) if self.counts is None else int(self.counts.sum())

    def take(self, selection: slice | NDArray[np.int64] | NDArray[np.bool_]) -> Units:
        """Some of the units."""
        return Units(
            self.queue_offsets[selection],
            self.offsets[selection],
            self.sizes[selection],
            self.tags_codes[selection],
            None if self.counts is None else self.counts[selection],
            None if self.owners is None else self.owners[selection],
        )

    def slices(self, count_max: int, size_max: int | None = None) -> Iterator[Units]:
        """The units in runs of at most ``count_max`` messages and ``size_max`` record bytes.

        A unit that is larger than that is a run of its own.
        """
        bounds = []
        if self.counts is not None:
            bounds.append((np.cumsum(self.counts), count_max))
        if size_max is not None:
            bounds.append((np.cumsum(self.sizes), size_max))
        first = 0
        while first < len(self):
            stops = [_last_within(ends, first, limit) for ends, limit in bounds]
            stop = max(min([first + count_max, *stops]), first + 1)
            yield self.take(slice(first, stop))
            first = stop


def _last_within(ends: NDArray[np.int64], first: int, limit: int) -> int:
    """The end of the longest run from ``first`` on whose sum is within a limit."""
    before = int(ends[first - 1]) if first else 0
    return int(np.searchsorted(ends, before + limit, side="right"))


def concatenate(parts: Sequence[Units]) -> Units:
    """The units of several runs one behind another."""
    if not parts:
        return NO_UNITS
    counts = None
    if any(part.counts is not None for part in parts):
        counts = np.concatenate(
            [np.ones(len(part), np.int64) if part.counts is None else part.counts
             for part in parts]
        )
    return Units(
        np.concatenate([part.queue_offsets for part in parts]),
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        np.concatenate([part.tags_codes for part in parts]),
        counts,
        None if any(part.owners is None for part in parts)
        else np.concatenate([part.owners for part in parts if part.owners is not None]),
    )


_NOTHING = np.empty(0, np.int64)
NO_UNITS = Units(_NOTHING, _NOTHING, _NOTHING, _NOTHING)
