"""Finds the fields of many records at once, and believes a record only after checking it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.binary_columns import MAX_COLUMN_SIZE, items_at
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
    """The checked records of one batch: fixed fields on demand, places of the other ones."""

    def __init__(
        self,
        window: NDArray[np.uint8],
        base_offset: int,
        offsets: NDArray[np.int64],
        sizes: NDArray[np.integer] | None,
        *,
        path: str,
        limits: Limits,
    ) -> None:
        self.window = window
        self.offsets = offsets
        self.path = path
        self.limits = limits
        self._positions = offsets - base_offset
        self._claimed_sizes = sizes
        self._check_window(base_offset)
        self.groups: list[RecordGroup] = []
        self._kept_headers: dict[str, NDArray[np.signedinteger]] = {}
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

    def _check_window(self, base_offset: int) -> None:
        if len(self.window) > MAX_COLUMN_SIZE:
            raise LimitExceededError(
                "the window is larger than any segment", self.path,
                found=len(self.window), expected=MAX_COLUMN_SIZE,
            )
        self.require(
            self.offsets >= base_offset, CorruptRecordError,
            "the record lies before the bytes at hand", self.offsets, base_offset,
        )
        left = len(self.window) - self._positions
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
        room = total_sizes - (header_size + topic_width + _PROPERTIES_SIZE_WIDTH)
        self.require(
            (body_sizes >= 0) & (body_sizes <= room), CorruptRecordError,
            "BODYLEN does not fit into TOTALSIZE", body_sizes, total_sizes, rows,
        )
        topic_size_positions = starts + header_size + body_sizes
        topic_sizes = self._small_numbers(topic_size_positions, layout.TOPIC_SIZES[magic])
        room -= body_sizes
        self.require(
            (topic_sizes >= 0) & (topic_sizes <= room), CorruptRecordError,
            "TOPICLEN does not fit into TOTALSIZE", topic_sizes, room, rows,
        )
        topic_positions = topic_size_positions + topic_width
        properties_size_positions = topic_positions + topic_sizes
        properties_sizes = self._small_numbers(properties_size_positions, layout.PROPERTIES_SIZE)
        room -= topic_sizes
        self.require(
            properties_sizes == room, CorruptRecordError,
            "PROPERTIESLEN: the lengths do not add up to TOTALSIZE", properties_sizes, room, rows,
        )
        return (
            FieldPlaces(starts + header_size, body_sizes),
            FieldPlaces(topic_positions, topic_sizes),
            FieldPlaces(properties_size_positions + _PROPERTIES_SIZE_WIDTH, properties_sizes),
        )

    def _small_numbers(
        self, positions: NDArray[np.int64], dtype: np.dtype[np.signedinteger]
    ) -> NDArray[np.int64]:
        """The numbers at these positions."""
        if len(positions) == 0:
            return np.zeros(0, np.int64)
        if dtype.itemsize == 1:  # plain bytes are gathered twice as fast as items
            return self.window.view(dtype)[positions].astype(np.int64)
        return items_at(self.window, positions, dtype.itemsize).view(dtype).astype(np.int64)
