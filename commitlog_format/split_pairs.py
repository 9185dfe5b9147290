"""The properties of many records by compiled loops: what ``record_properties`` gives."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqlog.commitlog_format.binary_columns import (
    as_strings,
    column_of,
    new_array,
    repeated_strings,
)
from rmqlog.commitlog_format.compiled import kernels
from rmqlog.commitlog_format.properties import parse_properties
from rmqlog.commitlog_format.record_fields import RecordFields

#: The shortest pair: a name, a separator, a value, a separator.
_SMALLEST_PAIR = 4


def split_pairs(
    fields: RecordFields, names: Sequence[str], *, with_map: bool
) -> SplitPairs | None:
    """The properties of these names, and the map of all if so asked.

    ``None`` where compiled loops do not serve, or not these records.
    """
    loops = kernels(len(fields))
    if loops is None:
        return None
    pairs = SplitPairs(fields, names, loops)
    return pairs if pairs.find(with_map) else None


class SplitPairs:
    """Records whose properties are whole: no empty ones, none cut off, no name twice."""

    def __init__(self, fields: RecordFields, names: Sequence[str], loops: ModuleType) -> None:
        self._places = fields.properties
        self._window = fields.window
        self._names = tuple(names)
        self._loops = loops
        self._columns: dict[str, pa.StringArray] = {}
        self._map: pa.MapArray | None = None

    def find(self, with_map: bool) -> bool:
        """Find everything; false where some record is not that good."""
        if not with_map:
            return self._split(with_map=False, with_names=False)
        # The names are nearly always the same in all rows, so they are copied only on demand.
        return self._split(with_map, with_names=False) or self._split(with_map, with_names=True)

    def map_column(self) -> pa.MapArray:
        """All properties."""
        assert self._map is not None, "nobody said that the map would be wanted"
        return self._map

    def column(self, name: str) -> pa.StringArray:
        """One of the wanted properties; null where a record does not have it."""
        return self._columns[name]

    def _split(self, with_map: bool, with_names: bool) -> bool:
        sizes, count, spare = self._places.sizes, len(self._places.sizes), self._loops.SPARE
        total_size = int(sizes.sum())
        pair_room = total_size // _SMALLEST_PAIR + count + 2
        pair_bounds = np.zeros(count + 1, np.int32)
        values = new_array((total_size if with_map else int(sizes.max())) + spare, np.uint8)
        value_bounds = new_array(pair_room, np.int32)
        names = new_array(total_size + spare if with_names else 0, np.uint8)
        name_bounds = new_array(pair_room if with_names else 0, np.int32)
        column_size = total_size + spare
        columns = new_array((len(self._names), column_size), np.uint8)
        column_bounds = new_array((len(self._names), count + 1), np.int32)
        is_there = np.zeros((len(self._names), count), np.bool_)
        for bounds in (value_bounds, name_bounds, column_bounds.T):
            bounds[:1] = 0
        foreign = np.zeros(1, np.bool_)
        wanted = "".join(self._names).encode()
        stopped = self._loops.split_properties(
            self._loops.read_only(self._window), self._places.positions, sizes,
            np.frombuffer(wanted, np.uint8), np.cumsum([0, *map(len, self._names)]),
            columns.reshape(-1), column_size, column_bounds, is_there, with_map, pair_bounds,
            names, name_bounds, values, value_bounds, foreign,
        )
        if stopped != self._loops.ALL_ROWS:
            return False
        texts = as_strings if foreign[0] else _as_ascii
        for code, name in enumerate(self._names):
            column = texts(column_of(pa.binary(), columns[code], column_bounds[code]))
            self._columns[name] = _with_nulls(column, is_there[code])
        if with_map:
            stop = int(pair_bounds[-1]) + 1
            items = texts(column_of(pa.binary(), values, value_bounds[:stop]))
            if with_names:
                keys = column_of(pa.string(), names, name_bounds[:stop])
            else:
                keys = self._repeated_names(pair_bounds)
            self._map = pa.MapArray.from_arrays(pa.array(pair_bounds), keys, items)
        return True

    def _repeated_names(self, pair_bounds: NDArray[np.int32]) -> pa.StringArray:
        """The keys of a map whose rows all have the names of the first one."""
        start = int(self._places.positions[0])
        text = self._window[start : start + int(self._places.sizes[0])].tobytes()
        names = tuple(parse_properties(text.decode("latin-1")))
        return repeated_strings(names, len(pair_bounds) - 1)


def _as_ascii(column: pa.BinaryArray) -> pa.StringArray:
    """The column as text, which it is known to be."""
    return pa.Array.from_buffers(pa.string(), len(column), column.buffers())


def _with_nulls(column: pa.StringArray, is_there: NDArray[np.bool_]) -> pa.StringArray:
    if is_there.all():
        return column
    valid = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(column), [valid, *column.buffers()[1:]])
