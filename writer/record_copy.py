"""Records made from records: what a broker does when it delivers, commits or notes something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.checksum import body_crc
from rmqlog.commitlog_format.encoding import ByteColumn
from rmqlog.commitlog_format.layout import SysFlag
from rmqlog.commitlog_format.message import Record
from rmqlog.commitlog_format.properties import parse_properties
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.commitlog_format.text import decode_text
from rmqlog.writer.draft import Draft

_Integer = TypeVar("_Integer", np.int32, np.int64)
_NOT_DUE = -1


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be appended to a queue as it is: body and properties as they are stored."""

    queue: QueueKey
    body: bytes
    properties: bytes
    born_timestamp: int
    born_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


def copy_of(record: Record, queue: QueueKey) -> NewRecord:
    """The same message for another queue; body, born time and host stay."""
    return NewRecord(
        queue,
        record.body,
        record.properties,
        record.born_timestamp,
        record.born_host,
        record.flag,
        record.sys_flag & ~int(SysFlag.STORE_HOST_V6),
        record.reconsume_times,
    )


def record_in(draft: Draft, row: int) -> NewRecord:
    """One record of a draft."""
    code = int(draft.topic_codes[row])
    return NewRecord(
        QueueKey(draft.topics[code], int(draft.queue_id[row])),
        draft.bodies.value(row),
        draft.properties.value(row),
        int(draft.born_timestamp[row]),
        draft.born_hosts[int(draft.born_host_codes[row])],
        int(draft.flag[row]),
        int(draft.sys_flag[row]),
    )


def draft_of(records: Sequence[NewRecord]) -> Draft:
    """Records, one by one, as a draft."""
    topics = list(dict.fromkeys(record.queue.topic for record in records))
    hosts = list(dict.fromkeys(record.born_host for record in records))
    found = [parse_properties(decode_text(record.properties)) for record in records]

    def texts(name: str) -> pa.StringArray:
        return pa.array([properties.get(name) for properties in found], pa.string())

    def integers(values: Sequence[int], kind: type[_Integer]) -> NDArray[_Integer]:
        return np.array(values, kind)

    return Draft(
        topics=topics,
        topic_codes=integers([topics.index(r.queue.topic) for r in records], np.int32),
        queue_id=integers([record.queue.queue_id for record in records], np.int32),
        flag=integers([record.flag for record in records], np.int32),
        sys_flag=integers([record.sys_flag for record in records], np.int32),
        born_timestamp=integers([record.born_timestamp for record in records], np.int64),
        born_hosts=hosts,
        born_host_codes=integers([hosts.index(r.born_host) for r in records], np.int32),
        reconsume_times=integers([record.reconsume_times for record in records], np.int32),
        prepared_transaction_offset=integers(
            [record.prepared_transaction_offset for record in records], np.int64
        ),
        body_crc=integers([body_crc(record.body) for record in records], np.int32),
        bodies=ByteColumn.of([record.body for record in records]),
        properties=ByteColumn.of([record.properties for record in records]),
        due_delay_ms=np.full(len(records), _NOT_DUE, np.int64),
        tags=texts(layout.PROPERTY_TAGS),
        keys=texts(layout.PROPERTY_KEYS),
        uniq_keys=texts(layout.PROPERTY_UNIQ_KEY),
    )
