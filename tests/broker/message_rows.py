"""Messages of both sides in one form: dictionaries in the columns of rmqlog.

Two fields are not stored but made by who reads: MIN_OFFSET and MAX_OFFSET among the properties of
a pulled message, and bit 0 of the sysFlag, which some decoders clear after decompression.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from golden_stores import host_text

from rmqlog.commitlog_format.layout import SysFlag
from rmqlog.commitlog_format.message import Message

Row = dict[str, Any]
#: The messages of each (topic, queue id) in order.
QueueRows = dict[tuple[str, int], list[Row]]
ADDED_BY_PULL = frozenset({"MIN_OFFSET", "MAX_OFFSET"})
# The complement of a member of an IntFlag lacks the bits that have no name, such as the type of
# the compression.
COMPARED_SYS_FLAG = ~int(SysFlag.COMPRESSED)


def java_row(message: Mapping[str, Any]) -> Row:
    """A message as RocketMQ's classes give it."""
    row = dict(message)
    row["body"] = base64.b64decode(row.pop("bodyBase64"))
    row["bornHost"] = host_text(row["bornHost"])
    row["storeHost"] = host_text(row["storeHost"])
    row["sysFlag"] &= COMPARED_SYS_FLAG
    properties = row["properties"] or {}
    row["properties"] = {n: value for n, value in properties.items() if n not in ADDED_BY_PULL}
    return row


def message_row(message: Message) -> Row:
    """A message as rmqlog's scalar decoder gives it."""
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "uniqKey": message.uniq_key,
        "tags": message.tags,
        "keys": message.keys,
        "body": message.body,
        "properties": dict(message.properties),
        "flag": message.flag,
        "sysFlag": message.sys_flag & COMPARED_SYS_FLAG,
        "bornTimestamp": message.born_timestamp_ms,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_timestamp_ms,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "commitLogOffset": message.commit_log_offset,
        "storeSize": message.store_size,
        "bodyCrc": message.body_crc,
    }


def our_row(columns: Mapping[str, Any]) -> Row:
    """A row of rmqlog's columns; brokerName is not RocketMQ's."""
    row = {name: value for name, value in columns.items() if name != "brokerName"}
    row["properties"] = dict(row["properties"])
    row["sysFlag"] &= COMPARED_SYS_FLAG
    return row


def arrow_rows(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Messages as rmqlog's columnar decoder gives them."""
    rows: list[Row] = []
    for batch in batches:
        for name in ("bornTimestamp", "storeTimestamp"):
            place = batch.schema.get_field_index(name)
            milliseconds = batch.column(name).cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
            batch = batch.set_column(place, name, milliseconds)
        rows.extend(map(our_row, batch.to_pylist()))
    return rows


def by_queue(rows: Iterable[Row]) -> QueueRows:
    """Rows as the messages of each queue, in the order in which they come."""
    queues: QueueRows = {}
    for row in rows:
        queues.setdefault((row["topic"], row["queueId"]), []).append(row)
    return queues


def opened_queue_rows(opened: Mapping[str, Any]) -> QueueRows:
    """What RocketMQ's own DefaultMessageStore found, with the tagsCode of the units.

    Units whose record has expired are left out.
    """
    assert "error" not in opened
    return by_queue(
        {**java_row(message), "tagsCode": tags_code}
        for queue in opened["queues"]
        for (_, _, _, tags_code), message in zip(queue["units"], queue["messages"], strict=True)
        if message is not None
    )


def pulled_queue_rows(queues: Iterable[Mapping[str, Any]]) -> QueueRows:
    """What a real client pulled; it is never told a tagsCode."""
    return {
        (queue["topic"], queue["queueId"]): [java_row(found) for found in queue["messages"]]
        for queue in queues
        if queue["messages"]
    }


def assert_same_rows(ours: QueueRows, theirs: QueueRows) -> None:
    """Every field that they have is the same in ours.

    Fails with the fields of the first row that differ: the whole is too long to be read.
    """
    assert ours.keys() == theirs.keys()
    for queue, rows in theirs.items():
        for our, their_row in zip(ours[queue], rows, strict=True):
            differing = {
                name: (our[name], their_row[name])
                for name in their_row
                if our[name] != their_row[name]
            }
            assert not differing, (queue, our["queueOffset"])
            assert our.keys() - their_row.keys() <= {"tagsCode"}
