"""What retention took from a snapshot, and whether a query would have needed it."""

from __future__ import annotations

from dataclasses import dataclass

from rmqlog.commitlog_format.consume_queue import ConsumeQueue
from rmqlog.commitlog_format.errors import SegmentExpiredError
from rmqlog.commitlog_format.queue_view import QueueView
from rmqlog.commitlog_format.store import Store
from rmqlog.spark_datasource.intervals import NOTHING, Intervals


@dataclass(frozen=True, slots=True)
class Expiry:
    """The bytes ``[start, stop)`` of a store's log that expired since its frame was loaded."""

    path: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many bytes expired."""
        return max(0, self.stop - self.start)

    @property
    def log_offsets(self) -> Intervals:
        """The physical offsets that are gone."""
        return Intervals.half_open(self.start, self.stop)

    def lost(self, store: Store, view: QueueView) -> Intervals:
        """The queue offsets that the snapshot had, or may have had, and that are gone."""
        if not self.size:
            return NOTHING
        files = view.files
        if files is None:
            # A queue that only the tail knows lost nothing, unless no queue has files.
            return NOTHING if store.files.queues else Intervals.half_open(0, view.min_offset)
        first = files.find_start(self.start, view.start_index)
        if not isinstance(files, ConsumeQueue) or first == files.first_index:
            # Units may have gone with the records, so nobody knows how many there were.
            first = 0
        return Intervals.half_open(first, view.min_offset)

    def error(self) -> SegmentExpiredError:
        """What a query that needs them is told."""
        return SegmentExpiredError(
            "segments expired since the frame was loaded; load it again, or set "
            "failOnDataLoss=false to read what is left", self.path, self.start,
            f"a log that begins at {self.stop}", f"one that begins at {self.start}",
        )
