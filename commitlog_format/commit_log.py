"""The CommitLog: one space of physical offsets over its segment files, plain or DLedger's.

A plain segment is records back to back, ended by a filler. In a DLedger log each record is the
body of an entry with a header of its own; physical offsets point at the record either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import (
    CorruptRecordError,
    LimitExceededError,
    SegmentExpiredError,
    TruncatedRecordError,
)
from rmqlog.commitlog_format.files import FileAccess
from rmqlog.commitlog_format.layout import PREFIX
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits
from rmqlog.commitlog_format.message import Message, Record, decode_record, to_message
from rmqlog.commitlog_format.record_peek import RecordPeek, peek_plain_record, peek_record
from rmqlog.commitlog_format.segment import FileQueue, SegmentFile, Window
from rmqlog.commitlog_format.store_files import LogFolders, open_log_files

#: Enough for most records in one read; a larger one takes a second.
_FIRST_READ_SIZE = 1024


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Records that lie in one window: their physical offsets and sizes, ascending."""

    window: Window
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]


class CommitLog:
    """Read-only access to records by physical offset; see :mod:`log_walk` for scans.

    ``dledger_start`` is the offset from which on the files hold DLedger entries.
    """

    def __init__(
        self, files: FileQueue, *, dledger_start: int | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.files = files
        self.dledger_start = dledger_start
        self.limits = limits

    @property
    def start(self) -> int:
        """The physical offset of the first byte that is still there."""
        return self.files.start

    @property
    def end(self) -> int:
        """The physical offset behind the last file; its tail is unused space."""
        return self.files.end

    def entry_header_size(self, offset: int) -> int:
        """How many bytes of a DLedger entry stand in front of a record; 0 in a plain log."""
        if self.dledger_start is None or offset < self.dledger_start:
            return 0
        return layout.DLEDGER_ENTRY_HEADER.itemsize

    def path_of(self, offset: int) -> str:
        """The file that holds an offset, for messages; "" when none does."""
        try:
            return self.files.file_of(offset).path
        except SegmentExpiredError:
            return ""

    def record(self, offset: int) -> Record:
        """The record at a physical offset, its structure checked."""
        path = self.files.file_of(offset).path
        return decode_record(self._bytes_of(offset), offset, path=path, limits=self.limits)

    def _bytes_of(self, offset: int) -> bytes:
        """The bytes of a record, and perhaps some behind it, in one read or two."""
        file = self.files.file_of(offset)
        handle = self.files.handle(file)
        left = file.end - offset
        data = handle.read(offset - file.start, min(_FIRST_READ_SIZE, left))
        if len(data) >= PREFIX.size:
            size = self._claimed_size(data, offset, left, file)
            if size > len(data):
                data = handle.read(offset - file.start, size)
        return data

    def peek(self, offset: int) -> RecordPeek:
        """Topic, queue and properties of the record at a physical offset: cheap, but checked."""
        file = self.files.file_of(offset)
        size = min(_FIRST_READ_SIZE, file.end - offset)
        data = self.files.handle(file).read(offset - file.start, size)
        found = peek_plain_record(data, offset)
        return found or peek_record(self._bytes_of(offset), offset, file.path)

    def message(self, offset: int, *, check_crc: bool = True) -> Message:
        """The message at a physical offset."""
        record = self.record(offset)
        return to_message(
            record, check_crc=check_crc, path=self.path_of(offset), limits=self.limits
        )

    def _claimed_size(self, data: bytes, offset: int, left: int, file: SegmentFile) -> int:
        size, magic = PREFIX.unpack_from(data)
        if magic not in (layout.MAGIC_V1, layout.MAGIC_V2):
            raise CorruptRecordError(
                "not a message", file.path, offset, f"magic {magic:#010x}",
                f"{layout.MAGIC_V1:#010x} or {layout.MAGIC_V2:#010x}",
            )
        if size > self.limits.record_size:
            raise LimitExceededError(
                "record is larger than allowed", file.path, offset, size, self.limits.record_size
            )
        if size > left:
            raise TruncatedRecordError(
                "record does not fit into its segment", file.path, offset, size, left
            )
        return int(size)

    def runs(
        self, offsets: NDArray[np.int64], sizes: NDArray[np.int64], *, sequential: bool = False
    ) -> Iterator[RecordRun]:
        """Windows over records at ascending offsets, each at most ``limits.window_size``.

        ``sizes`` are claims (of queue units): one that leaves its segment raises
        ``TruncatedRecordError``, one beyond the limit ``LimitExceededError``.
        """
        first = 0
        while first < len(offsets):
            start = int(offsets[first])
            file = self.files.file_of(start)
            stop_offset = min(file.end, start + self.limits.window_size)
            stop = first + int(np.searchsorted(offsets[first:], stop_offset, side="left"))
            ends = offsets[first:stop] + sizes[first:stop]
            beyond = np.flatnonzero(ends > stop_offset)
            if len(beyond):
                stop = first + int(beyond[0])
            if stop == first:  # larger than a window, or damage
                self._check_claim(start, int(sizes[first]), file)
                stop = first + 1
            end = int((offsets[first:stop] + sizes[first:stop]).max())
            window = self.files.window(start, end - start, sequential=sequential)
            yield RecordRun(window, offsets[first:stop], sizes[first:stop])
            first = stop

    def _check_claim(self, offset: int, size: int, file: SegmentFile) -> None:
        if size > self.limits.record_size:
            raise LimitExceededError(
                "record is larger than allowed", file.path, offset, size, self.limits.record_size
            )
        if offset + size > file.end:
            raise TruncatedRecordError(
                "record does not fit into its segment", file.path, offset, size,
                file.end - offset,
            )


def open_commit_log(
    access: FileAccess, folders: LogFolders, limits: Limits = DEFAULT_LIMITS
) -> CommitLog:
    """The log in its folders; nothing else of the store is listed."""
    files = open_log_files(access, folders)
    dledger_start = None
    if folders.dledger_path:
        prefix = f"{folders.dledger_path}/{layout.DLEDGER_DATA_DIRECTORY}/"
        own = [file.start for file in files.files if file.path.startswith(prefix)]
        dledger_start = min(own, default=files.end)
    return CommitLog(files, dledger_start=dledger_start, limits=limits)
