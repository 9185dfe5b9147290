"""The units of a batch topic's queue: each is one record that holds several messages."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from rmqlog.commitlog_format.errors import CorruptQueueError, MessageNotFoundError
from rmqlog.commitlog_format.layout import BATCH_CONSUME_QUEUE_UNIT
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.commitlog_format.unit_queue import UnitQueue


class BatchConsumeQueue(UnitQueue):
    """46-byte units by their index in the files (BatchConsumeQueue.java).

    The index of a unit says nothing about queue offsets: a unit holds those from
    ``base_offset`` on, ``batch_count`` of them, and the next unit continues there.
    """

    def __init__(self, files: FileQueue, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(files, BATCH_CONSUME_QUEUE_UNIT, limits)

    def offset_range(self, start: int, end: int) -> tuple[int, int]:
        """The queue offsets ``[min, max)`` that the units ``[start, end)`` hold.

        With no unit left, both are the offset behind the last one that was there.
        """
        if self.first_index == end:
            return 0, 0
        last = self.unit(end - 1)
        max_offset = int(last["base_offset"]) + int(last["batch_count"])
        min_offset = int(self.unit(start)["base_offset"]) if start < end else max_offset
        if not 0 <= min_offset <= max_offset < 2**63:
            raise CorruptQueueError(
                "the first and the last unit of a batch queue cannot both be true",
                self.files.files[0].path, found=f"queue offsets {min_offset} to {max_offset}",
                expected="ascending ones",
            )
        return min_offset, max_offset

    def find(self, queue_offset: int, start: int, end: int) -> int:
        """The index of the unit in ``[start, end)`` that holds a queue offset."""

        def base_offset(index: int) -> int:
            return int(self.unit(index)["base_offset"])

        index = start + bisect_right(range(start, end), queue_offset, key=base_offset) - 1
        if index >= start:
            unit = self.unit(index)
            if queue_offset < int(unit["base_offset"]) + int(unit["batch_count"]):
                return index
        raise MessageNotFoundError(
            "no unit of the batch queue holds this queue offset", found=queue_offset,
            expected="one of [{}, {})".format(*self.offset_range(start, end)),
        )

    def _is_written(self, unit: np.void) -> bool:
        return super()._is_written(unit) and bool(
            unit["base_offset"] >= 0 and unit["batch_count"] > 0
        )
