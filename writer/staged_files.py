"""Files that tasks leave for the commit: encoded records, and what the commit must know of each.

Raw arrays behind a small JSON text, batch by batch (``layout.STAGED_ROW``); no byte of it is ever
executed, and what a task did not write is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from rmqlog.commitlog_format.errors import CorruptStagingError
from rmqlog.commitlog_format.layout import (
    STAGED_HASH,
    STAGED_MAGIC,
    STAGED_PREFIX,
    STAGED_ROW,
)
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer.posix import Posix


@dataclass(frozen=True, slots=True)
class StagedFile:
    """What a task tells the commit of its file; ``counts`` are the rows of each queue.

    ``real_queues`` are those that delayed rows will be delivered to.
    """

    name: str
    partition: int
    row_count: int = 0
    records_size: int = 0
    counts: tuple[tuple[QueueKey, int], ...] = ()
    real_queues: tuple[QueueKey, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class StagedBatch:
    """The columns of one batch, and where in the file its records begin."""

    queues: Sequence[QueueKey]
    rows: NDArray[np.void]
    hashes: NDArray[np.int32]
    records_position: int


class StagedFileWriter:
    """Writes the batches of one task, one behind the other."""

    def __init__(self, posix: Posix, path: str) -> None:
        self._posix = posix
        self._position = 0
        self._descriptor = posix.open(path, create=True)
        posix.truncate(self._descriptor, 0)

    def add(
        self,
        queues: Sequence[QueueKey],
        rows: NDArray[np.void],
        hashes: NDArray[np.int32],
        records: Sequence[NDArray[np.uint8]],
    ) -> None:
        """Append a batch; its records may come in several pieces."""
        names = json.dumps([[key.topic, key.queue_id] for key in queues]).encode()
        columns = (np.frombuffer(names, np.uint8), _bytes(rows), _bytes(hashes))
        content = np.concatenate(columns)
        prefix = STAGED_PREFIX.pack(
            STAGED_MAGIC, len(names), len(rows), len(hashes), sum(map(len, records)),
            zlib_ng.crc32(content),
        )
        self._write(np.concatenate((np.frombuffer(prefix, np.uint8), content)))
        for piece in records:
            self._write(piece)

    def _write(self, content: NDArray[np.uint8]) -> None:
        self._posix.pwrite(self._descriptor, content, self._position)
        self._position += len(content)

    def close(self) -> None:
        """Give the file back."""
        self._posix.close(self._descriptor)


class StagedFileReader:
    """Reads what a :class:`StagedFileWriter` wrote; anything else raises.

    The file is open as long as somebody holds the reader.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise CorruptStagingError("a staged file cannot be read", path, found=error) from error
        self._size = os.fstat(self._descriptor).st_size

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def batches(self) -> Iterator[StagedBatch]:
        """The batches in order."""
        position = 0
        while position < self._size:
            batch, position = self._batch(position)
            yield batch

    def records(self, position: int, target: NDArray[np.uint8]) -> None:
        """Fill ``target`` with record bytes."""
        done = 0
        while done < len(target):
            count = os.preadv(self._descriptor, [target[done:].data], position + done)
            if not count:
                raise self._corrupt("a staged file is too short", position + done)
            done += count

    def drop_records(self, posix: Posix, position: int, size: int) -> None:
        """Give back the memory of records that were read: new memory takes longer to get."""
        posix.drop(self._descriptor, position, size)

    def _batch(self, position: int) -> tuple[StagedBatch, int]:
        magic, names_size, row_count, hash_count, records_size, crc = STAGED_PREFIX.unpack(
            self._read(position, STAGED_PREFIX.size)
        )
        if magic != STAGED_MAGIC:
            raise self._corrupt("a staged batch does not begin with its magic", position, magic)
        start = position + STAGED_PREFIX.size
        rows_size, hashes_size = row_count * STAGED_ROW.itemsize, hash_count * STAGED_HASH.itemsize
        columns = self._read(start, names_size + rows_size + hashes_size)
        if zlib_ng.crc32(columns) != crc:
            raise self._corrupt("the checksum of a staged batch does not match", position)
        rows = np.frombuffer(columns, STAGED_ROW, row_count, names_size)
        hashes = np.frombuffer(columns, STAGED_HASH, hash_count, names_size + rows_size)
        queues = self._queues(columns[:names_size], position)
        records_position = start + len(columns)
        if records_position + records_size > self._size:
            raise self._corrupt("a staged file is too short", records_position, self._size)
        if (
            int(rows["size"].sum(dtype=np.int64)) != records_size
            or int(rows["hash_count"].sum(dtype=np.int64)) != hash_count
            or not (rows["queue_code"].astype(np.uint32) < len(queues)).all()
        ):
            raise self._corrupt("the columns of a staged batch do not agree", position)
        batch = StagedBatch(queues, rows, hashes, records_position)
        return batch, records_position + records_size

    def _queues(self, text: bytes, position: int) -> list[QueueKey]:
        try:
            found: list[Any] = json.loads(text)
            return [QueueKey(str(topic), int(queue_id)) for topic, queue_id in found]
        except (ValueError, TypeError) as error:
            raise self._corrupt("the queues of a staged batch cannot be read", position) from error

    def _read(self, position: int, size: int) -> bytes:
        if position + size > self._size:
            raise self._corrupt("a staged file is too short", position, self._size)
        target = np.empty(size, np.uint8)
        self.records(position, target)
        return target.tobytes()

    def _corrupt(self, reason: str, position: int, found: object = None) -> CorruptStagingError:
        return CorruptStagingError(reason, self.path, position, found)


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).view(np.uint8)
