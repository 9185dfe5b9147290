"""The ext file of a queue: tags code, store time and bloom bitmap of each message.

A broker with ``enableConsumeQueueExt`` writes one unit of variable size for each message and
puts its address into the ConsumeQueue unit instead of the tags code (ConsumeQueueExt.java).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.errors import CorruptQueueError
from rmqlog.commitlog_format.gather import gather_from_queue
from rmqlog.commitlog_format.layout import (
    CONSUME_QUEUE_EXT_HEADER,
    EXT_ADDRESS_BASE,
    EXT_ADDRESS_MAX,
)
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits
from rmqlog.commitlog_format.segment import FileQueue

_HEADER_SIZE = CONSUME_QUEUE_EXT_HEADER.itemsize


class ConsumeQueueExt:
    """Units of one queue's ext files, by the address that a ConsumeQueue unit holds."""

    def __init__(self, files: FileQueue, limits: Limits = DEFAULT_LIMITS) -> None:
        self.files = files
        self.limits = limits

    def resolve(
        self, addresses: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The tags codes and store timestamps (ms) of the units at these addresses."""
        headers = self._headers(addresses)
        return headers["tags_code"].astype(np.int64), headers["store_timestamp"].astype(np.int64)

    def bitmap(self, address: int) -> bytes:
        """The bloom bitmap of one unit, empty when the broker computed none."""
        header = self._headers(np.array([address], np.int64))[0]
        unit = self.files.read(address - EXT_ADDRESS_BASE, int(header["size"]))
        return unit[_HEADER_SIZE:]

    def _headers(self, addresses: NDArray[np.int64]) -> NDArray[np.void]:
        if len(addresses) == 0:
            return np.empty(0, CONSUME_QUEUE_EXT_HEADER)
        highest = int(addresses.max())
        if highest > EXT_ADDRESS_MAX:
            raise self._corrupt("not an address of an ext file", -1, highest, EXT_ADDRESS_MAX)
        # Adding 2**63 to a negative number is taking its sign away.
        offsets = addresses & np.int64(2**63 - 1)
        room = self._room_behind(offsets)
        if (room < _HEADER_SIZE).any():
            index = int(np.argmin(room))
            raise self._corrupt(
                "an address points behind the ext file", int(offsets[index]), int(room[index]),
                f"{_HEADER_SIZE} bytes or more",
            )
        headers = gather_from_queue(
            self.files, offsets, CONSUME_QUEUE_EXT_HEADER, self.limits.window_size
        )
        sizes = headers["size"].astype(np.int64)
        bad = (sizes != _HEADER_SIZE + headers["bitmap_size"].astype(np.int64)) | (sizes > room)
        bad |= sizes < _HEADER_SIZE
        if bad.any():
            index = int(np.argmax(bad))
            raise self._corrupt(
                "the sizes of an ext unit do not add up", int(offsets[index]),
                f"size {sizes[index]} with a bitmap of {headers['bitmap_size'][index]}",
                f"{_HEADER_SIZE} and the bitmap, within {room[index]} bytes",
            )
        return headers

    def _room_behind(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes from each offset to the end of its file; 0 or less where there is no file."""
        if not self.files.files:
            return np.zeros(len(offsets), np.int64)
        starts = np.array([file.start for file in self.files.files], np.int64)
        ends = np.array([file.end for file in self.files.files], np.int64)
        file_indexes = np.searchsorted(starts, offsets, "right") - 1
        room: NDArray[np.int64] = np.where(file_indexes < 0, 0, ends[file_indexes] - offsets)
        return room

    def _corrupt(
        self, reason: str, offset: int, found: object, expected: object
    ) -> CorruptQueueError:
        path = self.files.files[0].path if self.files.files else ""
        for file in self.files.files:
            if file.start <= offset < file.end:
                path, offset = file.path, offset - file.start
                break
        return CorruptQueueError(reason, path, offset, found, expected)
