"""The truth about a query: plain Python over the scalar decoder, no planner, no columns.

Rows are dictionaries in our columns, times in microseconds. A store is read unit by unit with
``struct``, a filter tree of the bridge is evaluated row by row.
"""

from __future__ import annotations

import base64
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from random_records import message_row

from rmqlog.commitlog_format.inner_batch import expand
from rmqlog.commitlog_format.message import Message, decode_message

Row = dict[str, Any]
Tree = dict[str, Any]

SYSTEM_PREFIXES = ("rmq_sys_", "RMQ_SYS_", "%RETRY%", "%DLQ%", "%LMQ%")
#: A code below this is an address in the queue's ext file.
EXT_ADDRESS_MAX = -(2**31) - 1
SYSTEM_NAMES = {"TBW102", "SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"}


def store_rows(
    path: Path, broker_name: str | None = None, logs: Sequence[str] = ("commitlog",)
) -> list[Row]:
    """The rows of a store whose queues are complete, system topics included.

    ``logs`` are the folders of its segments.
    """
    segments = [segment for log in logs for segment in _segments(path / log)]
    rows = []
    for topic, queue_id, unit in _units(path):
        if "base" not in unit:
            message = _record(segments, unit["offset"], unit["size"])
            if message is not None:
                found = _row(message, broker_name or path.name)
                found.update(topic=topic, queueId=queue_id, queueOffset=unit["index"])
                if unit["code"] > EXT_ADDRESS_MAX:
                    found["tagsCode"] = unit["code"]
                rows.append(found)
            continue
        message = _record(segments, unit["offset"], unit["size"])
        if message is not None:
            rows += [_row(inner, broker_name or path.name) for inner in expand(message)]
    return rows


def is_system(topic: str) -> bool:
    """Whether a topic is left out unless it is asked for."""
    return topic in SYSTEM_NAMES or topic.startswith(SYSTEM_PREFIXES)


def _segments(folder: Path) -> list[tuple[int, bytes]]:
    return [(int(file.name), file.read_bytes()) for file in sorted(folder.glob("0*"))]


def _record(segments: list[tuple[int, bytes]], offset: int, size: int) -> Message | None:
    for start, data in segments:
        if start <= offset < start + len(data):
            return decode_message(data[offset - start : offset - start + size], offset)
    return None


def _units(path: Path) -> Iterator[tuple[str, int, dict[str, int]]]:
    for folder in sorted((path / "consumequeue").glob("*/*")):
        index = None
        for file in sorted(folder.iterdir()):
            data = file.read_bytes()
            index = int(file.name) // 20 if index is None else index
            for offset, size, code in struct.iter_unpack(">qiq", data):
                if size == 0:
                    break
                yield folder.parent.name, int(folder.name), {
                    "index": index, "offset": offset, "size": size, "code": code}
                index += 1
    for folder in sorted((path / "batchconsumequeue").glob("*/*")):
        for file in sorted(folder.iterdir()):
            data = file.read_bytes()
            for begin in range(0, len(data) - 45, 46):
                offset, size = struct.unpack_from(">qi", data, begin)
                if size:
                    yield folder.parent.name, int(folder.name), {
                        "base": 1, "offset": offset, "size": size}


def _row(message: Message, broker_name: str) -> Row:
    row = message_row(message)
    return {"brokerName": broker_name, **row, "properties": dict(row["properties"])}


def explode(rows: Iterable[Row]) -> list[Row]:
    """A row for each distinct token of KEYS, or one with null."""
    return [
        {**row, "key": token}
        for row in rows
        for token in dict.fromkeys(filter(None, (row["keys"] or "").split(" "))) or [None]
    ]


def answers(tree: Tree, row: Row) -> bool | None:
    """SQL's answer of a filter tree for a row: true, false or null."""
    op = tree["op"]
    if op == "not":
        inner = answers(tree["args"][0], row)
        return None if inner is None else not inner
    if op in ("and", "or"):
        found = [answers(arg, row) for arg in tree["args"]]
        decisive = op == "or"
        if decisive in found:
            return decisive
        return None if None in found else not decisive
    if op in ("true", "false"):
        return op == "true"
    value = row[tree["column"]]
    if op in ("isNull", "isNotNull"):
        return (value is None) == (op == "isNull")
    if op == "in":
        wanted = [_literal(tree["type"], one) for one in tree["values"]]
        if value is None:
            return None
        return True if value in wanted else None if None in wanted else False
    wanted = _literal(tree["type"], tree["value"])
    if op == "eqNullSafe":
        return bool(value == wanted)
    if value is None or wanted is None:
        return None
    return {
        "eq": lambda: value == wanted,
        "lt": lambda: value < wanted,
        "le": lambda: value <= wanted,
        "gt": lambda: value > wanted,
        "ge": lambda: value >= wanted,
        "startsWith": lambda: value.startswith(wanted),
        "endsWith": lambda: value.endswith(wanted),
        "contains": lambda: wanted in value,
    }[op]()


def _literal(kind: str, value: Any) -> Any:
    return base64.b64decode(value) if kind == "binary" and value is not None else value


def kept(tree: Tree, rows: Iterable[Row]) -> list[Row]:
    """The rows for which a tree is true."""
    return [row for row in rows if answers(tree, row) is True]


def as_bag(rows: Iterable[Row], columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """Rows as a multiset, whose order does not matter."""
    return Counter(tuple(_frozen(row[name]) for name in columns) for row in rows)


def _frozen(value: Any) -> Any:
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


def leaf(op: str, column: str, value: Any = None, kind: str | None = None) -> Tree:
    """A condition as the bridge writes it; the type follows from the column and the value."""
    if op in ("isNull", "isNotNull"):
        return {"op": op, "column": column}
    values = value if op == "in" else [value]
    known = [one for one in values if one is not None]
    if kind is None:
        kind = "null" if not known else "string" if isinstance(known[0], str) else "long"
        if kind == "long" and column.endswith("Timestamp"):
            kind = "timestamp"
    named = {"values": list(values)} if op == "in" else {"value": value}
    return {"op": op, "column": column, "type": kind, **named}


def all_of(*trees: Tree) -> Tree:
    """AND."""
    return {"op": "and", "args": list(trees)}


def any_of(*trees: Tree) -> Tree:
    """OR."""
    return {"op": "or", "args": list(trees)}


def negated(tree: Tree) -> Tree:
    """NOT."""
    return {"op": "not", "args": [tree]}
