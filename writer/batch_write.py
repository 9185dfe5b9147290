"""The driver's side of a batch write: commit what tasks have staged, or clear it away."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from rmqlog.commitlog_format.errors import (
    CommitFailedError,
    CommitStateUnknownError,
    StoreError,
    StoreLockedError,
)
from rmqlog.writer.commit import LONG_COMMIT_S, CommitResult, StagedJob
from rmqlog.writer.commit_manifest import CommitManifest, open_log
from rmqlog.writer.commit_records import CommitRecords, JobId
from rmqlog.writer.posix import Posix
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.staging import sweep_staging
from rmqlog.writer.store_writer import StoreWriter

_LOCK_POLL_S = 0.1

logger = logging.getLogger(__name__)


def commit_job(
    store_path: str,
    staged: StagedJob,
    settings: StoreSettings,
    *,
    lock_timeout_s: float = 0.0,
    posix: Posix | None = None,
    now_ms: Callable[[], int] | None = None,
) -> CommitResult:
    """Open a store, waiting so long for its lock, and make a staged job part of it.

    ``CommitFailedError`` means that nothing happened and the job can be run again;
    ``CommitStateUnknownError`` that the next open of the store finds out.
    """
    posix = posix or Posix()

    def open_store() -> StoreWriter:
        return StoreWriter(store_path, settings, posix=posix, background=False, now_ms=now_ms)

    begin_s = time.monotonic()
    try:
        result = _commit(_when_free(open_store, lock_timeout_s), staged)
    except CommitStateUnknownError:
        raise
    except StoreError as error:
        if not isinstance(error, StoreLockedError):  # else nothing was copied
            _undo(open_store)
        raise CommitFailedError(
            f"{staged.job} was not committed, nothing of it is in the store: {error}",
            store_path,
        ) from error
    took_s = time.monotonic() - begin_s
    if result.was_done:
        logger.info("%s: %s was committed before; nothing was written", store_path, staged.job)
    else:
        rate = staged.records_size / took_s / 2**20
        logger.log(
            logging.INFO if took_s >= LONG_COMMIT_S else logging.DEBUG,
            "%s: committed %d messages, %d bytes, in %.1f s (%.0f MiB/s)", store_path,
            result.row_count, staged.records_size, took_s, rate,
        )
    sweep_staging(posix, store_path, staged.job.job_id)
    return result


def abort_job(store_path: str, job: JobId, *, posix: Posix | None = None) -> None:
    """Clear away what the tasks of a job have staged, finished or not.

    The store itself is left alone: a commit that has passed its gate stays, and one that has
    not is undone by the next open. Neither needs what was staged.
    """
    if is_committed(store_path, job):
        logger.warning("%s: %s is committed, and stays", store_path, job)
    sweep_staging(posix or Posix(), store_path, job.job_id)


def is_committed(store_path: str, job: JobId) -> bool:
    """Whether a job is in the store, finished or past its gate; takes no lock."""
    if CommitRecords(Posix(), store_path).is_done(job):
        return True
    manifest = CommitManifest.read(store_path)
    return (
        manifest is not None
        and (manifest.job == job or _covers(manifest.job, job))
        and manifest.is_committed(open_log(store_path))
    )


def _covers(committed: JobId, job: JobId) -> bool:
    """Whether a job is of the same application with no higher version."""
    last, wanted = committed.transaction, job.transaction
    return (
        last is not None
        and wanted is not None
        and last.app_id == wanted.app_id
        and wanted.version <= last.version
    )


def _commit(writer: StoreWriter, staged: StagedJob) -> CommitResult:
    try:
        result = writer.commit_staged(staged)
    except BaseException:
        writer.close()
        raise
    try:
        writer.close()
    except StoreError as error:
        logger.error("%s: committed, but not closed in order: %s", writer.path, error)
    return result


def _when_free(open_store: Callable[[], StoreWriter], timeout_s: float) -> StoreWriter:
    """Open a store as soon as nobody else writes it."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return open_store()
        except StoreLockedError:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise
            time.sleep(min(_LOCK_POLL_S, left_s))


def _undo(open_store: Callable[[], StoreWriter]) -> None:
    """Let an open undo what was copied, so that it takes no room; later will do as well."""
    try:
        open_store().close()
    except StoreError as error:
        logger.warning("what was copied is undone by the next open: %s", error)
