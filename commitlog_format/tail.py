"""The records behind the last dispatched one: the units a broker would make of them next.

A broker appends to the log first and to its queues a moment later; a store that was copied or
killed in between is complete all the same. The rules are those of ReputMessageService and of
ConsumeQueue.putMessagePositionInfo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.commit_log import CommitLog, RecordRun
from rmqlog.commitlog_format.errors import CorruptRecordError
from rmqlog.commitlog_format.log_walk import LogWalk
from rmqlog.commitlog_format.mapped_windows import intact
from rmqlog.commitlog_format.message import Message
from rmqlog.commitlog_format.records import RecordDecoder
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.commitlog_format.units import Units, concatenate

#: What the units of records are made from.
UNIT_SOURCE_COLUMNS = (
    "topic", "queueId", "queueOffset", "sysFlag", "tagsCode", "commitLogOffset", "storeSize",
)
_MULTI_DISPATCH_BYTES = layout.PROPERTY_MULTI_DISPATCH.encode()

#: The physical offset behind the last record that a queue's files hold.
DispatchedTo = Callable[[QueueKey], int]
#: The next queue offset of a queue, as its files say; ``None`` for a queue without files.
NextOffset = Callable[[QueueKey], int | None]


def tail_units(
    log: CommitLog, start: int, stop: int, dispatched_to: DispatchedTo, next_offset: NextOffset
) -> dict[QueueKey, Units]:
    """The units for the records of ``[start, stop)`` that are in no queue yet, by queue.

    Of a copy made while a broker ran, some queues may be older than others. Where a record
    shows that its queue lacks some before it, the walk begins anew at the end of that queue.
    """
    while True:
        missing = _missing_units(log, start, stop, dispatched_to)
        older = [
            dispatched_to(key) for key, units in missing.items()
            if (place := next_offset(key)) is not None and units.queue_offsets[0] > place
        ]
        if min(older, default=start) >= start:
            break
        start = min(older)
    return {key: _placed(log, units, next_offset(key)) for key, units in missing.items()}


def _missing_units(
    log: CommitLog, start: int, stop: int, dispatched_to: DispatchedTo
) -> dict[QueueKey, Units]:
    parts: dict[QueueKey, list[Units]] = {}
    for run in LogWalk(log, start, stop):
        for key, units in _units_of_run(log, run):
            parts.setdefault(key, []).append(units)
    missing = {}
    for key, found in parts.items():
        units = _in_log_order(concatenate(found))
        behind = np.flatnonzero(units.offsets >= dispatched_to(key))
        if len(behind):
            missing[key] = units.take(behind)
    return missing


def makes_queue_unit(sys_flag: int) -> bool:
    """Whether a record enters a queue: prepared and rolled back ones (before 4.3) do not."""
    return sys_flag & layout.TRANSACTION_MASK in (0, layout.SysFlag.TRANSACTION_COMMIT)


def units_of_records(log: CommitLog, batch: pa.RecordBatch) -> dict[QueueKey, Units]:
    """The units that records make in the queues of their own topics, in the log's order.

    ``batch`` has at least the columns ``UNIT_SOURCE_COLUMNS``.
    """
    flags = batch["sysFlag"].to_numpy()
    transaction = flags & layout.TRANSACTION_MASK
    visible = (transaction == 0) | (transaction == layout.SysFlag.TRANSACTION_COMMIT)
    is_batch = flags & layout.SysFlag.INNER_BATCH != 0
    parts: dict[QueueKey, list[Units]] = {}
    for key, units in _simple_units(batch.filter(pa.array(visible & ~is_batch))):
        parts.setdefault(key, []).append(units)
    offsets = batch["commitLogOffset"].to_numpy()
    for offset in offsets[visible & is_batch].tolist():
        key, units = _batch_unit(log, log.message(offset, check_crc=False))
        parts.setdefault(key, []).append(units)
    return {key: _in_log_order(concatenate(found)) for key, found in parts.items()}


def _units_of_run(log: CommitLog, run: RecordRun) -> Iterator[tuple[QueueKey, Units]]:
    decoder = RecordDecoder(UNIT_SOURCE_COLUMNS, limits=log.limits)
    batch = decoder.decode(run.window.data, run.window.start, run.offsets, path=run.window.path)
    yield from units_of_records(log, batch).items()
    with intact(run.window.data):
        is_dispatched_further = _MULTI_DISPATCH_BYTES in run.window.data.tobytes()
    if is_dispatched_further:
        for offset in run.offsets.tolist():
            yield from _multi_dispatch_units(log.message(offset, check_crc=False))


def _simple_units(batch: pa.RecordBatch) -> Iterator[tuple[QueueKey, Units]]:
    """The units of ordinary records, in whole columns for each queue."""
    if not batch.num_rows:
        return
    topics = batch["topic"].dictionary_encode()
    queue_ids = batch["queueId"].to_numpy()
    codes = topics.indices.to_numpy().astype(np.int64) << 32 | queue_ids.astype(np.uint32)
    for code in np.unique(codes):
        rows = np.flatnonzero(codes == code)
        key = QueueKey(topics.dictionary[int(code) >> 32].as_py(), int(queue_ids[rows[0]]))
        yield key, Units(
            batch["queueOffset"].to_numpy()[rows],
            batch["commitLogOffset"].to_numpy()[rows],
            batch["storeSize"].to_numpy()[rows].astype(np.int64),
            batch["tagsCode"].to_numpy()[rows],
        )


def _batch_unit(log: CommitLog, message: Message) -> tuple[QueueKey, Units]:
    base = _whole_number(message.properties.get(layout.PROPERTY_INNER_BASE), message.queue_offset)
    count = _whole_number(message.properties.get(layout.PROPERTY_INNER_COUNT), 1)
    if not 0 < count <= log.limits.inner_batch_count:
        offset = message.commit_log_offset
        raise CorruptRecordError(
            "INNER_NUM is no number of messages", log.path_of(offset), offset, count,
            f"1 to {log.limits.inner_batch_count}",
        )
    key = QueueKey(message.topic, message.queue_id)
    return key, _one_unit(message, base, np.array([count], np.int64))


def _multi_dispatch_units(message: Message) -> Iterator[tuple[QueueKey, Units]]:
    """One more unit for each queue that INNER_MULTI_DISPATCH names (light message queues)."""
    names = message.properties.get(layout.PROPERTY_MULTI_DISPATCH)
    offsets = message.properties.get(layout.PROPERTY_MULTI_QUEUE_OFFSET)
    if not names or not offsets or message.topic.startswith(layout.RETRY_TOPIC_PREFIX):
        return
    if not makes_queue_unit(message.sys_flag):
        return
    separator = layout.MULTI_DISPATCH_SEPARATOR
    for name, offset in zip(names.split(separator), offsets.split(separator), strict=False):
        if offset and "/" not in name:
            queue_id = 0 if name.startswith(layout.LMQ_TOPIC_PREFIX) else message.queue_id
            yield QueueKey(name, queue_id), _one_unit(message, _whole_number(offset, 0))


def _one_unit(message: Message, queue_offset: int, counts: object = None) -> Units:
    return Units(
        np.array([queue_offset], np.int64),
        np.array([message.commit_log_offset], np.int64),
        np.array([message.store_size], np.int64),
        np.array([message.tags_code], np.int64),
        counts,  # type: ignore[arg-type]
    )


def _in_log_order(units: Units) -> Units:
    """Units as they follow one another in the log: batches and single messages may alternate."""
    return units.take(np.argsort(units.offsets, kind="stable"))


def _placed(log: CommitLog, units: Units, next_offset: int | None) -> Units:
    """The units at the places where a broker would put them.

    It appends to the queue whatever the record says: a record below the queue's end is taken
    for a repeated one, a record above it lands at the end all the same (and is logged).
    """
    place = int(units.queue_offsets[0]) if next_offset is None else next_offset
    if units.counts is not None:
        return _checked_batches(log, units, units.counts, place)
    if place + len(units) >= 2**63:
        raise _unplaceable(log, int(units.offsets[0]), place, f"at most {2**63 - 1 - len(units)}")
    expected = np.arange(place, place + len(units), dtype=np.int64)
    if np.array_equal(units.queue_offsets, expected):
        return units
    rows: list[int] = []
    for row, queue_offset in enumerate(units.queue_offsets.tolist()):
        if queue_offset == 0 or queue_offset >= place + len(rows):
            rows.append(row)
    kept = units.take(np.array(rows, np.int64))
    places = np.arange(place, place + len(rows), dtype=np.int64)
    return Units(places, kept.offsets, kept.sizes, kept.tags_codes)


def _checked_batches(
    log: CommitLog, units: Units, counts: NDArray[np.int64], place: int
) -> Units:
    """Units of inner batches, which follow one another in the queue as in the log."""
    for queue_offset, count, offset in zip(
        units.queue_offsets.tolist(), counts.tolist(), units.offsets.tolist(), strict=True
    ):
        if not place <= queue_offset < 2**63 - count:
            raise _unplaceable(log, offset, queue_offset, f"at least {place}")
        place = queue_offset + count
    return units


def _unplaceable(log: CommitLog, offset: int, found: int, expected: str) -> CorruptRecordError:
    return CorruptRecordError(
        "the record's queue offset has no place in its queue", log.path_of(offset), offset,
        found, expected,
    )


def _whole_number(text: str | None, default: int) -> int:
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 18):
        return default
    return int(text)
