"""Expiry as the broker's cleaning services do it (CleanCommitLogService and its kin).

Old segments go first, then the queue and index files that only point behind the log's new
start. The last file of each kind always stays.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.files import FileAccess, LocalFiles
from rmqlog.commitlog_format.index_file import IndexFile
from rmqlog.commitlog_format.segment import FileQueue, SegmentFile
from rmqlog.commitlog_format.store_files import (
    QueueKind,
    StoreFiles,
    list_store,
    open_log_files,
)
from rmqlog.writer.posix import Posix
from rmqlog.writer.settings import StoreSettings

_HOUR_MS = 3_600_000
_UNITS = {
    QueueKind.SIMPLE: layout.CONSUME_QUEUE_UNIT,
    QueueKind.BATCH: layout.BATCH_CONSUME_QUEUE_UNIT,
}


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes of the file system that a store is on."""

    total: int
    used: int

    @classmethod
    def of(cls, path: str) -> DiskUsage:
        """The usage now."""
        usage = shutil.disk_usage(path)
        return cls(usage.total, usage.used)


@dataclass(frozen=True, slots=True)
class ExpiredFile:
    """A file that goes, or would go in a dry run, and why."""

    path: str
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    """What expired. ``log_start`` is where the log begins afterwards."""

    files: tuple[ExpiredFile, ...]
    log_start: int
    is_dry_run: bool

    @property
    def size(self) -> int:
        """Bytes that the files have together."""
        return sum(file.size for file in self.files)


def expire(
    posix: Posix,
    store_path: str,
    settings: StoreSettings,
    now_ms: int,
    *,
    dry_run: bool = False,
    disk: DiskUsage | None = None,
    release: Callable[[str], None] = lambda path: None,
) -> ExpiryReport:
    """Remove what has expired from a store whose lock is held; a dry run only says what would.

    A segment expires ``fileReservedTime`` hours after its last change (the file's time, not
    the messages'); regardless of age the oldest ones go while the disk is fuller than
    ``diskSpaceCleanForciblyRatio``. ``release`` is called before a file is removed.
    """
    access = LocalFiles()
    files = list_store(access, store_path)
    segments = open_log_files(access, files).files
    expired = list(_expired_segments(segments, settings, now_ms, disk or DiskUsage.of(store_path)))
    remaining = segments[len(expired) :]
    log_start = remaining[0].start if remaining else 0
    expired += _expired_queue_files(access, files, log_start)
    expired += _expired_ext_files(access, files, log_start, {file.path for file in expired})
    expired += _expired_index_files(access, files, settings, log_start)
    if not dry_run:
        _remove(posix, expired, release)
    return ExpiryReport(tuple(expired), log_start, dry_run)


def _remove(
    posix: Posix, expired: list[ExpiredFile], release: Callable[[str], None]
) -> None:
    """Remove files in order: oldest segments first, so that a kill leaves no gap."""
    for file in expired:
        release(file.path)
        posix.unlink(file.path)
    for directory in sorted({os.path.dirname(file.path) for file in expired}):
        posix.fsync_directory(directory)


def _expired_segments(
    segments: tuple[SegmentFile, ...], settings: StoreSettings, now_ms: int, disk: DiskUsage
) -> Iterator[ExpiredFile]:
    """The oldest segments, up to the first one that may stay; never the last."""
    used = disk.used
    for segment in segments[:-1]:
        age_ms = now_ms - segment.modified_ms
        percent = 100 * used / disk.total
        if age_ms > settings.fileReservedTime * _HOUR_MS:
            reason = (
                f"not changed for {age_ms // _HOUR_MS} h "
                f"(fileReservedTime {settings.fileReservedTime})"
            )
        elif percent > settings.diskSpaceCleanForciblyRatio:
            reason = (
                f"disk {percent:.0f} % full "
                f"(diskSpaceCleanForciblyRatio {settings.diskSpaceCleanForciblyRatio})"
            )
        else:
            return
        used -= segment.size
        yield ExpiredFile(segment.path, segment.size, reason)


def _expired_queue_files(
    access: FileAccess, files: StoreFiles, log_start: int
) -> Iterator[ExpiredFile]:
    """Queue files whose last unit points behind the log's start; never the last of a queue."""
    for folder in files.queues.values():
        unit = _UNITS[folder.kind]
        queue = FileQueue.open(access, [folder.path])
        for file in queue.files[:-1]:
            last = np.frombuffer(queue.read(file.end - unit.itemsize, unit.itemsize), unit)[0]
            if int(last["commit_log_offset"]) >= log_start:
                break
            yield ExpiredFile(file.path, file.size, f"its log ends below {log_start}")


def _expired_ext_files(
    access: FileAccess, files: StoreFiles, log_start: int, expired: set[str]
) -> Iterator[ExpiredFile]:
    """Ext files in front of the one that the first unit whose record is there leads to, as a
    broker removes them (ConsumeQueue.correctMinOffset)."""
    for folder in files.queues.values():
        if not folder.ext_path or not os.path.isdir(folder.ext_path):
            continue
        ext_files = FileQueue.open(access, [folder.ext_path]).files
        queue = FileQueue.open(access, [folder.path])
        left = [file for file in queue.files if file.path not in expired]
        if len(ext_files) < 2 or not left:
            continue
        content = np.empty(left[0].size, np.uint8)
        queue.handle(left[0]).read_into(0, content)
        units = content.view(layout.CONSUME_QUEUE_UNIT)
        live = np.flatnonzero((units["commit_log_offset"] >= log_start) & (units["size"] > 0))
        address = int(units["tags_code"][live[0]]) if len(live) else 0
        if address > layout.EXT_ADDRESS_MAX:
            continue
        for file in ext_files:
            if file.end < address - layout.EXT_ADDRESS_BASE:
                reason = f"its queue begins behind it with the log at {log_start}"
                yield ExpiredFile(file.path, file.size, reason)


def _expired_index_files(
    access: FileAccess, files: StoreFiles, settings: StoreSettings, log_start: int
) -> Iterator[ExpiredFile]:
    """Index files whose last entry points behind the log's start; never the last."""
    if not files.index_directory:
        return
    entries = [entry for entry in access.list(files.index_directory) if entry.name.isdigit()]
    for entry in entries[:-1]:
        path = f"{files.index_directory}/{entry.name}"
        try:
            header = IndexFile(access, path, settings.maxHashSlotNum).header
        except StoreError:
            return  # not ours to judge: verify reports it, recovery makes it anew
        if header.end_physical_offset >= log_start:
            return
        yield ExpiredFile(path, entry.size, f"its log ends below {log_start}")
