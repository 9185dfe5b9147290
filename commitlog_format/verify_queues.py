"""Compares every queue with the log: each record has its unit, each unit its record."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import CorruptQueueError, CorruptRecordError, StoreError
from rmqlog.commitlog_format.message_reader import ReadPolicy
from rmqlog.commitlog_format.queue_view import QueueView
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import QueueKey, QueueKind
from rmqlog.commitlog_format.tail import units_of_records
from rmqlog.commitlog_format.units import Units

#: Is it damage (or only worth knowing), and what it is.
Difference = tuple[bool, StoreError]


class QueueChecks:
    """Follows the log with one cursor in each queue; fed with runs of records in order."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.unit_count = 0
        self._checks: dict[QueueKey, _QueueCheck] = {}
        for key, view in store.queues.items():
            if not key.topic.startswith(layout.LMQ_TOPIC_PREFIX):
                self._checks[key] = _QueueCheck(view)

    def compare(self, batch: pa.RecordBatch) -> Iterator[Difference]:
        """What differs between records of the log and the units of their queues."""
        for key, units in units_of_records(self.store.log, batch).items():
            check = self._checks.get(key)
            # A topic without queues was deleted; its records are no rows.
            if check is not None:
                yield from check.compare(units)

    def finish(self) -> Iterator[Difference]:
        """Units behind the last record, and the queues that the log's order does not tell."""
        for check in self._checks.values():
            yield from check.finish()
            self.unit_count += check.unit_count
        for key, view in self.store.queues.items():
            if key not in self._checks:
                yield from self._read_through(view)

    def _read_through(self, view: QueueView) -> Iterator[Difference]:
        """Light message queues share their records with other topics: read each unit's."""
        reader = self.store.reader(["tags"], ReadPolicy(drop_malformed=True))
        for units in view.scan():
            self.unit_count += len(units)
            for _ in reader.read(view.key, view.kind, units):
                pass
        for reason in reader.report.reasons:
            yield True, CorruptRecordError(reason)


class _QueueCheck:
    """One queue: the units that the log leads to expect, against those that are there."""

    def __init__(self, view: QueueView) -> None:
        self.view = view
        self.unit_count = 0
        self._cursor = view.min_offset
        self._shift_told = False

    def compare(self, expected: Units) -> Iterator[Difference]:
        """Compare the units of a run of records with the next ones of the queue."""
        if self.view.kind is QueueKind.BATCH:
            stop = int(expected.queue_offsets[-1]) + _count(expected, -1)
            found = self.view.units(self._cursor, stop)
        else:
            found = self.view.units(self._cursor, self._cursor + len(expected))
        if not _same_records(found, expected):
            found = self.view.units(*self.view.log_range(
                int(expected.offsets[0]), int(expected.offsets[-1]) + 1
            ))
            yield from self._differences(found, expected)
        else:
            yield from self._shift(found, expected)
        self.unit_count += len(found)
        if len(found):
            self._cursor = int(found.queue_offsets[-1]) + _count(found, -1)

    def finish(self) -> Iterator[Difference]:
        """Units that no record of the log led to."""
        rest = self.view.units(self._cursor, self.view.max_offset)
        self.unit_count += len(rest)
        if len(rest):
            yield True, self._error(
                f"{len(rest)} units from queue offset {rest.queue_offsets[0]} on point at no "
                f"sound record", int(rest.offsets[0])
            )

    def _differences(self, found: Units, expected: Units) -> Iterator[Difference]:
        missing = ~np.isin(expected.offsets, found.offsets)
        if missing.any():
            yield True, self._error(
                f"{int(missing.sum())} records have no unit in the queue",
                int(expected.offsets[missing][0]),
            )
        strange = ~np.isin(found.offsets, expected.offsets)
        if strange.any():
            yield True, self._error(
                f"unit of queue offset {found.queue_offsets[strange][0]} points at no sound "
                f"record of this queue", int(found.offsets[strange][0])
            )
        both, in_found, in_expected = np.intersect1d(
            found.offsets, expected.offsets, return_indices=True
        )
        for name, values in (("size", (found.sizes, expected.sizes)),
                             ("tags code", (found.tags_codes, expected.tags_codes))):
            differs = values[0][in_found] != values[1][in_expected]
            if differs.any():
                row = int(np.argmax(differs))
                yield True, self._error(
                    f"unit of queue offset {found.queue_offsets[in_found][row]} has another "
                    f"{name} than its record", int(both[row]),
                    int(values[0][in_found][row]), int(values[1][in_expected][row]),
                )

    def _shift(self, found: Units, expected: Units) -> Iterator[Difference]:
        """Brokers can shift a queue: the unit's place is the truth, the record says another."""
        shifted = np.flatnonzero(found.queue_offsets != expected.queue_offsets)
        if len(shifted) and not self._shift_told:
            self._shift_told = True
            row = int(shifted[0])
            yield False, self._error(
                "records say another queue offset than their place in the queue, from here on",
                int(found.offsets[row]), int(expected.queue_offsets[row]),
                int(found.queue_offsets[row]),
            )

    def _error(
        self, reason: str, offset: int, found: object = None, expected: object = None
    ) -> StoreError:
        key = self.view.key
        return CorruptQueueError(
            f"topic {key.topic!r} queue {key.queue_id}: {reason}", offset=offset,
            found=found, expected=expected,
        )


def _count(units: Units, row: int) -> int:
    return 1 if units.counts is None else int(units.counts[row])


def _same_records(found: Units, expected: Units) -> bool:
    return (
        np.array_equal(found.offsets, expected.offsets)
        and np.array_equal(found.sizes, expected.sizes)
        and np.array_equal(found.tags_codes, expected.tags_codes)
    )
