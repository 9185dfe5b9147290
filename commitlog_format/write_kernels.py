"""Loops over records and entries that are written, compiled by numba; :mod:`kernels` has them.

What they are given was made by the writer, or was staged by a task and is checked here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.kernel_words import (
    kernel,
    load_half,
    part,
    prefetch,
    store_word,
    swap_half,
    swap_word,
)

_ALL_ROWS = -1
_MAGIC_V1, _MAGIC_V2 = layout.MAGIC_V1, layout.MAGIC_V2
_MAGIC_POSITION = layout.MAGIC_POSITION
_QUEUE_OFFSET_POSITION = layout.QUEUE_OFFSET_POSITION
_PHYSICAL_OFFSET_POSITION = layout.PHYSICAL_OFFSET_POSITION
_BORN_TIMESTAMP_POSITION = layout.BORN_TIMESTAMP_POSITION
_MIN_RECORD_SIZE = layout.MIN_RECORD_SIZE
_SLOT_SIZE = layout.INDEX_SLOT.itemsize
_ENTRY_SIZE = layout.INDEX_ENTRY.itemsize
#: The slots of so many entries ahead are asked for: each lies on a cache line of its own.
_ENTRIES_AHEAD = 8
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)


@part
def _put_long(data: Any, place: Any, value: Any) -> None:
    store_word(data, place, swap_word(np.uint64(value)))


@kernel
def complete_records(
    data: Any, sizes: Any, queue_offsets: Any, physical_offset: Any, born_open: Any,
    store_time_positions: Any, timestamp: Any,
) -> int:
    """Fill in what a commit decides, in records that lie one behind the other in ``data``.

    Stops at a row where no record of its size begins.
    """
    start = np.int64(0)
    for row in range(len(sizes)):
        size = sizes[row]
        if size < _MIN_RECORD_SIZE or size > len(data) - start:
            return row
        magic = swap_half(load_half(data, start + _MAGIC_POSITION))
        if magic != _MAGIC_V1 and magic != _MAGIC_V2:
            return row
        if swap_half(load_half(data, start)) != np.uint32(size):
            return row
        _put_long(data, start + _QUEUE_OFFSET_POSITION, queue_offsets[row])
        _put_long(data, start + _PHYSICAL_OFFSET_POSITION, physical_offset + start)
        if born_open[row]:
            _put_long(data, start + _BORN_TIMESTAMP_POSITION, timestamp)
        _put_long(data, start + store_time_positions[row], timestamp)
        start += size
    return _ALL_ROWS


@kernel
def chain_entries(
    hashes: Any, physical_offsets: Any, time_diffs: Any, slots: Any, slot_count: Any,
    first_number: Any, places: Any, entries: Any, changed: Any, numbers: Any,
) -> Any:
    """The bytes of index entries, each linked to the one before it in its slot.

    ``slots`` are the bytes of the file's slots. ``changed`` gets each slot that changes once, and
    ``numbers`` the entry that it is to lead to: how many there are is returned, and how many of
    them were empty. ``places`` is where a changed slot is found again: at least twice as many
    as entries, a power of two, all -1. ``entries`` has ``SPARE`` bytes behind the last one.
    """
    count = empty_count = np.int64(0)
    last_place = len(places) - 1
    for row in range(len(hashes)):
        if row + _ENTRIES_AHEAD < len(hashes):
            ahead = np.int64(hashes[row + _ENTRIES_AHEAD]) % slot_count
            prefetch(slots, ahead * _SLOT_SIZE)
        number = first_number + row
        slot = np.int64(hashes[row]) % slot_count
        place = slot & last_place
        while places[place] >= 0 and changed[places[place]] != slot:
            place = (place + 1) & last_place
        if places[place] >= 0:
            found = np.int64(places[place])
            previous = numbers[found]
        else:
            found = count
            places[place] = found
            changed[found] = slot
            count += 1
            # A slot that points outside of the entries is taken for an empty one.
            previous = np.int64(np.int32(swap_half(load_half(slots, slot * _SLOT_SIZE))))
            if previous <= 0 or previous > number:
                previous = np.int64(0)
                empty_count += 1
        numbers[found] = number
        key_hash = np.uint64(np.uint32(hashes[row]))
        offset = np.uint64(physical_offsets[row])
        start = row * _ENTRY_SIZE
        store_word(entries, start, swap_word(key_hash << _HALF | offset >> _HALF))
        time_diff = np.uint64(time_diffs[row]) & _LOW_HALF
        store_word(entries, start + 8, swap_word((offset & _LOW_HALF) << _HALF | time_diff))
        # Its lower half is overwritten by the next entry.
        store_word(entries, start + 16, swap_word(np.uint64(previous) << _HALF))
    return count, empty_count
