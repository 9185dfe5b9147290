"""Appends drafts to the log: offsets and times assigned, bytes placed, encoded and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.address import message_id_column
from rmqlog.commitlog_format.encoding import RecordColumns, encode_records
from rmqlog.commitlog_format.hashing import java_hashes
from rmqlog.commitlog_format.layout import SysFlag
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer import rules
from rmqlog.writer.dispatch import DispatchBatch, find_queues
from rmqlog.writer.draft import Draft
from rmqlog.writer.log_files import LogFiles
from rmqlog.writer.placement import Placement, physical_offsets, place_records
from rmqlog.writer.settings import StoreSettings


@dataclass(frozen=True, slots=True, eq=False)
class AppendResult:
    """Where each message of a batch went, in the order of its rows."""

    topics: Sequence[str]
    topic_codes: NDArray[np.int32]
    queue_id: NDArray[np.int32]
    queue_offset: NDArray[np.int64]
    physical_offset: NDArray[np.int64]
    store_size: NDArray[np.int64]
    store_timestamp_ms: int
    store_host: bytes
    #: The physical offset behind the last record.
    end: int

    def __len__(self) -> int:
        return len(self.queue_id)

    @property
    def msg_ids(self) -> pa.StringArray:
        """The offset message id of each message."""
        hosts = np.frombuffer(self.store_host * len(self), f"V{len(self.store_host)}")
        return message_id_column(hosts, self.physical_offset)

    def to_arrow(self) -> pa.RecordBatch:
        """msgId, topic, queueId, queueOffset and commitLogOffset as columns."""
        topics = pa.array(self.topics, pa.string()).take(pa.array(self.topic_codes))
        return pa.RecordBatch.from_pydict(
            {
                "msgId": self.msg_ids,
                "topic": topics,
                "queueId": pa.array(self.queue_id),
                "queueOffset": pa.array(self.queue_offset),
                "commitLogOffset": pa.array(self.physical_offset),
            }
        )


@dataclass(frozen=True, slots=True, eq=False)
class PreparedAppend:
    """A draft with everything decided: what is left to do is to write it."""

    draft: Draft
    timestamp_ms: int
    queues: Sequence[QueueKey]
    queue_codes: NDArray[np.int32]
    records: RecordColumns
    sizes: NDArray[np.int64]
    placements: Sequence[Placement]


class Appender:
    """The one place that writes records. Not thread-safe: the store writer holds a lock."""

    def __init__(
        self,
        log: LogFiles,
        settings: StoreSettings,
        store_host: bytes,
        next_offset: Callable[[QueueKey], int],
        last_timestamp_ms: int = 0,
    ) -> None:
        """``next_offset`` tells the offset that a queue goes on with, asked once a queue."""
        self.log = log
        self.settings = settings
        self.store_host = store_host
        self._find_next_offset = next_offset
        self._next_offsets: dict[QueueKey, int] = {}
        self.last_timestamp_ms = last_timestamp_ms

    def prepare(
        self, draft: Draft, now_ms: int, *, client_batch: bool = False
    ) -> PreparedAppend:
        """Check a draft, assign its offsets and reserve its space; nothing is written yet.

        With ``client_batch`` all records will lie in one segment.
        """
        timestamp = max(now_ms, self.last_timestamp_ms, 1)
        queues, queue_codes = find_queues(draft.topics, draft.topic_codes, draft.queue_id)
        queue_offset = queue_offsets(queue_codes, list(map(self.next_offset, queues)))
        records = draft_records(draft, self.store_host, queue_offset, timestamp)
        sizes = records.total_sizes()
        rules.check_record_sizes(sizes, self.settings)
        if client_batch:
            rules.check_client_batch(sizes, self.settings)
        placements = place_records(
            sizes, self.log.end, self.log.segment_size, in_one_segment=client_batch
        )
        self.log.reserve(placements)
        return PreparedAppend(draft, timestamp, queues, queue_codes, records, sizes, placements)

    def write(self, prepared: PreparedAppend) -> tuple[AppendResult, DispatchBatch]:
        """Write what was prepared last; what its dispatch needs comes back too."""
        records, sizes = prepared.records, prepared.sizes
        for placement in prepared.placements:
            rows = slice(placement.first_row, placement.stop_row)
            data = encode_records(records[rows], placement.physical_offset, sizes[rows])
            self.log.write(placement, data)
        counts = np.bincount(prepared.queue_codes, minlength=len(prepared.queues)).tolist()
        self.advance(dict(zip(prepared.queues, counts, strict=True)), prepared.timestamp_ms)
        draft = prepared.draft
        physical_offset = physical_offsets(prepared.placements, sizes)
        dispatch = DispatchBatch(
            queues=prepared.queues,
            queue_codes=prepared.queue_codes,
            queue_offset=records.queue_offset,
            physical_offset=physical_offset,
            size=sizes,
            sys_flag=records.sys_flag,
            store_timestamp=records.store_timestamp,
            tags_code=tags_codes(draft, prepared.timestamp_ms),
            uniq_keys=draft.uniq_keys,
            keys=draft.keys,
            tags=draft.tags,
        )
        result = AppendResult(
            draft.topics, draft.topic_codes, draft.queue_id, records.queue_offset,
            physical_offset, sizes, prepared.timestamp_ms, self.store_host, self.log.end,
        )
        return result, dispatch

    def next_offset(self, key: QueueKey) -> int:
        """The queue offset that the next message of a queue gets."""
        if key not in self._next_offsets:
            self._next_offsets[key] = self._find_next_offset(key)
        return self._next_offsets[key]

    def advance(self, counts: Mapping[QueueKey, int], timestamp_ms: int) -> None:
        """Note that so many messages went to each queue, all at one time."""
        for queue, count in counts.items():
            self._next_offsets[queue] = self.next_offset(queue) + count
        self.last_timestamp_ms = timestamp_ms


def queue_offsets(codes: NDArray[np.int32], starts: Sequence[int]) -> NDArray[np.int64]:
    """The queue offset of each row, where each queue goes on at its own start."""
    # Rows in the order of their queues, log order within each: a row's rank in its queue is
    # its place there less the queue's first one.
    counts = np.bincount(codes, minlength=len(starts))
    order = np.argsort(_narrow(codes, len(starts)), kind="stable")
    firsts = np.cumsum(counts) - counts
    offsets = np.empty(len(codes), np.int64)
    shifts = np.array(starts, np.int64) - firsts
    offsets[order] = np.arange(len(codes)) + np.repeat(shifts, counts)
    return offsets


def draft_records(
    draft: Draft, store_host: bytes, queue_offset: NDArray[np.int64], timestamp: int
) -> RecordColumns:
    """The records of a draft, but for their physical offsets."""
    is_v6 = len(store_host) == layout.IPV6_HOST_SIZE
    store_flag = int(SysFlag.STORE_HOST_V6) if is_v6 else 0
    return RecordColumns(
        topics=[topic.encode() for topic in draft.topics],
        topic_codes=draft.topic_codes,
        queue_id=draft.queue_id,
        queue_offset=queue_offset,
        flag=draft.flag,
        sys_flag=draft.sys_flag | store_flag,
        born_timestamp=draft.born_timestamp,
        born_hosts=draft.born_hosts,
        born_host_codes=draft.born_host_codes,
        store_timestamp=np.full(len(draft), timestamp, np.int64),
        store_host=store_host,
        reconsume_times=draft.reconsume_times,
        prepared_transaction_offset=draft.prepared_transaction_offset,
        body_crc=draft.body_crc,
        bodies=draft.bodies,
        properties=draft.properties,
    )


def tags_codes(draft: Draft, timestamp: int) -> NDArray[np.int64]:
    """The hash of each tag; in the schedule topic the time at which a message is due."""
    codes = java_hashes(draft.tags).astype(np.int64)
    due = draft.due_delay_ms >= 0
    if due.any():
        codes[due] = timestamp + draft.due_delay_ms[due]
    return codes


def _narrow(codes: NDArray[np.int32], count: int) -> NDArray[np.int32] | NDArray[np.int16]:
    """Codes in 16 bits where they fit: numpy then sorts them by radix."""
    return codes.astype(np.int16) if count < 2**15 else codes
