"""Finding the end of a log, and setting aside what lies behind it.

A broker ends the log at the first record that does not check and deletes every later segment.
We end it at the same place, but move what lies behind into a folder of its own, readable,
with a note of what it was. The bytes in the log's last segment are then zeroed: else a record
of before, at just the right place, could come back to life behind a new one.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone

import numpy as np

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.commit_log import CommitLog, RecordRun
from rmqlog.commitlog_format.errors import CorruptRecordError, StoreError
from rmqlog.commitlog_format.log_walk import LogEnd, LogWalk
from rmqlog.commitlog_format.mapped_windows import intact
from rmqlog.commitlog_format.plain_fields import record_fields
from rmqlog.commitlog_format.segment import FileQueue, SegmentFile
from rmqlog.writer.posix import Posix

#: Bytes are copied, compared and zeroed in pieces of this size.
_PIECE_SIZE = 4 * 1024 * 1024
#: What a disk writes whole or not at all.
_SECTOR_SIZE = 512
_REPORT_FILE = "report.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cut:
    """Something that was behind the end of the log, and where it is now.

    ``segment`` is the file it was in, ``offset`` its physical offset, ``size`` its bytes,
    ``message_count`` how many whole messages can be told in it, ``moved_to`` the file that
    holds them now.
    """

    segment: str
    offset: int
    reason: str
    size: int
    message_count: int
    moved_to: str


def find_end(log: CommitLog, start: int, *, after_crash: bool) -> LogEnd:
    """The end of the log, by checking every record from ``start`` on, bodies included.

    A missing segment ends the log too. ``after_crash`` the checksums do not suffice: topic and
    properties have none, so a record that was cut there is told by the zeros in it.
    """
    files = log.files.files
    gaps = [
        number
        for number in range(1, len(files))
        if files[number].start > start and files[number - 1].end != files[number].start
    ]
    whole = FileQueue(log.files.access, files[: gaps[0]] if gaps else files)
    walk = LogWalk(CommitLog(whole, limits=log.limits), start, check_crc=True)
    for run in walk:
        with intact(run.window.data):
            offset = _first_half_written(log, run) if after_crash else None
        if offset is not None:
            reason = "its topic or properties were only written in part"
            return LogEnd(offset, CorruptRecordError(reason, run.window.path, offset))
    return walk.end


def _first_half_written(log: CommitLog, run: RecordRun) -> int | None:
    """The first record whose topic or properties are zero at their end, or up to or from the
    border of a sector: its bytes did not all reach the file."""
    window = run.window
    fields = record_fields(
        window.data, window.start, run.offsets, None, path=window.path, limits=log.limits,
        with_bodies=False,
    )
    topic, properties = fields.topic, fields.properties
    last = np.where(properties.sizes > 0, properties.positions + properties.sizes, 0)
    last = np.maximum(last, topic.positions + topic.sizes) - 1
    bad = set(np.flatnonzero(window.data[last] == 0).tolist())
    ends = run.offsets + run.sizes - window.start
    first_border = -(window.start - log.files.file_of(window.start).start) % _SECTOR_SIZE
    borders = np.arange(first_border, int(ends[-1]), _SECTOR_SIZE)
    rows = np.searchsorted(topic.positions, borders) - 1
    within = (rows >= 0) & (borders < ends[rows]) & (borders > 0)
    borders, rows = borders[within], rows[within]
    suspects = (window.data[borders - 1] == 0) | (window.data[borders] == 0)
    for border, row in zip(borders[suspects].tolist(), rows[suspects].tolist(), strict=True):
        start = max(int(topic.positions[row]), border - _SECTOR_SIZE)
        stop = min(int(ends[row]), border + _SECTOR_SIZE)
        if not window.data[start:border].any() or not window.data[border:stop].any():
            bad.add(row)
    return int(run.offsets[min(bad)]) if bad else None


def cut_behind(posix: Posix, store_path: str, log: CommitLog, end: LogEnd) -> list[Cut]:
    """Set aside everything behind the end of the log; empty segments just go.

    Killed at any point it can be run again: segments go last one first, so no gap appears,
    and bytes are zeroed only when their copy is on disk.
    """
    later = [file for file in log.files.files if file.start >= end.offset]
    current = [file for file in log.files.files if file.start < end.offset < file.end]
    reason = _describe(end.reason)
    aside = _Aside(posix, store_path)
    cuts = [
        aside.move_segment(file, _count_messages(log, file.start), reason)
        for file in reversed(later)
        if not _remove_if_empty(posix, file)
    ]
    if later:
        posix.fsync_directory(os.path.dirname(later[0].path))
    for file in current:
        position = end.offset - file.start
        stop = data_end(file.path, position)
        if stop > position:
            count = _count_messages(log, _behind_bad_record(file, end.offset))
            cuts.append(aside.move_tail(file, position, stop, count, reason))
    aside.write_report(cuts)
    for cut in cuts:
        logger.warning("cut off the log: %s", cut)
    return cuts


def lost_behind(log: CommitLog, end: LogEnd) -> list[Cut]:
    """What :func:`cut_behind` would set aside; nothing is changed."""
    reason = _describe(end.reason)
    lost = []
    for file in log.files.files:
        start = max(end.offset, file.start)
        if file.end <= start:
            continue
        stop = file.start + data_end(file.path, start - file.start)
        if stop > start:
            is_whole = start == file.start
            first = start if is_whole else _behind_bad_record(file, start)
            size = file.size if is_whole else stop - start
            count = _count_messages(log, first)
            lost.append(Cut(file.path, start, reason, size, count, moved_to=""))
    return lost


def data_end(path: str, start: int) -> int:
    """The position behind the last byte that is not zero, or ``start`` if all from there are.

    Holes are skipped, so a file made ahead costs nothing to look at.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for begin, stop in reversed(list(_data_ranges(descriptor, start))):
            for piece in reversed(range(begin, stop, _PIECE_SIZE)):
                content = os.pread(descriptor, min(_PIECE_SIZE, stop - piece), piece)
                found = np.flatnonzero(np.frombuffer(content, np.uint8))
                if len(found):
                    return piece + int(found[-1]) + 1
    finally:
        os.close(descriptor)
    return start


def _data_ranges(descriptor: int, start: int) -> Iterator[tuple[int, int]]:
    size = os.fstat(descriptor).st_size
    while start < size:
        try:
            begin = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError:  # nothing but a hole follows
            return
        start = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, start


def zero(posix: Posix, path: str, start: int, stop: int) -> None:
    """Overwrite bytes of a file with zeros, on disk when it returns."""
    descriptor = posix.open(path)
    try:
        for begin in range(start, stop, _PIECE_SIZE):
            posix.pwrite(descriptor, bytes(min(_PIECE_SIZE, stop - begin)), begin)
        posix.fsync(descriptor)
    finally:
        posix.close(descriptor)


class _Aside:
    """A dated folder in ``<store>/rmqlog`` for what is cut off, made when first needed."""

    def __init__(self, posix: Posix, store_path: str) -> None:
        self._posix = posix
        self._parent = f"{store_path}/{layout.RMQLOG_DIRECTORY}"
        self._path = ""

    def path(self) -> str:
        if not self._path:
            now = datetime.now(timezone.utc)
            self._path = f"{self._parent}/cut-{now:%Y%m%dT%H%M%S%f}"
            self._posix.mkdir(self._path)
            self._posix.fsync_directory(self._parent)
        return self._path

    def move_segment(self, file: SegmentFile, message_count: int, reason: str) -> Cut:
        target = f"{self.path()}/{os.path.basename(file.path)}"
        self._posix.rename(file.path, target)
        self._posix.fsync_directory(self.path())
        return Cut(file.path, file.start, reason, file.size, message_count, target)

    def move_tail(
        self, file: SegmentFile, start: int, stop: int, message_count: int, reason: str
    ) -> Cut:
        target = f"{self.path()}/{os.path.basename(file.path)}-from-{start}"
        self._copy(file.path, start, stop, target)
        zero(self._posix, file.path, start, stop)
        return Cut(file.path, file.start + start, reason, stop - start, message_count, target)

    def _copy(self, path: str, start: int, stop: int, target: str) -> None:
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        descriptor = self._posix.open(target, create=True)
        try:
            for begin in range(start, stop, _PIECE_SIZE):
                content = os.pread(source, min(_PIECE_SIZE, stop - begin), begin)
                self._posix.pwrite(descriptor, content, begin - start)
            self._posix.fsync(descriptor)
        finally:
            self._posix.close(descriptor)
            os.close(source)
        self._posix.fsync_directory(self.path())

    def write_report(self, cuts: list[Cut]) -> None:
        if cuts:
            content = json.dumps([asdict(cut) for cut in cuts], indent=2)
            self._posix.replace_file(f"{self.path()}/{_REPORT_FILE}", content.encode())


def _describe(reason: StoreError | None) -> str:
    """Why the log ends, without the place, which a cut names itself."""
    if reason is None:
        return "bytes behind the end of the log"
    return str(type(reason)(reason.reason, found=reason.found, expected=reason.expected))


def _remove_if_empty(posix: Posix, file: SegmentFile) -> bool:
    """Remove a segment that was only made ahead."""
    if data_end(file.path, 0):
        return False
    posix.unlink(file.path)
    return True


def _behind_bad_record(file: SegmentFile, offset: int) -> int:
    """Where the next record would begin if only the body of this one were bad."""
    with open(file.path, "rb") as source:
        source.seek(offset - file.start)
        prefix = source.read(layout.PREFIX.size)
    size, magic = layout.PREFIX.unpack(prefix.ljust(layout.PREFIX.size, b"\0"))
    is_record = magic in (layout.MAGIC_V1, layout.MAGIC_V2) and size >= layout.MIN_RECORD_SIZE
    return offset + (int(size) if is_record else 0)


def _count_messages(log: CommitLog, start: int) -> int:
    """Whole messages of one segment from a place on, as far as they follow one another."""
    try:
        file = log.files.file_of(start)
        return sum(len(run.offsets) for run in LogWalk(log, start, file.end, check_crc=True))
    except StoreError:
        return 0
