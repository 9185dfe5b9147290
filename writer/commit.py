"""The commit of a batch write: staged records become part of the store, all of them or none.

Each step is on disk before the next begins:

1. the store is locked, recovered and marked by ``abort`` (:class:`StoreWriter` does that);
2. the manifest and ``topics.json``;
3. all bytes of the log, except the magic number at the old end of the log: the gate;
4. the units of the queues;
5. the gate: from now on the job is in the store;
6. the index, ``checkpoint``, the note that the job is done; manifest and ``abort`` go.

While the gate is shut the log ends in front of the job, for us and for brokers; once it is open
a crash is like any other, and recovery brings queues and index up to date.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.compiled import count_rows, kernels
from rmqlog.commitlog_format.encoding import put_constant, windows
from rmqlog.commitlog_format.errors import (
    CommitStateUnknownError,
    CorruptStagingError,
    RuleViolationError,
    StoreError,
    WriteFailedError,
)
from rmqlog.commitlog_format.layout import ASSIGNED_OFFSETS, I64, RECORD_HEADERS
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer import rules
from rmqlog.writer.appender import Appender, queue_offsets
from rmqlog.writer.commit_manifest import CommitManifest
from rmqlog.writer.commit_records import CommitRecords, JobId
from rmqlog.writer.dispatch import (
    DispatchBatch,
    Dispatcher,
    PlacedEntries,
    join_batches,
    units_by_queue,
)
from rmqlog.writer.log_files import LogFiles
from rmqlog.writer.made_ahead import made_ahead
from rmqlog.writer.placement import CHUNK_SIZE, Placement, physical_offsets, place_records
from rmqlog.writer.posix import Posix
from rmqlog.writer.segments import FileSet
from rmqlog.writer.staged_files import RecordsPlace, StagedBatch, StagedFile, StagedFileReader
from rmqlog.writer.topics_config import TopicTable

#: Pages are given back after so many bytes: a commit of any size needs little memory.
_RELEASE_SIZE = 64 * 1024 * 1024
#: A commit that takes so long says how it gets on, each time that so long has passed.
LONG_COMMIT_S = 5.0
#: Another thread makes so many pieces of work ready while one is being written.
_AHEAD = 2
#: Units are written for so many rows at a time: for each queue a file is opened and closed.
_UNITS_AT_ONCE = 1 << 17
#: Where the store time of a record is, by the bits of its hosts.
_STORE_TIMESTAMP_POSITIONS = np.zeros(layout.HOSTS_V6_MASK + 1, np.int64)
for _flags, _position in layout.STORE_TIMESTAMP_POSITIONS.items():
    _STORE_TIMESTAMP_POSITIONS[_flags] = _position

logger = logging.getLogger(__name__)

Step = Callable[[], None]


@dataclass(frozen=True)
class StagedJob:
    """What the tasks of a job have staged: their files in one folder, in the order to be."""

    job: JobId
    folder: str
    files: Sequence[StagedFile]

    @property
    def row_count(self) -> int:
        """Rows of all tasks."""
        return sum(file.row_count for file in self.files)

    @property
    def records_size(self) -> int:
        """Bytes of all records."""
        return sum(file.records_size for file in self.files)

    @cached_property
    def counts(self) -> Counter[QueueKey]:
        """Rows of each queue."""
        counts: Counter[QueueKey] = Counter()
        for file in self.files:
            counts.update(dict(file.counts))
        return counts

    @property
    def real_queues(self) -> set[QueueKey]:
        """The queues that delayed rows will be delivered to."""
        return {queue for file in self.files for queue in file.real_queues}


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Where a job went. ``was_done`` tells that it had been committed before: nothing was
    written now, and the rest says nothing."""

    row_count: int
    start: int = 0
    end: int = 0
    store_timestamp_ms: int = 0
    was_done: bool = False


@dataclass(frozen=True, slots=True)
class CommitTarget:
    """The parts of an open store that a commit works with."""

    posix: Posix
    path: str
    files: FileSet
    log: LogFiles
    topics: TopicTable
    appender: Appender
    dispatcher: Dispatcher


@dataclass(frozen=True, slots=True, eq=False)
class _Assigned:
    """A staged batch with its places in log and queues."""

    reader: StagedFileReader
    staged: StagedBatch
    sizes: NDArray[np.int64]
    placements: Sequence[Placement]
    physical_offset: NDArray[np.int64]
    queue_offset: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Records of one placement, and where they are staged."""

    assigned: _Assigned
    placement: Placement
    place: RecordsPlace


class BatchCommit:
    """One commit, step by step. Nothing of it is visible before :meth:`open_gate`."""

    def __init__(self, target: CommitTarget, job: StagedJob, now_ms: int) -> None:
        self._target = target
        self._job = job
        self._start = target.log.end
        self._timestamp = max(now_ms, target.appender.last_timestamp_ms, 1)
        self._records = CommitRecords(target.posix, target.path)
        self._progress = _Progress(target, job.records_size)
        self._buffers = [np.empty(0, np.uint8) for _ in range(_AHEAD + 1)]
        #: Where each queue goes on with this job.
        self._first_offsets = {
            queue: target.appender.next_offset(queue) for queue in job.counts
        }

    def run(self, or_stop: Callable[[Step], None], flush: Step) -> CommitResult:
        """All steps. ``or_stop`` does one that changes files, and lets nothing more be written
        if it fails; ``flush`` puts everything and then ``checkpoint`` on disk.

        A job that is done already changes nothing.
        """
        if self._records.is_done(self._job.job):
            return CommitResult(self._job.row_count, was_done=True)
        if not self._job.row_count:
            or_stop(self.note_done)
            return CommitResult(0)
        count_rows(self._job.row_count)
        self._target.files.starts_writeback = True
        or_stop(self.write)
        or_stop(self.open_gate)
        try:
            or_stop(self.write_index)
            flush()
            or_stop(self.note_done)
        except StoreError as error:
            # Nobody must think that the job failed and write it again.
            logger.error(
                "%s: job %s is committed; the next open finishes what is left: %s",
                self._target.path, self._job.job.job_id, error,
            )
        self._target.files.starts_writeback = False
        return CommitResult(
            self._job.row_count, self._start, self._target.log.end, self._timestamp
        )

    def write(self) -> None:
        """Steps 2 to 4: everything is on disk when it returns, and nothing is visible."""
        target = self._target
        for topic in sorted({queue.topic for queue in self._job.counts}):
            if target.topics.is_batch(topic):
                raise RuleViolationError(rules.RULE_TOPIC_BATCH, 0, topic)
        self._write_manifest()
        target.topics.cover([*sorted(self._job.counts), *sorted(self._job.real_queues)])
        target.topics.save()
        target.log.shut_gate()
        self._copy_records()
        target.log.flush()
        target.files.sync_names()
        target.dispatcher.queues.flush()

    def open_gate(self) -> None:
        """Step 5: the job is in the store when it returns."""
        target = self._target
        try:
            target.log.open_gate()
        except WriteFailedError as error:
            raise CommitStateUnknownError(
                f"the gate could not be opened: {error}", target.path, self._start
            ) from error
        target.appender.advance(self._job.counts, self._timestamp)

    def write_index(self) -> None:
        """The first half of step 6; behind the gate, so that no entry is ahead of the log."""
        dispatcher = self._target.dispatcher
        with (
            dispatcher.index_in_bulk(self._job.row_count),
            contextlib.closing(made_ahead(self._index_batches(), _AHEAD)) as batches,
        ):
            for batch, entries in batches:
                dispatcher.dispatch_index(batch, entries)
                dispatcher.note_dispatched(batch)
                self._progress.release(len(entries.hashes) * layout.INDEX_ENTRY.itemsize)

    def note_done(self) -> None:
        """The end of step 6, when index and ``checkpoint`` are on disk.

        For a job without rows it is all there is to do.
        """
        self._records.add(self._job.job)
        CommitManifest.remove(self._target.posix, self._target.path)

    # --- the steps --------------------------------------------------------------------------

    def _write_manifest(self) -> None:
        with contextlib.closing(self._batches()) as batches:
            first = next(batches)
            header_size = RECORD_HEADERS[0].itemsize
            size = int(first.sizes[0])
            run = _Run(first, Placement(0, size, 0, 1), first.staged.records)
            record = self._complete(run)
            manifest = CommitManifest(
                self._job.job, self._start, int(first.physical_offset[0]),
                record[:header_size].tobytes(),
            )
        manifest.write(self._target.posix, self._target.path)

    def _copy_records(self) -> None:
        """Records into the log and units into the queues; no unit counts while the gate is shut.

        Another thread reads and completes what comes next. All calls that change the store are
        made by this one, so that they always come in the same order.
        """
        with contextlib.closing(made_ahead(self._writes(), _AHEAD)) as writes:
            for write in writes:
                write()

    def _writes(self) -> Iterator[Step]:
        """What is to be written, ready to be done: records, and now and then the units of those
        before. What was read is no longer staged."""
        waiting: list[DispatchBatch] = []
        for assigned in self._batches():
            place = assigned.staged.records
            for placement in assigned.placements:
                data = self._complete(_Run(assigned, placement, place))
                yield partial(self._write_records, placement, data)
                place = replace(place, position=place.position + placement.size)
            if assigned.staged.ends_file:
                assigned.reader.drop_records(self._target.posix, place.number)
            waiting.append(self._dispatch_batch(assigned))
            if sum(map(len, waiting)) >= _UNITS_AT_ONCE:
                yield self._write_units(waiting)
                waiting = []
        if waiting:
            yield self._write_units(waiting)

    def _write_records(self, placement: Placement, data: NDArray[np.uint8]) -> None:
        log = self._target.log
        log.reserve([placement])
        log.write(placement, data)
        self._progress.add(placement.size)

    def _write_units(self, batches: Sequence[DispatchBatch]) -> Step:
        batch = join_batches(batches)
        return partial(self._target.dispatcher.dispatch_queues, batch, units_by_queue(batch))

    def _index_batches(self) -> Iterator[tuple[DispatchBatch, PlacedEntries]]:
        """All batches once more, with their index entries."""
        for assigned in self._batches():
            batch = self._dispatch_batch(assigned)
            hashes = assigned.staged.hashes
            rows = np.repeat(np.arange(len(batch)), assigned.staged.rows["hash_count"])
            yield batch, self._target.dispatcher.place_entries(batch, rows, hashes)

    def _complete(self, run: _Run) -> NDArray[np.uint8]:
        """The records of a run with everything that was open filled in."""
        assigned, placement = run.assigned, run.placement
        data = self._scratch(placement.size)
        assigned.reader.read_records(run.place, data)
        rows = slice(placement.first_row, placement.stop_row)
        loops = kernels(placement.stop_row - placement.first_row)
        if loops is not None:
            self._complete_compiled(loops, run, data)
            return data
        sizes = assigned.sizes[rows]
        starts = np.cumsum(sizes) - sizes
        staged = assigned.staged.rows[rows]
        self._check_staged(assigned, data, starts, sizes)
        offsets = np.empty(len(starts), ASSIGNED_OFFSETS)
        offsets["queue_offset"] = assigned.queue_offset[rows]
        offsets["physical_offset"] = assigned.physical_offset[rows]
        positions = starts + layout.QUEUE_OFFSET_POSITION
        windows(data, ASSIGNED_OFFSETS.itemsize)[positions] = offsets.view(
            f"V{ASSIGNED_OFFSETS.itemsize}"
        )
        timestamp = I64.pack(self._timestamp)
        born_open = staged["is_born_open"]
        open_starts = starts if born_open.all() else starts[born_open]
        put_constant(data, open_starts + layout.BORN_TIMESTAMP_POSITION, timestamp)
        host_flags = staged["sys_flag"] & layout.HOSTS_V6_MASK
        for flags, position_in_record in layout.STORE_TIMESTAMP_POSITIONS.items():
            of_kind = host_flags == flags
            if of_kind.all():
                put_constant(data, starts + position_in_record, timestamp)
                break
            put_constant(data, starts[of_kind] + position_in_record, timestamp)
        return data

    def _complete_compiled(
        self, loops: ModuleType, run: _Run, data: NDArray[np.uint8]
    ) -> None:
        """The same in one pass."""
        assigned, placement = run.assigned, run.placement
        rows = slice(placement.first_row, placement.stop_row)
        staged = assigned.staged.rows[rows]
        stopped = loops.complete_records(
            data, assigned.sizes[rows], assigned.queue_offset[rows], placement.physical_offset,
            staged["is_born_open"].copy(),
            _STORE_TIMESTAMP_POSITIONS[staged["sys_flag"] & layout.HOSTS_V6_MASK],
            self._timestamp,
        )
        if stopped != loops.ALL_ROWS:
            raise _no_record(assigned)

    def _check_staged(
        self, assigned: _Assigned, data: NDArray[np.uint8], starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
    ) -> None:
        """Raise unless a record of its size begins at each start: staged files are not synced,
        and the disk of another machine may have lost some of it."""
        found = windows(data, layout.PREFIX.size)[starts].view(layout.RECORD_PREFIX)
        magics = found["magic"]
        is_record = (magics == layout.MAGIC_V1) | (magics == layout.MAGIC_V2)
        if not (is_record & (found["total_size"] == sizes)).all():
            raise _no_record(assigned)

    def _scratch(self, size: int) -> NDArray[np.uint8]:
        """Memory that is used again and again; first touch costs more than a copy.

        One piece is written to the log while those that are ahead of it are filled.
        """
        self._buffers.append(self._buffers.pop(0))
        if size > len(self._buffers[-1]):
            self._buffers[-1] = np.empty(max(size, CHUNK_SIZE), np.uint8)
        return self._buffers[-1][:size]

    def _batches(self) -> Generator[_Assigned]:
        """All staged batches in order, each with its places: the same ones every time."""
        offset = self._start
        next_offsets = dict(self._first_offsets)
        segment_size = self._target.log.segment_size
        for file in self._job.files:
            reader = StagedFileReader(f"{self._job.folder}/{file.name}")
            counts: Counter[QueueKey] = Counter()
            for staged in reader.batches():
                if not next_offsets.keys() >= set(staged.queues):
                    raise _other_rows(reader, staged.queues, sorted(next_offsets))
                sizes = staged.rows["size"].astype(np.int64)
                codes = staged.rows["queue_code"]
                placements = place_records(sizes, offset, segment_size)
                starts = [next_offsets[queue] for queue in staged.queues]
                yield _Assigned(
                    reader, staged, sizes, placements,
                    physical_offsets(placements, sizes), queue_offsets(codes, starts),
                )
                last = placements[-1]
                offset = last.physical_offset + last.size
                of_batch = np.bincount(codes, minlength=len(staged.queues)).tolist()
                for queue, count in zip(staged.queues, of_batch, strict=True):
                    next_offsets[queue] += count
                    counts[queue] += count
            if counts != Counter(dict(file.counts)):
                raise _other_rows(reader, counts.total(), file.row_count)

    def _dispatch_batch(self, assigned: _Assigned) -> DispatchBatch:
        rows = assigned.staged.rows
        tags_code = rows["tags_code"].astype(np.int64)
        tags_code[rows["is_delay"]] += self._timestamp
        return DispatchBatch(
            queues=assigned.staged.queues,
            queue_codes=rows["queue_code"].astype(np.int32),
            queue_offset=assigned.queue_offset,
            physical_offset=assigned.physical_offset,
            size=assigned.sizes,
            sys_flag=rows["sys_flag"].astype(np.int32),
            store_timestamp=np.full(len(rows), self._timestamp, np.int64),
            tags_code=tags_code,
        )


def _other_rows(reader: StagedFileReader, found: object, expected: object) -> CorruptStagingError:
    return CorruptStagingError(
        "a staged file has other rows than its task told", reader.path, found=found,
        expected=expected,
    )


def _no_record(assigned: _Assigned) -> CorruptStagingError:
    return CorruptStagingError("no record where a staged one begins", assigned.reader.path)


class _Progress:
    """Says how a long commit gets on, and gives memory back on the way."""

    def __init__(self, target: CommitTarget, size: int) -> None:
        self._target = target
        self._size = size
        self._done = 0
        self._unreleased = 0
        self._begin_s = self._last_s = time.monotonic()

    def add(self, size: int) -> None:
        """So many bytes more are in the log."""
        self._done += size
        self.release(size)
        now_s = time.monotonic()
        if now_s - self._last_s >= LONG_COMMIT_S:
            self._last_s = now_s
            rate = self._done / (now_s - self._begin_s) / 2**20
            logger.info(
                "%s: copied %d of %d bytes, %.0f MiB/s", self._target.path, self._done,
                self._size, rate,
            )

    def release(self, size: int) -> None:
        """So many bytes more were written through maps."""
        self._unreleased += size
        if self._unreleased >= _RELEASE_SIZE:
            self._unreleased = 0
            self._target.files.release_pages()
