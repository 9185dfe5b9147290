"""Further queues that a record is in: light message queues and others that its properties name.

The broker's ConsumeQueue.multiDispatchLmqQueue, with ``enableMultiDispatch`` and ``enableLmq``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.message import Message
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer.settings import StoreSettings

if TYPE_CHECKING:  # dispatch imports this module
    from rmqlog.writer.dispatch import DispatchBatch

#: Since this version some topics are left out.
_EXCLUSION_VERSION = (5, 2)
_EXCLUDED_PREFIXES = (layout.RETRY_TOPIC_PREFIX, "rmq_sys_")
_NAME_SIZE_MAX = 255

#: Rows of a batch, and the queue offset of each.
Further = tuple[NDArray[np.int64], NDArray[np.int64]]


def further_queues(message: Message, settings: StoreSettings) -> list[tuple[QueueKey, int]]:
    """The queues besides its own that a message is in, and its offset in each.

    A broker fails at an offset that is no number; what it had done until then is done.
    """
    if not settings.enableMultiDispatch or _is_excluded(message.topic, settings):
        return []
    names = _split(message.properties.get(layout.PROPERTY_MULTI_DISPATCH, ""))
    offsets = _split(message.properties.get(layout.PROPERTY_MULTI_QUEUE_OFFSET, ""))
    found: list[tuple[QueueKey, int]] = []
    if len(names) != len(offsets):
        return found
    for name, offset in zip(names, offsets, strict=True):
        if "/" in name:
            continue
        if not (offset.isascii() and offset.isdigit()):
            break
        if not _is_folder_name(name):
            continue
        is_light = settings.enableLmq and name.startswith(layout.LMQ_TOPIC_PREFIX)
        found.append((QueueKey(name, 0 if is_light else message.queue_id), int(offset)))
    return found


def _is_excluded(topic: str, settings: StoreSettings) -> bool:
    if settings.version < _EXCLUSION_VERSION:
        return False
    return topic.startswith(_EXCLUDED_PREFIXES) or topic == layout.SCHEDULE_TOPIC


def _split(text: str) -> list[str]:
    """As Java does: empty parts at the end do not count."""
    parts = text.split(layout.MULTI_DISPATCH_SEPARATOR) if text.strip() else []
    while parts and not parts[-1]:
        parts.pop()
    return parts


def _is_folder_name(name: str) -> bool:
    """Whether a name leads to a folder of its own; a broker asks for slashes only."""
    is_plain = "\0" not in name and name not in ("", ".", "..")
    return is_plain and len(name.encode()) <= _NAME_SIZE_MAX


def further_units(
    batch: DispatchBatch, in_queue: NDArray[np.bool_], is_batch: Callable[[str], bool]
) -> dict[QueueKey, Further]:
    """The further units of a batch by queue, in log order.

    Only records that are ``in_queue`` have some, and only where their own queue is a simple one.
    """
    has_own = np.array([not is_batch(key.topic) for key in batch.queues], np.bool_)
    allowed = in_queue & has_own[batch.queue_codes]
    by_queue: dict[QueueKey, list[tuple[int, int]]] = {}
    for row, key, queue_offset in batch.lmq_units:
        if allowed[row]:
            by_queue.setdefault(key, []).append((row, queue_offset))
    return {
        key: (np.array([row for row, _ in units]), np.array([at for _, at in units], np.int64))
        for key, units in by_queue.items()
    }


def in_log_order(
    own: NDArray[np.void], own_rows: Further, more: NDArray[np.void], more_rows: Further
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """Own and further units of one queue, and their queue offsets, as the log has them; a record's
    own unit comes first."""
    order = np.argsort(np.concatenate([own_rows[0], more_rows[0]]), kind="stable")
    # As opaque items: numpy would turn the fields into the machine's byte order.
    opaque = f"V{own.itemsize}"
    merged = np.concatenate([own.view(opaque), more.view(opaque)])[order]
    return merged.view(own.dtype), np.concatenate([own_rows[1], more_rows[1]])[order]
