"""Messages by key: the index, every hit verified, and a scan of what the index does not cover.

An index knows hashes only, and a broker's answer stops at 64 of them. Here the answer is
complete: all chains of all files, each record compared with the key, and the ranges of the log
that no index file covers are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS
from rmqlog.commitlog_format.errors import CorruptRecordError
from rmqlog.commitlog_format.gather import gather_from_queue
from rmqlog.commitlog_format.message import tags_code
from rmqlog.commitlog_format.properties import parse_properties, split_keys
from rmqlog.commitlog_format.queue_view import QueueView
from rmqlog.commitlog_format.records import RecordDecoder
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import QueueKey, QueueKind
from rmqlog.commitlog_format.tail import makes_queue_unit
from rmqlog.commitlog_format.text import decode_text
from rmqlog.commitlog_format.units import Units, concatenate

#: Up to so many hits are verified one by one; more of them in whole columns.
_FEW_HITS = 48
_VERIFY_COLUMNS = (
    "topic", "queueId", "queueOffset", "sysFlag", "keys", "uniqKey", "tagsCode",
    "commitLogOffset", "storeSize",
)


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Queue offsets ``[start, stop)`` of one queue."""

    view: QueueView
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """What the index says of some keys in one topic, and what it cannot say.

    ``units`` are the verified hits by queue; ``uncovered`` the ranges that must be scanned;
    ``hit_count`` how many entries had the hash, collisions included.
    """

    keys: frozenset[str]
    units: dict[QueueKey, Units]
    uncovered: list[QueueRange]
    hit_count: int

    @property
    def uncovered_count(self) -> int:
        """How many messages must be scanned."""
        return sum(map(len, self.uncovered))


def look_up_keys(
    store: Store, topic: str, keys: Sequence[str], hit_count_max: int | None = None
) -> KeyLookup | None:
    """Look keys (tokens of KEYS, or uniq keys) up in the index of a store.

    ``None`` when the index has more than ``hit_count_max`` records for them: each hit is
    verified by itself, so that a scan is faster then.
    """
    views = {view.key: view for view in store.queues_of(topic)}
    wanted = frozenset(keys)
    offsets, hit_count = _index_hits(store, topic, keys)
    if hit_count_max is not None and len(offsets) > hit_count_max:
        return None
    rows = _verified(store, topic, wanted, offsets, views)
    units: dict[QueueKey, list[Units]] = {}
    for key, unit in rows:
        units.setdefault(key, []).append(unit)
    return KeyLookup(
        wanted,
        {key: concatenate(found) for key, found in units.items()
         if views[key].kind is QueueKind.SIMPLE},
        uncovered_ranges(store, topic),
        hit_count,
    )


def uncovered_ranges(store: Store, topic: str) -> list[QueueRange]:
    """The parts of a topic's queues whose records no index file covers.

    Keys of inner batches are in no index, and a light message queue's messages are indexed
    under the topic that they were sent to: these queues are never covered.
    """
    is_indexed = not topic.startswith(layout.LMQ_TOPIC_PREFIX)
    gaps = _gaps(store.index.coverage(), store.start, store.end)
    found: list[QueueRange] = []
    for view in store.queues_of(topic):
        if view.kind is QueueKind.BATCH or not is_indexed:
            ranges = [QueueRange(view, view.min_offset, view.max_offset)]
        else:
            ranges = [_range_of_log(view, start, stop) for start, stop in gaps]
        found += [part for part in ranges if len(part)]
    return found


def find_by_key(
    store: Store, topic: str, keys: str | Sequence[str], columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Every message of a topic that has one of the keys, in KEYS or as its uniq key."""
    wanted = [keys] if isinstance(keys, str) else list(keys)
    lookup = look_up_keys(store, topic, wanted)
    assert lookup is not None  # no bound was given
    selected = tuple(columns) if columns is not None else MESSAGE_COLUMNS
    reader = store.reader(selected)
    for key, units in sorted(lookup.units.items(), key=lambda item: item[0]):
        yield from reader.read(key, QueueKind.SIMPLE, units)
    needed = tuple(dict.fromkeys([*selected, "keys", "uniqKey"]))
    scanner = store.reader(needed)
    for part in lookup.uncovered:
        for units in part.view.scan(part.start, part.stop):
            for batch in scanner.read(
                part.view.key, part.view.kind, units, part.start, part.stop
            ):
                kept = batch.filter(pa.array(has_key(batch, lookup.keys)))
                if kept.num_rows:
                    yield kept.select(list(selected))


def has_key(batch: pa.RecordBatch, keys: frozenset[str]) -> NDArray[np.bool_]:
    """Which rows of a batch (with ``keys`` and ``uniqKey``) have one of the keys."""
    wanted = pa.array(sorted(keys), pa.string())
    matches: NDArray[np.bool_] = pc.is_in(batch["uniqKey"], wanted).to_numpy(zero_copy_only=False)
    tokens = pc.split_pattern(batch["keys"], layout.KEY_SEPARATOR)
    rows = pc.list_parent_indices(tokens).to_numpy()
    hits = pc.is_in(pc.list_flatten(tokens), wanted).to_numpy(zero_copy_only=False)
    matches = matches.copy()
    matches[rows[hits]] = True
    return matches


def _index_hits(
    store: Store, topic: str, keys: Sequence[str]
) -> tuple[NDArray[np.int64], int]:
    """The distinct physical offsets that the index names, ascending, and how many entries did.

    Only those in ranges that it covers: the rest is scanned, and would come twice.
    """
    if len(keys) == 1:
        found = np.array(store.index.lookup(topic, keys[0], store.end), np.int64)
    else:
        _, found = store.index.lookup_many(topic, keys, store.end)
    distinct = np.unique(found)
    covered = np.zeros(len(distinct), np.bool_)
    for start, stop in store.index.coverage():
        covered |= (distinct >= max(start, store.start)) & (distinct < stop)
    return distinct[covered], len(found)


def _verified(
    store: Store, topic: str, keys: frozenset[str], offsets: NDArray[np.int64],
    views: dict[QueueKey, QueueView],
) -> Iterator[tuple[QueueKey, Units]]:
    """The hits that are rows of the topic and have one of the keys."""
    if len(offsets) <= _FEW_HITS:
        found = _verify_one_by_one(store, topic, keys, offsets.tolist(), views)
    else:
        found = _verify_in_columns(store, topic, keys, offsets, views)
    for key, unit in found:
        placed = _placed(views.get(key), unit)
        if placed is not None:
            yield key, placed


def _verify_one_by_one(
    store: Store, topic: str, keys: frozenset[str], offsets: list[int],
    views: dict[QueueKey, QueueView],
) -> Iterator[tuple[QueueKey, Units]]:
    for offset in offsets:
        try:
            record = store.log.record(offset)
        except CorruptRecordError:
            _refuse_damage(offset, views)
            continue
        if decode_text(record.topic) != topic or not makes_queue_unit(record.sys_flag):
            continue
        properties = parse_properties(decode_text(record.properties))
        tokens = split_keys(properties.get(layout.PROPERTY_KEYS))
        if properties.get(layout.PROPERTY_UNIQ_KEY) in keys or not keys.isdisjoint(tokens):
            code = tags_code(topic, properties, record.store_timestamp)
            yield QueueKey(topic, record.queue_id), Units(
                np.array([record.queue_offset]), np.array([offset]),
                np.array([record.total_size]), np.array([code]),
            )


def _verify_in_columns(
    store: Store, topic: str, keys: frozenset[str], offsets: NDArray[np.int64],
    views: dict[QueueKey, QueueView],
) -> Iterator[tuple[QueueKey, Units]]:
    prefixes = gather_from_queue(store.log.files, offsets, layout.RECORD_PREFIX)
    sound = np.isin(prefixes["magic"], (layout.MAGIC_V1, layout.MAGIC_V2))
    sound &= prefixes["total_size"] >= layout.MIN_RECORD_SIZE
    for offset in offsets[~sound].tolist():
        _refuse_damage(offset, views)
    sizes = prefixes["total_size"][sound].astype(np.int64)
    decoder = RecordDecoder(_VERIFY_COLUMNS, limits=store.limits)
    for run in store.log.runs(offsets[sound], sizes):
        data, start, path = run.window.data, run.window.start, run.window.path
        bad = decoder.find_malformed(data, start, run.offsets)
        for offset in run.offsets[bad].tolist():
            _refuse_damage(offset, views)
        batch = decoder.decode(data, start, run.offsets[~bad], path=path)
        flags = batch["sysFlag"].to_numpy() & layout.TRANSACTION_MASK
        visible = (flags == 0) | (flags == layout.SysFlag.TRANSACTION_COMMIT)
        same_topic = pc.equal(batch["topic"], topic).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(has_key(batch, keys) & visible & same_topic)
        queue_ids = batch["queueId"].to_numpy()
        names = ("queueOffset", "commitLogOffset", "storeSize", "tagsCode")
        columns = [batch[name].to_numpy().astype(np.int64) for name in names]
        for row in rows.tolist():
            yield QueueKey(topic, int(queue_ids[row])), Units(
                *(column[row : row + 1] for column in columns)
            )


def _placed(view: QueueView | None, unit: Units) -> Units | None:
    """The unit at its place in the queue; ``None`` when no unit points at the record.

    Almost always the record's own queue offset is the place.
    """
    if view is None:
        return None
    offset, place = int(unit.offsets[0]), int(unit.queue_offsets[0])
    if view.min_offset <= place < view.max_offset:
        found = view.units(place, place + 1)
        if len(found) and int(found.offsets[0]) == offset:
            return found
    part = _range_of_log(view, offset, offset + 1)
    return view.units(part.start, part.stop) if len(part) else None


def _refuse_damage(offset: int, views: dict[QueueKey, QueueView]) -> None:
    """Raise if a queue names the record that does not check; else the index entry is stale."""
    for view in views.values():
        part = _range_of_log(view, offset, offset + 1)
        if len(part):
            raise CorruptRecordError(
                f"the record of queue offset {part.start} of {view.topic!r} queue "
                f"{view.queue_id} is damaged", offset=offset,
            )


def _range_of_log(view: QueueView, start: int, stop: int) -> QueueRange:
    """The queue offsets of a queue whose records begin in ``[start, stop)`` of the log."""
    return QueueRange(view, *view.log_range(start, stop))


def _gaps(
    covered: list[tuple[int, int]], start: int, stop: int
) -> list[tuple[int, int]]:
    """The parts of ``[start, stop)`` that no range covers."""
    gaps: list[tuple[int, int]] = []
    position = start
    for begin, end in covered:
        if begin > position:
            gaps.append((position, min(begin, stop)))
        position = max(position, end)
    if position < stop:
        gaps.append((position, stop))
    return [(begin, end) for begin, end in gaps if begin < end]
