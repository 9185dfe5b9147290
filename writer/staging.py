"""What a task of a batch write does: check rows, encode records, leave them for the commit.

Nothing in the store is touched but ``<store>/rmqlog/staging``: a folder for each job, in it the
files of each attempt of each partition. Records lack what only the commit knows: queue offset,
physical offset, store time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.address import parse_host
from rmqlog.commitlog_format.encoding import RecordColumns, encode_records
from rmqlog.commitlog_format.errors import (
    RuleViolationError,
    StoreError,
    WriteFailedError,
)
from rmqlog.commitlog_format.hashing import java_hashes
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer import rules
from rmqlog.writer.appender import draft_records, tags_codes
from rmqlog.writer.dispatch import DispatchBatch, find_queues, index_entries
from rmqlog.writer.draft import Draft, Drafter
from rmqlog.writer.message_columns import (
    ANY_QUEUE,
    INPUT_COLUMNS,
    NO_TIME,
    MessageColumns,
    read_messages,
)
from rmqlog.writer.placement import CHUNK_ROWS, CHUNK_SIZE
from rmqlog.writer.posix import Posix
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.staged_files import StagedFile, StagedFileWriter
from rmqlog.writer.uniq_keys import UniqKeys

#: Staging of a job that nothing was added to for so long is swept: nobody will commit it.
STAGING_AGE_S = 3 * 24 * 3600

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StagingPlan:
    """What every task of a job must know.

    ``topic`` beats the column. Rows without a queue are dealt out in turn, or by the hash of
    the column ``queue_by``. ``queue_counts`` are the topics that exist with the queues they
    have; new ones get ``queue_nums``.
    """

    store_path: str
    job_id: str
    settings: StoreSettings
    topic: str | None = None
    queue_by: str | None = None
    queue_nums: int = 4
    queue_counts: Mapping[str, int] = field(default_factory=dict)
    compression: str | None = None
    compression_threshold: int = 0
    allow_v2: bool = False

    @property
    def folder(self) -> str:
        """Where the tasks of this job leave their files."""
        return f"{_staging_folder(self.store_path)}/{self.job_id}"

    def make_folder(self, posix: Posix) -> None:
        """Make the folder, before a task starts. Tasks never do: an attempt that begins when
        the job has been swept already must fail, not leave something behind."""
        posix.mkdir(self.folder)

    def queue_count(self, topic: str) -> int:
        """The queues that rows of a topic are spread over."""
        return self.queue_counts.get(topic, self.queue_nums)


class StagingWriter:
    """Stages the batches of one attempt at one partition; use it as a context manager.

    Left by an error, it removes its file.
    """

    def __init__(
        self, plan: StagingPlan, partition: int, attempt: int, *, posix: Posix | None = None,
        first_row: int = 0, first_turn: int = 0,
    ) -> None:
        """``first_row`` is how many rows of the partition somebody else has staged, and
        ``first_turn`` how many of them were dealt out to the queues."""
        self._plan = plan
        self._first_row = first_row
        self._posix = posix or Posix()
        self._host = parse_host(plan.settings.store_host)
        self._drafter = Drafter(
            plan.settings.delay_levels_ms, plan.queue_count, UniqKeys(self._host),
            first_turn=partition + first_turn,
        )
        self._staged = StagedFile(f"{partition}-{attempt}", partition)
        self._counts: Counter[QueueKey] = Counter()
        self._real_queues: set[QueueKey] = set()
        self._path = f"{plan.folder}/{self._staged.name}"
        self._file = StagedFileWriter(self._posix, self._path)
        self._scratch = np.empty(CHUNK_SIZE, np.uint8)

    def add(self, batch: pa.RecordBatch) -> None:
        """Check and encode the rows of a batch; an error names the row of the partition."""
        if not batch.num_rows:
            return
        try:
            self._add(batch)
        except RuleViolationError as error:
            row = self._first_row + self._staged.row_count + error.row
            raise RuleViolationError(
                error.rule, row, error.value, error.expected, self._staged.partition
            ) from error

    def _add(self, batch: pa.RecordBatch) -> None:
        plan = self._plan
        messages = read_messages(
            _readable(batch, plan), plan.settings, topic=plan.topic, allow_v2=plan.allow_v2
        )
        if plan.queue_by is not None:
            messages = _choose_queues(messages, batch.column(plan.queue_by), plan)
        draft = self._drafter.draft(messages, time.time_ns() // 1_000_000)
        records = draft_records(draft, self._host, np.zeros(len(draft), np.int64), 0)
        sizes = records.total_sizes()
        rules.check_record_sizes(sizes, plan.settings)
        queues, codes = find_queues(draft.topics, draft.topic_codes, draft.queue_id)
        hash_counts, hashes = _index_hashes(draft, queues, codes, plan.settings)
        rows = np.empty(len(draft), layout.STAGED_ROW)
        rows["size"] = sizes
        rows["queue_code"] = codes
        rows["sys_flag"] = records.sys_flag
        rows["hash_count"] = hash_counts
        rows["tags_code"] = tags_codes(draft, 0)
        rows["is_delay"] = draft.due_delay_ms >= 0
        rows["is_born_open"] = messages.born_timestamp == NO_TIME
        self._file.add(queues, rows, hashes, self._encode(records, sizes))
        counts = np.bincount(codes, minlength=len(queues)).tolist()
        self._counts.update(dict(zip(queues, counts, strict=True)))
        self._real_queues.update(draft.real_queues)
        self._staged = replace(
            self._staged,
            row_count=self._staged.row_count + len(draft),
            records_size=self._staged.records_size + int(sizes.sum()),
        )

    def _encode(
        self, records: RecordColumns, sizes: NDArray[np.int64]
    ) -> Iterator[NDArray[np.uint8]]:
        """The bytes of records in pieces that stay in the processor's cache, each of which is
        gone with the next: new memory takes longer to get."""
        ends = np.cumsum(sizes)
        start = 0
        while start < len(sizes):
            limit = int(ends[start] - sizes[start]) + CHUNK_SIZE
            stop = int(np.searchsorted(ends, limit, side="right"))
            stop = min(max(stop, start + 1), start + CHUNK_ROWS)
            yield encode_records(records[start:stop], 0, sizes[start:stop], self._scratch)
            start = stop

    def finish(self) -> StagedFile:
        """Close the file; what the commit has to be told.

        Nothing is synced: a job that a power cut meets in front of its gate never happened, and
        behind its gate nobody needs what was staged.
        """
        self._file.close()
        if not os.path.exists(self._path):
            raise WriteFailedError("what was staged is gone: the job was swept", self._path)
        return replace(
            self._staged,
            counts=tuple(self._counts.items()),
            real_queues=tuple(sorted(self._real_queues)),
        )

    def __enter__(self) -> StagingWriter:
        return self

    def __exit__(self, _type: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if _type is not None:
            with contextlib.suppress(StoreError):
                self._file.remove()


def _readable(batch: pa.RecordBatch, plan: StagingPlan) -> pa.RecordBatch:
    """The columns that make messages, with the compression that each body shall get."""
    names = [name for name in batch.schema.names if name in INPUT_COLUMNS]
    if plan.topic is not None and "topic" in names:
        names.remove("topic")
    chosen = batch.select(names)
    if plan.compression is None or "body" not in names:
        return chosen
    is_long = pc.greater_equal(
        pc.binary_length(batch.column("body")), plan.compression_threshold
    )
    compression = pc.if_else(is_long, plan.compression, pa.scalar(None, pa.string()))
    return chosen.append_column("compression", compression)


def _choose_queues(
    messages: MessageColumns, values: pa.Array, plan: StagingPlan
) -> MessageColumns:
    """Rows without a queue get one by the hash of a value, as SelectMessageQueueByHash does."""
    texts = values.cast(pa.string())
    chosen = (messages.queue_id == ANY_QUEUE) & np.asarray(texts.is_valid())
    if not chosen.any():
        return messages
    counts = np.array([plan.queue_count(topic) for topic in messages.topics], np.int64)
    hashes = np.abs(java_hashes(texts).astype(np.int64))
    queue_id = np.where(chosen, hashes % counts[messages.topic_codes], messages.queue_id)
    return replace(messages, queue_id=queue_id.astype(np.int32))


def _index_hashes(
    draft: Draft, queues: list[QueueKey], codes: NDArray[np.int32], settings: StoreSettings
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """How many index entries each row has, and their hashes in the broker's order."""
    count = len(draft)
    if not settings.messageIndexEnable:
        return np.zeros(count, np.int64), np.empty(0, np.int32)
    nothing = np.zeros(count, np.int64)
    batch = DispatchBatch(
        queues=queues, queue_codes=codes, queue_offset=nothing, physical_offset=nothing,
        size=nothing, sys_flag=draft.sys_flag, store_timestamp=nothing, tags_code=nothing,
        uniq_keys=draft.uniq_keys, keys=draft.keys, tags=draft.tags,
    )
    rows, hashes = index_entries(batch, index_tags=settings.indexes_tags)
    return np.bincount(rows, minlength=count), hashes


# --- folders --------------------------------------------------------------------------------


def sweep_staging(
    posix: Posix, store_path: str, job_id: str, *, now_s: float | None = None
) -> None:
    """Remove what a job has staged, and what jobs left that died long ago.

    Nothing depends on it: what cannot be removed is left to the next sweep.
    """
    folder = _staging_folder(store_path)
    oldest = (time.time() if now_s is None else now_s) - STAGING_AGE_S
    try:
        for entry in list(os.scandir(folder)):
            if entry.name == job_id or _last_change(entry) < oldest:
                _remove_folder(posix, entry.path)
    except FileNotFoundError:
        pass  # nothing was staged, or another driver sweeps too
    except (OSError, StoreError) as error:
        logger.warning("%s: not all of it could be swept: %s", folder, error)


def _remove_folder(posix: Posix, path: str) -> None:
    for entry in list(os.scandir(path)):
        posix.unlink(entry.path)
    posix.rmdir(path)


def _last_change(folder: os.DirEntry[str]) -> float:
    entries = [folder, *os.scandir(folder.path)]
    times: list[float] = [entry.stat(follow_symlinks=False).st_mtime for entry in entries]
    return max(times)


def _staging_folder(store_path: str) -> str:
    return f"{store_path}/{layout.RMQLOG_DIRECTORY}/{layout.STAGING_DIRECTORY}"
