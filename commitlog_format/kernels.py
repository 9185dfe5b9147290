"""Loops over the bytes of records, compiled by numba. Import it by :mod:`compiled` only.

A kernel gets bytes that somebody else wrote, and nothing checks a place for it: each one is
compared with the bounds of its array before it is used, and each length is read once. Whatever is
not plain makes a kernel return the row where it stopped; the caller then takes the way of numpy,
which knows every case and names every error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.kernel_words import (
    call_crc32,
    kernel,
    load_half,
    load_word,
    part,
    prefetch,
    store_word,
    swap_half,
    swap_word,
    trailing_zeros,
)
from rmqlog.commitlog_format.write_kernels import (
    chain_entries,
    chain_entries_in_memory,
    complete_records,
    put_property,
    put_records,
)

__all__ = [
    "ALL_ROWS", "PLACES", "SPARE", "chain_entries", "chain_entries_in_memory", "checksums",
    "complete_records", "find_fields", "follow_records", "gather", "hash_ascii", "put_property",
    "put_records", "read_only", "split_properties",
]

#: What a kernel returns when it did all rows.
ALL_ROWS = -1
#: What :func:`find_codes` returns when some unit holds an address of the ext file.
HOLDS_ADDRESS = -1
#: The lines of what :func:`find_fields` says of places.
PLACES = ("body_size", "topic_start", "topic_size", "properties_start", "properties_size")
#: Room that kernels want behind what they fill: they copy by words.
SPARE = 8

_HEADER_SIZE = layout.RECORD_HEADER_V4.itemsize
_BODY_SIZE_POSITION = _HEADER_SIZE - 4
_MAGIC_V1, _MAGIC_V2 = layout.MAGIC_V1, layout.MAGIC_V2
_PREFIX_SIZE = layout.PREFIX.size
_MAGIC_POSITION = layout.MAGIC_POSITION
_SYS_FLAG_POSITION = layout.SYS_FLAG_POSITION
_PHYSICAL_OFFSET_POSITION = layout.PHYSICAL_OFFSET_POSITION
_HOSTS_V6_MASK = layout.HOSTS_V6_MASK
_MIN_RECORD_SIZE = layout.MIN_RECORD_SIZE
_UNIT_SIZE = layout.CONSUME_QUEUE_UNIT.itemsize
_TAGS_CODE_POSITION = _UNIT_SIZE - 8
_SPLIT = layout.NAME_VALUE_SEPARATOR
_END = layout.PROPERTY_SEPARATOR
#: Less than any size that a unit can claim.
_NO_CLAIM = np.int64(-(2**63))
_CACHE_LINE_SIZE = 64
#: So many bytes of a record are fetched ahead, while so many rows before it are worked on.
_FETCHED_SIZE = 1024
_ROWS_AHEAD = 4
#: Pairs of one record; more are left to numpy.
_MAX_PAIRS = 64
_NOT_ASCII = 0x80
#: What is known of the names of a record: where they are, their sizes, which wanted ones they are.
_STARTS, _SIZES, _CODES = 0, 1, 2

_EACH_BYTE = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)
_ALL_SPLITS = _EACH_BYTE * np.uint64(_SPLIT)
_ALL_ENDS = _EACH_BYTE * np.uint64(_END)
_FIRST_BYTE_SIGN = np.uint64(0x80)
_LAST_WORD_SHIFT = np.uint64(48)
_ZERO, _ONE, _THREE = np.uint64(0), np.uint64(1), np.uint64(3)


def read_only(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The same bytes. For arrays that can be written kernels would be compiled once more."""
    view = data.view()
    view.flags.writeable = False
    return view


@part
def _long_at(data: Any, place: Any) -> Any:
    return np.int64(swap_word(load_word(data, place)))


@part
def _int_at(data: Any, place: Any) -> Any:
    return np.int64(np.int32(swap_half(load_half(data, place))))


@part
def _copy(data: Any, source: Any, size: Any, target: Any, place: Any) -> None:
    """Copy bytes. Up to ``SPARE`` bytes behind their new place are written too."""
    done = np.int64(0)
    while done + 8 <= size:
        store_word(target, place + done, load_word(data, source + done))
        done += 8
    # The last bytes by one word, unless it would end behind the data.
    if done < size:
        if source + done + 8 <= len(data):
            store_word(target, place + done, load_word(data, source + done))
        else:
            while done < size:
                target[place + done] = data[source + done]
                done += 1


@part
def _fetch_ahead(data: Any, start: Any, size: Any) -> None:
    """Ask for the cache lines of a record that comes soon: they are far apart where the
    records of other queues lie between, and then no processor guesses them."""
    stop = min(start + min(size, _FETCHED_SIZE), len(data))
    for place in range(max(start, 0), stop, _CACHE_LINE_SIZE):
        prefetch(data, place)


@part
def _low_bytes(count: Any) -> Any:
    """A mask of so many bytes, up to seven."""
    return (_ONE << (np.uint64(count) << _THREE)) - _ONE


@part
def _same(data: Any, one: Any, other: Any, size: Any) -> Any:
    """Whether the same bytes stand at two places."""
    done = np.int64(0)
    while done + 8 <= size:
        if load_word(data, one + done) != load_word(data, other + done):
            return False
        done += 8
    if done < size and max(one, other) + done + 8 <= len(data):
        differs = load_word(data, one + done) ^ load_word(data, other + done)
        return differs & _low_bytes(size - done) == _ZERO
    while done < size:
        if data[one + done] != data[other + done]:
            return False
        done += 1
    return True


@part
def _body_size(data: Any, start: Any, offset: Any, claimed_size: Any, largest_size: Any) -> Any:
    """The size of a record's body, if its header is sound and of the plain layout; else -1."""
    if start < 0 or start + _MIN_RECORD_SIZE > len(data):
        return -1
    total_size = _int_at(data, start)
    if total_size > largest_size or total_size > len(data) - start:
        return -1
    if claimed_size != _NO_CLAIM and total_size != claimed_size:
        return -1
    if swap_half(load_half(data, start + _MAGIC_POSITION)) != _MAGIC_V1:
        return -1
    if _int_at(data, start + _SYS_FLAG_POSITION) & _HOSTS_V6_MASK:
        return -1
    if _long_at(data, start + _PHYSICAL_OFFSET_POSITION) != offset:
        return -1
    body_size = _int_at(data, start + _BODY_SIZE_POSITION)
    return body_size if 0 <= body_size <= total_size - _MIN_RECORD_SIZE else -1


@kernel
def find_fields(
    data: Any, starts: Any, base_offset: Any, claimed_sizes: Any, largest_size: Any,
    int_positions: Any, ints: Any, long_positions: Any, longs: Any, host_positions: Any,
    hosts: Any, places: Any, bodies: Any, body_bounds: Any, is_one_topic: Any,
) -> int:
    """The fields of plain records (V1, IPv4 hosts), which begin at ``starts`` in ``data``.

    ``claimed_sizes`` are those of queue units, or empty. ``ints`` and ``longs`` get a line,
    ``hosts`` a column for each position in the header, ``places`` the lines of :data:`PLACES`.
    ``bodies`` gets the bodies if there is room for any: they are copied while they are at hand.
    """
    body_end = first_topic_start = first_topic_size = np.int64(0)
    record_size = np.int64(_FETCHED_SIZE)
    body_bounds[0] = 0
    is_one_topic[0] = True
    for row in range(len(starts)):
        start = starts[row]
        if row + _ROWS_AHEAD < len(starts):
            _fetch_ahead(data, starts[row + _ROWS_AHEAD], record_size)
        claimed_size = claimed_sizes[row] if len(claimed_sizes) > 0 else _NO_CLAIM
        body_size = _body_size(data, start, base_offset + start, claimed_size, largest_size)
        if body_size < 0:
            return row
        if len(bodies) > 0:
            if body_end + body_size + SPARE > len(bodies):
                return row
            _copy(data, start + _HEADER_SIZE, body_size, bodies, body_end)
            body_end += body_size
            body_bounds[row + 1] = body_end
        # Read once, and compared with the room there is: the file may change meanwhile.
        record_size = _int_at(data, start)
        stop = start + record_size
        topic_start = start + _HEADER_SIZE + body_size + 1
        topic_size = np.int64(np.int8(data[topic_start - 1]))
        properties_start = topic_start + topic_size + 2
        if topic_size < 0 or properties_start > min(stop, len(data)):
            return row
        properties_size = np.int64(np.int8(data[properties_start - 2])) << 8
        properties_size |= np.int64(data[properties_start - 1])
        if properties_size != stop - properties_start or stop > len(data):
            return row
        if row == 0:
            first_topic_start, first_topic_size = topic_start, topic_size
        elif topic_size != first_topic_size or not _same(
            data, topic_start, first_topic_start, topic_size
        ):
            is_one_topic[0] = False
        places[0, row] = body_size
        places[1, row] = topic_start
        places[2, row] = topic_size
        places[3, row] = properties_start
        places[4, row] = properties_size
        for index in range(len(int_positions)):
            ints[index, row] = _int_at(data, start + int_positions[index])
        for index in range(len(long_positions)):
            longs[index, row] = _long_at(data, start + long_positions[index])
        for index in range(len(host_positions)):
            hosts[row, index] = load_word(data, start + host_positions[index])
    return ALL_ROWS


@kernel
def follow_records(data: Any, stop: Any, bounds: Any) -> Any:
    """Go from record to record from the start of ``data``: how many there are.

    ``bounds`` gets where each begins, and at last where none follows that is whole, or where
    there is no more room, or ``stop`` is reached.
    """
    bounds[0] = 0
    count = position = np.int64(0)
    last = min(stop, len(data) - _PREFIX_SIZE + 1)
    while position < last and count + 1 < len(bounds):
        size = _int_at(data, position)
        magic = swap_half(load_half(data, position + _MAGIC_POSITION))
        if magic != _MAGIC_V1 and magic != _MAGIC_V2:
            break
        if size < _MIN_RECORD_SIZE or size > len(data) - position:
            break
        position += size
        count += 1
        bounds[count] = position
    return count


@part
def _first_equal(word: Any, repeated: Any) -> Any:
    """Which byte of a word is the first that equals one byte, given eight times; 8 if none."""
    differs = word ^ repeated
    equal = (differs - _EACH_BYTE) & ~differs & _HIGH_BITS
    return np.int64(trailing_zeros(equal) >> _THREE)


@part
def _find(data: Any, start: Any, stop: Any, repeated: Any) -> Any:
    """Where a byte, given eight times, comes first; ``stop`` if it does not."""
    place = start
    while place < stop and place + 8 <= len(data):
        found = _first_equal(load_word(data, place), repeated)
        if found < 8:
            return min(place + found, stop)
        place += 8
    while place < stop and data[place] != repeated & np.uint64(0xFF):
        place += 1
    return min(place, stop)


@part
def _copy_text(data: Any, start: Any, stop: Any, target: Any, place: Any) -> Any:
    """Copy a value up to the byte that ends it: its size, and all its bytes joined into one word.

    Up to ``SPARE`` bytes behind their new place are written too.
    """
    joined = _ZERO
    done = np.int64(0)
    size = stop - start
    while done < size and start + done + 8 <= len(data):
        word = load_word(data, start + done)
        store_word(target, place + done, word)
        count = min(_first_equal(word, _ALL_ENDS), size - done)
        if count < 8:
            return done + count, joined | (word & _low_bytes(count))
        joined |= word
        done += 8
    while done < size and data[start + done] != _END:
        target[place + done] = data[start + done]
        joined |= np.uint64(data[start + done])
        done += 1
    return done, joined


@part
def _code_of(data: Any, start: Any, size: Any, names: Any, bounds: Any) -> Any:
    """Which of some names stands at a place; -1 if it is another one."""
    for code in range(len(bounds) - 1):
        if bounds[code + 1] - bounds[code] == size:
            same = True
            for index in range(size):
                same = same and names[bounds[code] + index] == data[start + index]
            if same:
                return code
    return -1


@part
def _learn_name(
    data: Any, place: Any, stop: Any, wanted_names: Any, wanted_bounds: Any, known: Any, pair: Any
) -> Any:
    """Note the name at a place: its size; 0 if there is none that is plain."""
    size = _find(data, place, stop, _ALL_SPLITS) - place
    if not 0 < size < stop - place or pair >= _MAX_PAIRS:
        return 0
    for index in range(place, place + size):
        if data[index] >= _NOT_ASCII or data[index] == _END:
            return 0
    known[_STARTS, pair] = place
    known[_SIZES, pair] = size
    known[_CODES, pair] = _code_of(data, place, size, wanted_names, wanted_bounds)
    return size


@part
def _is_repeated(data: Any, known: Any, count: Any) -> Any:
    """Whether a name comes twice among the names of one record."""
    for one in range(count):
        for other in range(one):
            size = known[_SIZES, one]
            if size == known[_SIZES, other] and _same(
                data, known[_STARTS, one], known[_STARTS, other], size
            ):
                return True
    return False


@kernel
def split_properties(
    data: Any, starts: Any, sizes: Any, wanted_names: Any, wanted_bounds: Any, columns: Any,
    column_size: Any, column_bounds: Any, is_there: Any, with_pairs: Any, pair_bounds: Any,
    names: Any, name_bounds: Any, values: Any, value_bounds: Any, foreign: Any,
) -> int:
    """The values of some wanted names, and all pairs if so asked, of many properties strings.

    ``columns`` has ``column_size`` bytes for the values of each wanted name. Pairs with room for
    no names must have the same ones in all rows; without pairs ``values`` serves for one record.
    ``foreign`` tells whether some byte of the values is not ASCII. Stops at a name that comes
    twice or is not ASCII, and at an empty or cut off pair.
    """
    known = np.empty((3, _MAX_PAIRS), np.int64)
    ends = np.zeros(len(wanted_bounds) - 1, np.int64)
    known_count = pair_end = name_end = value_end = np.int64(0)
    joined = _ZERO
    for row in range(len(starts)):
        place, stop = starts[row], starts[row] + sizes[row]
        if place < 0 or sizes[row] < 0 or stop > len(data):
            return row
        if value_end + sizes[row] + SPARE > len(values):
            return row
        if row + _ROWS_AHEAD < len(starts):
            _fetch_ahead(data, starts[row + _ROWS_AHEAD], sizes[row + _ROWS_AHEAD])
        pair = np.int64(0)
        is_known = True
        while place < stop:
            size = known[_SIZES, pair] if pair < known_count else np.int64(0)
            if size == 0 or place + size >= stop or not _same(
                data, place, known[_STARTS, pair], size + 1
            ):
                is_known = False
                size = _learn_name(data, place, stop, wanted_names, wanted_bounds, known, pair)
                if size == 0:
                    return row
            value_start = place + size + 1
            value_size, bytes_joined = _copy_text(data, value_start, stop, values, value_end)
            joined |= bytes_joined
            code = known[_CODES, pair]
            if value_size == 0 or pair_end + 1 >= len(value_bounds):
                return row
            if code >= 0:
                if ends[code] + value_size + SPARE > column_size or is_there[code, row]:
                    return row
                _copy(values, value_end, value_size, columns, code * column_size + ends[code])
                ends[code] += value_size
                is_there[code, row] = True
            if with_pairs:
                value_end += value_size
                pair_end += 1
                value_bounds[pair_end] = value_end
            if len(names) > 0:
                if pair_end >= len(name_bounds) or name_end + size + SPARE > len(names):
                    return row
                _copy(data, place, size, names, name_end)
                name_end += size
                name_bounds[pair_end] = name_end
            pair += 1
            place = value_start + value_size + 1
        if pair != known_count or not is_known:
            is_alike = row == 0 or len(names) > 0 or not with_pairs
            if not is_alike or _is_repeated(data, known, pair):
                return row
            known_count = pair
        for code in range(len(ends)):
            column_bounds[code, row + 1] = ends[code]
        pair_bounds[row + 1] = pair_end
    foreign[0] = joined & _HIGH_BITS != _ZERO
    return ALL_ROWS


@kernel
def gather(data: Any, starts: Any, sizes: Any, target: Any, bounds: Any) -> int:
    """Copy pieces, which lie within ``data``, one behind the other."""
    end = np.int64(0)
    bounds[0] = 0
    for row in range(len(starts)):
        size = sizes[row]
        if size < 0 or end + size + SPARE > len(target):
            return row
        if size > 0:
            if starts[row] < 0 or starts[row] + size > len(data):
                return row
            _copy(data, starts[row], size, target, end)
        end += size
        bounds[row + 1] = end
    return ALL_ROWS


@kernel
def checksums(data: Any, bounds: Any, crc32_address: Any, crcs: Any) -> None:
    """The CRC-32 of the pieces of ``data`` between the bounds."""
    for row in range(len(crcs)):
        size = np.int64(bounds[row + 1] - bounds[row])
        crcs[row] = call_crc32(crc32_address, data, bounds[row], size)


@kernel
def hash_ascii(data: Any, bounds: Any, hashes: Any) -> None:
    """Java's hash of each piece of ASCII text."""
    for row in range(len(hashes)):
        value = np.uint32(0)
        place = bounds[row]
        stop = bounds[row + 1]
        # Four at a time: each multiplication waits for the one before it.
        while place + 4 <= stop:
            four = np.uint32(data[place]) * np.uint32(29791) + np.uint32(
                data[place + 1]
            ) * np.uint32(961)
            four += np.uint32(data[place + 2]) * np.uint32(31) + np.uint32(data[place + 3])
            value = np.uint32(value * np.uint32(923521) + four)
            place += 4
        while place < stop:
            value = np.uint32(value * np.uint32(31) + np.uint32(data[place]))
            place += 1
        hashes[row] = value


@kernel
def find_codes(data: Any, is_last_word: Any, found: Any) -> Any:
    """How many units of a queue have a tags code that ends in a wanted word: ``found`` gets which.

    ``is_last_word`` tells whether a word, as it is on disk, is wanted. ``found`` has room for one
    more than there are units: each is noted, and the next overwrites it unless it counts, because
    a branch would cost more. A unit that begins like an address makes all of it void.
    """
    count = np.int64(0)
    addresses = _ZERO
    for index in range(min(len(data) // _UNIT_SIZE, len(found) - 1)):
        code = load_word(data, index * _UNIT_SIZE + _TAGS_CODE_POSITION)
        # An address begins with 0x80 to 0xfe: adding one leaves the byte's highest bit.
        addresses |= code & (code + _ONE)
        found[count] = index
        count += is_last_word[code >> _LAST_WORD_SHIFT]
    return HOLDS_ADDRESS if addresses & _FIRST_BYTE_SIGN else count
