"""Seeking by store time: messages of a queue are stored in the order of its offsets."""

from __future__ import annotations

from bisect import bisect_left

from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.errors import MessageNotFoundError
from rmqlog.commitlog_format.queue_view import QueueView


def first_stored_at(
    log: CommitLog, view: QueueView, timestamp_ms: int, start: int, stop: int
) -> int:
    """A queue offset of ``[start, stop]`` before which all is stored earlier than a time.

    By binary search: exact as long as the broker's clock never stepped back. If it stepped back
    by at most s, everything before the place of ``timestamp_ms - s`` is earlier than
    ``timestamp_ms``, and everything from the place of ``timestamp_ms + s`` on is not.
    """

    def is_stored_later(queue_offset: int) -> bool:
        unit = next(view.scan(queue_offset, queue_offset + 1), None)
        if unit is None:
            raise MessageNotFoundError(
                "no unit of the queue holds this queue offset", found=queue_offset,
                expected=f"{view.topic!r} queue {view.queue_id} without holes",
            )
        return log.record(int(unit.offsets[0])).store_timestamp >= timestamp_ms

    return start + bisect_left(range(start, stop), True, key=is_stored_later)
