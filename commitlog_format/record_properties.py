"""The properties of many records at once: the map column, and single properties as columns.

All properties strings are gathered into one buffer and their separators found in one pass. In
nearly every batch the records carry the same names in the same order (:class:`_UniformPairs`):
then names and map offsets are constants and only values are cut out. Whatever differs takes
the general way (:class:`_MixedPairs`). Both give what ``properties.parse_properties`` gives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqlog.commitlog_format.binary_columns import (
    all_equal,
    as_strings,
    column_bounds,
    column_bytes,
    gather_binary,
    repeated_strings,
    slice_binary,
)
from rmqlog.commitlog_format.layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from rmqlog.commitlog_format.record_fields import RecordFields
from rmqlog.commitlog_format.split_pairs import SplitPairs, split_pairs
from rmqlog.commitlog_format.text import decode_text

#: A bit for each distinct name tells quickly whether a record repeats one.
_MAX_NAME_BITS = 62


class PropertyColumns:
    """The properties of the records of one batch: those of some names, and the map if it is
    wanted."""

    def __init__(
        self, fields: RecordFields, names: Sequence[str], *, with_map: bool
    ) -> None:
        compiled = split_pairs(fields, names, with_map=with_map)
        if compiled is not None:
            self._pairs: SplitPairs | _UniformPairs | _MixedPairs = compiled
            return
        texts = gather_binary(fields.window, fields.properties.positions, fields.properties.sizes)
        bounds = column_bounds(texts).astype(np.int64)
        data = column_bytes(texts)
        self._pairs = _UniformPairs.find(data, bounds) or _MixedPairs(data, bounds)

    def map_column(self) -> pa.MapArray:
        """All properties, in the order of their first appearance."""
        return self._pairs.map_column()

    def column(self, name: str) -> pa.StringArray:
        """One property; null where a record does not have it."""
        return self._pairs.column(name)


class _UniformPairs:
    """Records that all have the same names in the same order, none of them twice."""

    def __init__(
        self, data: NDArray[np.uint8], names: list[str], value_bounds: NDArray[np.int32]
    ) -> None:
        self._buffer = pa.py_buffer(data)
        self._names = names
        #: For each row and name, where the value begins and where it ends.
        self._value_bounds = value_bounds
        self._values: pa.StringArray | None = None

    @staticmethod
    def find(data: NDArray[np.uint8], bounds: NDArray[np.int64]) -> _UniformPairs | None:
        """The pairs, or ``None`` if the records are not that uniform.

        Names have the same size in every row, so it is enough to find the 0x01 behind each: the
        value before it ends where the name begins. As many 0x02 as there are such places, and
        one at each of them, leave none for the inside of a value.
        """
        row_count = len(bounds) - 1
        first = _first_row_names(data[: bounds[1]].tobytes()) if row_count else None
        if first is None:
            return None
        names, is_closed = first
        all_splits = np.flatnonzero(data == NAME_VALUE_SEPARATOR)
        end_count = np.count_nonzero(data == PROPERTY_SEPARATOR)
        if len(all_splits) != row_count * len(names):
            return None
        if end_count != row_count * (len(names) - 1 + is_closed):
            return None
        splits = all_splits.reshape(row_count, len(names))
        row_starts, row_ends = bounds[:-1], bounds[1:]
        if not (splits[:, 0] - len(names[0]) == row_starts).all():
            return None
        if is_closed and not (data[row_ends - 1] == PROPERTY_SEPARATOR).all():
            return None
        value_bounds = np.empty((row_count, len(names), 2), np.int32)
        for index, name in enumerate(names):
            # The separators on both sides of the name are compared along with it.
            before = len(name) + (1 if index else 0)
            places = splits[:, index] - before
            if not all_equal(data, places, before + 1):
                return None
            value_bounds[:, index, 0] = splits[:, index] + 1
            value_bounds[:, index - 1, 1] = places
        value_bounds[:, -1, 1] = row_ends - is_closed
        if not (value_bounds[:, :, 0] < value_bounds[:, :, 1]).all():
            return None
        return _UniformPairs(data, [decode_text(name) for name in names], value_bounds)

    def map_column(self) -> pa.MapArray:
        row_count, name_count = len(self._value_bounds), len(self._names)
        bounds = pa.array(np.arange(row_count + 1, dtype=np.int32) * np.int32(name_count))
        keys = repeated_strings(tuple(self._names), row_count)
        self._values = as_strings(slice_binary(self._buffer, self._value_bounds.reshape(-1, 2)))
        return pa.MapArray.from_arrays(bounds, keys, self._values)

    def column(self, name: str) -> pa.StringArray:
        if name not in self._names:
            return pa.nulls(len(self._value_bounds), pa.string())
        pair = self._names.index(name)
        if self._values is not None:
            places = np.arange(pair, len(self._values), len(self._names), dtype=np.int32)
            return self._values.take(pa.array(places))
        return as_strings(slice_binary(self._buffer, self._value_bounds[:, pair]))


def _first_row_names(text: bytes) -> tuple[list[bytes], bool] | None:
    """The names in a properties string, and whether 0x02 closes it.

    ``None`` if a pair is empty or cut off, if a name comes twice or a value holds a 0x01.
    """
    pairs = text.split(bytes([PROPERTY_SEPARATOR]))
    is_closed = pairs[-1] == b""
    split_pairs = [
        pair.split(bytes([NAME_VALUE_SEPARATOR])) for pair in (pairs[:-1] if is_closed else pairs)
    ]
    if not split_pairs or not all(len(pair) == 2 and all(pair) for pair in split_pairs):
        return None
    names = [name for name, _ in split_pairs]
    # As texts, for names of malformed UTF-8 may read alike.
    is_unique = len({decode_text(name) for name in names}) == len(names)
    return (names, is_closed) if is_unique else None


class _MixedPairs:
    """Records with any properties: unlike, repeated, cut off or none at all."""

    def __init__(self, data: NDArray[np.uint8], bounds: NDArray[np.int64]) -> None:
        self._row_count = len(bounds) - 1
        #: The row of each pair.
        self._rows, name_starts, name_ends, value_ends = _find_pairs(data, bounds)
        buffer = pa.py_buffer(data)
        names = slice_binary(buffer, np.column_stack((name_starts, name_ends)))
        values = slice_binary(buffer, np.column_stack((name_ends + 1, value_ends)))
        self._names = as_strings(names).dictionary_encode()
        self._values = as_strings(values)
        self._drop_repeated()

    def map_column(self) -> pa.MapArray:
        bounds = np.zeros(self._row_count + 1, np.int32)
        np.cumsum(np.bincount(self._rows, minlength=self._row_count), out=bounds[1:])
        keys = self._names.dictionary.take(self._names.indices)
        return pa.MapArray.from_arrays(pa.array(bounds), keys, self._values)

    def column(self, name: str) -> pa.StringArray:
        code = pc.index(self._names.dictionary, pa.scalar(name)).as_py()
        pairs = np.flatnonzero(self._names.indices.to_numpy() == code)
        sources = np.full(self._row_count, -1, np.int64)
        sources[self._rows[pairs]] = pairs
        return self._values.take(pa.array(sources, mask=sources < 0))

    def _drop_repeated(self) -> None:
        """Of pairs of one row with one name keep the last value, in the place of the first."""
        codes = self._names.indices.to_numpy().astype(np.int64)
        name_count = len(self._names.dictionary)
        if not _has_repeated(self._rows, codes, name_count):
            return
        _, firsts, places = np.unique(
            self._rows * name_count + codes, return_index=True, return_inverse=True
        )
        lasts = np.empty(len(firsts), np.int64)
        lasts[places] = np.arange(len(codes))  # of equal places the last assignment stays
        kept = np.sort(firsts)
        self._rows = self._rows[kept]
        self._names = self._names.take(pa.array(kept))
        self._values = self._values.take(pa.array(lasts[places[kept]]))


def _find_pairs(
    data: NDArray[np.uint8], bounds: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Each pair's row, where its name starts and ends and where its value ends.

    Pairs with an empty name or value, or without 0x01, are left out.
    """
    row_starts, row_ends = bounds[:-1], bounds[1:]
    # Both separators, and NUL, which is none and very rare, are less than 3.
    marks = np.flatnonzero(data <= PROPERTY_SEPARATOR)
    kinds = data[marks]
    is_split, is_end = kinds == NAME_VALUE_SEPARATOR, kinds == PROPERTY_SEPARATOR
    splits, pair_ends = marks[is_split], marks[is_end]
    # A row begins its first pair and ends its last one, whether or not a separator stands there;
    # what is behind that separator is an empty pair.
    ends_before = np.searchsorted(pair_ends, bounds)
    starts = np.insert(pair_ends + 1, ends_before[:-1], row_starts)
    ends = np.insert(pair_ends, ends_before[1:], row_ends)
    rows = np.repeat(np.arange(len(row_starts)), np.diff(ends_before) + 1)
    # The first 0x01 of a pair ends its name; a value may hold further ones.
    splits_before = np.insert(
        np.cumsum(is_split)[is_end], ends_before[:-1], np.searchsorted(splits, row_starts)
    )
    name_ends = np.append(splits, len(data))[splits_before]
    is_pair = (name_ends > starts) & (name_ends < ends - 1)
    return rows[is_pair], starts[is_pair], name_ends[is_pair], ends[is_pair]


def _has_repeated(
    rows: NDArray[np.int64], codes: NDArray[np.int64], name_count: int
) -> bool:
    if len(rows) == 0:
        return False
    if name_count > _MAX_NAME_BITS:
        return len(np.unique(rows * name_count + codes)) < len(rows)
    bits = np.left_shift(np.int64(1), codes)
    row_starts = np.flatnonzero(np.diff(rows, prepend=-1))
    # Adding bits differs from joining them as soon as one comes twice.
    added = np.add.reduceat(bits, row_starts)
    joined = np.bitwise_or.reduceat(bits, row_starts)
    return bool((added != joined).any())
