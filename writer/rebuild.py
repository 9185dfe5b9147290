"""Queues and index made anew, from the log alone."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.checkpoint import Checkpoint
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.errors import StoreNotFoundError, UnsupportedFormatError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.log_walk import LogEnd
from rmqlog.commitlog_format.store_files import StoreFiles, list_store, open_log_files
from rmqlog.writer.dispatch import Dispatcher
from rmqlog.writer.flush import CheckpointFile
from rmqlog.writer.index_notes import notes_path
from rmqlog.writer.index_writer import IndexWriter
from rmqlog.writer.posix import Posix
from rmqlog.writer.queue_table import QueueTable
from rmqlog.writer.recovery import create_abort, remove_abort
from rmqlog.writer.reput import dispatch_log
from rmqlog.writer.segments import FileSet
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.store_lock import StoreLock
from rmqlog.writer.topics_config import TopicTable

logger = logging.getLogger(__name__)

_DERIVED_DIRECTORIES = (
    layout.CONSUME_QUEUE_DIRECTORY,
    layout.BATCH_CONSUME_QUEUE_DIRECTORY,
    layout.INDEX_DIRECTORY,
    layout.CONSUME_QUEUE_EXT_DIRECTORY,
)


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """How many messages were dispatched, and where the log ended (and why there)."""

    message_count: int
    log_end: LogEnd


def rebuild(
    path: str | os.PathLike[str],
    settings: StoreSettings | None = None,
    *,
    posix: Posix | None = None,
) -> RebuildReport:
    """Remove the queues and the index of a store and make them anew from its log.

    Every record's checksum is compared; the first one that is not sound ends it. Killed at any
    point, the next open of the store, by us or by a broker, does it again.
    """
    posix = posix or Posix()
    store_path = os.fspath(path).rstrip("/")
    if not os.path.isdir(f"{store_path}/{layout.COMMIT_LOG_DIRECTORY}"):
        raise StoreNotFoundError("no log to make queues from", store_path)
    with StoreLock(posix, store_path):
        files = list_store(LocalFiles(), store_path)
        if files.dledger_path or files.rocksdb_queues:
            raise UnsupportedFormatError(
                "a store with a DLedger log or RocksDB queues cannot be rebuilt", store_path
            )
        if settings is None:
            settings = StoreSettings.of_store(store_path)
        settings.check_store(store_path)
        _remove_derived(posix, store_path)
        report = _dispatch_all(posix, files, settings)
        remove_abort(posix, store_path)
    logger.info("%s: rebuilt from %d messages", store_path, report.message_count)
    return report


def _dispatch_all(posix: Posix, files: StoreFiles, settings: StoreSettings) -> RebuildReport:
    opened = FileSet(posix, files.path)
    topics = TopicTable(posix, files.path, settings)
    queues = QueueTable(opened, files.path, settings, topics.is_batch)
    index = None
    if settings.messageIndexEnable:
        index = IndexWriter(opened, f"{files.path}/{layout.INDEX_DIRECTORY}", settings)
    dispatcher = Dispatcher(queues, index, index_tags=settings.indexes_tags)
    log = CommitLog(open_log_files(LocalFiles(), files))
    count, end = dispatch_log(
        log, log.start, log.end, dispatcher, settings, check_crc=True
    )
    queues.flush()
    if index is not None:
        index.flush()
    opened.sync_names()
    opened.close()
    CheckpointFile(posix, f"{files.path}/{layout.CHECKPOINT_FILE}").write(
        Checkpoint(
            physic_msg_timestamp=dispatcher.last_timestamp,
            logics_msg_timestamp=dispatcher.last_timestamp,
            index_msg_timestamp=index.safe_timestamp if index is not None else 0,
        )
    )
    return RebuildReport(count, end)


def _remove_derived(posix: Posix, store_path: str) -> None:
    """Remove what will be made anew.

    First the store is marked as not closed in order, and the checkpoint goes: else whoever
    opens a store that is half-way here would make only its newest queue units anew. Folders that
    tell of a setting stay, so that the next one makes what belongs into them, too.
    """
    create_abort(posix, store_path)
    posix.unlink(f"{store_path}/{layout.CHECKPOINT_FILE}")
    posix.unlink(notes_path(store_path))
    posix.fsync_directory(store_path)
    for name in _DERIVED_DIRECTORIES:
        root = f"{store_path}/{name}"
        for directory, folders, file_names in os.walk(root, topdown=False):
            for file_name in file_names:
                posix.unlink(f"{directory}/{file_name}")
            if directory != root or not _tells_setting(name, folders):
                _remove_folder(posix, directory)
    posix.fsync_directory(store_path)


def _tells_setting(name: str, topics: list[str]) -> bool:
    """Whether a folder tells that ext files or light message queues are enabled."""
    is_light = any(topic.startswith(layout.LMQ_TOPIC_PREFIX) for topic in topics)
    return name == layout.CONSUME_QUEUE_EXT_DIRECTORY or is_light


def _remove_folder(posix: Posix, directory: str) -> None:
    if not os.path.basename(directory).startswith(layout.LMQ_TOPIC_PREFIX):
        posix.rmdir(directory)
