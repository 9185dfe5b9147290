"""The manifest of a batch commit under way, and what becomes of it after a crash.

``<store>/rmqlog/commit.json`` stands from before the first byte of a job is copied until the job
is done. It says where the job starts and what its first record looks like, so whoever opens the
store next can tell what happened:

* the first record is there, magic number and all: the gate was opened, the job is in the log;
* the magic number is missing: the job was not finished. It is cleared away; it never happened;
* something else is there: a broker has run, ended the log in front of the job and gone on.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.config_files import parse_json
from rmqlog.commitlog_format.errors import CorruptConfigError, StoreError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.pending_commit import is_gate_open
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.writer.commit_records import CommitRecords, JobId
from rmqlog.writer.log_recovery import data_end, zero
from rmqlog.writer.posix import Posix
from rmqlog.writer.staging import sweep_staging

_FIRST_RECORD_OFFSET = "firstRecordOffset"
_FIRST_RECORD = "firstRecord"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommitManifest:
    """A commit under way: where it starts, and the first bytes of its first record.

    The first record is not at the start when the job begins with a filler.
    """

    job: JobId
    start_offset: int
    first_record_offset: int
    first_record: bytes

    def write(self, posix: Posix, store_path: str) -> None:
        """Put the manifest on disk; readers then end the log in front of the job."""
        content = {
            **self.job.to_json(),
            layout.COMMIT_MANIFEST_START: self.start_offset,
            _FIRST_RECORD_OFFSET: self.first_record_offset,
            _FIRST_RECORD: self.first_record.hex(),
        }
        posix.replace_file(_path(store_path), json.dumps(content, indent=2).encode())

    @classmethod
    def read(cls, store_path: str) -> CommitManifest | None:
        """The manifest of a store; ``None`` when no commit is under way."""
        path = _path(store_path)
        try:
            with open(path, "rb") as file:
                content = parse_json(file.read(), path)
        except FileNotFoundError:
            return None
        try:
            return cls(
                JobId.from_json(content, path),
                int(content[layout.COMMIT_MANIFEST_START]),
                int(content[_FIRST_RECORD_OFFSET]),
                bytes.fromhex(content[_FIRST_RECORD]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptConfigError("the manifest cannot be read", path, found=error) from error

    @staticmethod
    def remove(posix: Posix, store_path: str) -> None:
        """The commit is no longer under way."""
        posix.unlink(_path(store_path))
        posix.fsync_directory(os.path.dirname(_path(store_path)))

    def is_committed(self, log: FileQueue) -> bool:
        """Whether the job passed its gate and nobody has changed its start since."""
        try:
            found = log.read(self.first_record_offset, len(self.first_record))
        except StoreError:
            return False
        return is_gate_open(log, self.start_offset) and found == self.first_record


def settle_commit(posix: Posix, store_path: str) -> None:
    """Finish or undo the commit that somebody left under way; the store's lock is held.

    Queues and index are left to recovery: ``abort`` stands until a commit is done. It can be
    killed at any point and run again.
    """
    manifest = CommitManifest.read(store_path)
    if manifest is None:
        return
    log = open_log(store_path)
    job_id = manifest.job.job_id
    if manifest.is_committed(log):
        logger.info("%s: job %s passed its gate; it is finished now", store_path, job_id)
        CommitRecords(posix, store_path).add(manifest.job)
    elif is_gate_open(log, manifest.start_offset):
        logger.warning("%s: job %s never happened: somebody wrote over it", store_path, job_id)
    else:
        logger.warning("%s: job %s was not finished; it is undone", store_path, job_id)
        _clear(posix, log, manifest.start_offset)
    CommitManifest.remove(posix, store_path)
    sweep_staging(posix, store_path, job_id)


def _clear(posix: Posix, log: FileQueue, start: int) -> None:
    """Remove what was copied of a job: later segments, last one first, then bytes."""
    later = [file for file in log.files if file.start >= start]
    for file in reversed(later):
        posix.unlink(file.path)
    if later:
        posix.fsync_directory(os.path.dirname(later[0].path))
    for file in log.files:
        if file.start < start < file.end:
            zero(posix, file.path, start - file.start, data_end(file.path, start - file.start))


def open_log(store_path: str) -> FileQueue:
    """The segments of a store."""
    directory = f"{store_path}/{layout.COMMIT_LOG_DIRECTORY}"
    if not os.path.isdir(directory):
        return FileQueue(LocalFiles(), ())
    return FileQueue.open(LocalFiles(), [directory])


def _path(store_path: str) -> str:
    return f"{store_path}/{layout.RMQLOG_DIRECTORY}/{layout.COMMIT_MANIFEST_FILE}"
