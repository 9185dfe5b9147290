"""Which index files can be trusted after a crash; what they lack is made anew from the log."""

from __future__ import annotations

import os

from rmqlog.commitlog_format.checkpoint import Checkpoint
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.files import FileAccess
from rmqlog.commitlog_format.index_file import IndexFile
from rmqlog.commitlog_format.store_files import StoreFiles
from rmqlog.writer.index_notes import notes_path, read_notes
from rmqlog.writer.index_rollback import roll_back
from rmqlog.writer.posix import Posix
from rmqlog.writer.settings import StoreSettings


def recover_index(
    posix: Posix,
    access: FileAccess,
    files: StoreFiles,
    settings: StoreSettings,
    checkpoint: Checkpoint,
    log: CommitLog,
    limit: int,
    log_end: int,
) -> int:
    """Remove doubtful index files; from which physical offset on records must be indexed again.

    As a broker (IndexService.load) we keep the files that the checkpoint knows to be on disk,
    normally all but the last one. That one is rolled back to our own note of it, if there is
    one that holds. A broker then indexes only what it happens to dispatch again; we start where
    the last kept file ends, so that no message is missing.
    """
    if not settings.messageIndexEnable:
        return limit
    kept_end = 0
    doubtful: list[str] = []
    for path in _index_paths(access, files.index_directory):
        end = _trusted_end(access, path, settings, files.has_abort, checkpoint)
        if doubtful or end is None or end >= limit:
            doubtful.append(path)
        else:
            kept_end = end
    if doubtful and files.has_abort:
        noted_end = _noted_end(posix, access, files, settings, doubtful[0], log, log_end)
        if noted_end is not None:
            kept_end = noted_end
            del doubtful[0]
    for path in reversed(doubtful):
        posix.unlink(path)
    if doubtful:
        posix.fsync_directory(files.index_directory)
    return kept_end


def _noted_end(
    posix: Posix,
    access: FileAccess,
    files: StoreFiles,
    settings: StoreSettings,
    path: str,
    log: CommitLog,
    log_end: int,
) -> int | None:
    """Roll a file back to the newest note that holds of it: the last record it then has entries
    of. ``None``, and the file is as it was, when there is none."""
    counts = (os.path.basename(path), settings.maxHashSlotNum, settings.maxIndexNum)
    for note in read_notes(access, notes_path(files.path)):
        is_of_file = (note.file_name, note.slot_count, note.entry_count) == counts
        if is_of_file and roll_back(posix, access, path, note, log, log_end):
            return note.header.end_physical_offset
    return None


def _index_paths(access: FileAccess, directory: str) -> list[str]:
    if not directory:
        return []
    return [
        f"{directory}/{entry.name}"
        for entry in access.list(directory)
        if entry.is_file and entry.name.isascii() and entry.name.isdigit()
    ]


def _trusted_end(
    access: FileAccess,
    path: str,
    settings: StoreSettings,
    after_crash: bool,
    checkpoint: Checkpoint,
) -> int | None:
    """The last record that a file has entries of; ``None`` when the file is doubtful.

    After a crash only full files are trusted, whose last message the checkpoint covers.
    """
    if access.open(path).size() != settings.index_file_size:
        return None
    try:
        header = IndexFile(access, path, settings.maxHashSlotNum).header
    except StoreError:
        return None
    is_full = header.index_count == settings.maxIndexNum
    is_covered = 0 < header.end_timestamp <= checkpoint.index_msg_timestamp
    if after_crash and not (is_full and is_covered):
        return None
    return header.end_physical_offset
