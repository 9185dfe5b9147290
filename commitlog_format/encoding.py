"""Many records at once: columns in, one run of record bytes out.

The columnar twin of :func:`message.encode_record`. A record is laid out by whole columns:
every header field of every record, then all bodies, then all topics, and so on, so that no
Python code runs once a message. Values are taken as they are: the writer checks the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.compiled import kernels
from rmqlog.commitlog_format.layout import I8, I16, SysFlag

#: Longer values are copied one by one: their bytes then cost more than the Python around them.
_WINDOW_SIZE_MAX = 4096
#: floor(log2(size)) for every size that is copied by windows.
_EXPONENTS = np.frexp(np.arange(_WINDOW_SIZE_MAX + 1, dtype=np.float64))[1].astype(np.int8) - 1


@dataclass(frozen=True, slots=True, eq=False)
class ByteColumn:
    """Values of any length in one buffer: value i is ``sizes[i]`` bytes from ``starts[i]`` on."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, rows: slice | NDArray[Any]) -> ByteColumn:
        return ByteColumn(self.data, self.starts[rows], self.sizes[rows])

    @classmethod
    def of(cls, values: Sequence[bytes]) -> ByteColumn:
        """A column of the given values."""
        sizes = np.fromiter(map(len, values), np.int64, len(values))
        return cls(np.frombuffer(b"".join(values), np.uint8), np.cumsum(sizes) - sizes, sizes)

    @classmethod
    def from_arrow(cls, array: pa.Array) -> ByteColumn:
        """The bytes of a string or binary array, not copied; a null is an empty value."""
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if not _has_offsets(array.type):
            array = array.cast(pa.binary())
        wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        width = np.dtype(np.int64 if wide else np.int32)
        _, offset_buffer, data_buffer = array.buffers()
        if array.null_count == len(array):
            nothing = np.zeros(len(array), np.int64)
            return cls(np.empty(0, np.uint8), nothing, nothing)
        offsets = np.frombuffer(
            offset_buffer, width, len(array) + 1, array.offset * width.itemsize
        ).astype(np.int64)
        sizes = offsets[1:] - offsets[:-1]
        if array.null_count:
            sizes[np.asarray(array.is_null())] = 0
        empty = data_buffer is None or data_buffer.size == 0
        data = np.empty(0, np.uint8) if empty else np.frombuffer(data_buffer, np.uint8)
        return cls(data, offsets[:-1], sizes)

    def value(self, row: int) -> bytes:
        """One value."""
        start = int(self.starts[row])
        return self.data[start : start + int(self.sizes[row])].tobytes()

    def to_arrow(self) -> pa.Array:
        """The values as an Arrow array of binary."""
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.sizes, out=offsets[1:])
        data = np.empty(int(offsets[-1]), np.uint8)
        put_values(data, offsets[:-1], self)
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(self), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )


def _has_offsets(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def put_values(
    target: NDArray[np.uint8], positions: NDArray[np.int64], column: ByteColumn
) -> None:
    """Copy every value of a column to its own position of the target, exactly its bytes.

    Values of one length are copied as items of that length. Others are copied by their size
    class, as two windows of the largest power of two that fits, which may overlap: one from
    the value's start and one up to its end.
    """
    sizes = column.sizes
    if not len(sizes):
        return
    smallest, largest = int(sizes.min()), int(sizes.max())
    if largest == 0:
        return
    if smallest == largest <= _WINDOW_SIZE_MAX:
        _put_windows(target, positions, column.data, column.starts, largest)
        return
    if largest > _WINDOW_SIZE_MAX:
        long = sizes > _WINDOW_SIZE_MAX
        _put_one_by_one(target, positions[long], column[long])
        positions, column, sizes = positions[~long], column[~long], sizes[~long]
        largest = int(sizes.max(initial=0))
    exponents = _EXPONENTS[sizes]
    lowest = _EXPONENTS[min(max(smallest, 1), _WINDOW_SIZE_MAX)]
    for exponent in range(lowest, _EXPONENTS[largest] + 1):
        rows = np.flatnonzero(exponents == exponent)
        if not len(rows):
            continue
        window = 1 << exponent
        into, out_of, rest = positions[rows], column.starts[rows], sizes[rows] - window
        _put_windows(target, into, column.data, out_of, window)
        _put_windows(target, into + rest, column.data, out_of + rest, window)


def _put_windows(
    target: NDArray[np.uint8],
    positions: NDArray[np.int64],
    source: NDArray[np.uint8],
    starts: NDArray[np.int64],
    size: int,
) -> None:
    first, last = int(starts[0]), int(starts[-1])
    if last - first == (len(starts) - 1) * size and (starts[1:] - starts[:-1] == size).all():
        # Back to back, as in an Arrow column of equally long values: no need to gather them.
        items = source[first : last + size].view(f"V{size}")
    else:
        items = windows(source, size)[starts]
    windows(target, size)[positions] = items


def _put_one_by_one(
    target: NDArray[np.uint8], positions: NDArray[np.int64], column: ByteColumn
) -> None:
    rows = zip(positions.tolist(), column.starts.tolist(), column.sizes.tolist(), strict=True)
    for position, start, size in rows:
        target[position : position + size] = column.data[start : start + size]


def windows(data: NDArray[np.uint8], size: int) -> NDArray[np.void]:
    """Every run of ``size`` bytes as one item: indexing it gathers or scatters at memcpy speed."""
    return np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))


def put_constant(target: NDArray[np.uint8], positions: NDArray[np.int64], value: bytes) -> None:
    """Copy the same bytes to many positions."""
    if len(positions):
        windows(target, len(value))[positions] = np.frombuffer(value, f"V{len(value)}")[0]


# --- properties -----------------------------------------------------------------------------


def encode_properties(
    named: Sequence[tuple[str, ByteColumn]], others: ByteColumn | None = None
) -> ByteColumn:
    """The properties string of every row: ``name 0x01 value 0x02`` for each non-empty value.

    ``named`` are properties that many rows have; ``others`` holds, for each row, the finished
    string of the rest.
    """
    present = [(name, column) for name, column in named if column.sizes.any()]
    prefixes = [name.encode() + bytes([layout.NAME_VALUE_SEPARATOR]) for name, _ in present]
    piece_sizes = [
        np.where(column.sizes > 0, column.sizes + len(prefix) + 1, 0)
        for prefix, (_, column) in zip(prefixes, present, strict=True)
    ]
    row_count = len(named[0][1])
    sizes = others.sizes.copy() if others is not None else np.zeros(row_count, np.int64)
    for piece_size in piece_sizes:
        sizes += piece_size
    ends = np.cumsum(sizes)
    starts = ends - sizes
    data = np.empty(int(ends[-1]) if row_count else 0, np.uint8)
    positions = starts.copy()
    for prefix, (_, column), piece_size in zip(prefixes, present, piece_sizes, strict=True):
        _put_property(data, positions, prefix, column)
        positions += piece_size
    if others is not None:
        put_values(data, positions, others)
    return ByteColumn(data, starts, sizes)


def _put_property(
    data: NDArray[np.uint8], positions: NDArray[np.int64], prefix: bytes, column: ByteColumn
) -> None:
    loops = kernels(len(column))
    if loops is not None:
        stopped = loops.put_property(
            data, positions, np.frombuffer(bytearray(prefix), np.uint8),
            loops.read_only(column.data), column.starts, column.sizes,
        )
        if stopped == loops.ALL_ROWS:
            return
    if not column.sizes.all():
        rows = np.flatnonzero(column.sizes)
        positions, column = positions[rows], column[rows]
    put_constant(data, positions, prefix)
    put_values(data, positions + len(prefix), column)
    data[positions + len(prefix) + column.sizes] = layout.PROPERTY_SEPARATOR


def encode_property_map(
    names: ByteColumn, values: ByteColumn, row_offsets: NDArray[np.int64]
) -> ByteColumn:
    """The properties string of every row of a map column, its entries as flat columns.

    Row i has the entries from ``row_offsets[i]`` to ``row_offsets[i + 1]``.
    """
    sizes = names.sizes + values.sizes + 2
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    starts = ends[:-1]
    data = np.empty(int(ends[-1]), np.uint8)
    put_values(data, starts, names)
    data[starts + names.sizes] = layout.NAME_VALUE_SEPARATOR
    put_values(data, starts + names.sizes + 1, values)
    data[ends[1:] - 1] = layout.PROPERTY_SEPARATOR
    return ByteColumn(data, ends[row_offsets[:-1]], ends[row_offsets[1:]] - ends[row_offsets[:-1]])


# --- records --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class RecordColumns:
    """The fields of many records as they will be on disk, PHYSICALOFFSET and sizes aside.

    ``topic_codes`` are positions in ``topics`` (names, UTF-8), ``born_host_codes`` in
    ``born_hosts`` (address and port). ``sys_flag`` must hold the bits of IPv6 hosts already.
    """

    topics: Sequence[bytes]
    topic_codes: NDArray[np.int32]
    queue_id: NDArray[np.int32]
    queue_offset: NDArray[np.int64]
    flag: NDArray[np.int32]
    sys_flag: NDArray[np.int32]
    born_timestamp: NDArray[np.int64]
    born_hosts: Sequence[bytes]
    born_host_codes: NDArray[np.int32]
    store_timestamp: NDArray[np.int64]
    store_host: bytes
    reconsume_times: NDArray[np.int32]
    prepared_transaction_offset: NDArray[np.int64]
    body_crc: NDArray[np.int32]
    bodies: ByteColumn
    properties: ByteColumn

    def __len__(self) -> int:
        return len(self.queue_id)

    def __getitem__(self, rows: slice) -> RecordColumns:
        shared = ("topics", "born_hosts", "store_host")
        return RecordColumns(
            **{
                field.name: getattr(self, field.name)
                if field.name in shared
                else getattr(self, field.name)[rows]
                for field in fields(self)
            }
        )

    def total_sizes(self) -> NDArray[np.int64]:
        """TOTALSIZE of every record."""
        topic_sizes = np.array([len(topic_field(topic)) for topic in self.topics], np.int64)
        header_sizes = np.full(len(self), layout.RECORD_HEADER_V4.itemsize, np.int64)
        for bit in (SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6):
            if (self.sys_flag & int(bit)).any():
                wider = layout.IPV6_HOST_SIZE - layout.IPV4_HOST_SIZE
                header_sizes[(self.sys_flag & int(bit)) != 0] += wider
        sizes: NDArray[np.int64] = (
            header_sizes
            + self.bodies.sizes
            + topic_sizes[self.topic_codes]
            + I16.size
            + self.properties.sizes
        )
        return sizes


def encode_records(
    records: RecordColumns,
    physical_offset: int,
    sizes: NDArray[np.int64] | None = None,
    scratch: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """The bytes of records that lie one behind the other from ``physical_offset`` on.

    ``sizes`` are their :meth:`RecordColumns.total_sizes` where the caller has them already;
    ``scratch`` is memory that the bytes are put in where it is large enough.
    """
    if not len(records):
        return np.empty(0, np.uint8)
    if sizes is None:
        sizes = records.total_sizes()
    ends = np.cumsum(sizes)
    size = int(ends[-1])
    is_enough = scratch is not None and size <= len(scratch)
    target = scratch[:size] if scratch is not None and is_enough else np.empty(size, np.uint8)
    host_flags = records.sys_flag & layout.HOSTS_V6_MASK
    loops = kernels(len(records))
    is_done = (
        loops is not None
        and not host_flags.any()
        and _put_compiled(loops, target, sizes, physical_offset, records)
    )
    if is_done:
        return target
    starts = ends - sizes
    header_sizes = np.empty(len(records), np.int64)
    for flags, header in layout.RECORD_HEADERS.items():
        rows = np.flatnonzero(host_flags == flags)
        if len(rows) == 0:
            continue
        header_sizes[rows] = header.itemsize
        _put_headers(target, starts, sizes, physical_offset, records, rows, header)
    _put_tails(target, starts + header_sizes, records)
    return target


def _put_compiled(
    loops: ModuleType,
    target: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    physical_offset: int,
    records: RecordColumns,
) -> bool:
    """Put records with IPv4 hosts in one pass; whether that was possible."""
    bodies, properties = records.bodies, records.properties
    # In the order of RECORD_LONGS and RECORD_INTS.
    longs = np.array([
        sizes, records.queue_offset, records.born_timestamp, records.store_timestamp,
        records.prepared_transaction_offset, bodies.starts, bodies.sizes,
        properties.starts, properties.sizes,
    ], np.int64)
    ints = np.array([
        records.topic_codes, records.queue_id, records.flag, records.sys_flag,
        records.born_host_codes, records.reconsume_times, records.body_crc,
    ], np.int32)
    topics = ByteColumn.of([topic_field(topic) for topic in records.topics])
    # Wider hosts keep their place in the table; no row of ours points there.
    hosts = bytearray().join(
        host[: layout.IPV4_HOST_SIZE] for host in (*records.born_hosts, records.store_host)
    )
    stopped = loops.put_records(
        target, physical_offset, longs, ints, topics.data.copy(),
        np.append(topics.starts, len(topics.data)),
        np.array([magic_of_topic(topic) for topic in records.topics], np.uint32),
        np.frombuffer(hosts, np.uint64), loops.read_only(bodies.data),
        loops.read_only(properties.data),
    )
    return bool(stopped == loops.ALL_ROWS)


def _put_headers(
    target: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    physical_offset: int,
    records: RecordColumns,
    rows: NDArray[np.int64],
    header: np.dtype[np.void],
) -> None:
    """Headers of the given rows, which have equally wide hosts."""
    pick: slice | NDArray[np.int64] = slice(None) if len(rows) == len(records) else rows
    headers = np.empty(len(rows), header)
    topic_magics = np.array([magic_of_topic(topic) for topic in records.topics], np.uint32)
    headers["total_size"] = sizes[pick]
    headers["magic"] = topic_magics[records.topic_codes[pick]]
    headers["body_crc"] = records.body_crc[pick]
    headers["queue_id"] = records.queue_id[pick]
    headers["flag"] = records.flag[pick]
    headers["queue_offset"] = records.queue_offset[pick]
    headers["physical_offset"] = starts[pick] + physical_offset
    headers["sys_flag"] = records.sys_flag[pick]
    headers["born_timestamp"] = records.born_timestamp[pick]
    headers["born_host"] = _hosts(records, header["born_host"].itemsize, pick)
    headers["store_timestamp"] = records.store_timestamp[pick]
    headers["store_host"] = np.frombuffer(records.store_host, header["store_host"])[0]
    headers["reconsume_times"] = records.reconsume_times[pick]
    headers["prepared_transaction_offset"] = records.prepared_transaction_offset[pick]
    headers["body_size"] = records.bodies.sizes[pick]
    windows(target, header.itemsize)[starts[pick]] = headers.view(f"V{header.itemsize}")


def _hosts(
    records: RecordColumns, size: int, pick: slice | NDArray[np.int64]
) -> NDArray[np.void] | np.void:
    """The born hosts of rows whose host has ``size`` bytes."""
    if len(records.born_hosts) == 1:
        only: np.void = np.frombuffer(records.born_hosts[0], f"V{size}")[0]
        return only
    # Hosts of the other width keep their place in the table; no row of ours points there.
    table = b"".join(host[:size].ljust(size, b"\0") for host in records.born_hosts)
    hosts: NDArray[np.void] = np.frombuffer(table, f"V{size}")[records.born_host_codes[pick]]
    return hosts


def _put_tails(
    target: NDArray[np.uint8], positions: NDArray[np.int64], records: RecordColumns
) -> None:
    """Body, topic and properties, each with its length, of all rows."""
    put_values(target, positions, records.bodies)
    positions = positions + records.bodies.sizes
    topics = ByteColumn.of([topic_field(topic) for topic in records.topics])
    if len(records.topics) == 1:
        put_constant(target, positions, topics.value(0))
        positions += topics.sizes[0]
    else:
        of_rows = topics[records.topic_codes]
        put_values(target, positions, of_rows)
        positions += of_rows.sizes
    windows(target, I16.size)[positions] = (
        records.properties.sizes.astype(layout.PROPERTIES_SIZE).view("V2")
    )
    put_values(target, positions + I16.size, records.properties)


def magic_of_topic(topic: bytes) -> int:
    """V2 only where a V1 record has no room for the topic's length."""
    return layout.MAGIC_V1 if len(topic) <= layout.MAX_TOPIC_SIZE_V1 else layout.MAGIC_V2


def topic_field(topic: bytes) -> bytes:
    """A topic as records hold it: its length, in the width of its magic, in front."""
    size = I8 if magic_of_topic(topic) == layout.MAGIC_V1 else I16
    return size.pack(len(topic)) + topic


def filler(left: int) -> bytes:
    """The record that ends a segment of which ``left`` bytes are unused."""
    return layout.PREFIX.pack(left, layout.MAGIC_BLANK)


def dictionary_codes(array: pa.Array) -> tuple[list[Any], NDArray[np.int32]]:
    """The distinct values of a column without nulls, and each row's position among them."""
    if _is_constant(array):  # as a column of topics mostly is
        return [array[0].as_py()], np.zeros(len(array), np.int32)
    encoded = array if pa.types.is_dictionary(array.type) else pc.dictionary_encode(array)
    codes = np.asarray(encoded.indices, dtype=np.int32)
    return encoded.dictionary.to_pylist(), codes


def _is_constant(array: pa.Array) -> bool:
    """Whether all texts of a column are seen to be the same, at the cost of a comparison."""
    if not len(array) or not _has_offsets(array.type):
        return False
    column = ByteColumn.from_arrow(array)
    size = int(column.sizes[0])
    if size == 0 or not (column.sizes == size).all():
        return False
    start = int(column.starts[0])
    data = column.data[start : start + len(column) * size]
    return bool((data[size:] == data[:-size]).all())
