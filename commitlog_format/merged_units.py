"""Units of several queues in the order of the log.

Messages of a topic are dealt out to its queues, so neighbours in the log are in different
queues. To read one queue after another would visit each page of the log once for each queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.units import NO_UNITS, Units, concatenate

#: A queue with fewer units at hand gets more before units are handed on: queues that end a
#: step at nearly the same place of the log must not give batches of a few rows.
_LEAST_COUNT = 16_384
#: Behind every physical offset.
_END = 2**63 - 1


def merge_by_offset(queues: Sequence[Iterator[Units]]) -> Iterator[Units]:
    """The units of simple queues by physical offset; a unit's owner is a place in ``queues``.

    Units of one queue keep their order. Where that is not the order of the log, which is damage,
    they are handed on by themselves.
    """
    heads = [_Head(place, queue) for place, queue in enumerate(queues)]
    while heads := [head for head in heads if head.fill()]:
        disordered = next((head for head in heads if not head.is_ascending()), None)
        if disordered is not None:
            yield disordered.take(len(disordered.offsets))
            continue
        # Behind the last unit at hand there are more, unless it is the last of its queue.
        last = min((int(head.offsets[-1]) for head in heads if not head.is_last), default=_END)
        merged = concatenate(
            [head.take(int(np.searchsorted(head.offsets, last, "right"))) for head in heads]
        )
        yield merged.take(np.argsort(merged.offsets, kind="stable"))


class _Head:
    """The next units of one queue."""

    def __init__(self, place: int, units: Iterator[Units]) -> None:
        self._place = place
        self._rest = units
        self._units = NO_UNITS
        #: Whether the units at hand are the last ones.
        self.is_last = False

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the records of the units at hand are."""
        return self._units.offsets

    def fill(self) -> bool:
        """Get more units where few are left; false at the end of the queue."""
        while len(self._units) < _LEAST_COUNT and not self.is_last:
            more = next(self._rest, None)
            self.is_last = more is None
            self._units = concatenate([self._units, more or NO_UNITS])
        return len(self._units) > 0

    def is_ascending(self) -> bool:
        """Whether the units at hand are in the order of the log."""
        return bool((self.offsets[1:] >= self.offsets[:-1]).all())

    def take(self, count: int) -> Units:
        """Hand on the first units."""
        taken = self._units.take(slice(0, count))
        self._units = self._units.take(slice(count, None))
        return replace(taken, owners=np.full(len(taken), self._place, np.intp))
