"""The fields of plain records by compiled loops: what ``RecordFields`` finds, in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqlog.commitlog_format.binary_columns import (
    MAX_COLUMN_SIZE,
    column_of,
    new_array,
)
from rmqlog.commitlog_format.compiled import kernels
from rmqlog.commitlog_format.layout import RECORD_HEADER_V4
from rmqlog.commitlog_format.limits import Limits
from rmqlog.commitlog_format.record_fields import FieldPlaces, RecordFields, RecordGroup

_HEADER_SIZE = RECORD_HEADER_V4.itemsize
#: Lines of a table get this many elements more: if they all began at the same place of a page,
#: the processor's cache could not hold the ends of all.
_PADDING = 72
_NO_SIZES = np.empty(0, np.int64)
_NO_BYTES = np.empty(0, np.uint8)


def _names_and_positions(kind: type[np.generic]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The header's fields of one type, in any byte order, and where they are."""
    fields: Mapping[str, Any] = RECORD_HEADER_V4.fields or {}
    names = tuple(name for name, (dtype, *_) in fields.items() if dtype.type is kind)
    return names, np.array([fields[name][1] for name in names])


_INT_NAMES, _INT_POSITIONS = _names_and_positions(np.int32)
_LONG_NAMES, _LONG_POSITIONS = _names_and_positions(np.int64)
_HOST_NAMES, _HOST_POSITIONS = _names_and_positions(np.void)
_HOSTS = np.dtype([(name, RECORD_HEADER_V4[name]) for name in _HOST_NAMES])


def record_fields(
    window: NDArray[np.uint8], base_offset: int, offsets: NDArray[np.int64],
    sizes: NDArray[np.integer] | None, *, path: str, limits: Limits, with_bodies: bool = True,
) -> RecordFields:
    """The checked fields of a batch, by compiled loops where these serve.

    ``with_bodies`` tells that somebody will ask for them. Damage, and whatever is not plain,
    is for ``RecordFields``, which says what is wrong.
    """
    loops = kernels(len(offsets))
    if loops is not None and len(window) <= MAX_COLUMN_SIZE:
        plain = PlainFields(
            loops, with_bodies, window, base_offset, offsets, sizes, path=path, limits=limits
        )
        if plain.are_plain:
            return plain
    return RecordFields(window, base_offset, offsets, sizes, path=path, limits=limits)


class PlainFields(RecordFields):
    """The fields of records with the common layout; of no use unless all of them ``are_plain``."""

    def __init__(
        self, loops: ModuleType, with_bodies: bool, window: NDArray[np.uint8], base_offset: int,
        offsets: NDArray[np.int64], sizes: NDArray[np.integer] | None, *, path: str, limits: Limits,
    ) -> None:
        self._loops = loops
        self._with_bodies = with_bodies
        self._bodies: pa.BinaryArray | None = None
        self.are_plain = False
        super().__init__(window, base_offset, offsets, sizes, path=path, limits=limits)

    def _find(self) -> None:
        """By one pass; where some record is not plain, or damaged, that is all that is told."""
        loops = self._loops
        count = len(self)
        width = count + _PADDING
        ints = new_array((len(_INT_NAMES), width), np.int32)
        longs = new_array((len(_LONG_NAMES), width), np.int64)
        hosts = new_array((count, len(_HOST_POSITIONS)), np.uint64)
        places = new_array((len(loops.PLACES), width), np.int64)
        claimed = _NO_SIZES
        if self._claimed_sizes is not None:
            claimed = self._claimed_sizes.astype(np.int64, copy=False)
        bodies, bounds = _NO_BYTES, np.zeros(1, np.int32)
        room = self._room_of_bodies() if self._with_bodies else 0
        if room:
            bodies = new_array(room + loops.SPARE, np.uint8)
            bounds = new_array(count + 1, np.int32)
        is_one_topic = np.empty(1, np.bool_)
        stopped = loops.find_fields(
            loops.read_only(self.window), self._positions, self._base_offset, claimed,
            self.limits.record_size, _INT_POSITIONS, ints, _LONG_POSITIONS, longs,
            _HOST_POSITIONS, hosts, places, bodies, bounds, is_one_topic,
        )
        if stopped != loops.ALL_ROWS:
            return
        self._kept_headers = {
            **dict(zip(_INT_NAMES, ints[:, :count], strict=True)),
            **dict(zip(_LONG_NAMES, longs[:, :count], strict=True)),
        }
        self.groups = [RecordGroup(None, hosts.view(_HOSTS).reshape(count))]
        body_sizes, topics, topic_sizes, properties, properties_sizes = places[:, :count]
        self.body = FieldPlaces(self._positions + _HEADER_SIZE, body_sizes)
        self.topic = FieldPlaces(topics, topic_sizes)
        self.properties = FieldPlaces(properties, properties_sizes)
        if is_one_topic[0] and topic_sizes[0]:
            start = int(topics[0])
            self.only_topic = self.window[start : start + int(topic_sizes[0])].tobytes()
        if room:
            self._bodies = column_of(pa.binary(), bodies, bounds)
        self.are_plain = True

    def stored_bodies(self) -> pa.BinaryArray:
        """The bodies as they are on disk."""
        return super().stored_bodies() if self._bodies is None else self._bodies

    def _room_of_bodies(self) -> int:
        """As much as all bodies can take; 0 if that is not known, or more than there is.

        Claims of damaged units must not make us ask for memory.
        """
        if self._claimed_sizes is None:
            # Records in the order of the log: the last one cannot be larger than what is left.
            first, last = int(self._positions[0]), int(self._positions[-1])
            total = min(last - first + (1 << 16), len(self.window) - first)
        else:
            total = int(self._claimed_sizes.sum(dtype=np.int64))
        total -= len(self) * _HEADER_SIZE
        return total if 0 < total <= len(self.window) else 0
