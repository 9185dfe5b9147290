"""The one exception tree: what is wrong is the class, where and why are attributes.

Every argument reaches ``Exception.__init__``, so an error keeps file, offset, found and
expected when it crosses a process boundary by pickling.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "BatchLimitExceededError",
    "ChecksumError",
    "CommitFailedError",
    "CommitStateUnknownError",
    "CorruptConfigError",
    "CorruptIndexError",
    "CorruptQueueError",
    "CorruptRecordError",
    "CorruptStagingError",
    "FileUnavailableError",
    "FlushTimeoutError",
    "InvalidNameError",
    "InvalidSettingError",
    "LimitExceededError",
    "MessageNotFoundError",
    "RuleViolationError",
    "SegmentExpiredError",
    "StoreError",
    "StoreLockedError",
    "StoreNotFoundError",
    "TopicNotFoundError",
    "TruncatedFileError",
    "TruncatedRecordError",
    "UnsafeFileError",
    "UnsupportedFormatError",
    "WriteFailedError",
    "WriterClosedError",
]

NO_OFFSET = -1
_QUESTION = "did you mean "


def nearest_name(unknown: str, known: Iterable[str], otherwise: str) -> str:
    """What an error about an unknown name expected: the nearest one, case aside, as a question;
    ``otherwise`` where none is near."""
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(unknown.lower(), by_lower, 1)
    return f"{_QUESTION}{by_lower[near[0]]}?" if near else otherwise


class StoreError(Exception):
    """Something about a store is not as it must be; the base of every error we raise.

    ``path`` is the file ("" when unknown), ``offset`` the byte position that the message
    speaks of (a physical offset of the log for records, else a position in the file; -1
    when there is none), ``found`` and ``expected`` the two values that disagree.
    """

    def __init__(
        self,
        reason: str,
        path: str = "",
        offset: int = NO_OFFSET,
        found: object = None,
        expected: object = None,
    ) -> None:
        # Not super(): OSError, a base of some classes below, would take the values for errno
        # and file names and drop them from args.
        Exception.__init__(self, reason, path, offset, found, expected)
        self.reason = reason
        self.path = path
        self.offset = offset
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        where = self.path
        if self.offset != NO_OFFSET:
            where = f"{where} at offset {self.offset}" if where else f"offset {self.offset}"
        text = f"{where}: {self.reason}" if where else self.reason
        if self.found is not None:
            text += f"; found {self.found}"
        if self.expected is not None:
            expected = str(self.expected)
            text += "," if self.found is not None else ";"
            text += f" {expected}" if expected.startswith(_QUESTION) else f" expected {expected}"
        return text

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Exception) and (
            self.args == other.args
        )

    def __hash__(self) -> int:
        return hash((type(self), self.reason, self.path, self.offset))


class CorruptRecordError(StoreError):
    """Raised when bytes of the commit log are not a record that a broker could have written."""


class TruncatedRecordError(CorruptRecordError, EOFError):
    """Raised when a record claims more bytes than there are."""


class ChecksumError(CorruptRecordError):
    """Raised when a checksum (of the body, or the ``__CRC32#`` property) does not match."""


class LimitExceededError(CorruptRecordError):
    """Raised when a value would need more memory or work than :mod:`limits` allows."""


class BatchLimitExceededError(LimitExceededError):
    """Raised when rows are too much for one batch together; fewer at a time may be fine."""


class CorruptQueueError(StoreError):
    """Raised when a ConsumeQueue unit, or a unit of its ext file, cannot be true."""


class CorruptIndexError(StoreError):
    """Raised when an IndexFile's header, slots or chains cannot be true."""


class CorruptConfigError(StoreError):
    """Raised when ``checkpoint`` or a file of ``config/`` cannot be parsed, its backup included."""


class TruncatedFileError(StoreError, EOFError):
    """Raised when a file is shorter than it was or must be (it may have shrunk under us)."""


class FileUnavailableError(StoreError, OSError):
    """Raised when the system refuses a file: permission, I/O error, too many open files."""


class SegmentExpiredError(StoreError, FileNotFoundError):
    """Raised when a file that the snapshot knows is gone: retention removed it under us."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """Raised when a path is no store: it is missing, or holds neither log nor queues."""


class TopicNotFoundError(StoreError, LookupError):
    """Raised when a topic or queue was named that the store does not have."""


class MessageNotFoundError(StoreError, LookupError):
    """Raised when no message is at the place that was named."""


class InvalidNameError(StoreError, ValueError):
    """Raised when a topic, a file or an argument has a name or value that cannot be right."""


class UnsafeFileError(StoreError):
    """Raised when a link, a pipe or a device stands where a plain file of the store belongs."""


class UnsupportedFormatError(StoreError):
    """Raised when a store uses something that cannot be read, and says what."""


class StoreLockedError(StoreError, BlockingIOError):
    """Raised when a store is written by somebody else, a broker or another writer of ours."""


class WriteFailedError(StoreError, OSError):
    """Raised when the system refuses a change: disk full, I/O error, read-only file system."""


class CommitStateUnknownError(StoreError, OSError):
    """Raised when a sync failed: what is on disk is unknown until the store is opened again."""


class CommitFailedError(StoreError, RuntimeError):
    """Raised when a batch commit did not happen: nothing of the job is in the store, run it again.

    When it may have happened, :class:`CommitStateUnknownError` says so instead.
    """


class CorruptStagingError(StoreError):
    """Raised when a staged file is missing, or not what its task has written."""


class WriterClosedError(StoreError, RuntimeError):
    """Raised when a writer is used after it was closed, or after an error that stopped it."""


class InvalidSettingError(StoreError, ValueError):
    """Raised when a setting cannot be right, or differs from the files of the store."""


class RuleViolationError(StoreError, ValueError):
    """Raised when a message breaks a rule of ``putMessage``; nothing of its batch was written.

    ``rule`` says what must hold, ``row`` is the message's position in the batch (from 0), or in
    the ``partition`` of a Spark job, and ``value`` what broke the rule.
    """

    def __init__(
        self, rule: str, row: int, value: object, expected: object = None,
        partition: int | None = None,
    ) -> None:
        place = f"row {row}" if partition is None else f"row {row} of partition {partition}"
        shown = "null" if value is None else value
        StoreError.__init__(
            self, f"{place} breaks a rule: {rule}", found=shown, expected=expected
        )
        self.args = (rule, row, value, expected, partition)
        self.rule = rule
        self.row = row
        self.value = value
        self.partition = partition


class FlushTimeoutError(StoreError, TimeoutError):
    """Raised when an append was not on disk in time; it is in the log and may yet get there."""
