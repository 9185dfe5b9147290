"""Files that tasks leave for the commit: encoded records, and what the commit must know of each.

Raw arrays behind a small JSON text, batch by batch (``layout.STAGED_ROW``); no byte of it is ever
executed, and what a task did not write is refused. Records are in files of their own, a few
batches in each: those are emptied as soon as they were copied, while the rest is read again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
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
    STAGED_RECORDS_SIZE,
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


@dataclass(frozen=True, slots=True)
class RecordsPlace:
    """Where the records of a batch are: in which file of records, and where they begin there."""

    number: int = 0
    position: int = 0

    def behind(self, size: int) -> RecordsPlace:
        """Where the next batch begins: in a new file once this one has enough."""
        end = self.position + size
        return RecordsPlace(self.number, end) if end < STAGED_RECORDS_SIZE else (
            RecordsPlace(self.number + 1)
        )


@dataclass(frozen=True, slots=True, eq=False)
class StagedBatch:
    """The columns of one batch, where its records are, and whether their file ends with them."""

    queues: Sequence[QueueKey]
    rows: NDArray[np.void]
    hashes: NDArray[np.int32]
    records: RecordsPlace
    ends_file: bool


def records_path(path: str, number: int) -> str:
    """The file of records that goes with a staged file."""
    return f"{path}.{number}"


class StagedFileWriter:
    """Writes the batches of one task, one behind the other."""

    def __init__(self, posix: Posix, path: str) -> None:
        self._posix = posix
        self._path = path
        self._position = 0
        self._descriptor = self._create(path)
        self._place = RecordsPlace()
        self._records = -1

    def _create(self, path: str) -> int:
        descriptor = self._posix.open(path, create=True)
        # Not a new file: what ext4 has seen truncated to nothing it writes out when it is closed,
        # and most of what is staged is gone before it would have to be on disk.
        if os.fstat(descriptor).st_size:
            self._posix.truncate(descriptor, 0)
        return descriptor

    def add(
        self,
        queues: Sequence[QueueKey],
        rows: NDArray[np.void],
        hashes: NDArray[np.int32],
        records: Iterable[NDArray[np.uint8]],
    ) -> None:
        """Append a batch; its records may come in several pieces."""
        names = json.dumps([[key.topic, key.queue_id] for key in queues]).encode()
        columns = (np.frombuffer(names, np.uint8), _bytes(rows), _bytes(hashes))
        content = np.concatenate(columns)
        prefix = STAGED_PREFIX.pack(
            STAGED_MAGIC, len(names), len(rows), len(hashes),
            int(rows["size"].sum(dtype=np.int64)), zlib_ng.crc32(content),
        )
        head = np.concatenate((np.frombuffer(prefix, np.uint8), content))
        self._posix.pwrite(self._descriptor, head, self._position)
        self._position += len(head)
        self._write_records(records)

    def _write_records(self, records: Iterable[NDArray[np.uint8]]) -> None:
        if self._records < 0:
            self._records = self._create(records_path(self._path, self._place.number))
        position = self._place.position
        for piece in records:
            self._posix.pwrite(self._records, piece, position)
            position += len(piece)
        place = self._place.behind(position - self._place.position)
        if place.number != self._place.number:
            self._close_records()
        self._place = place

    def _close_records(self) -> None:
        if self._records >= 0:
            self._posix.close(self._records)
            self._records = -1

    def close(self) -> None:
        """Give the files back."""
        self._posix.close(self._descriptor)
        self._close_records()

    def remove(self) -> None:
        """Remove everything that was written."""
        for number in range(self._place.number + 1):
            self._posix.unlink(records_path(self._path, number))
        self._posix.unlink(self._path)


class StagedFileReader:
    """Reads what a :class:`StagedFileWriter` wrote; anything else raises.

    Its files are open as long as somebody holds the reader.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = _open(path)
        self._size = os.fstat(self._descriptor).st_size
        #: The file of records that was asked for last.
        self._records: tuple[int, int] | None = None

    def __del__(self) -> None:
        self._close_records()
        descriptor = getattr(self, "_descriptor", -1)
        if descriptor >= 0:
            os.close(descriptor)

    def batches(self) -> Iterator[StagedBatch]:
        """The batches in order."""
        position, place = 0, RecordsPlace()
        while position < self._size:
            batch, position, place = self._batch(position, place)
            yield batch

    def read_records(self, place: RecordsPlace, target: NDArray[np.uint8]) -> None:
        """Fill ``target`` with record bytes."""
        descriptor = self._records_of(place.number)
        self._read_into(descriptor, records_path(self.path, place.number), place.position, target)

    def drop_records(self, posix: Posix, number: int) -> None:
        """Give back the memory of a file of records that was read: new memory takes longer to
        get. Most of it was never on disk, and then never has to be."""
        posix.drop(self._records_of(number))
        self._close_records()

    def _records_of(self, number: int) -> int:
        if self._records is None or self._records[0] != number:
            self._close_records()
            self._records = (number, _open(records_path(self.path, number)))
        return self._records[1]

    def _close_records(self) -> None:
        records = getattr(self, "_records", None)
        if records is not None:
            self._records = None
            os.close(records[1])

    def _batch(
        self, position: int, place: RecordsPlace
    ) -> tuple[StagedBatch, int, RecordsPlace]:
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
        if (
            int(rows["size"].sum(dtype=np.int64)) != records_size
            or int(rows["hash_count"].sum(dtype=np.int64)) != hash_count
            or not (rows["queue_code"].astype(np.uint32) < len(queues)).all()
        ):
            raise self._corrupt("the columns of a staged batch do not agree", position)
        end = start + len(columns)
        next_place = place.behind(records_size)
        ends_file = end == self._size or next_place.number != place.number
        return StagedBatch(queues, rows, hashes, place, ends_file), end, next_place

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
        self._read_into(self._descriptor, self.path, position, target)
        return target.tobytes()

    def _read_into(
        self, descriptor: int, path: str, position: int, target: NDArray[np.uint8]
    ) -> None:
        done = 0
        while done < len(target):
            count = os.preadv(descriptor, [target[done:].data], position + done)
            if not count:
                raise CorruptStagingError("a staged file is too short", path, position + done)
            done += count

    def _corrupt(self, reason: str, position: int, found: object = None) -> CorruptStagingError:
        return CorruptStagingError(reason, self.path, position, found)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise CorruptStagingError("a staged file cannot be read", path, found=error) from error


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).view(np.uint8)
