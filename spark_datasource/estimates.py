"""What reading will cost, from a look at a few units; planning never reads whole queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rmqlog.commitlog_format.batch_consume_queue import BatchConsumeQueue
from rmqlog.commitlog_format.columns import UNIT_COLUMNS
from rmqlog.commitlog_format.consume_queue import ConsumeQueue
from rmqlog.commitlog_format.layout import CONSUME_QUEUE_UNIT
from rmqlog.commitlog_format.queue_view import QueueView
from rmqlog.spark_datasource.partitions import UnitFilter

_SAMPLE_COUNT = 64
#: Wanted tags are rare: more units are looked at to see how rare.
_FILTERED_SAMPLE_COUNT = 1024
#: Bytes of a value in Spark, about; bodies and properties are as large as their record.
_COLUMN_SIZES = {
    "queueId": 4, "flag": 4, "sysFlag": 4, "reconsumeTimes": 4, "storeSize": 4, "bodyCrc": 4,
    "queueOffset": 8, "commitLogOffset": 8, "preparedTransactionOffset": 8, "tagsCode": 8,
    "bornTimestamp": 8, "storeTimestamp": 8,
}
_TEXT_SIZE = 32
_WHOLE_RECORD_COLUMNS = frozenset({"body", "properties"})


@dataclass(frozen=True, slots=True)
class QueueEstimate:
    """Of the messages of a queue: their mean size in the log, and which part is wanted."""

    record_size: float
    wanted_part: float

    def row_cost(self, needs_log: bool) -> float:
        """Bytes that are read for each message, wanted or not."""
        log_cost = self.record_size * self.wanted_part if needs_log else 0.0
        return CONSUME_QUEUE_UNIT.itemsize + log_cost


def estimate_queue(view: QueueView, start: int, stop: int, wanted: UnitFilter) -> QueueEstimate:
    """Look at units at the start, in the middle and at the end of the range ``[start, stop)``."""
    files = view.files
    if files is None or start >= stop:
        return QueueEstimate(0.0, 1.0)
    if isinstance(files, BatchConsumeQueue):
        first, last = view.start_index, view.stop_index
    else:
        first, last = start, stop
    is_filtered = wanted != UnitFilter()
    count = _FILTERED_SAMPLE_COUNT if is_filtered else _SAMPLE_COUNT
    starts = sorted({first, max(first, (first + last - count) // 2), max(first, last - count)})
    units = np.concatenate([files.units(at, min(at + count, last)) for at in starts])
    message_count = len(units)
    if isinstance(files, BatchConsumeQueue):
        message_count = int(units["batch_count"].astype(np.int64).sum())
    # A damaged unit may claim a negative size.
    record_size = float(np.maximum(units["size"], 0).sum()) / max(message_count, 1)
    if not is_filtered or not isinstance(files, ConsumeQueue):
        return QueueEstimate(record_size, 1.0)
    kept = np.ones(len(units), np.bool_)
    if wanted.tags_codes is not None:
        kept &= np.isin(files.tags_codes(units), list(wanted.tags_codes))
    kept &= wanted.wants_sizes(units["size"].astype(np.int64))
    # None seen does not mean none there.
    return QueueEstimate(record_size, max(float(kept.mean()), 1 / len(units)))


def row_size(columns: Iterable[str], record_size: float) -> float:
    """About how many bytes one row takes in Spark."""
    names = set(columns)
    size = float(sum(_COLUMN_SIZES.get(name, _TEXT_SIZE) for name in names))
    return size + record_size if names & _WHOLE_RECORD_COLUMNS else size


def needs_log(columns: Iterable[str]) -> bool:
    """Whether units alone cannot give the columns."""
    return not UNIT_COLUMNS.issuperset(columns)
