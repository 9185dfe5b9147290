"""Finds the fields of many records at once, and believes a record only after checking it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.binary_columns import MAX_COLUMN_SIZE, gather_binary, items_at
from rmqlog.commitlog_format.errors import (
    CorruptRecordError,
    LimitExceededError,
    StoreError,
    TruncatedRecordError,
)
from rmqlog.commitlog_format.limits import Limits

_PROPERTIES_SIZE_WIDTH = layout.PROPERTIES_SIZE.itemsize


class MalformedRowsError(Exception):
    """Some rows failed a check: which ones, and how to say it of one of them.

    It never leaves the decoder, which turns it into the error of the first bad record.
    """

    def __init__(self, malformed: NDArray[np.bool_], describe: Callable[[int], StoreError]) -> None:
        super().__init__("malformed rows")
        self.malformed = malformed
        self.describe = describe


@dataclass(frozen=True, slots=True)
class RecordGroup:
    """Records of one layout: the same magic and the same widths of hosts."""

    #: Their rows; ``None`` when these are all rows, in order.
    rows: NDArray[np.int64] | None
    headers: NDArray[np.void]


@dataclass(frozen=True, slots=True)
class FieldPlaces:
    """Where a field of variable length is in the window, for every row."""

    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]


class RecordFields:
    """The checked records of one batch: fixed fields on demand, places of the other ones.

    ``sizes`` are what queue units claim. What is wrong raises ``MalformedRowsError``.
    """

    body: FieldPlaces
    topic: FieldPlaces
    properties: FieldPlaces

    def __init__(
        self, window: NDArray[np.uint8], base_offset: int, offsets: NDArray[np.int64],
        sizes: NDArray[np.integer] | None, *, path: str, limits: Limits,
    ) -> None:
        self.window = window
        self.offsets = offsets
        self.path = path
        self.limits = limits
        #: The topic of all rows, where they are seen to have one and the same.
        self.only_topic: bytes | None = None
        self.groups: list[RecordGroup] = []
        self._base_offset = base_offset
        self._positions = offsets - base_offset
        self._claimed_sizes = sizes
        self._kept_headers: dict[str, NDArray[np.signedinteger]] = {}
        self._find()

    def _find(self) -> None:
        self._check_window()
        self._find_groups()
        self._check_headers()
        self.body, self.topic, self.properties = self._find_places()

    def __len__(self) -> int:
        return len(self.offsets)

    def header(self, name: str) -> NDArray[np.signedinteger]:
        """A field of ``layout.RECORD_HEADERS`` as a native array; not for the hosts."""
        if name not in self._kept_headers:
            self._kept_headers[name] = self._merge_headers(name)
        return self._kept_headers[name]

    def stored_bodies(self) -> pa.BinaryArray:
        """The bodies as they are on disk; together they must not be too much for a column."""
        return gather_binary(self.window, self.body.positions, self.body.sizes)

    def require(
        self, good: NDArray[np.bool_], error: type[StoreError], reason: str,
        found: NDArray[np.integer], expected: object, rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Raise unless all are good; ``found`` (and ``expected``, if an array) go by row.

        With ``rows`` the arrays are about these rows only.
        """
        if good.all():
            return
        malformed = np.zeros(len(self), np.bool_)
        malformed[slice(None) if rows is None else rows] = ~good

        def describe(row: int) -> StoreError:
            index = row if rows is None else int(np.flatnonzero(rows == row)[0])
            wanted = expected[index] if isinstance(expected, np.ndarray) else expected
            return self.error(error, reason, row, found[index], wanted)

        raise MalformedRowsError(malformed, describe)

    def error(
        self, kind: type[StoreError], reason: str, row: int, found: object, expected: object
    ) -> StoreError:
        """An error about one record, with plain Python values."""
        plain = [
            value.item() if isinstance(value, np.generic) else value for value in (found, expected)
        ]
        return kind(reason, self.path, int(self.offsets[row]), *plain)

    def _check_window(self) -> None:
        if len(self.window) > MAX_COLUMN_SIZE:
            raise LimitExceededError(
                "the window is larger than any segment", self.path,
                found=len(self.window), expected=MAX_COLUMN_SIZE,
            )
        left = len(self.window) - self._positions
        if _least(self._positions) >= 0 and _least(left) >= layout.MIN_RECORD_SIZE:
            return
        self.require(
            self.offsets >= self._base_offset, CorruptRecordError,
            "the record lies before the bytes at hand", self.offsets, self._base_offset,
        )
        self.require(
            left >= layout.MIN_RECORD_SIZE, TruncatedRecordError,
            "too few bytes for a record", np.maximum(left, 0), layout.MIN_RECORD_SIZE,
        )

    def _find_groups(self) -> None:
        """Gather the headers, those of the common layout (V1, IPv4 hosts) in one go."""
        headers = self._headers(self._positions, 0)
        magic = headers["magic"]
        is_v1 = magic == layout.MAGIC_V1
        hosts_v6 = headers["sys_flag"] & layout.HOSTS_V6_MASK
        if is_v1.all() and not hosts_v6.any():
            self.groups = [RecordGroup(None, headers)]
            return
        self.require(
            is_v1 | (magic == layout.MAGIC_V2), CorruptRecordError, "not a message: its magic",
            magic, f"{layout.MAGIC_V1} or {layout.MAGIC_V2}",
        )
        for is_wanted_magic in (is_v1, ~is_v1):
            for flags in layout.RECORD_HEADERS:
                rows = np.flatnonzero(is_wanted_magic & (hosts_v6 == flags))
                if len(rows):
                    self.groups.append(self._group(rows, flags))

    def _group(self, rows: NDArray[np.int64], flags: int) -> RecordGroup:
        positions = self._positions[rows]
        needed = layout.RECORD_HEADERS[flags].itemsize + 1 + _PROPERTIES_SIZE_WIDTH
        left = len(self.window) - positions
        self.require(
            left >= needed, TruncatedRecordError, "too few bytes for a record with IPv6 hosts",
            left, needed, rows,
        )
        return RecordGroup(rows, self._headers(positions, flags))

    def _merge_headers(self, name: str) -> NDArray[np.signedinteger]:
        first = self.groups[0].headers[name]
        native = first.dtype.newbyteorder("=")
        if self.groups[0].rows is None:
            return first.astype(native)
        values = np.empty(len(self), native)
        for group in self.groups:
            values[group.rows] = group.headers[name]
        return values

    def _headers(self, positions: NDArray[np.int64], flags: int) -> NDArray[np.void]:
        dtype = layout.RECORD_HEADERS[flags]
        if len(positions) == 0:
            return np.zeros(0, dtype)
        return items_at(self.window, positions, dtype.itemsize).view(dtype)

    def _check_headers(self) -> None:
        """What can be checked for all layouts alike."""
        sizes = self.header("total_size")
        if self._claimed_sizes is not None:
            self.require(
                sizes == self._claimed_sizes, CorruptRecordError,
                "TOTALSIZE is not the size that the queue unit claims",
                sizes, self._claimed_sizes,
            )
        limit = self.limits.record_size
        self.require(
            sizes <= limit, LimitExceededError, "record is larger than allowed", sizes, limit
        )
        left = len(self.window) - self._positions
        self.require(
            sizes <= left, TruncatedRecordError, "TOTALSIZE is more than there are bytes",
            sizes, left,
        )
        physical_offsets = self.header("physical_offset")
        self.require(
            physical_offsets == self.offsets, CorruptRecordError,
            "PHYSICALOFFSET is not where the record lies", physical_offsets, self.offsets,
        )

    def _find_places(self) -> tuple[FieldPlaces, FieldPlaces, FieldPlaces]:
        """The places of body, topic and properties."""
        if self.groups[0].rows is None:
            return self._group_places(self.groups[0])
        merged = [
            FieldPlaces(np.empty(len(self), np.int64), np.empty(len(self), np.int64))
            for _ in range(3)
        ]
        for group in self.groups:
            for target, source in zip(merged, self._group_places(group), strict=True):
                target.positions[group.rows] = source.positions
                target.sizes[group.rows] = source.sizes
        return merged[0], merged[1], merged[2]

    def _group_places(self, group: RecordGroup) -> tuple[FieldPlaces, FieldPlaces, FieldPlaces]:
        headers, rows = group.headers, group.rows
        starts = self._positions if rows is None else self._positions[rows]
        magic = int(headers["magic"][0]) if len(headers) else layout.MAGIC_V1
        topic_width = layout.TOPIC_SIZES[magic].itemsize
        header_size = headers.dtype.itemsize
        total_sizes = self.header("total_size").astype(np.int64)
        total_sizes = total_sizes if rows is None else total_sizes[rows]
        body_sizes = headers["body_size"].astype(np.int64)
        room = total_sizes - body_sizes
        room -= header_size + topic_width + _PROPERTIES_SIZE_WIDTH
        self._require_room("BODYLEN", body_sizes, room, total_sizes, rows)
        topic_size_positions = starts + header_size + body_sizes
        topic_size = layout.TOPIC_SIZES[magic]
        properties_sizes = None
        if rows is None and len(starts):
            properties_sizes = self._one_topic(topic_size_positions, topic_size)
        if self.only_topic is not None:
            topic_sizes = np.full(len(starts), len(self.only_topic), np.int64)
        else:
            topic_sizes = self._small_numbers(topic_size_positions, topic_size)
        room -= topic_sizes
        self._require_room("TOPICLEN", topic_sizes, room, room + topic_sizes, rows)
        topic_positions = topic_size_positions + topic_width
        properties_size_positions = topic_positions + topic_sizes
        if properties_sizes is None:
            properties_sizes = self._small_numbers(
                properties_size_positions, layout.PROPERTIES_SIZE
            )
        self.require(
            properties_sizes == room, CorruptRecordError,
            "PROPERTIESLEN: the lengths do not add up to TOTALSIZE", properties_sizes, room, rows,
        )
        return (
            FieldPlaces(starts + header_size, body_sizes),
            FieldPlaces(topic_positions, topic_sizes),
            FieldPlaces(properties_size_positions + _PROPERTIES_SIZE_WIDTH, properties_sizes),
        )

    def _require_room(
        self, name: str, sizes: NDArray[np.int64], room: NDArray[np.int64],
        expected: NDArray[np.int64], rows: NDArray[np.int64] | None,
    ) -> None:
        """Raise unless a field's sizes can be sizes, and leave room for what comes behind it."""
        if _least(sizes) < 0 or _least(room) < 0:
            self.require(
                (sizes >= 0) & (room >= 0), CorruptRecordError,
                f"{name} does not fit into TOTALSIZE", sizes, expected, rows,
            )

    def _one_topic(
        self, positions: NDArray[np.int64], dtype: np.dtype[np.signedinteger]
    ) -> NDArray[np.int64] | None:
        """PROPERTIESLEN of all rows, if all have the topic of the first one, as in a queue.

        Topic and length lie side by side: gathered at once they cost little more than one of
        them. The topic is noted. A size that is wrong finds its error among those of all rows.
        """
        start = int(positions[0])
        name_start = start + dtype.itemsize
        size = int(self.window[start:name_start].view(dtype)[0])
        width = dtype.itemsize + size + _PROPERTIES_SIZE_WIDTH
        if size <= 0 or int(positions.max()) + width > len(self.window):
            return None
        tails = items_at(self.window, positions, width).view(np.uint8)
        # Each topic is compared with the next one, in one long run of bytes.
        same = tails[width:] == tails[:-width]
        same.reshape(-1, width)[:, -_PROPERTIES_SIZE_WIDTH:] = True
        if not same.all():
            return None
        self.only_topic = self.window[name_start : name_start + size].tobytes()
        lengths: NDArray[np.signedinteger] = np.ndarray(
            (len(positions),), layout.PROPERTIES_SIZE, tails, width - _PROPERTIES_SIZE_WIDTH,
            (width,),
        )
        return lengths.astype(np.int64)

    def _small_numbers(
        self, positions: NDArray[np.int64], dtype: np.dtype[np.signedinteger]
    ) -> NDArray[np.int64]:
        """The numbers at these positions."""
        if len(positions) == 0:
            return np.zeros(0, np.int64)
        if dtype.itemsize == 1:  # plain bytes are gathered twice as fast as items
            return self.window.view(dtype)[positions].astype(np.int64)
        return items_at(self.window, positions, dtype.itemsize).view(dtype).astype(np.int64)


def _least(numbers: NDArray[np.int64]) -> int:
    """The smallest of some numbers: tells that all are good without an array of verdicts."""
    return int(numbers.min(initial=2**63 - 1))
