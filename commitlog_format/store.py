"""A store directory as a read-only, immutable snapshot, and the broker's verbs on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import pyarrow as pa

from rmqlog.commitlog_format.address import decode_message_id
from rmqlog.commitlog_format.checkpoint import Checkpoint, read_checkpoint
from rmqlog.commitlog_format.columns import MESSAGE_SCHEMA
from rmqlog.commitlog_format.commit_log import open_commit_log
from rmqlog.commitlog_format.config_files import ConfigFiles, read_config_files
from rmqlog.commitlog_format.dledger import committed_end
from rmqlog.commitlog_format.errors import (
    CorruptRecordError,
    MessageNotFoundError,
    TopicNotFoundError,
)
from rmqlog.commitlog_format.files import FileAccess, LocalFiles
from rmqlog.commitlog_format.index import Index
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits
from rmqlog.commitlog_format.log_walk import LogEnd, LogWalk
from rmqlog.commitlog_format.message import Message
from rmqlog.commitlog_format.message_reader import MessageReader, ReadPolicy
from rmqlog.commitlog_format.pending_commit import pending_commit_start
from rmqlog.commitlog_format.queue_view import QueueView
from rmqlog.commitlog_format.snapshot import (
    QueueEnd,
    find_log_end,
    find_queue_end,
    last_whole_end,
    open_queue_files,
)
from rmqlog.commitlog_format.store_files import (
    QueueFolder,
    QueueKey,
    QueueKind,
    list_store,
)
from rmqlog.commitlog_format.tags import TagFilter
from rmqlog.commitlog_format.tail import tail_units
from rmqlog.commitlog_format.time_search import first_stored_at
from rmqlog.commitlog_format.units import NO_UNITS, Units


class Store:
    """One store directory at one moment: nothing that is appended later is seen.

    ``end`` pins the snapshot to a physical offset; without it the end is found when the store is
    opened (in a store without queue files: when it is first needed, by a walk of its last
    segment). With ``dispatched_end`` too, which is that of the same snapshot, no queue is opened
    before it is asked for. ``log_directories`` are the broker's ``storePathCommitLog`` where it
    is not ``commitlog``. Nothing is ever changed and no lock is taken.
    """

    def __init__(
        self,
        path: str,
        *,
        end: int | None = None,
        dispatched_end: int | None = None,
        log_directories: Sequence[str] = (),
        index_slot_count: int | None = None,
        broker_name: str | None = None,
        access: FileAccess | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.access = access or LocalFiles()
        self.limits = limits
        self.files = list_store(self.access, str(path), log_directories)
        self.path = self.files.path
        self.broker_name = broker_name or self.path.rsplit("/", 1)[-1]
        self.index_slot_count = index_slot_count
        self.log = open_commit_log(self.access, self.files, limits)
        self._pinned_end = end
        self._pinned_dispatched_end = dispatched_end
        if end is None and self.files.queues:
            _ = self.end

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (
            self.path, self.end, self.dispatched_end, self.files.log_directories,
            self.index_slot_count, self.broker_name, self.access, self.limits,
        )

    def __repr__(self) -> str:
        return f"Store({self.path!r}, end={self._pinned_end})"

    # --- The snapshot ----------------------------------------------------------------------

    @property
    def start(self) -> int:
        """The physical offset at which the log begins; older segments have expired."""
        return self.log.start

    @property
    def end(self) -> int:
        """The physical offset that bounds every answer of this snapshot."""
        if self._pinned_end is None:
            self._pinned_end = self.log_end.offset
        return self._pinned_end

    @cached_property
    def log_end(self) -> LogEnd:
        """Where the log ended when the snapshot was taken, and why there."""
        found = find_log_end(self.log, self._last_dispatched)
        dledger = self.files.dledger_path
        bounds = [
            committed_end(self.access, dledger) if dledger else None,
            pending_commit_start(self.access, self.path, self.log),
        ]
        for bound in bounds:
            if bound is not None and bound < found.offset:
                found = LogEnd(bound)
        return found

    @cached_property
    def dispatched_end(self) -> int:
        """The physical offset behind the last record that has a queue unit."""
        if self._pinned_dispatched_end is not None:
            return min(self._pinned_dispatched_end, self.end)
        last = self._last_dispatched
        return self.start if last is None else min(last, self.end)

    @cached_property
    def _last_dispatched(self) -> int | None:
        """The largest end of a unit whose record verifies; ``None`` without queue files.

        A live broker dispatches while we look from queue to queue. What was dispatched at a
        first look is in every queue at the next one, so that is where the tail may begin.
        """
        if not self.files.queues:
            return None
        ends = [self._queue_end(key) for key in self.files.queues]
        # Where a broker stopped in order, a dispatched record that does not check is damage.
        dispatched = last_whole_end(self.log, ends, check_crc=self.was_killed)
        if self.was_killed:
            self._queue_ends.clear()
        return dispatched

    @cached_property
    def _queue_ends(self) -> dict[QueueKey, QueueEnd]:
        return {}

    def _queue_end(self, key: QueueKey) -> QueueEnd:
        if key not in self._queue_ends:
            files = open_queue_files(self.access, self.files.queues[key], self.limits)
            self._queue_ends[key] = find_queue_end(self.log, key, files)
        return self._queue_ends[key]

    # --- What is in it ---------------------------------------------------------------------

    @cached_property
    def config(self) -> ConfigFiles:
        """Topics, consumer offsets, delay offsets and subscription groups, from ``config/``."""
        return read_config_files(self.access, self.path, self.limits)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """What the broker noted about its last flush."""
        return read_checkpoint(self.access, self.path)

    @property
    def was_killed(self) -> bool:
        """Whether ``abort`` stands: a broker runs on this store, or did not stop in order."""
        return self.files.has_abort

    @cached_property
    def index(self) -> Index:
        """The index files over message keys."""
        return Index.open(
            self.access, self.files.index_directory, self.index_slot_count, self.limits
        ) if self.files.index_directory else Index([])

    @cached_property
    def tail(self) -> dict[QueueKey, Units]:
        """Units for the records behind the last dispatched one, as a broker would make them."""
        if self.dispatched_end >= self.end:
            return {}
        return tail_units(
            self.log, self.dispatched_end, self.end, self._dispatched_to, self._next_offset
        )

    def _dispatched_to(self, key: QueueKey) -> int:
        """Where the log goes on behind the units of a queue that the snapshot takes from files."""
        if key not in self.files.queues:
            return self.start
        return min(self._queue_end(key).log_end, self.dispatched_end)

    def _next_offset(self, key: QueueKey) -> int | None:
        if key not in self.files.queues:
            return None
        return self._view(self.files.queues[key], NO_UNITS).max_offset

    @cached_property
    def queues(self) -> dict[QueueKey, QueueView]:
        """Every queue with its bounds, by topic and queue id."""
        keys = sorted({*self.files.queues, *self.tail})
        return {key: self.queue_view(key) for key in keys}

    @property
    def topics(self) -> list[str]:
        """The topics that have queues, system topics included."""
        return sorted({key.topic for key in (*self.files.queues, *self.tail)})

    def queues_of(self, topic: str) -> list[QueueView]:
        """The queues of one topic; an unknown one raises and suggests the nearest names."""
        keys = sorted(
            key for key in {*self.files.queues, *self.tail} if key.topic == topic
        )
        if not keys:
            near = get_close_matches(topic, self.topics, 3)
            raise TopicNotFoundError(
                "no such topic in this store", self.path, found=repr(topic),
                expected=" or ".join(map(repr, near)) if near else None,
            )
        return [self.queue_view(key) for key in keys]

    def queue(self, topic: str, queue_id: int) -> QueueView:
        """One queue."""
        for view in self.queues_of(topic):
            if view.queue_id == queue_id:
                return view
        raise TopicNotFoundError(
            f"topic {topic!r} has no such queue", self.path, found=queue_id,
            expected=f"one of {[view.queue_id for view in self.queues_of(topic)]}",
        )

    @cached_property
    def _views(self) -> dict[QueueKey, QueueView]:
        return {}

    def queue_view(self, key: QueueKey) -> QueueView:
        """One queue with its bounds; only its own files are opened."""
        if key not in self._views:
            tail = self.tail.get(key, NO_UNITS)
            folder = self.files.queues.get(key)
            if folder is None:
                kind = QueueKind.SIMPLE if tail.counts is None else QueueKind.BATCH
                self._views[key] = QueueView(key, kind, None, 0, 0, tail)
            else:
                self._views[key] = self._view(folder, tail)
        return self._views[key]

    def _view(self, folder: QueueFolder, tail: Units) -> QueueView:
        """A queue's files bounded by the snapshot's end and the log's start.

        What was dispatched since belongs to the snapshot's tail: it is not taken twice.
        """
        found = self._queue_end(folder.key)
        files, stop, end = found.files, found.stop_index, self.dispatched_end
        if found.log_end > end:
            stop = files.first_at_or_after(end, files.first_index, stop)
            if stop > files.first_index:
                last = files.unit(stop - 1)
                stop -= int(last["commit_log_offset"]) + int(last["size"]) > end
        start = files.find_start(self.start, stop)
        return QueueView(folder.key, folder.kind, files, start, stop, tail)

    # --- The broker's verbs ----------------------------------------------------------------

    def reader(
        self, columns: Iterable[str] | None = None, policy: ReadPolicy | None = None
    ) -> MessageReader:
        """A reader of messages of this store with the wanted columns."""
        return MessageReader(
            self.log, columns, broker_name=self.broker_name, policy=policy
        )

    def read(
        self,
        topic: str,
        queue_id: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        *,
        tags: str | None = None,
        columns: Iterable[str] | None = None,
        policy: ReadPolicy | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Messages ``[start, stop)`` of one queue, or of all queues of a topic, as batches.

        ``tags`` is a broker's expression: ``A || B``, or ``*`` for all.
        """
        views = self.queues_of(topic) if queue_id is None else [self.queue(topic, queue_id)]
        tag_filter = TagFilter.parse(tags, topic)
        wanted = tuple(columns) if columns is not None else tuple(MESSAGE_SCHEMA.names)
        reader = self.reader(tag_filter.columns_needed(wanted), policy)
        for view in views:
            for units in view.scan(start, stop, tag_filter.codes):
                for batch in reader.read(view.key, view.kind, units, start, stop):
                    kept = tag_filter.apply(batch, wanted)
                    if kept.num_rows:
                        yield kept

    def scan(
        self,
        columns: Iterable[str] | None = None,
        start: int | None = None,
        stop: int | None = None,
        *,
        policy: ReadPolicy | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Every record of the log in order, deleted topics and half messages included.

        ``start`` must be the physical offset of a record or the start of a segment. A record
        that does not check raises: below the snapshot's end it is damage.
        """
        reader = self.reader(columns, policy)
        position = self.start if start is None else start
        end = self.end if stop is None else min(stop, self.end)
        walk = LogWalk(self.log, position, end)
        for run in walk:
            yield from reader.read_run(run)
        if walk.end.offset < end:
            raise walk.end.reason or CorruptRecordError(
                "unused space in the middle of the log", self.log.path_of(walk.end.offset),
                walk.end.offset, expected=f"records up to {end}",
            )

    def message_at(self, commit_log_offset: int, *, check_crc: bool = True) -> Message:
        """The message at a physical offset."""
        if not self.start <= commit_log_offset < self.end:
            raise MessageNotFoundError(
                "no message at this physical offset", self.path, commit_log_offset,
                expected=f"{self.start} to {self.end}",
            )
        return self.log.message(commit_log_offset, check_crc=check_crc)

    def message_by_id(self, msg_id: str, *, check_crc: bool = True) -> Message:
        """The message with an offset id; its store host must be the one in the id."""
        _host, offset = decode_message_id(msg_id)
        message = self.message_at(offset, check_crc=check_crc)
        if message.msg_id != msg_id.upper():
            raise MessageNotFoundError(
                "the message there has another id", self.path, offset, message.msg_id, msg_id
            )
        return message

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first queue offset whose message was stored at or after a time.

        By binary search: exact as long as the broker's clock never stepped back.
        """
        view = self.queue(topic, queue_id)
        return first_stored_at(self.log, view, timestamp_ms, view.min_offset, view.max_offset)


def _reopen(
    path: str, end: int, dispatched_end: int, log_directories: tuple[str, ...],
    index_slot_count: int | None, broker_name: str, access: FileAccess, limits: Limits,
) -> Store:
    """The same snapshot in another process: files that expired since are gone, E is the same."""
    return Store(
        path, end=end, dispatched_end=dispatched_end, log_directories=log_directories,
        index_slot_count=index_slot_count, broker_name=broker_name, access=access, limits=limits,
    )

