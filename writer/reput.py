"""Dispatch from the log itself: after a crash, and to make queues and index anew.

The broker's ReputMessageService. An append hands its columns to the dispatcher directly; what
is read back from the log comes out the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.commit_log import CommitLog, RecordRun
from rmqlog.commitlog_format.encoding import dictionary_codes
from rmqlog.commitlog_format.layout import SysFlag
from rmqlog.commitlog_format.log_walk import LogEnd, LogWalk
from rmqlog.commitlog_format.mapped_windows import intact
from rmqlog.commitlog_format.records import RecordDecoder
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer.dispatch import DispatchBatch, Dispatcher, find_queues
from rmqlog.writer.multi_dispatch import further_queues
from rmqlog.writer.settings import StoreSettings

_COLUMNS = (
    *("topic", "queueId", "queueOffset", "sysFlag", "storeTimestamp", "commitLogOffset"),
    *("storeSize", "tagsCode", "tags", "keys", "uniqKey"),
)
_MICROSECONDS = 1000

logger = logging.getLogger(__name__)


def dispatch_log(
    log: CommitLog,
    start: int,
    stop: int,
    dispatcher: Dispatcher,
    settings: StoreSettings,
    *,
    check_crc: bool = False,
) -> tuple[int, LogEnd]:
    """Dispatch the records of ``[start, stop)``: how many there were, and where they ended.

    A record that is not sound ends it, as it ends the log.
    """
    count = 0
    walk = LogWalk(log, start, stop, check_crc=check_crc)
    decoder = RecordDecoder(_COLUMNS, check_crc=False, limits=log.limits)
    for run in walk:
        for batch in _batches(log, run, decoder, settings):
            dispatcher.dispatch(batch)
            count += len(batch)
    return count, walk.end


def dispatch_what_is_sound(
    log: CommitLog, start: int, stop: int, dispatcher: Dispatcher, settings: StoreSettings
) -> int:
    """Dispatch the records of ``[start, stop)``; behind damage it goes on with the next segment.

    There is damage only in front of what recovery has checked, where it starts when the index
    is made anew: without going on, the newest messages would be missing in their queues.
    """
    dispatched = 0
    while start < stop:
        count, end = dispatch_log(log, start, stop, dispatcher, settings)
        dispatched += count
        if end.offset >= stop:
            break
        logger.warning("the log is damaged: %s", end.reason)
        size = settings.mappedFileSizeCommitLog
        start = end.offset - end.offset % size + size
    return dispatched


def _batches(
    log: CommitLog, run: RecordRun, decoder: RecordDecoder, settings: StoreSettings
) -> Iterator[DispatchBatch]:
    decoded = decoder.decode_batches(
        run.window.data, run.window.start, run.offsets, path=run.window.path
    )
    for columns in decoded:
        batch = _dispatch_batch(columns)
        if settings.delay_levels_ms != layout.DELAY_LEVELS_MS:
            batch = replace(batch, tags_code=_tags_codes(log, batch, settings))
        if (batch.sys_flag & int(SysFlag.INNER_BATCH)).any():
            batch = replace(batch, batch_count=_batch_counts(log, batch))
        if settings.enableMultiDispatch and _mentions_further_queues(run):
            batch = replace(batch, lmq_units=_lmq_units(log, batch, settings))
        yield batch


def _dispatch_batch(columns: pa.RecordBatch) -> DispatchBatch:
    topics, topic_codes = dictionary_codes(columns["topic"])
    queues, queue_codes = find_queues(topics, topic_codes, columns["queueId"].to_numpy())
    timestamps = columns["storeTimestamp"].view(pa.int64()).to_numpy() // _MICROSECONDS
    return DispatchBatch(
        queues=queues,
        queue_codes=queue_codes,
        queue_offset=columns["queueOffset"].to_numpy(),
        physical_offset=columns["commitLogOffset"].to_numpy(),
        size=columns["storeSize"].to_numpy().astype(np.int64),
        sys_flag=columns["sysFlag"].to_numpy(),
        store_timestamp=timestamps,
        tags_code=columns["tagsCode"].to_numpy(),
        uniq_keys=columns["uniqKey"],
        keys=columns["keys"],
        tags=columns["tags"],
    )


def _tags_codes(
    log: CommitLog, batch: DispatchBatch, settings: StoreSettings
) -> NDArray[np.int64]:
    """The tags codes where the levels are not the default ones: due times are other ones then."""
    codes = batch.tags_code.copy()
    scheduled = [key.topic == layout.SCHEDULE_TOPIC for key in batch.queues]
    for row in np.flatnonzero(np.array(scheduled)[batch.queue_codes]).tolist():
        message = log.message(int(batch.physical_offset[row]), check_crc=False)
        text = message.properties.get(layout.PROPERTY_DELAY, "")
        level = min(int(text), len(settings.delay_levels_ms)) if text.isdigit() else 0
        if level > 0:
            codes[row] = message.store_timestamp_ms + settings.delay_levels_ms[level - 1]
    return codes


def _mentions_further_queues(run: RecordRun) -> bool:
    with intact(run.window.data):
        return layout.PROPERTY_MULTI_DISPATCH.encode() in run.window.data.tobytes()


def _lmq_units(
    log: CommitLog, batch: DispatchBatch, settings: StoreSettings
) -> list[tuple[int, QueueKey, int]]:
    """The units of light message queues, which are rare: record by record."""
    found: list[tuple[int, QueueKey, int]] = []
    for row, offset in enumerate(batch.physical_offset.tolist()):
        message = log.message(offset, check_crc=False)
        found.extend((row, key, at) for key, at in further_queues(message, settings))
    return found


def _batch_counts(log: CommitLog, batch: DispatchBatch) -> NDArray[np.int16]:
    """INNER_NUM of inner batches, 1 for all other records."""
    counts = np.ones(len(batch), np.int16)
    for row in np.flatnonzero(batch.sys_flag & int(SysFlag.INNER_BATCH)).tolist():
        offset = int(batch.physical_offset[row])
        message = log.message(offset, check_crc=False)
        text = message.properties.get(layout.PROPERTY_INNER_COUNT, "")
        if text.isdigit():
            counts[row] = int(text)
    return counts
