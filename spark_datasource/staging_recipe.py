"""What the bridge is told, so that it stages plain rows itself.

To hand a row to Python, by way of Arrow and a socket, takes longer than to make a record of it.
So where the bridge is there and a frame has plain columns alone, tasks stage it in Java; every
other frame, and every row that breaks a rule, goes to :mod:`rmqlog.writer.staging`. The contract
is in ``bridge/README.md``. Bytes and positions come from here: layouts are declared once.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pyspark.sql.types import NullType, StructType

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.address import parse_host
from rmqlog.commitlog_format.encoding import magic_of_topic, topic_field
from rmqlog.commitlog_format.errors import CorruptStagingError
from rmqlog.commitlog_format.layout import I32, RECORD_HEADERS, SysFlag
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.spark_datasource.bridge_text import text_for_bridge
from rmqlog.spark_datasource.option_values import BRIDGE_PREFIX
from rmqlog.writer import rules
from rmqlog.writer.dispatch import TAG_TOPIC_SUFFIX
from rmqlog.writer.message_columns import ASSIGNED_COLUMNS
from rmqlog.writer.placement import CHUNK_ROWS, CHUNK_SIZE
from rmqlog.writer.staged_files import StagedFile
from rmqlog.writer.staging import StagingPlan
from rmqlog.writer.uniq_keys import month_start_ms

_MARKER = "rmqlog-recipe"
_BRIDGE = f"{BRIDGE_PREFIX}bridge"
#: The columns that Java makes records of; it does not look at those that the store assigns.
_PLAIN_COLUMNS = ("body", "keys", "tags", "uniqKey", "queueId", "flag", "bornTimestamp")
#: A batch has so many chunks of the commit, each step of which costs something for each batch.
_CHUNKS_IN_BATCH = 2
#: Records are written in pieces of this size, which stay in the processor's cache.
_WRITE_SIZE = 1024 * 1024


def staging_recipe(
    given: Mapping[str, str], schema: StructType, plan: StagingPlan
) -> str:
    """What the bridge has to know of a job; empty where Python is to make the records."""
    has_bridge = any(name.lower() == _BRIDGE for name in given)
    if not has_bridge or not _is_plain(schema, plan):
        return ""
    assert plan.topic is not None
    host = parse_host(plan.settings.store_host)
    is_v6 = len(host) == layout.IPV6_HOST_SIZE
    sys_flag = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6) if is_v6 else 0
    header_type = RECORD_HEADERS[sys_flag]
    topic = plan.topic.encode()
    header = np.zeros(1, header_type)
    header["magic"] = magic_of_topic(topic)
    header["sys_flag"] = sys_flag
    for field in ("born_host", "store_host"):
        header[field] = np.frombuffer(host, header_type[field])
    settings = plan.settings
    content = {
        "folder": plan.folder,
        "topic": plan.topic,
        "queueCount": plan.queue_count(plan.topic),
        "sysFlag": sys_flag,
        "header": _base64(header.tobytes()),
        "topicField": _base64(topic_field(topic)),
        "positions": {
            "totalSize": _position(header_type, "total_size"),
            "bodyCrc": _position(header_type, "body_crc"),
            "queueId": _position(header_type, "queue_id"),
            "flag": _position(header_type, "flag"),
            "bornTimestamp": _position(header_type, "born_timestamp"),
            "bodySize": _position(header_type, "body_size"),
        },
        "columns": {name: _column(schema, name) for name in _PLAIN_COLUMNS},
        "prefixes": {
            "keys": _prefix(layout.PROPERTY_KEYS),
            "tags": _prefix(layout.PROPERTY_TAGS),
            "uniqKey": _prefix(layout.PROPERTY_UNIQ_KEY),
            "end": layout.PROPERTY_SEPARATOR,
        },
        "limits": {
            "body": settings.maxMessageSize,
            "properties": layout.MAX_PROPERTIES_SIZE,
            "record": settings.mappedFileSizeCommitLog - layout.SEGMENT_END_RESERVE,
            "queueId": rules.QUEUE_COUNT_MAX - 1,
        },
        "index": {
            "keyPrefix": plan.topic + layout.INDEX_KEY_SEPARATOR,
            "tagPrefix": plan.topic + TAG_TOPIC_SUFFIX + layout.INDEX_KEY_SEPARATOR
            if settings.indexes_tags else None,
        },
        "uniqKeys": {
            "address": host[: -I32.size].hex().upper(),
            "monthStartMs": month_start_ms(int(time.time() * 1000)),
        },
        "pieces": {
            "batchRows": _CHUNKS_IN_BATCH * CHUNK_ROWS,
            "batchSize": _CHUNKS_IN_BATCH * CHUNK_SIZE,
            "fileSize": layout.STAGED_RECORDS_SIZE,
            "writeSize": _WRITE_SIZE,
        },
    }
    return text_for_bridge(_MARKER, content)


@dataclass(frozen=True, slots=True)
class StagedByBridge:
    """What the bridge has staged of a partition, and how many of the rows it dealt out."""

    file: StagedFile
    dealt_rows: int = 0


def staged_by_bridge(plan: StagingPlan, partition: int, attempt: int) -> StagedByBridge:
    """What an attempt at a partition has staged in Java, before it handed the rest over."""
    file = StagedFile(f"{partition}-{attempt}-plain", partition)
    path = f"{plan.folder}/{file.name}.summary"
    try:
        with open(path, encoding="ascii") as summary:
            found = json.load(summary)
        topic = plan.topic or ""
        counts = tuple((QueueKey(topic, int(queue)), int(rows)) for queue, rows in found["counts"])
        row_count, records_size = int(found["rowCount"]), int(found["recordsSize"])
        staged = replace(file, row_count=row_count, records_size=records_size, counts=counts)
        return StagedByBridge(staged, int(found["dealtRows"]))
    except FileNotFoundError:
        return StagedByBridge(file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptStagingError(
            "what the bridge has staged cannot be read", path, found=error
        ) from error


def _is_plain(schema: StructType, plan: StagingPlan) -> bool:
    known = {*_PLAIN_COLUMNS, *ASSIGNED_COLUMNS, "topic"}
    return (
        plan.topic is not None
        and plan.queue_by is None
        and plan.compression is None
        and plan.settings.messageIndexEnable
        and known.issuperset(schema.fieldNames())
        # Java names files in the encoding of its locale, which may have no other letters.
        and plan.folder.isascii()
    )


def _column(schema: StructType, name: str) -> int:
    names = schema.fieldNames()
    if name not in names or isinstance(schema[name].dataType, NullType):
        return -1
    return names.index(name)


def _position(header: np.dtype[np.void], name: str) -> int:
    fields: Mapping[str, Any] = header.fields or {}
    return int(fields[name][1])


def _prefix(name: str) -> str:
    return _base64(name.encode() + bytes([layout.NAME_VALUE_SEPARATOR]))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
