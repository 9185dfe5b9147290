"""Finding the ends of queues, and clearing what lies behind them.

Queue units are derived from the log, so units that cannot be trusted are zeroed and made
anew from it. A broker leaves them in place and overwrites them one by one; after a second
crash it may then take them for true.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.files import FileAccess
from rmqlog.commitlog_format.segment import FileQueue, SegmentFile
from rmqlog.commitlog_format.store_files import QueueFolder, QueueKey, QueueKind
from rmqlog.commitlog_format.unit_queue import UnitQueue
from rmqlog.writer.log_recovery import data_end, zero
from rmqlog.writer.posix import Posix
from rmqlog.writer.queue_ext_writer import ExtRecovery, cut_ext
from rmqlog.writer.settings import StoreSettings

_UNITS = {
    QueueKind.SIMPLE: layout.CONSUME_QUEUE_UNIT,
    QueueKind.BATCH: layout.BATCH_CONSUME_QUEUE_UNIT,
}
#: The last unit with an address of the ext file is looked for in steps of so many units.
_EXT_STEP = 256


@dataclass(frozen=True, slots=True)
class QueueEnd:
    """Where a queue ends: the byte behind its last unit, and the end of that unit's record.

    ``lost`` tells that units behind it were not as they must be, so that the log has to be
    dispatched again from ``max_physical_offset`` on. ``is_empty`` tells that the queue has no
    file: it goes on where its next record says, or at ``end`` when no record says so. ``ext_end``
    is the byte behind the last unit's unit in the queue's ext files. ``last_offset`` is where the
    last unit's record begins.
    """

    end: int
    max_physical_offset: int
    lost: bool = False
    is_empty: bool = False
    ext_end: int = 0
    last_offset: int = 0


class QueueRecovery:
    """Finds and cuts the ends of queues of one store; ``log`` is its log, however long."""

    def __init__(
        self, posix: Posix, access: FileAccess, log: CommitLog, settings: StoreSettings
    ) -> None:
        self._posix = posix
        self._access = access
        self._log = log
        self._settings = settings
        self._file_sizes = {
            QueueKind.SIMPLE: settings.mappedFileSizeConsumeQueue,
            QueueKind.BATCH: settings.mapperFileSizeBatchConsumeQueue,
        }

    def ends(self, folders: Iterable[QueueFolder]) -> dict[QueueKey, QueueEnd]:
        """Where the queues of a cleanly closed store end, in a few reads each."""
        found = {}
        for folder in folders:
            files = FileQueue.open(self._access, [folder.path])
            if files.files:
                found[folder.key] = self._end(folder, files)
        return found

    def _end(self, folder: QueueFolder, files: FileQueue) -> QueueEnd:
        queue = UnitQueue(files, _UNITS[folder.kind], self._log.limits)
        end = queue.find_end(
            lambda unit, _: self._is_record_of(folder.key, unit), self._log.start
        )
        last_offset, record_end = _last_record(queue.units(max(end - 1, queue.first_index), end))
        return QueueEnd(
            end * queue.unit_dtype.itemsize, record_end,
            ext_end=self._ext_end(folder, files, end), last_offset=last_offset,
        )

    def _ext(self, folder: QueueFolder) -> ExtRecovery | None:
        """The ext files of a queue, where they are enabled; there may be none yet."""
        if not self._settings.enableConsumeQueueExt or folder.kind is not QueueKind.SIMPLE:
            return None
        size = self._settings.mappedFileSizeConsumeQueueExt
        return ExtRecovery(self._access, folder.ext_path, size)

    def _ext_end(self, folder: QueueFolder, files: FileQueue, end: int) -> int:
        """The end of the ext unit of the last unit that has one; mostly that is the last one."""
        ext = self._ext(folder)
        if ext is None or not files.files or not os.path.isdir(folder.ext_path):
            return 0
        queue = UnitQueue(files, _UNITS[folder.kind], self._log.limits)
        for stop in range(end, queue.first_index, -_EXT_STEP):
            units = queue.units(max(stop - _EXT_STEP, queue.first_index), stop)
            found = ext.end_behind(units)
            if found is not None:
                return found
        return 0

    def cut(self, folder: QueueFolder, limit: int) -> QueueEnd:
        """Cut a queue behind its last sound unit whose record begins below ``limit``, and its ext
        files behind the unit of that one."""
        found = self._cut_units(folder, limit)
        if not folder.ext_path:
            return found
        files = FileQueue.open(self._access, [folder.path])
        ext_end = self._ext_end(folder, files, found.end // _UNITS[folder.kind].itemsize)
        cut_ext(self._posix, folder.ext_path, ext_end)
        return replace(found, ext_end=ext_end)

    def _cut_units(self, folder: QueueFolder, limit: int) -> QueueEnd:
        """Every unit of the file that holds the end is looked at: after a crash any page may be
        lost."""
        unit = _UNITS[folder.kind]
        listed = FileQueue.open(self._access, [folder.path])
        files = _leading(listed.files, self._file_sizes[folder.kind])
        removed = [*listed.files[len(files) :], *self._empty_files(folder.path)]
        while len(files) > 1 and not self._begins_below(files[-1], unit, limit):
            removed.append(files.pop())
        lost = any(self._begins_below(file, unit, limit) for file in removed)
        self._remove(removed)
        if not files:
            return QueueEnd(0, 0, lost, is_empty=True)
        file = files[-1]
        stop = data_end(file.path, 0)
        units = self._units(file, unit, stop)
        count = _sound_count(units, limit)
        lost = lost or bool(_looks_sound(units[count:], limit).any())
        ext = self._ext(folder)
        if ext is not None:
            led = ext.sound_count(units[:count])
            lost, count = lost or led < count, led
        while count and not self._is_record_of(folder.key, units[count - 1]):
            count -= 1
        if count == 0:
            self._remove([file])
            return QueueEnd(file.start, 0, lost, is_empty=True)
        position = count * unit.itemsize
        if stop > position:
            zero(self._posix, file.path, position, stop)
        last_offset, record_end = _last_record(units[:count])
        return QueueEnd(file.start + position, record_end, lost, last_offset=last_offset)

    def _empty_files(self, directory: str) -> list[SegmentFile]:
        """Files of length 0: somebody was killed while making them."""
        return [
            SegmentFile(f"{directory}/{entry.name}", 0, 0)
            for entry in self._access.list(directory)
            if entry.is_file and entry.size == 0
        ]

    def _units(
        self, file: SegmentFile, unit: np.dtype[np.void], stop: int
    ) -> NDArray[np.void]:
        whole = min(-(-stop // unit.itemsize) * unit.itemsize, file.size)
        return np.frombuffer(self._access.open(file.path).read(0, whole), unit)

    def _begins_below(self, file: SegmentFile, unit: np.dtype[np.void], limit: int) -> bool:
        """Whether the first unit of a file looks sound."""
        if file.size < unit.itemsize:
            return False
        return bool(_looks_sound(self._units(file, unit, unit.itemsize), limit)[0])

    def _remove(self, files: Sequence[SegmentFile]) -> None:
        for file in sorted(files, key=lambda file: file.start, reverse=True):
            self._posix.unlink(file.path)
        if files:
            self._posix.fsync_directory(os.path.dirname(files[0].path))

    def _is_record_of(self, key: QueueKey, unit: np.void) -> bool:
        """Whether a unit's record is there and of this queue; expired ones count as there."""
        offset = int(unit["commit_log_offset"])
        if 0 <= offset < self._log.start or int(unit["size"]) == layout.PRE_BLANK_SIZE:
            return True
        try:
            record = self._log.record(offset)
        except StoreError:
            return False
        if record.total_size != unit["size"]:
            return False
        is_own = record.topic == key.topic.encode() and record.queue_id == key.queue_id
        # A queue may be fed by records of other topics; a light one always is.
        return is_own or key.topic.startswith(layout.LMQ_TOPIC_PREFIX) or (
            self._settings.enableMultiDispatch
            and layout.PROPERTY_MULTI_DISPATCH.encode() in record.properties
            and key.topic.encode() in record.properties
        )


def _leading(files: Sequence[SegmentFile], size: int) -> list[SegmentFile]:
    """The files up to the first one of a wrong size or behind a gap."""
    kept: list[SegmentFile] = []
    for file in files:
        if file.size != size or (kept and kept[-1].end != file.start):
            break
        kept.append(file)
    return kept


def _is_blank(units: NDArray[np.void]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (units["size"] == layout.PRE_BLANK_SIZE) & (
        units["commit_log_offset"] == 0
    )
    return found


def _looks_sound(units: NDArray[np.void], limit: int) -> NDArray[np.bool_]:
    """Which units could be true ones of records below ``limit``."""
    offsets = units["commit_log_offset"]
    found: NDArray[np.bool_] = (units["size"] > 0) & (offsets >= 0) & (offsets < limit)
    return found | _is_blank(units)


def _sound_count(units: NDArray[np.void], limit: int) -> int:
    """How many leading units look sound: their offsets rise, and pre-blank ones come first."""
    if not len(units):
        return 0
    sound = _looks_sound(units, limit)
    offsets = units["commit_log_offset"].astype(np.int64)
    blank = _is_blank(units)
    sound[1:] &= blank[:-1] | (~blank[1:] & (offsets[1:] > offsets[:-1]))
    return int(np.argmin(sound)) if not sound.all() else len(units)


def _last_record(units: NDArray[np.void]) -> tuple[int, int]:
    """Where the last unit's record begins and ends; a pre-blank unit has none."""
    if not len(units) or _is_blank(units[-1:])[0]:
        return 0, 0
    offset = int(units[-1]["commit_log_offset"])
    return offset, offset + int(units[-1]["size"])
