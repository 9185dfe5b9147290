"""Dropping index files that cannot be trusted after a crash, to be made anew from the log."""

from __future__ import annotations

from rmqlog.commitlog_format.checkpoint import Checkpoint
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.files import FileAccess
from rmqlog.commitlog_format.index_file import IndexFile
from rmqlog.commitlog_format.store_files import StoreFiles
from rmqlog.writer.posix import Posix
from rmqlog.writer.settings import StoreSettings


def recover_index(
    posix: Posix,
    access: FileAccess,
    files: StoreFiles,
    settings: StoreSettings,
    checkpoint: Checkpoint,
    limit: int,
) -> int:
    """Remove doubtful index files; from which physical offset on records must be indexed again.

    As a broker (IndexService.load) we keep the files that the checkpoint knows to be on disk,
    normally all but the last one. A broker then indexes only what it happens to dispatch
    again; we start where the last kept file ends, so that no message is missing.
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
    for path in reversed(doubtful):
        posix.unlink(path)
    if doubtful:
        posix.fsync_directory(files.index_directory)
    return kept_end


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
