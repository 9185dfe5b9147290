"""Reads everything and says what is wrong: records, queues, index, time order, config.

The log is the truth; queues and index are compared with what a broker would have built from it.
The log and the queues are streamed; comparing the index takes some 50 bytes a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pyarrow as pa

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.commit_log import RecordRun
from rmqlog.commitlog_format.errors import NO_OFFSET, StoreError
from rmqlog.commitlog_format.log_walk import LogWalk
from rmqlog.commitlog_format.records import RecordDecoder
from rmqlog.commitlog_format.segment import check_contiguous
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.commitlog_format.tail import UNIT_SOURCE_COLUMNS
from rmqlog.commitlog_format.verify_index import IndexCheck
from rmqlog.commitlog_format.verify_queues import QueueChecks

_COLUMNS = (*UNIT_SOURCE_COLUMNS, "storeTimestamp", "keys", "uniqKey")


class Severity(Enum):
    """How bad a finding is: damage loses or changes answers, the rest is worth knowing."""

    DAMAGE = "damage"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be: where, and what."""

    severity: Severity
    area: str
    what: str
    path: str = ""
    offset: int = NO_OFFSET

    @classmethod
    def of(cls, severity: Severity, area: str, error: StoreError) -> Finding:
        """A finding from an error, whose message names found and expected."""
        bare = type(error)(error.reason, "", NO_OFFSET, error.found, error.expected)
        return cls(severity, area, str(bare), error.path, error.offset)


@dataclass(slots=True)
class Verified:
    """How much a verification has read."""

    record_count: int = 0
    record_size: int = 0
    unit_count: int = 0
    index_entry_count: int = 0


Progress = Callable[[int, int], None]


def verify_store(
    store: Store, counts: Verified | None = None, progress: Progress | None = None
) -> Iterator[Finding]:
    """Everything that is wrong with a store, as it is found.

    ``progress`` is called with the bytes of the log that were read and that there are.
    """
    counts = counts if counts is not None else Verified()
    yield from _check_files(store)
    queues = QueueChecks(store)
    index = IndexCheck(store)
    clock = _Clock()
    decoder = RecordDecoder(_COLUMNS, limits=store.limits)
    for item in _sound_runs(store):
        if isinstance(item, Finding):
            yield item
            continue
        window = item.window
        batch = decoder.decode(window.data, window.start, item.offsets, path=window.path)
        counts.record_count += batch.num_rows
        counts.record_size += int(item.sizes.sum())
        yield from _as_findings("queue", queues.compare(batch))
        index.collect(batch)
        clock.compare(batch)
        if progress is not None:
            progress(int(item.offsets[-1]) + int(item.sizes[-1]) - store.start,
                     store.end - store.start)
    yield from _as_findings("queue", queues.finish())
    counts.unit_count = queues.unit_count
    yield from clock.findings()
    yield from _as_findings("index", index.finish())
    counts.index_entry_count = index.entry_count
    yield from _check_config(store)


def _as_findings(
    area: str, found: Iterator[tuple[bool, StoreError]]
) -> Iterator[Finding]:
    for is_damage, error in found:
        yield Finding.of(Severity.DAMAGE if is_damage else Severity.WARNING, area, error)


def _check_files(store: Store) -> Iterator[Finding]:
    """Sizes and order of the log's files, and what the store says about its last stop."""
    files = store.log.files.files
    for error in check_contiguous(store.log.files):
        is_cut_copy = error.path == files[-1].path and error.found == files[-1].size
        yield Finding.of(Severity.WARNING if is_cut_copy else Severity.DAMAGE, "log", error)
    for stray in store.log.files.strays:
        yield Finding(Severity.WARNING, "log", "a name that is no segment of the log", stray)
    if store.was_killed:
        yield Finding(
            Severity.NOTE, "store", "abort is there: a broker runs, or was killed", store.path
        )
    if store.files.rocksdb_queues:
        yield Finding(
            Severity.NOTE, "store", "the queues are in RocksDB and were not compared", store.path
        )
    reason = store.log_end.reason
    if reason is not None:
        yield Finding.of(Severity.WARNING, "log", StoreError(
            f"the log ends in bytes that are no record: {reason.reason}", reason.path,
            reason.offset, reason.found, reason.expected,
        ))


def _sound_runs(store: Store) -> Iterator[RecordRun | Finding]:
    """All records that check; behind damage the walk goes on with the next segment."""
    position = store.start
    while position < store.end:
        walk = LogWalk(store.log, position, store.end, check_crc=True)
        yield from walk
        if walk.end.offset >= store.end:
            return
        reason = walk.end.reason or StoreError(
            "unused space within the log", store.log.path_of(walk.end.offset), walk.end.offset
        )
        yield Finding.of(Severity.DAMAGE, "log", reason)
        after = [file.start for file in store.log.files.files if file.start > walk.end.offset]
        if not after:
            return
        position = after[0]


class _Clock:
    """Whether store times ever step back: seeks by time allow for some, not for any."""

    def __init__(self) -> None:
        self._latest = -(2**63)
        self._step_count = 0
        self._largest_us = 0
        self._offset = NO_OFFSET

    def compare(self, batch: pa.RecordBatch) -> None:
        times = batch["storeTimestamp"].cast(pa.int64()).to_numpy()
        latest = np.maximum.accumulate(np.concatenate([[self._latest], times]))
        steps = np.where(latest[:-1] > times, latest[:-1] - times, 0)
        self._latest = int(latest[-1])
        self._step_count += int((steps > 0).sum())
        if steps.max(initial=0) > self._largest_us:
            self._largest_us = int(steps.max())
            self._offset = batch["commitLogOffset"][int(steps.argmax())].as_py()

    def findings(self) -> Iterator[Finding]:
        if self._step_count:
            yield Finding(
                Severity.WARNING, "time",
                f"{self._step_count} records were stored at an earlier time than one before "
                f"them, the farthest by {self._largest_us // 1000} ms: filters by time need a "
                f"timeSlack of at least that", offset=self._offset,
            )


def _check_config(store: Store) -> Iterator[Finding]:
    """Whether the config files can be read, and agree with the queues."""
    try:
        config = store.config
        _ = store.checkpoint
    except StoreError as error:
        yield Finding.of(Severity.WARNING, "config", error)
        return
    queue_counts: dict[str, int] = {}
    for view in store.queues.values():
        if len(view):
            highest = max(queue_counts.get(view.topic, 0), view.queue_id + 1)
            queue_counts[view.topic] = highest
    for topic, count in queue_counts.items():
        known = config.topics.get(topic)
        if topic.startswith(layout.LMQ_TOPIC_PREFIX):
            continue
        if known is None:
            yield Finding(Severity.WARNING, "config", f"topics.json does not know topic {topic!r}")
        elif known.read_queue_count < count:
            yield Finding(
                Severity.WARNING, "config",
                f"topics.json gives topic {topic!r} {known.read_queue_count} queues, "
                f"the store has {count}",
            )
    if queue_counts.get(layout.SCHEDULE_TOPIC) and not config.has_delay_offsets:
        yield Finding(
            Severity.WARNING, "config",
            "delayOffset.json is missing: a broker would deliver every delayed message again",
        )
    for (topic, group), offsets in config.consumer_offsets.items():
        for queue_id, offset in offsets.items():
            queue = store.queues.get(QueueKey(topic, queue_id))
            if queue is not None and offset > queue.max_offset:
                yield Finding(
                    Severity.WARNING, "config",
                    f"group {group!r} is ahead of {topic!r} queue {queue_id}: "
                    f"offset {offset}, the queue ends at {queue.max_offset}",
                )
