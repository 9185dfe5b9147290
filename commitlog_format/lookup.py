"""Messages by key: the index, every hit verified, and a scan of what the index does not cover.

An index knows hashes only, and a broker's answer stops at 64 of them. Here the answer is
complete: all chains of all files, each record compared with the key, and the ranges of the log
that no index file covers are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.binary_columns import string_array
from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS
from rmqlog.commitlog_format.commit_log import RecordRun
from rmqlog.commitlog_format.errors import CorruptRecordError
from rmqlog.commitlog_format.gather import gather_from_queue
from rmqlog.commitlog_format.properties import parse_properties, split_keys
from rmqlog.commitlog_format.queue_view import QueueView
from rmqlog.commitlog_format.record_peek import RecordPeek
from rmqlog.commitlog_format.records import RecordDecoder
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import QueueKey, QueueKind
from rmqlog.commitlog_format.tail import makes_queue_unit
from rmqlog.commitlog_format.units import Units, concatenate

#: Up to so many hits are verified one by one; more of them in whole columns.
_FEW_HITS = 48
_VERIFY_COLUMNS = (
    "topic", "queueId", "queueOffset", "sysFlag", "keys", "uniqKey", "commitLogOffset",
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


class TopicKeys:
    """Looks keys up in one topic; keep it for many lookups in one snapshot.

    What the index covers, and where the rest of the topic is, is found once.
    """

    def __init__(self, store: Store, topic: str) -> None:
        self.store = store
        self.topic = topic
        self.views = {view.key: view for view in store.queues_of(topic)}

    @cached_property
    def covered(self) -> list[tuple[int, int]]:
        """The ranges of the log whose keys are all in the index."""
        return self.store.index.coverage()

    @cached_property
    def uncovered(self) -> list[QueueRange]:
        """The parts of the topic's queues whose records no index file covers.

        Keys of inner batches are in no index, and a light message queue's messages are indexed
        under the topic that they were sent to: these queues are never covered.
        """
        is_indexed = not self.topic.startswith(layout.LMQ_TOPIC_PREFIX)
        gaps = _gaps(self.covered, self.store.start, self.store.end)
        found: list[QueueRange] = []
        for view in self.views.values():
            if view.kind is QueueKind.BATCH or not is_indexed:
                ranges = [QueueRange(view, view.min_offset, view.max_offset)]
            else:
                ranges = [QueueRange(view, *view.log_range(start, stop)) for start, stop in gaps]
            found += [part for part in ranges if len(part)]
        return found

    def offsets(self, key: str) -> list[int]:
        """The physical offsets of the records with one key that the index covers, ascending.

        Each record was compared with the key; what the index does not cover is not looked at.
        """
        hits = set(self.store.index.lookup(self.topic, key, self.store.end))
        wanted = frozenset((key,))
        return [
            offset for offset in sorted(hits)
            if self._is_covered(offset) and self._peek(offset, wanted) is not None
        ]

    def look_up(self, keys: Sequence[str], hit_count_max: int | None = None) -> KeyLookup | None:
        """Look keys (tokens of KEYS, or uniq keys) up in the index.

        ``None`` when the index has more than ``hit_count_max`` records for them: each hit is
        verified by itself, so that a scan is faster then.
        """
        wanted = frozenset(keys)
        offsets, hit_count = self._index_hits(keys)
        if hit_count_max is not None and len(offsets) > hit_count_max:
            return None
        places: dict[QueueKey, list[tuple[int, int]]] = {}
        for key, queue_offset, offset in self._verified(wanted, offsets):
            places.setdefault(key, []).append((queue_offset, offset))
        units = {
            key: _placed(self.views[key], np.array(found, np.int64))
            for key, found in places.items()
            if key in self.views and self.views[key].kind is QueueKind.SIMPLE
        }
        found = {key: part for key, part in units.items() if len(part)}
        return KeyLookup(wanted, found, self.uncovered, hit_count)

    def find(
        self, keys: str | Sequence[str], columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Every message of the topic that has one of the keys, in KEYS or as its uniq key."""
        lookup = self.look_up([keys] if isinstance(keys, str) else list(keys))
        assert lookup is not None  # no bound was given
        selected = tuple(columns) if columns is not None else MESSAGE_COLUMNS
        reader = self.store.reader(selected)
        for key, units in sorted(lookup.units.items(), key=lambda item: item[0]):
            yield from reader.read(key, QueueKind.SIMPLE, units)
        for part in lookup.uncovered:
            few = self._peek_few(part, lookup.keys)
            if few is None:
                yield from self._scan(part, lookup.keys, selected)
            elif len(few):
                yield from reader.read(part.view.key, part.view.kind, few)

    def _scan(
        self, part: QueueRange, keys: frozenset[str], selected: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The messages of a range that have one of the keys."""
        scanner = self.store.reader(dict.fromkeys([*selected, "keys", "uniqKey"]))
        view = part.view
        for units in view.scan(part.start, part.stop):
            for batch in scanner.read(view.key, view.kind, units, part.start, part.stop):
                kept = batch.filter(pa.array(has_key(batch, keys)))
                if kept.num_rows:
                    yield kept.select(list(selected))

    def _peek_few(self, part: QueueRange, keys: frozenset[str]) -> Units | None:
        """The units of a short range whose messages have one of the keys.

        ``None`` if the range is not short, or its records are not each one message of the topic.
        """
        is_plain = part.view.kind is QueueKind.SIMPLE
        if len(part) > _FEW_HITS or not is_plain or self.topic.startswith(layout.LMQ_TOPIC_PREFIX):
            return None
        units = part.view.units(part.start, part.stop)
        rows = list(map(self._peek_row, units.offsets.tolist()))
        if any(row is None or row.sys_flag & layout.SysFlag.INNER_BATCH for row in rows):
            return None
        found = [row is not None and _is_wanted(row, keys) for row in rows]
        return units.take(np.array(found, np.bool_))

    def _is_covered(self, offset: int) -> bool:
        # A loop: any() of a generator takes three times as long.
        for start, stop in self.covered:
            if start <= offset < stop:
                return offset >= self.store.start
        return False

    def _index_hits(self, keys: Sequence[str]) -> tuple[NDArray[np.int64], int]:
        """The distinct offsets that the index names, ascending, and how many entries did.

        Only those in ranges that it covers: the rest is scanned, and would come twice.
        """
        index, end = self.store.index, self.store.end
        if len(keys) == 1:
            found = np.array(index.lookup(self.topic, keys[0], end), np.int64)
        else:
            _, found = index.lookup_many(self.topic, keys, end)
        distinct = np.unique(found)
        covered = np.zeros(len(distinct), np.bool_)
        for start, stop in self.covered:
            covered |= (distinct >= max(start, self.store.start)) & (distinct < stop)
        return distinct[covered], len(found)

    def _verified(
        self, keys: frozenset[str], offsets: NDArray[np.int64]
    ) -> Iterator[tuple[QueueKey, int, int]]:
        """The hits that are messages of the topic and have one of the keys.

        Their queue, the queue offset that the record claims, and the physical offset.
        """
        if len(offsets) <= _FEW_HITS:
            return self._verify_one_by_one(keys, offsets.tolist())
        return self._verify_in_columns(keys, offsets)

    def _verify_one_by_one(
        self, keys: frozenset[str], offsets: list[int]
    ) -> Iterator[tuple[QueueKey, int, int]]:
        for offset in offsets:
            found = self._peek(offset, keys)
            if found is not None:
                yield QueueKey(self.topic, found.queue_id), found.queue_offset, offset

    def _peek(self, offset: int, keys: frozenset[str]) -> RecordPeek | None:
        """The record at a hit if it is a row of the topic and has one of the keys."""
        found = self._peek_row(offset)
        return found if found is not None and _is_wanted(found, keys) else None

    def _peek_row(self, offset: int) -> RecordPeek | None:
        """The record at an offset if it is a row of the topic."""
        try:
            found = self.store.log.peek(offset)
        except CorruptRecordError:
            self._refuse_damage(offset)
            return None
        is_row = found.topic == self.topic and makes_queue_unit(found.sys_flag)
        return found if is_row else None

    def _verify_in_columns(
        self, keys: frozenset[str], offsets: NDArray[np.int64]
    ) -> Iterator[tuple[QueueKey, int, int]]:
        log = self.store.log
        prefixes = gather_from_queue(log.files, offsets, layout.RECORD_PREFIX)
        sound = np.isin(prefixes["magic"], (layout.MAGIC_V1, layout.MAGIC_V2))
        sound &= prefixes["total_size"] >= layout.MIN_RECORD_SIZE
        for offset in offsets[~sound].tolist():
            self._refuse_damage(offset)
        sizes = prefixes["total_size"][sound].astype(np.int64)
        decoder = RecordDecoder(_VERIFY_COLUMNS, limits=self.store.limits)
        for run in log.runs(offsets[sound], sizes):
            batch = self._decode_sound(decoder, run)
            flags = batch["sysFlag"].to_numpy() & layout.TRANSACTION_MASK
            matches = has_key(batch, keys)
            matches &= (flags == 0) | (flags == layout.SysFlag.TRANSACTION_COMMIT)
            matches &= pc.equal(batch["topic"], self.topic).to_numpy(zero_copy_only=False)
            names = ("queueId", "queueOffset", "commitLogOffset")
            columns = [batch[name].to_numpy()[matches].tolist() for name in names]
            for queue_id, queue_offset, offset in zip(*columns, strict=True):
                yield QueueKey(self.topic, queue_id), queue_offset, offset

    def _decode_sound(self, decoder: RecordDecoder, run: RecordRun) -> pa.RecordBatch:
        """The records of a run; one that does not check is damage, or a stale entry's."""
        window = run.window
        try:
            return decoder.decode(window.data, window.start, run.offsets, path=window.path)
        except CorruptRecordError:
            bad = decoder.find_malformed(window.data, window.start, run.offsets)
        for offset in run.offsets[bad].tolist():
            self._refuse_damage(offset)
        return decoder.decode(window.data, window.start, run.offsets[~bad], path=window.path)

    def _refuse_damage(self, offset: int) -> None:
        """Raise if a queue names the record that does not check; else the entry is stale."""
        for view in self.views.values():
            first, stop = view.log_range(offset, offset + 1)
            if first < stop:
                raise CorruptRecordError(
                    f"the record of queue offset {first} of {view.topic!r} queue "
                    f"{view.queue_id} is damaged", self.store.log.path_of(offset), offset,
                )


def look_up_keys(
    store: Store, topic: str, keys: Sequence[str], hit_count_max: int | None = None
) -> KeyLookup | None:
    """One lookup of some keys; see :meth:`TopicKeys.look_up`."""
    return TopicKeys(store, topic).look_up(keys, hit_count_max)


def find_by_key(
    store: Store, topic: str, keys: str | Sequence[str], columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Every message of a topic that has one of the keys; see :meth:`TopicKeys.find`."""
    yield from TopicKeys(store, topic).find(keys, columns)


def has_key(batch: pa.RecordBatch, keys: frozenset[str]) -> NDArray[np.bool_]:
    """Which rows of a batch (with ``keys`` and ``uniqKey``) have one of the keys."""
    wanted = string_array(sorted(keys))
    matches: NDArray[np.bool_] = pc.is_in(batch["uniqKey"], wanted).to_numpy(zero_copy_only=False)
    tokens = pc.split_pattern(batch["keys"], layout.KEY_SEPARATOR)
    rows = pc.list_parent_indices(tokens).to_numpy()
    hits = pc.is_in(pc.list_flatten(tokens), wanted).to_numpy(zero_copy_only=False)
    matches = matches.copy()
    matches[rows[hits]] = True
    return matches


def _is_wanted(record: RecordPeek, keys: frozenset[str]) -> bool:
    properties = parse_properties(record.properties)
    if properties.get(layout.PROPERTY_UNIQ_KEY) in keys:
        return True
    return not keys.isdisjoint(split_keys(properties.get(layout.PROPERTY_KEYS)))


def _placed(view: QueueView, places: NDArray[np.int64]) -> Units:
    """The units that point at records, given as (claimed queue offset, physical offset).

    Almost always the claim is the place. A record that no unit points at is no row.
    """
    offsets = np.unique(places[:, 1])
    found = view.units_at(places[:, 0])
    at_claim = found.take(np.isin(found.offsets, offsets))
    elsewhere = [
        view.units(*view.log_range(offset, offset + 1))
        for offset in np.setdiff1d(offsets, at_claim.offsets).tolist()
    ]
    units = concatenate([at_claim, *elsewhere])
    return units.take(np.argsort(units.queue_offsets, kind="stable"))


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
