"""The writer of one store: what a program uses."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TypeVar

import pyarrow as pa

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.address import encode_message_id, parse_host
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.consume_queue import ConsumeQueue
from rmqlog.commitlog_format.errors import (
    InvalidNameError,
    StoreError,
    WriterClosedError,
)
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer.appender import Appender, AppendResult, PreparedAppend
from rmqlog.writer.commit import BatchCommit, CommitResult, CommitTarget, StagedJob
from rmqlog.writer.commit_manifest import settle_commit
from rmqlog.writer.delay import DelayedDelivery
from rmqlog.writer.dispatch import Dispatcher
from rmqlog.writer.dispatch_backlog import DispatchBacklog
from rmqlog.writer.dispatch_thread import DispatchThread
from rmqlog.writer.draft import Draft, Drafter
from rmqlog.writer.flush import CheckpointFile, LogFlusher, QueueFlusher
from rmqlog.writer.index_writer import IndexWriter
from rmqlog.writer.log_files import LogFiles
from rmqlog.writer.message_columns import NewMessage, batch_of, read_messages
from rmqlog.writer.posix import Posix
from rmqlog.writer.queue_table import QueueTable
from rmqlog.writer.recovery import RecoveryReport, check_kind, recover, remove_abort
from rmqlog.writer.reput import dispatch_what_is_sound
from rmqlog.writer.rules import check_topic, check_topic_kinds
from rmqlog.writer.segments import FileSet, LogPositions
from rmqlog.writer.settings import FlushDiskType, StoreSettings
from rmqlog.writer.shutdown import open_writers
from rmqlog.writer.statistics import Statistics
from rmqlog.writer.store_lock import StoreLock
from rmqlog.writer.topics_config import DelayOffsets, TopicTable
from rmqlog.writer.transactions import Transaction, Transactions
from rmqlog.writer.transient_store_pool import TransientStorePool
from rmqlog.writer.uniq_keys import UniqKeys

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PutResult:
    """Where one message went."""

    msg_id: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int


class StoreWriter:
    """Creates or opens a store and writes to it, as the only one; use it as a context manager.

    Without ``settings``, file sizes are those of the store's files, or a broker's defaults. An
    append is visible to readers when it returns; it is on disk then too with
    ``flushDiskType=SYNC_FLUSH``, else after :meth:`flush` or the flush intervals. Threads may
    share a writer. ``background=False`` does without threads of its own. Queues and index are
    built behind the log, for some thousand messages at a time and with each flush of theirs;
    ``dispatch_in_background`` takes one more thread for it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: StoreSettings | None = None,
        *,
        posix: Posix | None = None,
        background: bool = True,
        dispatch_in_background: bool = False,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self.path = os.fspath(path).rstrip("/")
        self.statistics = Statistics()
        self._posix = posix or Posix()
        self._now_ms = now_ms or _wall_clock_ms
        self._background = background
        self._dispatch_in_background = dispatch_in_background
        self._mutex = threading.RLock()
        # Not the same: whoever holds the first may wait for a flush.
        self._checkpoint_mutex = threading.Lock()
        self._failure: BaseException | None = None
        self._is_closed = False
        self._pid = os.getpid()
        self._lock = StoreLock(self._posix, self.path)
        try:
            self._open(settings)
        except BaseException:
            self._lock.release()
            raise
        open_writers.add(self)

    # --- opening ----------------------------------------------------------------------------

    def _open(self, settings: StoreSettings | None) -> None:
        if settings is None:
            settings = StoreSettings.of_store(self.path)
        else:
            settings.check_store(self.path)
        self.settings = settings
        check_kind(self.path)
        settle_commit(self._posix, self.path)
        #: What recovery found and did when the store was opened.
        self.recovery = recover(self._posix, self.path, settings)
        self._files = FileSet(self._posix, self.path)
        pool = None
        if settings.transientStorePoolEnable:
            pool = TransientStorePool(settings.transientStorePoolSize)
        self._log = LogFiles(
            self._files, f"{self.path}/{layout.COMMIT_LOG_DIRECTORY}", settings,
            self.recovery.log_end, buffers=pool, make_ahead=self._background,
        )
        self._topics = TopicTable(self._posix, self.path, settings)
        self._queues = QueueTable(self._files, self.path, settings, self._topics.is_batch)
        for key, end in self.recovery.queues.items():
            self._queues.adopt(key, end)
        self._index = None
        if settings.messageIndexEnable:
            self._index = IndexWriter(
                self._files, f"{self.path}/{layout.INDEX_DIRECTORY}", settings
            )
        self._dispatcher = Dispatcher(
            self._queues, self._index, index_tags=settings.indexes_tags
        )
        self._delay_offsets = DelayOffsets(self._posix, self.path)
        self._checkpoint = self.recovery.checkpoint
        self._checkpoint_file = CheckpointFile(
            self._posix, f"{self.path}/{layout.CHECKPOINT_FILE}"
        )
        backlog = DispatchThread if self._dispatch_in_background else DispatchBacklog
        self._backlog: DispatchThread | DispatchBacklog = backlog(self._dispatcher)
        last_timestamp = self._catch_up(self.recovery)
        host = parse_host(settings.store_host)
        self._appender = Appender(
            self._log, settings, host, self._queues.next_offset, last_timestamp
        )
        self._drafter = Drafter(
            settings.delay_levels_ms, self._topics.queue_count, UniqKeys(host)
        )
        self._delivery = DelayedDelivery(
            settings, self._delay_offsets, self._next_offset, self.append_draft
        )
        self._transactions = Transactions(
            settings, host, self.append_draft, self._read_log, self._read_queue,
            self._next_offset, self._now_ms,
        )
        self._log_flusher = LogFlusher(self, settings, self.statistics.count_flush)
        self._queue_flusher = QueueFlusher(self, settings)
        if self._background:
            self._log_flusher.start()
            self._queue_flusher.start()

    def _catch_up(self, report: RecoveryReport) -> int:
        """Dispatch what the queues lack; the time of the last message in the log."""
        log = self._read_log()
        # The checkpoint may be older than the last message that has a queue unit.
        last = 0
        if report.last_offset is not None:
            last = log.record(report.last_offset).store_timestamp
        if report.dispatch_start >= report.log_end:
            return last
        count = dispatch_what_is_sound(
            log, report.dispatch_start, report.log_end, self._dispatcher, self.settings
        )
        logger.info("%s: dispatched %d messages that the queues lacked", self.path, count)
        return max(last, self._dispatcher.last_timestamp)

    def _read_log(self) -> CommitLog:
        """The log up to what is written now."""
        self._log.commit()
        directory = f"{self.path}/{layout.COMMIT_LOG_DIRECTORY}"
        return CommitLog(FileQueue.open(LocalFiles(), [directory]))

    def _read_queue(self, key: QueueKey) -> ConsumeQueue:
        """A queue up to what is written now."""
        self._backlog.drain()
        return self._queues.read(key)

    # --- appending --------------------------------------------------------------------------

    def append(
        self,
        batch: pa.RecordBatch | pa.Table,
        *,
        topic: str | None = None,
        compression: str | None = None,
        client_batch: bool = False,
        message_version: str = "V1",
        wait: bool = True,
    ) -> AppendResult:
        """Append the messages of an Arrow batch, all of them or none.

        ``topic`` and ``compression`` (zlib, lz4, zstd) are for rows without one of their own. A
        ``client_batch`` lies in one segment. ``message_version="V2"`` allows retry topics of
        more than 127 bytes, which brokers before 5.1 cannot read. Without ``wait`` a
        synchronous flush is left to :meth:`when_flushed`.
        """
        try:
            messages = read_messages(
                batch if isinstance(batch, pa.RecordBatch) else _one_batch(batch),
                self.settings,
                topic=topic,
                compression=compression,
                allow_v2=message_version == "V2",
            )
            draft = self._drafter.draft(messages, self._now_ms())
            result = self.append_draft(draft, client_batch=client_batch, wait=wait)
        except StoreError as error:
            self.statistics.count_failure(error)
            raise
        self.statistics.count_append(result, messages.dropped_names)
        return result

    def put(self, message: NewMessage) -> PutResult:
        """Append one message."""
        result = self.append(batch_of([message]))
        offset = int(result.physical_offset[0])
        return PutResult(
            encode_message_id(result.store_host, offset),
            result.topics[int(result.topic_codes[0])],
            int(result.queue_id[0]),
            int(result.queue_offset[0]),
            offset,
        )

    def append_draft(
        self, draft: Draft, *, client_batch: bool = False, wait: bool = True
    ) -> AppendResult:
        """Append records that are ready but for their offsets; flushed as the settings say."""
        with self._mutex, open_writers.uninterrupted():
            self._check_usable()
            check_topic_kinds(draft.topics, draft.topic_codes, self._topics.is_batch)
            prepared = self._appender.prepare(draft, self._now_ms(), client_batch=client_batch)
            self._topics.cover([*prepared.queues, *draft.real_queues])
            self._topics.save()
            result = self._or_stop(lambda: self._write(prepared))
        if wait and self.settings.flushDiskType is FlushDiskType.SYNC_FLUSH:
            self._log_flusher.wait(result.end)
        else:
            self._log_flusher.check()
        return result

    def _write(self, prepared: PreparedAppend) -> AppendResult:
        result, batch = self._appender.write(prepared)
        self._backlog.submit(batch)
        return result

    def _or_stop(self, step: Callable[[], _T]) -> _T:
        """Do a step that changes files; if it fails half-way, nothing more is written.

        The next open then recovers, because ``abort`` stays.
        """
        try:
            return step()
        except BaseException as error:
            self._failure = error
            logger.error("%s: the writer stops: %s", self.path, error)
            raise

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise WriterClosedError(
                "the writer was stopped by an error; open the store again", self.path,
                found=self._failure,
            )
        if self._is_closed or os.getpid() != self._pid:
            raise WriterClosedError("the writer is closed", self.path)
        self._log_flusher.check()
        self._queue_flusher.check()
        self._backlog.check()

    def commit_staged(self, staged: StagedJob) -> CommitResult:
        """Append what the tasks of a job have staged: all of it, on disk when it returns, or
        nothing when it raises, unless it is ``CommitStateUnknownError``."""
        with self._mutex, open_writers.uninterrupted():
            self._check_usable()
            self._backlog.drain()
            parts = (self._files, self._log, self._topics, self._appender, self._dispatcher)
            target = CommitTarget(self._posix, self.path, *parts)
            return BatchCommit(target, staged, self._now_ms()).run(self._or_stop, self.flush)

    # --- delays and transactions ------------------------------------------------------------

    def deliver_due(self, now_ms: int | None = None) -> int:
        """Deliver the delayed messages that are due, as a broker does; returns how many."""
        with self._mutex:
            self._check_usable()
            due = self._now_ms() if now_ms is None else now_ms
            return self._delivery.deliver_due(self._read_log(), self._read_queue, due)

    def prepare(self, message: NewMessage, producer_group: str) -> Transaction:
        """Append a message that no consumer sees until it is committed."""
        with self._mutex:
            messages = read_messages(batch_of([message]), self.settings)
            draft = self._drafter.draft(messages, self._now_ms())
            return self._transactions.prepare(draft, producer_group)

    def find_transaction(self, transaction_id: str) -> Transaction:
        """The open transaction with an id, from this run of the program or from an earlier one."""
        with self._mutex:
            self._check_usable()
            return self._transactions.find(transaction_id)

    def commit(self, transaction: Transaction) -> None:
        """Make a prepared message visible in its topic."""
        with self._mutex:
            self._check_usable()
            self._transactions.commit(transaction)

    def rollback(self, transaction: Transaction) -> None:
        """Drop a prepared message."""
        with self._mutex:
            self._check_usable()
            self._transactions.rollback(transaction)

    # --- looking ----------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The physical offset behind the last record."""
        return self._log.end

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message of a queue gets."""
        return self._next_offset(QueueKey(topic, queue_id))

    def _next_offset(self, key: QueueKey) -> int:
        with self._mutex:
            return self._appender.next_offset(key)

    def create_topic(self, topic: str, queue_count: int) -> None:
        """See that a topic exists with at least so many queues."""
        check_topic(topic, 0, allow_v2=True)
        with self._mutex:
            self._check_usable()
            self._topics.create(topic, queue_count)
            self._topics.save()

    # --- durability -------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Queues and index have everything that was appended when it returns.

        Readers do not need it: what is not dispatched yet they take from the log.
        """
        self._check_usable()
        self._backlog.drain()

    def flush(self) -> None:
        """Everything that was appended is on disk when it returns, queues and index too."""
        self._check_usable()
        self._log_flusher.flush()
        self.flush_queues(0)
        self.write_checkpoint()

    def when_flushed(self, result: AppendResult) -> Future[int]:
        """A future that is done when the messages of an append are on disk."""
        return self._log_flusher.request(result.end)

    def positions(self) -> LogPositions:
        """How far the log is written, committed and flushed."""
        return self._log.positions

    def commit_log(self) -> None:
        """Write what only the transient store pool holds to the log's files."""
        self._log.commit()

    def flush_log(self) -> None:
        """Sync the log, up to what is written now."""
        timestamp = self._appender.last_timestamp_ms
        self._log.flush()
        with self._checkpoint_mutex:
            self._checkpoint = replace(self._checkpoint, physic_msg_timestamp=timestamp)

    def flush_queues(self, least_pages: int) -> None:
        """Sync the queues that have so many dirty pages (0: every dirty one), and the index.

        Before that, they catch up with the log.
        """
        self._backlog.drain()
        timestamp = self._dispatcher.last_timestamp
        self._files.sync_names()
        self._queues.flush(least_pages)
        if self._index is not None:
            self._index.flush()
        if least_pages == 0 and timestamp:
            with self._checkpoint_mutex:
                self._checkpoint = replace(self._checkpoint, logics_msg_timestamp=timestamp)

    def write_checkpoint(self) -> None:
        """Note in ``checkpoint`` what has been flushed."""
        checkpoint = self._checkpoint
        if self._index is not None:
            safe = max(checkpoint.index_msg_timestamp, self._index.safe_timestamp)
            checkpoint = replace(checkpoint, index_msg_timestamp=safe)
        self._checkpoint_file.write(checkpoint)

    # --- closing ----------------------------------------------------------------------------

    def close(self) -> None:
        """Flush everything, note that the store was closed in order, and free it.

        After an error that stopped the writer, ``abort`` stays and the next open recovers.
        """
        if os.getpid() != self._pid:
            return  # a forked child: the store is its parent's
        with self._mutex, open_writers.uninterrupted():
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._close_files()
            finally:
                self._files.close()
                self._lock.release()
                open_writers.remove(self)
        logger.debug("%s: closed: %s", self.path, self.statistics.snapshot())

    def _close_files(self) -> None:
        self._queue_flusher.stop()
        self._log_flusher.stop()
        self._backlog.stop()
        self._log.close()
        if self._failure is not None:
            return
        self._log_flusher.flush()
        self.flush_queues(0)
        self._topics.save()
        if layout.SCHEDULE_TOPIC in self._topics:
            self._delay_offsets.save()
        self.write_checkpoint()
        remove_abort(self._posix, self.path)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_pylist([], table.schema)
    if len(batches) > 1:
        raise InvalidNameError(
            "the table is too large to be appended as one batch", found=table.num_rows
        )
    return batches[0]
