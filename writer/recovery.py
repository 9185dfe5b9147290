"""Bringing a store into a state that can be written, from its files alone.

As a broker does at its start (DefaultMessageStore.load, recover): a store that was closed
cleanly is checked from the segment of the last dispatched record on; one that was not, from
the last segment that the checkpoint vouches for. The log ends at the first record that does
not check. Unlike a broker we delete no log: what lies behind the end is moved aside.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.checkpoint import Checkpoint, read_checkpoint
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.errors import (
    CorruptConfigError,
    InvalidSettingError,
    StoreError,
    StoreNotFoundError,
    UnsupportedFormatError,
)
from rmqlog.commitlog_format.files import FileAccess, LocalFiles
from rmqlog.commitlog_format.log_walk import LogEnd
from rmqlog.commitlog_format.message import check_body_crc
from rmqlog.commitlog_format.segment import SegmentFile
from rmqlog.commitlog_format.store_files import (
    QueueKey,
    QueueKind,
    StoreFiles,
    list_store,
    open_log_files,
)
from rmqlog.writer.index_recovery import recover_index
from rmqlog.writer.log_recovery import Cut, cut_behind, find_end, lost_behind
from rmqlog.writer.posix import SCRATCH_PREFIX, Posix
from rmqlog.writer.queue_recovery import QueueEnd, QueueRecovery
from rmqlog.writer.settings import StoreSettings

#: A checkpoint may be so far in the future, by clocks that were set back since.
_CLOCK_STEP_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery found and did.

    The log is ``[log_start, log_end)``. Records from ``dispatch_start`` on have to be
    dispatched again; dispatch skips what queues and index already have. ``queues`` are the
    ends of the plain queues that are there; ``last_offset`` is where the last record begins that
    has a unit in any queue, ``None`` if there is none. ``cuts`` is what was set aside.
    ``checkpoint`` is the one that was found, or an empty one if that could not be true.
    """

    was_clean: bool
    log_start: int
    log_end: int
    walk_start: int
    dispatch_start: int
    queues: Mapping[QueueKey, QueueEnd]
    last_offset: int | None
    checkpoint: Checkpoint
    cuts: tuple[Cut, ...] = ()


@dataclass(frozen=True, slots=True)
class RecoveryPreview:
    """What recovery would find: where the log would end, and what it would set aside there."""

    was_clean: bool
    log_start: int
    log_end: int
    walk_start: int
    cuts: tuple[Cut, ...]


def check_kind(store_path: str) -> None:
    """Raise for a store of a kind that cannot be written, as far as its folders tell; one that is
    not there yet can be."""
    if not os.path.isdir(store_path):
        return
    with contextlib.suppress(StoreNotFoundError):
        _check_supported(list_store(LocalFiles(), store_path))
    _refuse_missing_log(store_path)


def preview(
    store_path: str, settings: StoreSettings, access: FileAccess | None = None
) -> RecoveryPreview:
    """What :func:`recover` would find and cut off. Nothing is changed, no lock is needed."""
    access = access or LocalFiles()
    files = list_store(access, store_path)
    _check_supported(files)
    return _Recovery(Posix(), access, files, settings).preview()


def recover(
    posix: Posix, store_path: str, settings: StoreSettings, access: FileAccess | None = None
) -> RecoveryReport:
    """Recover a store whose lock is held. ``abort`` exists when it returns.

    It can be killed at any point and run again; run twice, it changes nothing the second time.
    """
    access = access or LocalFiles()
    posix.mkdir(f"{store_path}/{layout.COMMIT_LOG_DIRECTORY}")
    files = list_store(access, store_path)
    _check_supported(files)
    # Before the first change: while queues may be behind the log, a broker has to know.
    create_abort(posix, store_path)
    _remove_scratch(posix, access, store_path)
    _remove_empty_segments(posix, access, files)
    return _Recovery(posix, access, files, settings).run()


def create_abort(posix: Posix, store_path: str) -> None:
    """Mark a store as being written; durable when it returns."""
    path = f"{store_path}/{layout.ABORT_FILE}"
    descriptor = posix.open(path, create=True)
    try:
        posix.truncate(descriptor, 0)
        posix.pwrite(descriptor, str(os.getpid()).encode(), 0)
        posix.fsync(descriptor)
    finally:
        posix.close(descriptor)
    posix.fsync_directory(store_path)


def remove_abort(posix: Posix, store_path: str) -> None:
    """Mark a store as closed cleanly; everything in it must be on disk before."""
    posix.unlink(f"{store_path}/{layout.ABORT_FILE}")
    posix.fsync_directory(store_path)


class _Recovery:
    """The steps of one recovery, over what they share."""

    def __init__(
        self, posix: Posix, access: FileAccess, files: StoreFiles, settings: StoreSettings
    ) -> None:
        self.posix = posix
        self.access = access
        self.files = files
        self.settings = settings
        self.log = CommitLog(open_log_files(access, files))
        _check_sizes(self.log.files.files, settings.mappedFileSizeCommitLog)
        self.checkpoint = _checkpoint(access, files.path)
        self.queues = QueueRecovery(posix, access, self.log, settings)

    def run(self) -> RecoveryReport:
        if self.files.has_abort:
            return self._after_crash()
        return self._after_clean_close()

    def preview(self) -> RecoveryPreview:
        if self.files.has_abort:
            walk_start = self._last_vouched_segment()
        else:
            ends = self.queues.ends(self.files.queues.values())
            dispatched = max((end.max_physical_offset for end in ends.values()), default=0)
            walk_start = self._segment_start(dispatched)
        end = LogEnd(0)
        if self.log.files.files:
            end = find_end(self.log, walk_start, after_crash=self.files.has_abort)
        return RecoveryPreview(
            not self.files.has_abort, self.log.start, end.offset, walk_start,
            tuple(lost_behind(self.log, end)),
        )

    def _after_clean_close(self) -> RecoveryReport:
        ends = self.queues.ends(self.files.queues.values())
        dispatched = max((end.max_physical_offset for end in ends.values()), default=0)
        walk_start = self._segment_start(dispatched)
        log_end, cuts = self._end_log(walk_start)
        if log_end < dispatched:
            # Units of records that are gone: as after a crash, but only at the end.
            return self._finish(walk_start, log_end, log_end, cuts)
        dispatch_start = max(dispatched, self.log.start)
        return self._report(log_end, walk_start, dispatch_start, ends, cuts)

    def _after_crash(self) -> RecoveryReport:
        walk_start = self._last_vouched_segment()
        log_end, cuts = self._end_log(walk_start)
        return self._finish(walk_start, log_end, min(walk_start, log_end), cuts)

    def _end_log(self, walk_start: int) -> tuple[int, list[Cut]]:
        if not self.log.files.files:
            return 0, []
        end = find_end(self.log, walk_start, after_crash=self.files.has_abort)
        return end.offset, cut_behind(self.posix, self.files.path, self.log, end)

    def _finish(
        self, walk_start: int, log_end: int, limit: int, cuts: list[Cut]
    ) -> RecoveryReport:
        """Cut queues and index to what is sure, and say from where to dispatch again."""
        dispatch_start = limit
        ends: dict[QueueKey, QueueEnd] = {}
        for folder in self.files.queues.values():
            end = self.queues.cut(folder, limit)
            if end.lost:
                dispatch_start = min(dispatch_start, end.max_physical_offset)
            ends[folder.key] = end
        indexed = recover_index(
            self.posix, self.access, self.files, self.settings, self.checkpoint, self.log,
            limit, log_end,
        )
        dispatch_start = max(min(dispatch_start, indexed), self.log.start)
        return self._report(log_end, walk_start, dispatch_start, ends, cuts)

    def _report(
        self,
        log_end: int,
        walk_start: int,
        dispatch_start: int,
        ends: dict[QueueKey, QueueEnd],
        cuts: list[Cut],
    ) -> RecoveryReport:
        plain = {
            key: end for key, end in ends.items()
            if self.files.queues[key].kind is QueueKind.SIMPLE
        }
        in_log = [
            end.last_offset for end in ends.values()
            if self.log.start <= end.last_offset < end.max_physical_offset <= log_end
        ]
        return RecoveryReport(
            was_clean=not self.files.has_abort,
            log_start=self.log.start,
            log_end=log_end,
            walk_start=walk_start,
            dispatch_start=dispatch_start,
            queues=plain,
            last_offset=max(in_log, default=None),
            checkpoint=self.checkpoint,
            cuts=tuple(cuts),
        )

    def _segment_start(self, offset: int) -> int:
        """The start of the last segment that begins at or below an offset, else of the first."""
        starts = [file.start for file in self.log.files.files if file.start <= offset]
        return max(starts, default=self.log.start)

    def _last_vouched_segment(self) -> int:
        """The start of the last segment whose first record the checkpoint knows to be flushed."""
        for file in reversed(self.log.files.files):
            try:
                record = self.log.record(file.start)
                check_body_crc(record, file.path)
            except StoreError:
                continue
            if 0 < record.store_timestamp <= self.checkpoint.min_timestamp:
                return file.start
        return self.log.start


def _check_supported(files: StoreFiles) -> None:
    for wrong, what in (
        (files.dledger_path, "a DLedger log"),
        (files.rocksdb_queues, "queues in RocksDB"),
    ):
        if wrong:
            raise UnsupportedFormatError(f"a store with {what} cannot be written", files.path)


def _refuse_missing_log(path: str) -> None:
    """Queues without a log would be cut to nothing; more likely the log is somewhere else."""
    segments = f"{path}/{layout.COMMIT_LOG_DIRECTORY}"
    has_log = os.path.isdir(segments) and bool(os.listdir(segments))
    queues = f"{path}/{layout.CONSUME_QUEUE_DIRECTORY}"
    if not has_log and any(names for _, _, names in os.walk(queues)):
        raise UnsupportedFormatError(
            "the store has queues but no log here; a log in other directories "
            "(storePathCommitLog) cannot be written", path,
        )


def _check_sizes(segments: tuple[SegmentFile, ...], size: int) -> None:
    for file in segments:
        if file.size != size:
            raise InvalidSettingError(
                "segment has another size than mappedFileSizeCommitLog; a broker would not "
                "start on this store", file.path, found=file.size, expected=size,
            )


def _checkpoint(access: FileAccess, store_path: str) -> Checkpoint:
    """What is known to be flushed; a checkpoint that cannot be true vouches for nothing."""
    try:
        checkpoint = read_checkpoint(access, store_path)
    except CorruptConfigError:
        return Checkpoint()
    latest = max(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp)
    # The file has no checksum, so a sector of garbage must be told by its values.
    if latest > time.time() * 1000 + _CLOCK_STEP_MS or checkpoint.index_msg_timestamp > latest:
        return Checkpoint()
    return checkpoint


def _remove_scratch(posix: Posix, access: FileAccess, store_path: str) -> None:
    """Remove files that were being made when their maker was killed."""
    directory = f"{store_path}/{layout.RMQLOG_DIRECTORY}"
    if os.path.isdir(directory):
        for entry in access.list(directory):
            if entry.is_file and entry.name.startswith(SCRATCH_PREFIX):
                posix.unlink(f"{directory}/{entry.name}")


def _remove_empty_segments(posix: Posix, access: FileAccess, files: StoreFiles) -> None:
    """Remove segments of length 0, as a broker does: it was killed while making them."""
    for directory in files.log_directories:
        for entry in access.list(directory):
            if entry.is_file and entry.size == 0 and entry.name.isdigit():
                posix.unlink(f"{directory}/{entry.name}")
