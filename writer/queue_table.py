"""The queues of a store by topic and queue id, opened when the first unit arrives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.consume_queue import ConsumeQueue
from rmqlog.commitlog_format.consume_queue_ext import ConsumeQueueExt
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer.queue_ext_writer import ExtWriter
from rmqlog.writer.queue_recovery import QueueEnd
from rmqlog.writer.queue_writer import BatchQueueWriter, QueueWriter, UnitFiles
from rmqlog.writer.segments import FileSet
from rmqlog.writer.settings import StoreSettings

_PAGE_SIZE = 4096


class QueueTable:
    """The writers of all queues of a store. One thread appends; another may flush.

    ``is_batch`` tells the topics whose queues are BatchConsumeQueues.
    """

    def __init__(
        self,
        files: FileSet,
        store_path: str,
        settings: StoreSettings,
        is_batch: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.files = files
        self.is_batch = is_batch
        self._store_path = store_path
        self._file_size = settings.mappedFileSizeConsumeQueue
        self._batch_file_size = settings.mapperFileSizeBatchConsumeQueue
        #: Whether units hold addresses in ext files (``enableConsumeQueueExt``).
        self.has_ext = settings.enableConsumeQueueExt
        self._ext_file_size = settings.mappedFileSizeConsumeQueueExt
        self._ext_ends: dict[QueueKey, int] = {}
        self._exts: dict[QueueKey, ExtWriter] = {}
        self._queues: dict[QueueKey, QueueWriter] = {}
        self._batch_queues: dict[QueueKey, BatchQueueWriter] = {}

    def queue(self, key: QueueKey) -> QueueWriter:
        """The writer of a queue; one that nobody opened yet is new and empty."""
        found = self._queues.get(key)
        if found is None:
            found = self._queues[key] = QueueWriter(self._unit_files(key, 0))
        return found

    def adopt(self, key: QueueKey, end: QueueEnd) -> None:
        """Continue a queue that recovery has found."""
        self._queues[key] = QueueWriter(
            self._unit_files(key, end.end), end.max_physical_offset, is_new=end.is_empty
        )
        self._ext_ends[key] = end.ext_end

    def put_ext(
        self, key: QueueKey, units: NDArray[np.void], store_timestamps: NDArray[np.int64]
    ) -> None:
        """Put the tags codes of a queue's new units into its ext files; the units get addresses.

        A record that was dispatched before is left out.
        """
        ext = self._exts.get(key)
        if ext is None:
            directory = self._directory(layout.CONSUME_QUEUE_EXT_DIRECTORY, key)
            end = self._ext_ends.get(key, 0)
            ext = self._exts[key] = ExtWriter(self.files, directory, self._ext_file_size, end)
        ends = units["commit_log_offset"] + units["size"]
        new = np.flatnonzero(ends > self.queue(key).max_physical_offset)
        units["tags_code"][new] = ext.append(units["tags_code"][new], store_timestamps[new])

    def read(self, key: QueueKey) -> ConsumeQueue:
        """A queue up to what is written now."""
        access = LocalFiles()
        directory = self._directory(layout.CONSUME_QUEUE_DIRECTORY, key)
        ext = None
        if key in self._exts or self._ext_ends.get(key):
            ext_directory = self._directory(layout.CONSUME_QUEUE_EXT_DIRECTORY, key)
            ext = ConsumeQueueExt(FileQueue.open(access, [ext_directory]))
        return ConsumeQueue(FileQueue.open(access, [directory]), ext=ext)

    def batch_queue(self, key: QueueKey) -> BatchQueueWriter:
        """The writer of a BatchConsumeQueue."""
        found = self._batch_queues.get(key)
        if found is None:
            directory = self._directory(layout.BATCH_CONSUME_QUEUE_DIRECTORY, key)
            found = BatchQueueWriter(self.files, directory, self._batch_file_size)
            self._batch_queues[key] = found
        return found

    def next_offset(self, key: QueueKey) -> int:
        """The queue offset that the next message of a queue gets."""
        found = self._queues.get(key)
        return found.next_offset if found is not None else 0

    def flush(self, least_pages: int = 0) -> None:
        """Sync the queues that have at least so many dirty pages (0: every dirty one), and first
        the ext files that their units lead to."""
        for ext in list(self._exts.values()):
            ext.units.flush()
        simple = [queue.units for queue in list(self._queues.values())]
        batched = [queue.units for queue in list(self._batch_queues.values())]
        for units in simple + batched:
            dirty_pages = units.end // _PAGE_SIZE - units.flushed // _PAGE_SIZE
            if units.end > units.flushed and dirty_pages >= least_pages:
                units.flush()

    def _unit_files(self, key: QueueKey, end: int) -> UnitFiles:
        directory = self._directory(layout.CONSUME_QUEUE_DIRECTORY, key)
        return UnitFiles(self.files, directory, self._file_size, end)

    def _directory(self, kind: str, key: QueueKey) -> str:
        return f"{self._store_path}/{kind}/{key.topic}/{key.queue_id}"
