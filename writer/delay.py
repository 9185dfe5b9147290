"""Delivering delayed messages when they are due (ScheduleMessageService).

A delayed message waits in the schedule topic, in the queue of its level, with its due time as
tags code. Delivery appends it once more, to its own topic and queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.consume_queue import ConsumeQueue
from rmqlog.commitlog_format.properties import parse_properties
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.commitlog_format.text import decode_text
from rmqlog.writer.draft import Draft
from rmqlog.writer.record_copy import NewRecord, copy_of, draft_of
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.topics_config import DelayOffsets

logger = logging.getLogger(__name__)

#: Messages that are delivered by one append.
_BATCH_COUNT = 1_000


class DelayedDelivery:
    """Delivers what is due, level by level, and remembers how far each level has come."""

    def __init__(
        self,
        settings: StoreSettings,
        offsets: DelayOffsets,
        next_offset: Callable[[QueueKey], int],
        append: Callable[[Draft], object],
    ) -> None:
        self._delays_ms = settings.delay_levels_ms
        self._offsets = offsets
        self._next_offset = next_offset
        self._append = append

    def deliver_due(
        self, log: CommitLog, open_queue: Callable[[QueueKey], ConsumeQueue], now_ms: int
    ) -> int:
        """Append every message that is due at ``now_ms``; returns how many there were.

        A crash between an append and the note of it delivers that batch twice, as a broker's
        would; never less than once.
        """
        delivered = 0
        for level, delay_ms in enumerate(self._delays_ms, start=1):
            key = QueueKey(layout.SCHEDULE_TOPIC, level - 1)
            stop = self._next_offset(key)
            if stop > self._offsets.offsets.get(level, 0):
                queue = open_queue(key)
                delivered += self._deliver_level(level, delay_ms, queue, stop, log, now_ms)
        return delivered

    def _deliver_level(
        self, level: int, delay_ms: int, queue: ConsumeQueue, stop: int, log: CommitLog,
        now_ms: int,
    ) -> int:
        start = max(
            self._offsets.offsets.get(level, 0), queue.find_start(log.start, stop)
        )
        delivered = 0
        for units in _due_units(queue, start, stop, now_ms, now_ms + delay_ms):
            records = [self._delivered(log, int(unit["commit_log_offset"])) for unit in units]
            wanted = [record for record in records if record is not None]
            if wanted:
                self._append(draft_of(wanted))
            delivered += len(wanted)
            start += len(units)
            self._offsets.offsets[level] = start
            self._offsets.save()
        return delivered

    def _delivered(self, log: CommitLog, offset: int) -> NewRecord | None:
        """The record to deliver; its properties stay as they are, the delay among them."""
        record = log.record(offset)
        properties = parse_properties(decode_text(record.properties))
        topic = properties.get(layout.PROPERTY_REAL_TOPIC)
        queue_id = properties.get(layout.PROPERTY_REAL_QUEUE_ID, "")
        if not topic or not queue_id.isdigit() or topic == layout.TRANSACTION_HALF_TOPIC:
            logger.error("the delayed message at %d has no topic to go to; it is skipped", offset)
            return None
        return copy_of(record, QueueKey(topic, int(queue_id)))


def _due_units(
    queue: ConsumeQueue, start: int, stop: int, now_ms: int, latest_ms: int
) -> Iterator[NDArray[np.void]]:
    """Units in order, in small batches, up to the first that is not due.

    A due time later than the level's delay from now comes from a clock that was set back or
    from another list of levels: such a message is delivered at once.
    """
    while start < stop:
        units = queue.units(start, min(stop, start + _BATCH_COUNT))
        due_ms = queue.tags_codes(units)
        waiting = np.flatnonzero((due_ms > now_ms) & (due_ms <= latest_ms))
        if len(waiting):
            if waiting[0]:
                yield units[: waiting[0]]
            return
        yield units
        start += len(units)
