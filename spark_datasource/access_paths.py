"""How the rows of one store are reached: which queues, which of their units, by which path.

Every path gives a superset of the rows for which the filters are true, and exactly the rows of
the snapshot's bounds; whatever a path cannot decide is left to Spark and to the row filter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.lookup import KeyLookup, look_up_keys
from rmqlog.commitlog_format.message_reader import ReadPolicy, dispatched_names
from rmqlog.commitlog_format.queue_view import QueueView
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import LogFolders, QueueKey, QueueKind
from rmqlog.commitlog_format.time_search import first_stored_at
from rmqlog.spark_datasource.constraints import Constraints, constraints_of
from rmqlog.spark_datasource.estimates import estimate_queue, needs_log, row_size
from rmqlog.spark_datasource.expiry import Expiry
from rmqlog.spark_datasource.intervals import HIGHEST, LOWEST, Intervals
from rmqlog.spark_datasource.offsets import OffsetBounds
from rmqlog.spark_datasource.partitions import (
    LogSlice,
    LogSource,
    Piece,
    QueueSlice,
    UnitFilter,
    UnitList,
)
from rmqlog.spark_datasource.predicates import FALSE, Tree, bind
from rmqlog.spark_datasource.topics import TopicSelection

LOOKUP_PATH: Final = "index lookup"
#: The index is used for so many hits at least; beyond, if they are few among the messages,
#: because a hit costs as much as scanning some fifty messages.
_HIT_COUNT_MIN = 1_000
_MESSAGES_PER_HIT = 50
#: So many physical offsets are looked up one by one; more are only ranges.
_SEEK_COUNT_MAX = 1_000
_SEARCH_COUNT_MAX = 16
_MICROSECONDS = 1000
#: Bytes of a value in an answer that is not made of messages, about.
_VALUE_SIZE = 16


@dataclass(slots=True)
class Findings:
    """What planning found, for the report."""

    paths: dict[str, int] = field(default_factory=dict)
    queue_count: int = 0
    queues_read: int = 0
    queue_file_count: int = 0
    unit_count: int = 0
    index_file_count: int = 0
    index_hit_count: int = 0
    log_size: int = 0
    #: Bytes that retention took since the frame was loaded, and messages that are skipped.
    expired_size: int = 0
    expired_count: int = 0
    rows: float = 0.0
    size: float = 0.0

    def note_path(self, name: str) -> None:
        """Count one queue, or one segment, that is read by a path."""
        self.paths[name] = self.paths.get(name, 0) + 1

    def note_answer(self, rows: Sequence[Sequence[object]]) -> None:
        """Count rows that planning found by itself."""
        self.rows += len(rows)
        self.size += sum(map(len, rows)) * _VALUE_SIZE


@dataclass(frozen=True)
class StorePaths:
    """Plans the reading of one store."""

    store: Store
    expiry: Expiry
    filters: Tree
    #: What the options say besides the filters.
    constraints: Constraints
    bounds: OffsetBounds
    topics: TopicSelection
    columns: frozenset[str]
    policy: ReadPolicy
    use_index: bool
    time_slack_ms: int
    include_deleted: bool
    findings: Findings
    _lookups: dict[tuple[str, frozenset[str]], KeyLookup | None] = field(default_factory=dict)

    def pieces(self) -> Iterator[Piece]:
        """All pieces of the store that can have wanted rows."""
        if not self.store.files.queues and self._log_order_is_enough():
            yield from self._log_pieces(self.store.end, frozenset())
            return
        for key in self._queue_keys():
            yield from self._queue_pieces(key)
        if self.include_deleted:
            yield from self._log_pieces(
                self.store.dispatched_end, frozenset(self.store.topics)
            )

    def _log_order_is_enough(self) -> bool:
        """Whether a store without queue files can be read without making its queues first.

        It cannot when places in queues matter, and for light message queues, whose records
        bear another topic. Then a walk of the log makes the units (``Store.tail``).
        """
        named = self.topics.named or ()
        return self.bounds.is_everything and not any(
            topic.startswith(layout.LMQ_TOPIC_PREFIX) for topic in named
        )

    def queue_keys(self) -> Iterator[tuple[QueueKey, Tree]]:
        """The queues that the options and filters leave, with what is left of the filters."""
        for key in sorted({*self.store.files.queues, *self.store.tail}):
            if self.topics.includes(key.topic):
                self.findings.queue_count += 1
                tree = bind(self.filters, self._known(key.topic, key.queue_id))
                if tree != FALSE:
                    yield key, tree

    def _known(self, topic: str, queue_id: int) -> dict[str, str | int]:
        return {
            "brokerName": self.store.broker_name, "topic": topic, "queueId": queue_id,
        }

    @property
    def _source(self) -> LogSource:
        files = self.store.files
        return LogSource(LogFolders(files.log_directories, files.dledger_path),
                         self.store.broker_name)

    # --- Queues --------------------------------------------------------------------------

    def _queue_keys(self) -> Iterator[tuple[QueueKey, Constraints]]:
        """The queues that can have wanted rows, and what is known of those."""
        found = []
        for key, tree in self.queue_keys():
            constraints = constraints_of(tree) & self.constraints
            if not constraints.is_never:
                found.append((key, constraints))
        sought = self._sought_queues(found)
        return ((key, known) for key, known in found if sought is None or key in sought)

    def _sought_queues(
        self, found: list[tuple[QueueKey, Constraints]]
    ) -> frozenset[QueueKey] | None:
        """The queues of the records at the wanted physical offsets; ``None`` for any queue."""
        wanted: set[int] = set()
        for _, known in found:
            runs = known.log_offsets.runs
            if len(runs) > _SEEK_COUNT_MAX or any(first != last for first, last in runs):
                return None
            wanted.update(first for first, _ in runs)
        keys: set[QueueKey] = set()
        if Intervals.values(wanted) & self.expiry.log_offsets:
            return None  # which queue they were in, nobody can say any more
        for offset in wanted:
            if not self.store.start <= offset < self.store.end:
                continue
            try:
                message = self.store.log.message(offset, check_crc=False)
            except StoreError:
                return None  # no record begins there, or it is damaged: the queues tell
            keys.add(QueueKey(message.topic, message.queue_id))
            keys.update(QueueKey(name, 0) for name in dispatched_names(message))
            keys.update(QueueKey(name, message.queue_id) for name in dispatched_names(message))
        return frozenset(keys)

    def _queue_pieces(self, found: tuple[QueueKey, Constraints]) -> Iterator[Piece]:
        key, known = found
        view = self.store.queue_view(key)
        self.check_expired(view, known)
        ranges = self._ranges(view, known)
        if not ranges:
            return
        self.findings.queues_read += 1
        is_simple = view.kind is QueueKind.SIMPLE
        has_tag_codes = is_simple and key.topic != layout.SCHEDULE_TOPIC
        wanted = UnitFilter(
            known.tags_codes if has_tag_codes else None,
            known.sizes if is_simple else UnitFilter().sizes,
        )
        scan = "queue scan" if wanted.tags_codes is None else "tag scan"
        lookup = self._look_up(key.topic, known.tokens)
        if lookup is not None:
            self.findings.note_path(LOOKUP_PATH)
            scan = "scan of what the index does not cover"
            yield from self._hits(view, lookup, ranges, wanted)
            ranges &= Intervals.of(
                (part.start, part.stop - 1) for part in lookup.uncovered if part.view.key == key
            )
        for first, last in ranges.runs:
            yield from self._range_pieces(view, first, last + 1, wanted, scan)

    def _ranges(self, view: QueueView, known: Constraints) -> Intervals:
        """The queue offsets that can have wanted rows."""
        start, stop = self.bounds.of_queue(self.store.broker_name, view)
        ranges = Intervals.half_open(start, stop) & known.queue_offsets
        if ranges and not known.log_offsets.is_everything:
            self.findings.note_path("seek by physical offset")
            ranges &= Intervals.of(
                _inclusive(*view.log_range(max(first, 0), last + 1))
                for first, last in known.log_offsets.runs if last >= 0
            )
        if ranges and not known.store_times_us.is_everything:
            self.findings.note_path("search by store time")
            ranges &= self._time_ranges(view, known.store_times_us)
        return ranges

    def check_expired(self, view: QueueView, known: Constraints) -> None:
        """Raise, or count by policy, if a query needs messages that expired since the load."""
        lost = self.expiry.lost(self.store, view) & known.queue_offsets
        if not lost or not known.log_offsets & self.expiry.log_offsets:
            return
        start, _ = self.bounds.of_queue(self.store.broker_name, view)
        if start > view.min_offset or self._begins_later(view, known.store_times_us):
            return
        if not self.policy.skip_expired:
            raise self.expiry.error()
        self.findings.expired_count += sum(last - first + 1 for first, last in lost.runs)

    def _begins_later(self, view: QueueView, times_us: Intervals) -> bool:
        """Whether all wanted times lie behind the first message that a queue still has."""
        first_us = times_us.runs[0][0]
        if first_us == LOWEST:
            return False
        first_us -= self.time_slack_ms * _MICROSECONDS
        low, high = view.min_offset, view.max_offset
        place = first_stored_at(self.store.log, view, first_us // _MICROSECONDS, low, high)
        return low < place

    def _time_ranges(self, view: QueueView, times_us: Intervals) -> Intervals:
        """The queue offsets of store times, with a margin for clocks that stepped back."""
        runs = times_us.widened(self.time_slack_ms * _MICROSECONDS).runs
        if len(runs) > _SEARCH_COUNT_MAX:
            runs = ((runs[0][0], runs[-1][1]),)
        low, high = view.min_offset, view.max_offset
        try:
            return Intervals.of(
                _inclusive(
                    low if first == LOWEST
                    else first_stored_at(self.store.log, view, first // _MICROSECONDS, low, high),
                    high if last == HIGHEST
                    else first_stored_at(
                        self.store.log, view, last // _MICROSECONDS + 1, low, high
                    ),
                )
                for first, last in runs
            )
        except StoreError:
            if not (self.policy.drop_malformed or self.policy.skip_expired):
                raise
            return Intervals.half_open(low, high)

    def _look_up(self, topic: str, tokens: frozenset[str] | None) -> KeyLookup | None:
        if tokens is None or not self.use_index or not self.store.index.files:
            return None
        if (topic, tokens) not in self._lookups:
            message_count = sum(map(len, self.store.queues_of(topic)))
            lookup = look_up_keys(
                self.store, topic, sorted(tokens),
                max(_HIT_COUNT_MIN, message_count // _MESSAGES_PER_HIT),
            )
            if lookup is not None:
                self.findings.index_hit_count += lookup.hit_count
                self.findings.index_file_count = len(self.store.index.files)
            self._lookups[topic, tokens] = lookup
        return self._lookups[topic, tokens]

    def _hits(
        self, view: QueueView, lookup: KeyLookup, ranges: Intervals, wanted: UnitFilter
    ) -> Iterator[Piece]:
        """The index's hits in one queue."""
        units = lookup.units.get(view.key)
        if units is None:
            return
        found = QueueView(view.key, view.kind, None, 0, 0, units)
        for first, last in ranges.runs:
            yield from self._unit_list(found, first, last + 1, wanted)

    def _range_pieces(
        self, view: QueueView, start: int, stop: int, wanted: UnitFilter, scan: str
    ) -> Iterator[Piece]:
        """A range of a queue: what its files hold, and what is not dispatched yet."""
        first, last = view.dispatched_range
        first, last = max(first, start), min(last, stop)
        if view.files is not None and first < last:
            estimate = estimate_queue(view, first, last, wanted)
            uses_log = needs_log(self.columns)
            piece = QueueSlice(
                self._source, self.store.files.queues[view.key], view.start_index,
                view.stop_index, first, last, wanted, estimate.row_cost(uses_log),
            )
            self.findings.note_path(scan)
            self.findings.unit_count += piece.row_count
            self.findings.queue_file_count += _file_count(view)
            rows = piece.row_count * estimate.wanted_part
            self._note_rows(rows, rows * estimate.record_size if uses_log else 0.0)
            yield piece
        if len(view.tail):
            tail = QueueView(view.key, view.kind, None, 0, 0, view.tail)
            yield from self._unit_list(tail, start, stop, wanted)

    def _unit_list(
        self, view: QueueView, start: int, stop: int, wanted: UnitFilter
    ) -> Iterator[Piece]:
        for units in view.scan(start, stop, wanted.tags_codes):
            kept = wanted.apply(units)
            if len(kept):
                self._note_rows(kept.message_count, float(kept.sizes.sum()))
                yield UnitList(self._source, view.key, view.kind, kept, start, stop)

    def _note_rows(self, count: float, log_size: float) -> None:
        self.findings.rows += count
        self.findings.log_size += int(log_size)
        record_size = log_size / count if count else 0.0
        self.findings.size += count * row_size(self.columns, record_size)

    # --- The log itself --------------------------------------------------------------------

    def _log_pieces(self, end: int, without: frozenset[str]) -> Iterator[Piece]:
        """The segments below ``end``, for records of topics that have no queues."""
        known = constraints_of(self.filters) & self.constraints
        if known.is_never:
            return
        if known.log_offsets & self.expiry.log_offsets and not self.policy.skip_expired:
            raise self.expiry.error()
        for file in self.store.log.files.files:
            inside = Intervals.half_open(file.start, min(file.end, end)) & known.log_offsets
            if inside:
                self.findings.note_path("log scan")
                piece = LogSlice(
                    self._source, file.start, inside.runs[0][0], inside.runs[-1][1] + 1,
                    self.topics, without, self.filters,
                )
                self._note_rows(piece.cost / layout.MIN_RECORD_SIZE, piece.cost)
                yield piece


def _inclusive(start: int, stop: int) -> tuple[int, int]:
    return start, stop - 1


def _file_count(view: QueueView) -> int:
    return 0 if view.files is None else len(view.files.files.files)


