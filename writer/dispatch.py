"""What a broker makes of each record behind the log: queue units and index entries.

The order of things is the broker's (CommitLogDispatcherBuildConsumeQueue, then
CommitLogDispatcherBuildIndex), so that for the same log the same bytes come out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.compiled import kernels
from rmqlog.commitlog_format.encoding import ByteColumn
from rmqlog.commitlog_format.hashing import index_hashes
from rmqlog.commitlog_format.layout import (
    BATCH_CONSUME_QUEUE_UNIT,
    CONSUME_QUEUE_UNIT,
    SysFlag,
)
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer.index_writer import IndexWriter, SlotOrder
from rmqlog.writer.multi_dispatch import Further, further_units, in_log_order
from rmqlog.writer.queue_table import QueueTable

TAG_TOPIC_SUFFIX = f"{layout.INDEX_KEY_SEPARATOR}{layout.INDEX_TAG_PREFIX[0]}"
_NOT_COMPACTED = -1
_NO_TEXTS = pa.array([], pa.string())
_NO_UNITS = np.empty(0, CONSUME_QUEUE_UNIT)

#: A queue, the rows of a batch that go to it, and their units.
UnitsOfQueue = tuple[QueueKey, NDArray[np.int64], NDArray[np.void]]


@dataclass(frozen=True, slots=True, eq=False)
class DispatchBatch:
    """Records in log order, with what queues and index want to know of each.

    ``queue_codes`` are positions in ``queues``. Texts are null where a record
    lacks the property; only the index entries need them. ``lmq_units`` are further units:
    row, queue, queue offset.
    """

    queues: Sequence[QueueKey]
    queue_codes: NDArray[np.int32]
    queue_offset: NDArray[np.int64]
    physical_offset: NDArray[np.int64]
    size: NDArray[np.int64]
    sys_flag: NDArray[np.int32]
    store_timestamp: NDArray[np.int64]
    tags_code: NDArray[np.int64]
    uniq_keys: pa.StringArray = field(default_factory=lambda: _NO_TEXTS)
    keys: pa.StringArray = field(default_factory=lambda: _NO_TEXTS)
    tags: pa.StringArray = field(default_factory=lambda: _NO_TEXTS)
    lmq_units: Sequence[tuple[int, QueueKey, int]] = ()
    #: How many messages each record holds, where some record is an inner batch.
    batch_count: NDArray[np.int16] | None = None

    def __len__(self) -> int:
        return len(self.physical_offset)

    @property
    def end(self) -> int:
        """The physical offset behind the last record."""
        return int(self.physical_offset[-1] + self.size[-1])


@dataclass(frozen=True, slots=True, eq=False)
class PlacedEntries:
    """Index entries of a batch, in the broker's order: the row and the hash of each, and where
    and when its record was stored."""

    rows: NDArray[np.int64]
    hashes: NDArray[np.int32]
    physical_offset: NDArray[np.int64]
    store_timestamp: NDArray[np.int64]
    order: SlotOrder | None

    def of_rows(self, keep: NDArray[np.bool_]) -> PlacedEntries:
        """The entries of some rows of the batch."""
        kept = keep[self.rows]
        return PlacedEntries(
            self.rows[kept], self.hashes[kept], self.physical_offset[kept],
            self.store_timestamp[kept], None,
        )


def join_batches(batches: Sequence[DispatchBatch]) -> DispatchBatch:
    """Batches that follow one another in the log as one."""
    if len(batches) == 1:
        return batches[0]
    places: dict[QueueKey, int] = {}
    codes = []
    lmq_units: list[tuple[int, QueueKey, int]] = []
    row_count = 0
    for batch in batches:
        place_of_code = [places.setdefault(queue, len(places)) for queue in batch.queues]
        codes.append(np.array(place_of_code, np.int32)[batch.queue_codes])
        lmq_units += [(row_count + row, key, offset) for row, key, offset in batch.lmq_units]
        row_count += len(batch)
    batch_count = None
    if any(batch.batch_count is not None for batch in batches):
        batch_count = np.concatenate([_messages_of_records(batch) for batch in batches])
    return DispatchBatch(
        queues=list(places),
        queue_codes=np.concatenate(codes),
        queue_offset=np.concatenate([batch.queue_offset for batch in batches]),
        physical_offset=np.concatenate([batch.physical_offset for batch in batches]),
        size=np.concatenate([batch.size for batch in batches]),
        sys_flag=np.concatenate([batch.sys_flag for batch in batches]),
        store_timestamp=np.concatenate([batch.store_timestamp for batch in batches]),
        tags_code=np.concatenate([batch.tags_code for batch in batches]),
        uniq_keys=pa.concat_arrays([batch.uniq_keys for batch in batches]),
        keys=pa.concat_arrays([batch.keys for batch in batches]),
        tags=pa.concat_arrays([batch.tags for batch in batches]),
        lmq_units=lmq_units,
        batch_count=batch_count,
    )


def _messages_of_records(batch: DispatchBatch) -> NDArray[np.int16]:
    return np.ones(len(batch), np.int16) if batch.batch_count is None else batch.batch_count


def find_queues(
    topics: Sequence[str], topic_codes: NDArray[np.int32], queue_ids: NDArray[np.int32]
) -> tuple[list[QueueKey], NDArray[np.int32]]:
    """The queues of rows with these topics and queue ids, and each row's position among them."""
    low = int(queue_ids.min(initial=0))
    width = int(queue_ids.max(initial=0)) - low + 1
    sparse = topic_codes.astype(np.int64) * width + queue_ids - low
    present, codes = _dense(sparse, len(topics) * width)
    queues = [QueueKey(topics[code // width], code % width + low) for code in present.tolist()]
    return queues, codes


def _dense(
    codes: NDArray[np.int64], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The distinct codes, ascending, and each row's position among them."""
    if limit > 4 * len(codes) + 1024:
        present, dense = np.unique(codes, return_inverse=True)
        return present, dense.astype(np.int32)
    is_present = np.zeros(limit, np.bool_)
    is_present[codes] = True
    present = np.flatnonzero(is_present)
    positions = np.empty(limit, np.int32)
    positions[present] = np.arange(len(present), dtype=np.int32)
    return present, positions[codes]


class Dispatcher:
    """Brings queues and index up to date with the log, batch by batch, in log order."""

    def __init__(
        self, queues: QueueTable, index: IndexWriter | None, *, index_tags: bool
    ) -> None:
        self.queues = queues
        self.index = index
        self.index_tags = index_tags
        #: Store time of the last record that was dispatched, for the checkpoint.
        self.last_timestamp = 0
        #: The physical offset up to which everything was dispatched.
        self.end = 0

    def dispatch(self, batch: DispatchBatch) -> None:
        """Append the units and entries of records that follow those dispatched before."""
        if not len(batch):
            return
        self.dispatch_queues(batch)
        if self.index is not None:  # the hashes cost something
            entries = index_entries(batch, index_tags=self.index_tags)
            self.dispatch_index(batch, self.place_entries(batch, *entries))
        self.note_dispatched(batch)

    def note_dispatched(self, batch: DispatchBatch) -> None:
        """Note that queues and index have all records up to the end of a batch."""
        self.last_timestamp = int(batch.store_timestamp[-1])
        self.end = batch.end

    def dispatch_queues(
        self, batch: DispatchBatch, by_queue: Sequence[UnitsOfQueue] | None = None
    ) -> None:
        """The half of :meth:`dispatch` that concerns the queues.

        ``by_queue`` are its :func:`units_by_queue` where the caller has them already.
        """
        units = _units(batch) if batch.lmq_units else _NO_UNITS
        further: dict[QueueKey, Further] = {}
        if batch.lmq_units:
            further = further_units(batch, _in_queue(batch), self.queues.is_batch)
        for key, rows, of_queue in by_queue or units_by_queue(batch):
            if self.queues.is_batch(key.topic):
                self.queues.batch_queue(key).append(_batch_units(batch, rows))
            else:
                if self.queues.has_ext:
                    self.queues.put_ext(key, of_queue, batch.store_timestamp[rows])
                offsets, all_units = batch.queue_offset[rows], of_queue
                if key in further:
                    more = further.pop(key)
                    all_units, offsets = in_log_order(
                        of_queue, (rows, offsets), _some(units, more[0]), more
                    )
                self.queues.queue(key).append(all_units, offsets)
        for key, (rows, offsets) in further.items():
            self.queues.queue(key).append(_some(units, rows), offsets)

    def dispatch_index(self, batch: DispatchBatch, entries: PlacedEntries) -> None:
        """The half that concerns the index."""
        index = self.index
        if index is None:
            return
        index.begin_record()
        keep = _is_indexed(batch, index.end_physical_offset)
        if not keep.all():
            entries = entries.of_rows(keep)
        index.put(
            entries.hashes, entries.physical_offset, entries.store_timestamp, entries.order
        )
        # Any record behind the last entry would have asked for a file with room.
        if not len(entries.rows) or entries.rows[-1] < len(batch) - 1:
            index.begin_record()

    def index_in_bulk(self, row_count: int) -> contextlib.AbstractContextManager[None]:
        """Announce that so many records follow, each of which has an entry at least."""
        return contextlib.nullcontext() if self.index is None else self.index.bulk(row_count)

    def place_entries(
        self, batch: DispatchBatch, rows: NDArray[np.int64], hashes: NDArray[np.int32]
    ) -> PlacedEntries:
        """All that the index wants to know of entries (:func:`index_entries`), and the order
        that it chains them in, unless a compiled loop needs none; any thread may ask for it."""
        order = None
        if self.index is not None and len(hashes) and kernels(len(hashes)) is None:
            order = SlotOrder.of(hashes, self.index.slot_count)
        return PlacedEntries(
            rows, hashes, batch.physical_offset[rows], batch.store_timestamp[rows], order
        )


def _is_indexed(batch: DispatchBatch, indexed_to: int) -> NDArray[np.bool_]:
    """A record at the index's end is indexed again, as after every restart of a broker."""
    transaction = batch.sys_flag & layout.TRANSACTION_MASK
    keep: NDArray[np.bool_] = (batch.physical_offset >= indexed_to) & (
        transaction != int(SysFlag.TRANSACTION_ROLLBACK)
    )
    return keep


def _in_queue(batch: DispatchBatch) -> NDArray[np.bool_]:
    transaction = batch.sys_flag & layout.TRANSACTION_MASK
    found: NDArray[np.bool_] = (transaction == 0) | (
        transaction == int(SysFlag.TRANSACTION_COMMIT)
    )
    return found


def units_by_queue(batch: DispatchBatch) -> list[UnitsOfQueue]:
    """Each queue with its rows and their ConsumeQueue units, both in log order."""
    units = _units(batch)
    return [(key, rows, _some(units, rows)) for key, rows in _rows_by_queue(batch)]


def _rows_by_queue(batch: DispatchBatch) -> Iterator[tuple[QueueKey, NDArray[np.int64]]]:
    """The rows of each queue in log order; prepared and rolled back messages are in none."""
    rows = np.flatnonzero(_in_queue(batch))
    codes = batch.queue_codes[rows]
    # numpy sorts 16 bits by radix.
    narrow = codes.astype(np.int16) if len(batch.queues) < 2**15 else codes
    order = rows[np.argsort(narrow, kind="stable")]
    counts = np.bincount(codes, minlength=len(batch.queues)).tolist()
    start = 0
    for key, count in zip(batch.queues, counts, strict=True):
        if count:
            yield key, order[start : start + count]
        start += count


def _units(batch: DispatchBatch) -> NDArray[np.void]:
    """The ConsumeQueue unit of every record."""
    units = np.empty(len(batch), CONSUME_QUEUE_UNIT)
    units["commit_log_offset"] = batch.physical_offset
    units["size"] = batch.size
    units["tags_code"] = batch.tags_code
    return units


def _some(units: NDArray[np.void], rows: NDArray[np.int64]) -> NDArray[np.void]:
    # As opaque items: numpy copies a structured one field by field.
    return units.view(f"V{units.itemsize}")[rows].view(units.dtype)


def _batch_units(batch: DispatchBatch, rows: NDArray[np.int64]) -> NDArray[np.void]:
    units = np.zeros(len(rows), BATCH_CONSUME_QUEUE_UNIT)
    units["commit_log_offset"] = batch.physical_offset[rows]
    units["size"] = batch.size[rows]
    units["tags_code"] = batch.tags_code[rows]
    units["store_timestamp"] = batch.store_timestamp[rows]
    units["base_offset"] = batch.queue_offset[rows]
    units["batch_count"] = 1 if batch.batch_count is None else batch.batch_count[rows]
    units["compacted_offset"] = _NOT_COMPACTED
    return units


def index_entries(
    batch: DispatchBatch, *, index_tags: bool
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The row and the hash of every index entry, in the broker's order.

    For each record its UNIQ_KEY, then each token of KEYS, then (since 5.5) its tag.
    """
    topics = _topics(batch)
    uniq_rows = _present_rows(batch.uniq_keys)
    key_rows, tokens = _key_tokens(batch.keys)
    columns = [
        (uniq_rows, batch.uniq_keys.drop_null(), ""),
        (key_rows, tokens, ""),
    ]
    if index_tags:
        tag_rows = _non_empty_rows(batch.tags)
        columns.append((tag_rows, _take(batch.tags, tag_rows), TAG_TOPIC_SUFFIX))
    hashes = [_hashes(topics, rows, texts, suffix) for rows, texts, suffix in columns]
    return _in_row_order([rows for rows, _, _ in columns], hashes, len(batch))


def _in_row_order(
    rows: list[NDArray[np.int64]], hashes: list[NDArray[np.int32]], row_count: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Merge columns of entries: by row, and within a row one column after the other."""
    if all(len(column) == row_count and (column[1:] > column[:-1]).all() for column in rows):
        # One entry of each column in every row, as most messages have.
        return np.repeat(np.arange(row_count), len(rows)), np.stack(hashes, axis=1).ravel()
    counts = np.zeros(row_count, np.int64)
    column_counts = [np.bincount(column, minlength=row_count) for column in rows]
    for count in column_counts:
        counts += count
    ends = np.cumsum(counts)
    total = int(ends[-1]) if row_count else 0
    positions = ends - counts
    merged = np.empty(total, np.int32)
    for column, values, count in zip(rows, hashes, column_counts, strict=True):
        if len(column) == row_count and int(count.max(initial=0)) <= 1:
            merged[positions] = values
        else:
            # The first entry of a row stands at its position, its further ones behind it.
            firsts = np.repeat(np.cumsum(count) - count, count)
            merged[positions[column] + np.arange(len(column)) - firsts] = values
        positions += count
    return np.repeat(np.arange(row_count), counts), merged


def _topics(batch: DispatchBatch) -> str | pa.StringArray:
    """The topic of all records, or of each one."""
    names = [key.topic for key in batch.queues]
    if len(set(names)) == 1:
        return names[0]
    return pa.array(names, pa.string()).take(pa.array(batch.queue_codes))


def _hashes(
    topics: str | pa.StringArray, rows: NDArray[np.int64], texts: pa.StringArray, suffix: str
) -> NDArray[np.int32]:
    if isinstance(topics, str):
        return index_hashes(topics + suffix, texts)
    of_rows = topics.take(pa.array(rows))
    if suffix:
        of_rows = pc.binary_join_element_wise(of_rows, suffix, "")
    return index_hashes(of_rows, texts)


def _present_rows(texts: pa.StringArray) -> NDArray[np.int64]:
    if texts.null_count == 0:
        return np.arange(len(texts))
    return np.flatnonzero(np.asarray(texts.is_valid()))


def _non_empty_rows(texts: pa.StringArray) -> NDArray[np.int64]:
    return np.flatnonzero(ByteColumn.from_arrow(texts).sizes)


def _key_tokens(keys: pa.StringArray) -> tuple[NDArray[np.int64], pa.StringArray]:
    """The tokens of KEYS that are not empty, and the row of each; duplicates stay."""
    rows = _non_empty_rows(keys)
    present = _take(keys, rows)
    if not _contains_separator(present):
        return rows, present
    lists = pc.split_pattern(present, layout.KEY_SEPARATOR)
    tokens = lists.flatten()
    token_rows = rows[np.asarray(pc.list_parent_indices(lists))]
    kept = _non_empty_rows(tokens)
    return token_rows[kept], _take(tokens, kept)


def _take(texts: pa.StringArray, rows: NDArray[np.int64]) -> pa.StringArray:
    """Some of the rows, ascending; all of them cost nothing."""
    return texts if len(rows) == len(texts) else texts.take(pa.array(rows))


def _contains_separator(texts: pa.StringArray) -> bool:
    column = ByteColumn.from_arrow(texts)
    if not len(column):
        return False
    first, last = int(column.starts[0]), int(column.starts[-1] + column.sizes[-1])
    return bool((column.data[first:last] == ord(layout.KEY_SEPARATOR)).any())
