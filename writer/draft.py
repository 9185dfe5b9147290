"""Messages made ready to be records: queues chosen, keys made, delays rewritten.

A draft lacks only what the append decides: queue offsets, store time, physical offsets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.checksum import body_crcs
from rmqlog.commitlog_format.compiled import count_rows, expect_rows
from rmqlog.commitlog_format.encoding import ByteColumn, encode_properties
from rmqlog.commitlog_format.hashing import java_hashes
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer import rules
from rmqlog.writer.message_columns import ANY_QUEUE, NO_TIME, MessageColumns
from rmqlog.writer.uniq_keys import UniqKeys


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Records to be appended in this order; see :class:`encoding.RecordColumns`.

    ``due_delay_ms`` is how long after the append a record of the schedule topic is due, else
    negative: its tags code is then the hash of its tag.
    """

    topics: Sequence[str]
    topic_codes: NDArray[np.int32]
    queue_id: NDArray[np.int32]
    flag: NDArray[np.int32]
    sys_flag: NDArray[np.int32]
    born_timestamp: NDArray[np.int64]
    born_hosts: Sequence[bytes]
    born_host_codes: NDArray[np.int32]
    reconsume_times: NDArray[np.int32]
    prepared_transaction_offset: NDArray[np.int64]
    body_crc: NDArray[np.int32]
    bodies: ByteColumn
    properties: ByteColumn
    due_delay_ms: NDArray[np.int64]
    tags: pa.StringArray
    keys: pa.StringArray
    uniq_keys: pa.StringArray
    #: The queues that delayed records will be delivered to.
    real_queues: Collection[QueueKey] = ()

    def __len__(self) -> int:
        return len(self.queue_id)


class Drafter:
    """Makes drafts of messages, as a producer and the broker's hooks do together."""

    def __init__(
        self,
        delay_levels_ms: Sequence[int],
        queue_count: Callable[[str], int],
        uniq_keys: UniqKeys,
        first_turn: int = 0,
    ) -> None:
        """``first_turn`` is the queue that the first row of a topic goes to, if it names none."""
        self._delays_ms = np.array([-1, *delay_levels_ms], np.int64)
        self._queue_count = queue_count
        self._uniq_keys = uniq_keys
        self._first_turn = first_turn
        #: The next queue of each topic whose rows name none.
        self._turns: dict[str, int] = {}
        self._mutex = threading.Lock()

    def draft(self, messages: MessageColumns, now_ms: int) -> Draft:
        """The draft of checked messages; raises where the properties become too large."""
        count = len(messages)
        queue_id = self._choose_queues(messages)
        uniq_keys, uniq_key_bytes = messages.uniq_keys, messages.text_bytes["uniqKey"]
        if uniq_keys.null_count:
            made = self._uniq_keys.make(count, now_ms)
            whole = uniq_keys.null_count == count
            uniq_keys = made if whole else pc.coalesce(uniq_keys, made)
            uniq_key_bytes = ByteColumn.from_arrow(uniq_keys)
        topics, topic_codes, delayed = _rewrite_delayed(messages, queue_id)
        properties = encode_properties(
            [
                (layout.PROPERTY_KEYS, messages.text_bytes["keys"]),
                (layout.PROPERTY_TAGS, messages.text_bytes["tags"]),
                (layout.PROPERTY_SHARDING_KEY, messages.text_bytes["shardingKey"]),
                *((name, ByteColumn.from_arrow(column)) for name, column in delayed),
                (layout.PROPERTY_UNIQ_KEY, uniq_key_bytes),
            ],
            messages.other_properties,
        )
        rules.check_properties_sizes(properties.sizes)
        is_delayed = messages.delay_level > 0
        born = messages.born_timestamp
        expect_rows(count)
        count_rows(count)
        return Draft(
            topics=topics,
            topic_codes=topic_codes,
            queue_id=np.where(is_delayed, messages.delay_level - 1, queue_id).astype(np.int32),
            flag=messages.flag,
            sys_flag=messages.sys_flag,
            born_timestamp=np.where(born == NO_TIME, now_ms, born),
            born_hosts=messages.born_hosts,
            born_host_codes=messages.born_host_codes,
            reconsume_times=np.zeros(count, np.int32),
            prepared_transaction_offset=np.zeros(count, np.int64),
            body_crc=body_crcs(messages.bodies),
            bodies=messages.body_column,
            properties=properties,
            due_delay_ms=self._delays_ms[messages.delay_level],
            tags=messages.tags,
            keys=messages.keys,
            uniq_keys=uniq_keys,
            real_queues=_real_queues(messages, queue_id),
        )

    def _choose_queues(self, messages: MessageColumns) -> NDArray[np.int32]:
        """Rows without a queue: by the hash of their sharding key, else in turns."""
        free = messages.queue_id == ANY_QUEUE
        if not free.any():
            return messages.queue_id
        chosen = messages.queue_id.copy()
        counts = np.array([self._queue_count(topic) for topic in messages.topics], np.int64)
        sharded = free & np.asarray(messages.sharding_keys.is_valid())
        if sharded.any():
            # SelectMessageQueueByHash: Java's remainder keeps the sign, which is then dropped.
            hashes = np.abs(java_hashes(messages.sharding_keys).astype(np.int64))
            chosen[sharded] = (hashes % counts[messages.topic_codes])[sharded]
            free &= ~sharded
        for code, topic in enumerate(messages.topics):
            rows = np.flatnonzero(free & (messages.topic_codes == code))
            if len(rows):
                with self._mutex:
                    turn = self._turns.get(topic, self._first_turn)
                    self._turns[topic] = (turn + len(rows)) % int(counts[code])
                chosen[rows] = (turn + np.arange(len(rows))) % counts[code]
        return chosen


def _rewrite_delayed(
    messages: MessageColumns, queue_id: NDArray[np.int32]
) -> tuple[Sequence[str], NDArray[np.int32], list[tuple[str, pa.Array]]]:
    """Delayed messages go to the schedule topic and remember their own topic and queue.

    Returns topics, their codes, and the further properties of the delayed rows.
    """
    is_delayed = messages.delay_level > 0
    if not is_delayed.any():
        return messages.topics, messages.topic_codes, []
    absent = ~is_delayed
    real_topics = pa.array(messages.topics, pa.string()).take(
        pa.array(messages.topic_codes, mask=absent)
    )
    levels = pa.array(messages.delay_level, mask=absent).cast(pa.string())
    queues = pa.array(queue_id, mask=absent).cast(pa.string())
    topics = [*messages.topics, layout.SCHEDULE_TOPIC]
    codes = np.where(is_delayed, len(messages.topics), messages.topic_codes).astype(np.int32)
    return topics, codes, [
        (layout.PROPERTY_DELAY, levels),
        (layout.PROPERTY_REAL_TOPIC, real_topics),
        (layout.PROPERTY_REAL_QUEUE_ID, queues),
    ]


def _real_queues(messages: MessageColumns, queue_id: NDArray[np.int32]) -> set[QueueKey]:
    delayed = np.flatnonzero(messages.delay_level > 0)
    topics = [messages.topics[code] for code in messages.topic_codes[delayed].tolist()]
    return set(map(QueueKey, topics, queue_id[delayed].tolist()))
