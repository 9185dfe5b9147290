"""What is in a store directory: log, queues, index. Names and sizes only, no content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import (
    FileUnavailableError,
    InvalidNameError,
    SegmentExpiredError,
    StoreError,
    StoreNotFoundError,
    UnsafeFileError,
)
from rmqlog.commitlog_format.files import DirectoryEntry, FileAccess
from rmqlog.commitlog_format.segment import FileQueue

_MAX_QUEUE_ID = 2**31 - 1


class QueueKind(Enum):
    """How a queue's units are stored."""

    SIMPLE = "SimpleCQ"
    BATCH = "BatchCQ"


@dataclass(frozen=True, slots=True, order=True)
class QueueKey:
    """One queue of one topic."""

    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class QueueFolder:
    """Where the files of one queue are; ``ext_path`` is "" unless it has an ext file."""

    key: QueueKey
    kind: QueueKind
    path: str
    ext_path: str = ""


@dataclass(frozen=True)
class LogFolders:
    """Where the segments of a log are; ``dledger_path`` is the folder of a DLedger log, or ""."""

    log_directories: tuple[str, ...]
    dledger_path: str

    @property
    def data_directories(self) -> tuple[str, ...]:
        """Every folder with segments of the log, DLedger's included."""
        if not self.dledger_path:
            return self.log_directories
        return (*self.log_directories, f"{self.dledger_path}/{layout.DLEDGER_DATA_DIRECTORY}")


@dataclass(frozen=True)
class StoreFiles(LogFolders):
    """The files of a store directory, as a listing found them.

    ``rocksdb_queues`` tells that ``consumequeue`` is a database, which is not read: such a store
    is read by scanning its log.
    """

    path: str
    queues: dict[QueueKey, QueueFolder]
    index_directory: str
    rocksdb_queues: bool
    has_abort: bool


def list_store(
    access: FileAccess, path: str, log_directories: Sequence[str] = ()
) -> StoreFiles:
    """List a store directory. ``log_directories`` are the broker's ``storePathCommitLog``."""
    path = path.rstrip("/") or "/"
    try:
        names = {entry.name: entry for entry in access.list(path)}
    except SegmentExpiredError as error:
        raise StoreNotFoundError("no such directory", path) from error
    except FileUnavailableError as error:
        raise StoreNotFoundError("cannot be listed", path, found=error.reason) from error
    dledger_path = _dledger_folder(access, path, names)
    logs = tuple(directory.rstrip("/") for directory in log_directories)
    if not logs and layout.COMMIT_LOG_DIRECTORY in names:
        logs = (f"{path}/{layout.COMMIT_LOG_DIRECTORY}",)
    if not logs and not dledger_path:
        raise StoreNotFoundError(
            "not a RocketMQ store: it has no log", path,
            expected=f"a folder {layout.COMMIT_LOG_DIRECTORY}{_log_hint(access, path, names)}",
        )
    queue_root = f"{path}/{layout.CONSUME_QUEUE_DIRECTORY}"
    queue_names = _names(access, queue_root) if layout.CONSUME_QUEUE_DIRECTORY in names else {}
    rocksdb = layout.ROCKSDB_MARKER_FILE in queue_names
    queues: dict[QueueKey, QueueFolder] = {}
    if not rocksdb:
        ext_root = f"{path}/{layout.CONSUME_QUEUE_EXT_DIRECTORY}"
        has_ext = layout.CONSUME_QUEUE_EXT_DIRECTORY in names
        for key, folder in _queue_folders(access, queue_root, queue_names):
            ext = f"{ext_root}/{key.topic}/{key.queue_id}" if has_ext else ""
            queues[key] = QueueFolder(key, QueueKind.SIMPLE, folder, ext)
    if layout.BATCH_CONSUME_QUEUE_DIRECTORY in names:
        batch_root = f"{path}/{layout.BATCH_CONSUME_QUEUE_DIRECTORY}"
        for key, folder in _queue_folders(access, batch_root, _names(access, batch_root)):
            queues[key] = QueueFolder(key, QueueKind.BATCH, folder)
    index = f"{path}/{layout.INDEX_DIRECTORY}" if layout.INDEX_DIRECTORY in names else ""
    return StoreFiles(
        logs, dledger_path, path, queues, index, rocksdb, layout.ABORT_FILE in names
    )


def open_log_files(access: FileAccess, files: LogFolders) -> FileQueue:
    """The segments of the log, all of its folders merged."""
    try:
        return FileQueue.open(access, files.data_directories)
    except SegmentExpiredError as error:
        raise StoreNotFoundError("the log's folder is missing", error.path) from error


def _names(access: FileAccess, directory: str) -> dict[str, DirectoryEntry]:
    """The names in a folder of the store; links to elsewhere are refused, not overlooked.

    A folder at the top of the store may be a link: operators put logs on other disks.
    """
    try:
        entries = access.list(directory)
    except SegmentExpiredError:
        return {}
    for entry in entries:
        if not entry.is_file and not entry.is_directory:
            raise UnsafeFileError(
                "neither a plain file nor a folder", f"{directory}/{entry.name}"
            )
    return {entry.name: entry for entry in entries}


def _queue_folders(
    access: FileAccess, root: str, topics: dict[str, DirectoryEntry]
) -> list[tuple[QueueKey, str]]:
    found: list[tuple[QueueKey, str]] = []
    for topic, entry in topics.items():
        if not entry.is_directory:
            continue
        if not _is_text(topic):
            raise InvalidNameError("a topic's name is not UTF-8", ascii(f"{root}/{topic}"))
        folder = f"{root}/{topic}"
        for name, queue in _names(access, folder).items():
            # As the broker: a folder whose name is no queue id is none of ours.
            if queue.is_directory and _is_queue_id(name):
                found.append((QueueKey(topic, int(name)), f"{folder}/{name}"))
    return found


def _is_text(name: str) -> bool:
    """Whether a name on disk was UTF-8; Python keeps other bytes as lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_queue_id(name: str) -> bool:
    """Whether a broker gave a folder this name: no sign, no leading zeros, not too large."""
    is_number = name.isascii() and name.isdigit() and len(name) <= len(str(_MAX_QUEUE_ID))
    return is_number and name == str(int(name)) and int(name) <= _MAX_QUEUE_ID


def _dledger_folder(access: FileAccess, path: str, names: dict[str, DirectoryEntry]) -> str:
    """The DLedger folder that holds a log; two would be two members of a group in one place."""
    found = [
        f"{path}/{name}"
        for name, entry in names.items()
        if name.startswith(layout.DLEDGER_DIRECTORY_PREFIX) and entry.is_directory
        and layout.DLEDGER_DATA_DIRECTORY in _names(access, f"{path}/{name}")
    ]
    if len(found) > 1:
        raise StoreNotFoundError(
            "several DLedger logs in one store", path, found=", ".join(found), expected="one"
        )
    return found[0] if found else ""


def _log_hint(access: FileAccess, path: str, names: dict[str, DirectoryEntry]) -> str:
    """Folders that look like a log kept elsewhere, to be named by storePathCommitLog."""
    looks_alike = [
        name
        for name, entry in names.items()
        if entry.is_directory and _holds_segment(access, f"{path}/{name}")
    ]
    if not looks_alike:
        return ""
    return f", or storePathCommitLog naming the log's folders (perhaps {', '.join(looks_alike)})"


def _holds_segment(access: FileAccess, directory: str) -> bool:
    try:
        entries = access.list(directory)
    except StoreError:  # it is only a hint
        return False
    return any(
        entry.is_file and len(entry.name) == layout.OFFSET_NAME_DIGITS and entry.name.isdigit()
        for entry in entries
    )
