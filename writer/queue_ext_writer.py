"""Ext files of queues as a broker fills them (ConsumeQueueExt.put), without bloom bitmaps.

With ``enableConsumeQueueExt`` each message of a queue has a unit there, of tags code and store
time, and its ConsumeQueue unit holds the address instead of the tags code. Bitmaps are what a
broker with ``enableCalcFilterBitMap`` adds for the filters that its consumers have registered;
where there is none, it evaluates the filter.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.consume_queue_ext import ConsumeQueueExt
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.files import FileAccess, LocalFiles
from rmqlog.commitlog_format.layout import (
    CONSUME_QUEUE_EXT_HEADER,
    EXT_ADDRESS_BASE,
    EXT_ADDRESS_MAX,
)
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.writer.log_recovery import data_end, zero
from rmqlog.writer.posix import Posix
from rmqlog.writer.queue_writer import UnitFiles
from rmqlog.writer.segments import FileSet

_UNIT_SIZE = CONSUME_QUEUE_EXT_HEADER.itemsize
_END = np.array([layout.EXT_FILE_END], CONSUME_QUEUE_EXT_HEADER["size"])


class ExtWriter:
    """The end of one queue's ext files; what lies behind it goes when the first unit comes."""

    def __init__(self, files: FileSet, directory: str, file_size: int, end: int) -> None:
        self.units = UnitFiles(files, directory, file_size, end)
        self._is_clear = False

    def append(
        self, tags_codes: NDArray[np.int64], store_timestamps: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Append a unit for each message: the addresses to put into their ConsumeQueue units."""
        if not self._is_clear:
            cut_ext(self.units.files.posix, self.units.directory, self.units.end)
            self._is_clear = True
        units = np.zeros(len(tags_codes), CONSUME_QUEUE_EXT_HEADER)
        units["size"] = _UNIT_SIZE
        units["tags_code"] = tags_codes
        units["store_timestamp"] = store_timestamps
        addresses = np.empty(len(units), np.int64)
        done = 0
        while done < len(units):
            count = min(self._room(), len(units) - done)
            places = self.units.end + _UNIT_SIZE * np.arange(count, dtype=np.int64)
            addresses[done : done + count] = places + EXT_ADDRESS_BASE
            self.units.append(units[done : done + count])
            done += count
        return addresses

    def _room(self) -> int:
        """How many units fit into the last file; one without room is ended, and the next begins."""
        size = self.units.file_size
        while True:
            left = size - self.units.end % size
            room = (left - layout.EXT_FILE_END_SIZE) // _UNIT_SIZE
            if room > 0:
                return room
            self.units.append(_END)
            self.units.end += left - _END.itemsize


def cut_ext(posix: Posix, directory: str, end: int) -> None:
    """Remove what lies behind the end of ext files: later files, then bytes."""
    if not os.path.isdir(directory):
        return
    access = LocalFiles()
    empty = [f"{directory}/{entry.name}" for entry in access.list(directory) if not entry.size]
    files = FileQueue.open(access, [directory]).files
    later = [file.path for file in reversed(files) if file.start >= end]
    for path in [*later, *empty]:
        posix.unlink(path)
    if later or empty:
        posix.fsync_directory(directory)
    for file in files:
        if file.start < end < file.end:
            position = end - file.start
            stop = data_end(file.path, position)
            if stop > position:
                zero(posix, file.path, position, stop)


class ExtRecovery:
    """What units of a queue say of its ext files, and whether that is there."""

    def __init__(self, access: FileAccess, directory: str, file_size: int) -> None:
        files = FileQueue(access, ())
        if os.path.isdir(directory):
            listed = FileQueue.open(access, [directory]).files
            files = FileQueue(access, [file for file in listed if file.size == file_size])
        self._ext = ConsumeQueueExt(files)

    def sound_count(self, units: NDArray[np.void]) -> int:
        """How many leading units hold no address, or one that leads to a unit."""
        if self._is_sound(units):
            return len(units)
        # Halving: what leads nowhere is behind what was lost first.
        low, high = 0, len(units)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._is_sound(units[:middle]) else (low, middle)
        return low

    def _is_sound(self, units: NDArray[np.void]) -> bool:
        try:
            self._ext.resolve(_addresses(units))
        except StoreError:
            return False
        return True

    def end_behind(self, units: NDArray[np.void]) -> int | None:
        """Where the ext unit of the last of these units ends; ``None`` when none has any."""
        addresses = _addresses(units)
        if not len(addresses):
            return None
        last = int(addresses[-1])
        return last - EXT_ADDRESS_BASE + _UNIT_SIZE + len(self._ext.bitmap(last))


def _addresses(units: NDArray[np.void]) -> NDArray[np.int64]:
    codes = units["tags_code"].astype(np.int64)
    return codes[codes <= EXT_ADDRESS_MAX]
