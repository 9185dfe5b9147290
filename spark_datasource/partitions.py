"""The pieces of a plan: small, picklable, each with all that a task and its retry need.

A piece says which rows to read and what they will cost; :func:`divide` makes partitions of
equal cost out of any number of pieces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from rmqlog.commitlog_format.store_files import LogFolders, QueueFolder, QueueKey, QueueKind
from rmqlog.commitlog_format.units import Units
from rmqlog.spark_datasource.intervals import EVERYTHING, Intervals
from rmqlog.spark_datasource.predicates import Tree
from rmqlog.spark_datasource.topics import TopicSelection


@dataclass(frozen=True, slots=True)
class LogSource:
    """The log that a piece's rows are in."""

    folders: LogFolders
    broker_name: str


@dataclass(frozen=True, slots=True)
class UnitFilter:
    """What can be asked of units without touching the log."""

    tags_codes: frozenset[int] | None = None
    sizes: Intervals = EVERYTHING

    def apply(self, units: Units) -> Units:
        """The units of the wanted sizes; tags are compared while units are scanned."""
        return units if self.sizes.is_everything else units.take(self.wants_sizes(units.sizes))

    def wants_sizes(self, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which sizes of records are wanted."""
        wanted = np.zeros(len(sizes), np.bool_)
        for first, last in self.sizes.runs:
            wanted |= (sizes >= first) & (sizes <= last)
        return wanted


@dataclass(frozen=True, slots=True)
class QueueSlice:
    """The queue offsets ``[start, stop)`` of one queue, read through its files.

    ``start_index`` and ``stop_index`` bound the units of the snapshot in the files;
    ``row_cost`` is an estimate of the bytes that one message costs.
    """

    source: LogSource
    folder: QueueFolder
    start_index: int
    stop_index: int
    start: int
    stop: int
    unit_filter: UnitFilter
    row_cost: float

    @property
    def row_count(self) -> int:
        """How many messages it has before filters."""
        return self.stop - self.start

    @property
    def cost(self) -> float:
        """About how many bytes it reads."""
        return self.row_count * self.row_cost

    def part(self, first: int, stop: int) -> QueueSlice:
        """Its messages ``[first, stop)``, counted from 0."""
        return replace(self, start=self.start + first, stop=self.start + stop)


@dataclass(frozen=True, slots=True)
class QueueBundle:
    """Parts of several queues of one topic, whose records are read in the order of the log."""

    slices: tuple[QueueSlice, ...]

    @property
    def source(self) -> LogSource:
        """The log of all of them."""
        return self.slices[0].source

    @property
    def row_count(self) -> int:
        """How many messages they have together, before filters."""
        return sum(each.row_count for each in self.slices)

    @property
    def cost(self) -> float:
        """About how many bytes they read."""
        return sum(each.cost for each in self.slices)

    def part(self, first: int, stop: int) -> QueueBundle:
        """So many messages of each queue that all of them have got equally far.

        Queues of a topic mostly grow alike: then a part is one range of the log.
        """
        counts = [each.row_count for each in self.slices]
        bounds = zip(_dealt(counts, first), _dealt(counts, stop), strict=True)
        return QueueBundle(tuple(
            each.part(*of_slice)
            for each, of_slice in zip(self.slices, bounds, strict=True)
            if of_slice[0] < of_slice[1]
        ))


@dataclass(frozen=True, slots=True)
class UnitList:
    """Units that were found one by one, or belong to records that no queue file names yet.

    Of a unit that holds several messages those in ``[start, stop)`` are meant.
    """

    source: LogSource
    key: QueueKey
    kind: QueueKind
    units: Units
    start: int
    stop: int

    @property
    def row_count(self) -> int:
        """How many units it has."""
        return len(self.units)

    @property
    def cost(self) -> float:
        """How many bytes of the log it reads."""
        return float(self.units.sizes.sum())

    def part(self, first: int, stop: int) -> UnitList:
        """Its units ``[first, stop)``, counted from 0."""
        return replace(self, units=self.units.take(slice(first, stop)))


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Records that begin in ``[start, stop)`` of the log, found by a walk from ``walk_start``.

    ``without`` are topics whose records are read through their queues. ``filters`` choose by
    broker, topic and queue.
    """

    source: LogSource
    walk_start: int
    start: int
    stop: int
    topics: TopicSelection
    without: frozenset[str]
    filters: Tree

    @property
    def row_count(self) -> int:
        """It cannot be divided: where its records begin is not known."""
        return 1

    @property
    def cost(self) -> float:
        """How many bytes of the log it reads."""
        return float(self.stop - self.walk_start)

    def part(self, first: int, stop: int) -> LogSlice:
        """Itself: it is read whole."""
        return self


@dataclass(frozen=True, slots=True)
class RowList:
    """Rows that planning has made already: answers of aggregates and tables of metadata."""

    rows: tuple[tuple[Any, ...], ...]

    @property
    def row_count(self) -> int:
        """How many there are."""
        return len(self.rows)

    @property
    def cost(self) -> float:
        """They cost nothing to speak of."""
        return 0.0

    def part(self, first: int, stop: int) -> RowList:
        """Its rows ``[first, stop)``."""
        return RowList(self.rows[first:stop])


Piece: TypeAlias = QueueSlice | QueueBundle | UnitList | LogSlice | RowList


#: So many queues are read together at most: each has files that are open, and units in memory.
_BUNDLED_COUNT_MAX = 8


def bundle_queues(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Pieces with neighbouring queues of a topic put together."""
    for topic, of_topic in groupby(pieces, _bundled_by):
        if topic is None:
            yield from of_topic
            continue
        slices = [piece for piece in of_topic if isinstance(piece, QueueSlice)]
        for first in range(0, len(slices), _BUNDLED_COUNT_MAX):
            some = slices[first : first + _BUNDLED_COUNT_MAX]
            yield QueueBundle(tuple(some)) if len(some) > 1 else some[0]


def _bundled_by(piece: Piece) -> tuple[LogSource, str] | None:
    """Pieces of which this is equal can be read together; ``None`` if they cannot."""
    if isinstance(piece, QueueSlice) and piece.folder.kind is QueueKind.SIMPLE:
        return piece.source, piece.folder.key.topic
    return None


def _dealt(counts: Sequence[int], total: int) -> list[int]:
    """How many of the first ``total`` rows come from each of some queues, if they take turns.

    Message ``i`` of a queue of ``n`` has its turn at ``(2 * i + 1) / (2 * n)`` of the way. A
    larger total never takes a row away.
    """
    row_count = sum(counts)
    dealt = [(2 * count * total + row_count) // (2 * row_count) for count in counts]

    def turn(place: int, row: int) -> tuple[Fraction, int]:
        return Fraction(2 * row + 1, 2 * counts[place]), place

    # Rounding leaves a few too many or too few.
    while (over := sum(dealt) - total) > 0:
        taken = [place for place, number in enumerate(dealt) if number]
        dealt[max(taken, key=lambda place: turn(place, dealt[place] - 1))] -= 1
    for _ in range(-over):
        left = [place for place, number in enumerate(dealt) if number < counts[place]]
        dealt[min(left, key=lambda place: turn(place, dealt[place]))] += 1
    return dealt


class Partition(InputPartition):
    """What one task reads; the first one of a plan also carries the report for the bridge."""

    def __init__(
        self, pieces: tuple[Piece, ...], row_limit: int | None = None, report: str = ""
    ) -> None:
        super().__init__(None)
        self.pieces = pieces
        self.row_limit = row_limit
        self.report = report


@dataclass(frozen=True, slots=True)
class PartitionSizes:
    """How a plan is divided."""

    count_min: int | None
    row_count_max: int | None
    cost_max: int
    #: About so many tasks run at once, and a partition below this cost is not worth a task.
    task_count: int
    cost_min: int = 4 * 2**20


def divide(pieces: Sequence[Piece], sizes: PartitionSizes) -> list[tuple[Piece, ...]]:
    """Pieces dealt out to partitions of about equal cost, in order, split where needed."""
    total = sum(piece.cost for piece in pieces)
    row_count = sum(piece.row_count for piece in pieces)
    if not row_count:
        return []
    wanted = min(sizes.task_count, math.ceil(total / sizes.cost_min))
    count = max(1, wanted, math.ceil(total / sizes.cost_max), sizes.count_min or 1)
    parts = _cut(pieces, count)
    if sizes.row_count_max is not None:
        parts = [small for part in parts for small in _cut_rows(part, sizes.row_count_max)]
    return parts


def _cut(pieces: Sequence[Piece], count: int) -> list[tuple[Piece, ...]]:
    """Lay all pieces end to end and cut the line into ``count`` equal lengths.

    A row belongs to the part in which its middle lies.
    """
    # A row that costs nothing still has a place on the line.
    costs = [piece.cost + piece.row_count for piece in pieces]
    length = sum(costs) / count
    parts: list[list[Piece]] = [[] for _ in range(count)]
    begin = 0.0
    for piece, cost in zip(pieces, costs, strict=True):
        row_cost = cost / max(piece.row_count, 1)
        first = 0
        while first < piece.row_count:
            index = min(count - 1, int((begin + (first + 0.5) * row_cost) / length))
            stop = math.ceil(((index + 1) * length - begin) / row_cost - 0.5)
            if index == count - 1:
                stop = piece.row_count
            stop = min(max(stop, first + 1), piece.row_count)
            parts[index].append(piece.part(first, stop))
            first = stop
        begin += cost
    return [tuple(part) for part in parts if part]


def _cut_rows(part: tuple[Piece, ...], row_count_max: int) -> Iterator[tuple[Piece, ...]]:
    """One partition in as many as keep the limit of rows."""
    current: list[Piece] = []
    room = row_count_max
    for piece in part:
        first = 0
        while first < piece.row_count:
            stop = min(piece.row_count, first + room)
            current.append(piece.part(first, stop))
            room -= stop - first
            first = stop
            if room == 0:
                yield tuple(current)
                current, room = [], row_count_max
    if current:
        yield tuple(current)
