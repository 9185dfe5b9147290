"""Loops over records and entries that are written, compiled by numba; :mod:`kernels` has them.

What they are given was made by the writer, or was staged by a task and is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.kernel_words import (
    copy_bytes,
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


def _position(name: str) -> int:
    """Where a field of the plain header is."""
    fields: Mapping[str, Any] = layout.RECORD_HEADER_V4.fields or {}
    return int(fields[name][1])


_MAGIC_POSITION = _position("magic")
_BODY_CRC_POSITION = _position("body_crc")
_FLAG_POSITION = _position("flag")
_QUEUE_OFFSET_POSITION = _position("queue_offset")
_PHYSICAL_OFFSET_POSITION = _position("physical_offset")
_SYS_FLAG_POSITION = _position("sys_flag")
_BORN_TIMESTAMP_POSITION = _position("born_timestamp")
_BORN_HOST_POSITION = _position("born_host")
_STORE_TIMESTAMP_POSITION = _position("store_timestamp")
_STORE_HOST_POSITION = _position("store_host")
_RECONSUME_TIMES_POSITION = _position("reconsume_times")
_PREPARED_POSITION = _position("prepared_transaction_offset")
_HEADER_SIZE = layout.RECORD_HEADER_V4.itemsize
_MIN_RECORD_SIZE = layout.MIN_RECORD_SIZE
_SLOT_SIZE = layout.INDEX_SLOT.itemsize
_ENTRY_SIZE = layout.INDEX_ENTRY.itemsize
#: The slots of so many entries ahead are asked for: each lies on a cache line of its own.
_ENTRIES_AHEAD = 8
_WEIGHT_1, _WEIGHT_2 = map(np.uint64, layout.SLOT_WEIGHT_FACTORS)
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_END = layout.PROPERTY_SEPARATOR
#: The lines of numbers that :func:`put_records` takes: two arrays, because each one that a kernel
#: is given costs a call some microseconds.
RECORD_LONGS = (
    *("total_size", "queue_offset", "born_timestamp", "store_timestamp"),
    *("prepared_transaction_offset", "body_start", "body_size"),
    *("properties_start", "properties_size"),
)
(
    _TOTAL_SIZE, _QUEUE_OFFSET, _BORN_TIMESTAMP, _STORE_TIMESTAMP, _PREPARED, _BODY_START,
    _BODY_SIZE, _PROPERTIES_START, _PROPERTIES_SIZE,
) = range(len(RECORD_LONGS))
RECORD_INTS = (
    *("topic_code", "queue_id", "flag", "sys_flag", "born_host_code", "reconsume_times"),
    "body_crc",
)
(
    _TOPIC_CODE, _QUEUE_ID, _FLAG, _SYS_FLAG, _HOST_CODE, _RECONSUME_TIMES, _BODY_CRC,
) = range(len(RECORD_INTS))


@part
def _put_long(data: Any, place: Any, value: Any) -> None:
    store_word(data, place, swap_word(np.uint64(value)))


@part
def _put_halves(data: Any, place: Any, first: Any, second: Any) -> None:
    """Two numbers of 32 bits, one behind the other."""
    low = np.uint64(second) & _LOW_HALF
    store_word(data, place, swap_word(np.uint64(first) << _HALF | low))


@part
def _is_within(start: Any, size: Any, room: Any) -> Any:
    return start >= 0 and 0 <= size <= room - start


@kernel
def put_property(
    target: Any, places: Any, prefix: Any, data: Any, starts: Any, sizes: Any
) -> int:
    """Put a prefix, a value and the byte that ends it at the place of each row that has a value.

    Stops at a row whose value is not within its column.
    """
    for row in range(len(sizes)):
        size = sizes[row]
        if size == 0:
            continue
        place = places[row]
        if not _is_within(starts[row], size, len(data)):
            return row
        if not _is_within(place, len(prefix) + size + 1, len(target)):
            return row
        copy_bytes(prefix, 0, len(prefix), target, place)
        place += len(prefix)
        copy_bytes(data, starts[row], size, target, place)
        place += size
        target[place] = _END
    return _ALL_ROWS


@kernel
def put_records(
    target: Any, physical_offset: Any, longs: Any, ints: Any, topics: Any, topic_bounds: Any,
    topic_magics: Any, hosts: Any, bodies: Any, properties: Any,
) -> int:
    """The bytes of records with IPv4 hosts, one behind the other.

    ``longs`` and ``ints`` have a line for each of :data:`RECORD_LONGS` and :data:`RECORD_INTS`.
    ``topics`` are the topics with their lengths in front, between the bounds; ``hosts`` are words
    as they are on disk, the last one the store's. Stops at a row that does not fit in its arrays.
    """
    start = np.int64(0)
    for row in range(longs.shape[1]):
        code = ints[_TOPIC_CODE, row]
        topic_size = topic_bounds[code + 1] - topic_bounds[code]
        body_start, body_size = longs[_BODY_START, row], longs[_BODY_SIZE, row]
        text_start, text_size = longs[_PROPERTIES_START, row], longs[_PROPERTIES_SIZE, row]
        size = _HEADER_SIZE + body_size + topic_size + 2 + text_size
        if size != longs[_TOTAL_SIZE, row] or not _is_within(start, size, len(target)):
            return row
        if not _is_within(body_start, body_size, len(bodies)):
            return row
        if not _is_within(text_start, text_size, len(properties)):
            return row
        prepared = longs[_PREPARED, row]
        # Two fields of 32 bits at once, or one, whose other half the next one overwrites.
        _put_halves(target, start, size, topic_magics[code])
        _put_halves(target, start + _BODY_CRC_POSITION, ints[_BODY_CRC, row], ints[_QUEUE_ID, row])
        _put_halves(target, start + _FLAG_POSITION, ints[_FLAG, row], 0)
        _put_long(target, start + _QUEUE_OFFSET_POSITION, longs[_QUEUE_OFFSET, row])
        _put_long(target, start + _PHYSICAL_OFFSET_POSITION, physical_offset + start)
        _put_halves(target, start + _SYS_FLAG_POSITION, ints[_SYS_FLAG, row], 0)
        _put_long(target, start + _BORN_TIMESTAMP_POSITION, longs[_BORN_TIMESTAMP, row])
        store_word(target, start + _BORN_HOST_POSITION, hosts[ints[_HOST_CODE, row]])
        _put_long(target, start + _STORE_TIMESTAMP_POSITION, longs[_STORE_TIMESTAMP, row])
        store_word(target, start + _STORE_HOST_POSITION, hosts[-1])
        _put_halves(target, start + _RECONSUME_TIMES_POSITION, ints[_RECONSUME_TIMES, row], 0)
        _put_long(target, start + _PREPARED_POSITION, prepared)
        # The size of the body ends the header: it is put with the half in front of it.
        _put_halves(target, start + _HEADER_SIZE - 8, prepared, body_size)
        place = start + _HEADER_SIZE
        copy_bytes(bodies, body_start, body_size, target, place)
        place += body_size
        copy_bytes(topics, topic_bounds[code], topic_size, target, place)
        place += topic_size
        target[place] = text_size >> 8
        target[place + 1] = text_size & 0xFF
        copy_bytes(properties, text_start, text_size, target, place + 2)
        start += size
    return _ALL_ROWS


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


@part
def _put_entry(
    entries: Any, row: Any, key_hash: Any, physical_offset: Any, time_diff: Any, previous: Any
) -> None:
    start = row * _ENTRY_SIZE
    offset = np.uint64(physical_offset)
    key_half = np.uint64(np.uint32(key_hash)) << _HALF
    store_word(entries, start, swap_word(key_half | offset >> _HALF))
    time_half = np.uint64(time_diff) & _LOW_HALF
    store_word(entries, start + 8, swap_word((offset & _LOW_HALF) << _HALF | time_half))
    # Its lower half is overwritten by the next entry.
    store_word(entries, start + 16, swap_word(np.uint64(previous) << _HALF))


@part
def _slot_weight(slot: Any) -> Any:
    """What a slot counts by in the sum over all slots (the finaliser of splitmix64)."""
    weight = (np.uint64(slot) + np.uint64(1)) * _WEIGHT_1
    weight = (weight ^ weight >> np.uint64(30)) * _WEIGHT_2
    return weight ^ weight >> np.uint64(27)


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
        _put_entry(entries, row, hashes[row], physical_offsets[row], time_diffs[row], previous)
    return count, empty_count


@kernel
def chain_entries_in_memory(
    hashes: Any, physical_offsets: Any, time_diffs: Any, heads: Any, first_number: Any,
    entries: Any,
) -> Any:
    """The same where all slots of the file are in memory, as numbers: each leads to its last
    entry at once. Returns how many were empty, and by how much their weighted sum has grown."""
    empty_count = np.int64(0)
    growth = np.uint64(0)
    for row in range(len(hashes)):
        if row + _ENTRIES_AHEAD < len(hashes):
            prefetch(heads, np.int64(hashes[row + _ENTRIES_AHEAD]) % len(heads))
        number = first_number + row
        slot = np.int64(hashes[row]) % len(heads)
        previous = np.int64(heads[slot])
        # A slot that points outside of the entries is taken for an empty one.
        if previous <= 0 or previous > number:
            previous = np.int64(0)
            empty_count += 1
        heads[slot] = number
        growth += _slot_weight(slot) * np.uint64(number - previous)
        _put_entry(entries, row, hashes[row], physical_offsets[row], time_diffs[row], previous)
    return empty_count, growth
