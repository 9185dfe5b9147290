"""Arrow columns of bytes and text from scattered places in one array of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqlog.commitlog_format.compiled import kernels
from rmqlog.commitlog_format.errors import InvalidNameError
from rmqlog.commitlog_format.text import decode_text

#: Arrow's offsets are 32 bits wide.
MAX_COLUMN_SIZE = 2**31 - 1
#: A view of no more bytes than this holds them itself.
_INLINE_SIZE = 12
_VIEW_WORDS = 4

_Number = TypeVar("_Number", np.uint8, np.int32, np.int64, np.uint64)


def new_array(shape: int | tuple[int, int], dtype: type[_Number]) -> NDArray[_Number]:
    """An array with anything in it, for a column to be.

    Its memory is Arrow's, which keeps what is freed: from numpy it would go back to the system,
    and the first touch of a new page takes longer than filling it.
    """
    count = shape if isinstance(shape, int) else shape[0] * shape[1]
    memory = pa.allocate_buffer(count * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype, count).reshape(shape)


def column_of(kind: pa.DataType, data: NDArray[np.uint8], bounds: NDArray[np.int32]) -> pa.Array:
    """A column of the pieces of ``data`` between the bounds."""
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data[: bounds[-1]])]
    return pa.Array.from_buffers(kind, len(bounds) - 1, buffers)


def items_at(
    data: NDArray[np.uint8], positions: NDArray[np.int64], size: int
) -> NDArray[np.void]:
    """Copies of ``size`` bytes from each position; all of them must lie within ``data``."""
    # A view in which every byte begins an item: indexing it copies whole items.
    every_item = np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))
    return every_item[positions]


def gather_binary(
    data: NDArray[np.uint8], positions: NDArray[np.int64], sizes: NDArray[np.int64]
) -> pa.BinaryArray:
    """Pieces of ``data``, anywhere and of any size, as a column that shares no memory with it.

    Arrow's views describe the pieces and its cast copies them: over 4 GB/s. The pieces must lie
    within ``data``, and their sizes sum up to ``MAX_COLUMN_SIZE`` at most.
    """
    loops = kernels(len(positions))
    if loops is not None:
        return _gather_compiled(loops, data, positions, sizes)
    count = len(positions)
    # A view is the size, then the bytes or: a prefix that nobody reads here, which buffer, where.
    views = np.zeros((count, _VIEW_WORDS), np.int32)
    views[:, 0] = sizes
    views[:, 3] = positions
    short = np.flatnonzero(sizes <= _INLINE_SIZE)
    if len(short):
        views[short, 1:] = _inline_bytes(data, positions[short], sizes[short])
    array = pa.Array.from_buffers(
        pa.binary_view(), count, [None, pa.py_buffer(views), pa.py_buffer(data)]
    )
    return array.cast(pa.binary())


def _gather_compiled(
    loops: ModuleType, data: NDArray[np.uint8], positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> pa.BinaryArray:
    pieces = new_array(int(sizes.sum()) + loops.SPARE, np.uint8)
    bounds = new_array(len(positions) + 1, np.int32)
    stopped = loops.gather(loops.read_only(data), positions, sizes, pieces, bounds)
    assert stopped == loops.ALL_ROWS, f"piece {stopped} is not within the data"
    return column_of(pa.binary(), pieces, bounds)


def _inline_bytes(
    data: NDArray[np.uint8], positions: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.int32]:
    """The 12 bytes from each position as three words; zeros behind the end of ``data``."""
    words = np.zeros((len(positions), _INLINE_SIZE // 4), np.int32)
    whole = positions <= len(data) - _INLINE_SIZE
    if whole.any():
        inside = items_at(data, positions[whole], _INLINE_SIZE)
        words[whole] = inside.view(np.int32).reshape(-1, words.shape[1])
    as_bytes = words.view(np.uint8)
    for row in np.flatnonzero(~whole).tolist():
        start, size = int(positions[row]), int(sizes[row])
        as_bytes[row, :size] = data[start : start + size]
    return words


def slice_binary(buffer: pa.Buffer, bounds: NDArray[np.integer]) -> pa.BinaryArray:
    """Pieces of a buffer that follow one another in it, with gaps of any size between them.

    ``bounds`` has a line for each piece: where it begins and where it ends.
    """
    count = len(bounds)
    # One array of pieces and gaps in turn, of which every other element is taken.
    both = np.empty(2 * count + 1, np.int32)
    both[:-1].reshape(count, 2)[:] = bounds
    both[-1] = both[-2] if count else 0
    pieces_and_gaps = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(both), buffer]
    )
    pieces = np.arange(0, 2 * count, 2, dtype=np.int32)
    return pc.take(pieces_and_gaps, pa.array(pieces), boundscheck=False)


def all_equal(data: NDArray[np.uint8], positions: NDArray[np.int64], size: int) -> bool:
    """Whether the same ``size`` bytes stand at all positions."""
    # Each item is compared with the next one, in one long run of bytes.
    items = items_at(data, positions, size).view(np.uint8)
    return bool((items[size:] == items[:-size]).all())


def string_array(texts: Sequence[str]) -> pa.StringArray:
    """A column of texts that a caller gave; one with a lone surrogate is no text."""
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError as error:
        raise InvalidNameError("text without a UTF-8 form", found=ascii(error.object)) from error


@lru_cache(maxsize=8)
def repeat_string(text: str, count: int) -> pa.StringArray:
    """A column of one text; batches of the same size share it."""
    data = text.encode()
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


@lru_cache(maxsize=8)
def repeated_strings(texts: tuple[str, ...], count: int) -> pa.StringArray:
    """A column of the same few texts, again and again."""
    indices = np.tile(np.arange(len(texts), dtype=np.int32), count)
    return pa.array(texts, pa.string()).take(pa.array(indices))


def as_strings(column: pa.BinaryArray) -> pa.StringArray:
    """The column as text; UTF-8 that is malformed reads as Java reads it (``decode_text``)."""
    strings = pa.Array.from_buffers(
        pa.string(), len(column), column.buffers(), column.null_count, column.offset
    )
    # ASCII, the common case, is seen at once; a cast to string would look at every element.
    if column_bytes(column).max(initial=0) < 0x80:
        return strings
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        texts = [None if data is None else decode_text(data) for data in column.to_pylist()]
        return pa.array(texts, pa.string())
    return strings


def column_bytes(column: pa.BinaryArray) -> NDArray[np.uint8]:
    """All bytes of a column's elements, one after another."""
    bounds = column_bounds(column)
    buffer = column.buffers()[2]
    if buffer is None or buffer.size == 0:
        return np.zeros(0, np.uint8)
    return np.frombuffer(buffer, np.uint8)[bounds[0] : bounds[-1]]


def column_bounds(column: pa.BinaryArray) -> NDArray[np.int32]:
    """Where each element begins in the column's buffer, and where the last one ends."""
    buffer = column.buffers()[1]
    if buffer is None or buffer.size == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(buffer, np.int32)[column.offset : column.offset + len(column) + 1]
