"""The queues of a store by topic and queue id, opened when the first unit arrives."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import UnsupportedFormatError
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer.queue_writer import QueueWriter
from rmqlog.writer.segments import FileSet
from rmqlog.writer.settings import StoreSettings

_PAGE_SIZE = 4096


class QueueTable:
    """All :class:`QueueWriter` s of a store. One thread appends; another may flush."""

    def __init__(self, files: FileSet, store_path: str, settings: StoreSettings) -> None:
        self.files = files
        self.directory = f"{store_path}/{layout.CONSUME_QUEUE_DIRECTORY}"
        self.file_size = settings.mappedFileSizeConsumeQueue
        self._queues: dict[QueueKey, QueueWriter] = {}
        if os.path.exists(f"{self.directory}/{layout.ROCKSDB_MARKER_FILE}"):
            raise UnsupportedFormatError(
                "the store keeps its queues in RocksDB, which cannot be written", self.directory
            )

    def __iter__(self) -> Iterator[tuple[QueueKey, QueueWriter]]:
        return iter(list(self._queues.items()))

    def queue(self, key: QueueKey) -> QueueWriter:
        """The writer of a queue; one that nobody opened yet is new and empty."""
        found = self._queues.get(key)
        if found is None:
            found = QueueWriter(self.files, self._path(key), self.file_size)
            self._queues[key] = found
        return found

    def adopt(self, key: QueueKey, end: int, max_physical_offset: int) -> None:
        """Continue a queue that is there: behind byte ``end``, behind that place of the log."""
        self._queues[key] = QueueWriter(
            self.files, self._path(key), self.file_size, end, max_physical_offset, is_new=False
        )

    def next_offset(self, key: QueueKey) -> int:
        """The queue offset that the next message of a queue gets."""
        found = self._queues.get(key)
        return found.next_offset if found is not None else 0

    def flush(self, least_pages: int = 0) -> None:
        """Sync the queues that have at least so many dirty pages (0: every dirty one)."""
        for queue in list(self._queues.values()):
            dirty_pages = queue.end // _PAGE_SIZE - queue.flushed // _PAGE_SIZE
            if queue.end > queue.flushed and dirty_pages >= least_pages:
                queue.flush()

    def _path(self, key: QueueKey) -> str:
        return f"{self.directory}/{key.topic}/{key.queue_id}"
