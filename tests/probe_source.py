"""A tiny Python source that keeps the bridge's contract and writes down what it was asked.

Its store is a folder: ``size`` holds the number of rows, ``topics/`` a file for each topic,
``journal/`` one JSON file for each call, ``committed/`` one for each write.
"""

from __future__ import annotations

import base64
import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
COLUMNS = {
    "label": StringType(),
    "a": IntegerType(),
    "b": LongType(),
    "t": TimestampType(),
    "x": DoubleType(),
    "odd": BooleanType(),
    "data": BinaryType(),
}


def row_of(number: int) -> dict[str, Any]:
    """The row of this number; every fifth has no label."""
    return {
        "label": None if number % 5 == 4 else f"row-{number}",
        "a": number,
        "b": number * 10_000_000_000,
        "t": EPOCH + timedelta(microseconds=number),
        "x": number / 2,
        "odd": number % 2 == 1,
        "data": bytes([number]),
    }


def _literal(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == "timestamp":
        return EPOCH + timedelta(microseconds=value)
    return base64.b64decode(value) if kind == "binary" else value


def _compare(op: str, found: Any, wanted: Any) -> bool | None:
    if op == "eqNullSafe":
        return bool(found == wanted)
    if found is None or wanted is None:
        return None
    answers = {
        "eq": lambda: found == wanted,
        "lt": lambda: found < wanted,
        "le": lambda: found <= wanted,
        "gt": lambda: found > wanted,
        "ge": lambda: found >= wanted,
        "startsWith": lambda: found.startswith(wanted),
        "endsWith": lambda: found.endswith(wanted),
        "contains": lambda: wanted in found,
    }
    return bool(answers[op]())


def _any(answers: Sequence[bool | None]) -> bool | None:
    if True in answers:
        return True
    return None if None in answers else False


def evaluate(tree: dict[str, Any], row: dict[str, Any]) -> bool | None:
    """SQL's answer of a filter tree for one row; only for trees without ``unknown``."""
    op = tree["op"]
    if op in ("and", "or", "not"):
        answers = [evaluate(arg, row) for arg in tree["args"]]
        if op == "or":
            return _any(answers)
        if op == "not":
            return None if answers[0] is None else not answers[0]
        inverse = _any([None if answer is None else not answer for answer in answers])
        return None if inverse is None else not inverse
    if op in ("true", "false"):
        return bool(op == "true")
    # A column that only a user's own schema knows is null in every row.
    found = row.get(tree["column"])
    if op in ("isNull", "isNotNull"):
        return (found is None) == (op == "isNull")
    if op == "in":
        wanted = [_literal(tree["type"], value) for value in tree["values"]]
        return _any([_compare("eq", found, value) for value in wanted])
    return _compare(op, found, _literal(tree["type"], tree["value"]))


def _has_unknown(tree: dict[str, Any]) -> bool:
    return tree["op"] == "unknown" or any(_has_unknown(arg) for arg in tree.get("args", []))


class Store:
    """The folder of one probe store."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = dict(options)
        self.path = self.options.get("path", "").removeprefix("file:")

    def size(self) -> int:
        """How many rows there are now."""
        with open(os.path.join(self.path, "size")) as file:
            return int(file.read())

    def topics(self) -> list[str]:
        """The names of its topics."""
        return sorted(os.listdir(os.path.join(self.path, "topics")))

    def note(self, call: str, **facts: Any) -> None:
        """Writes one call into the journal."""
        self._put("journal", {"call": call, "options": self.options, **facts})

    def commit(self, **facts: Any) -> None:
        """Writes down one committed write."""
        self._put("committed", {"options": self.options, **facts})

    def _put(self, folder: str, entry: dict[str, Any]) -> None:
        target = os.path.join(self.path, folder)
        os.makedirs(target, exist_ok=True)
        name = f"{time.time_ns()}-{uuid.uuid4().hex}.json"
        with open(os.path.join(target, name), "w") as file:
            json.dump(entry, file)


class Partition(InputPartition):
    """Rows that were chosen at planning; the first partition also carries the report."""

    def __init__(self, rows: list[dict[str, Any]], report: str) -> None:
        super().__init__(None)
        self.rows = rows
        self.report = report


class ProbeReader(DataSourceReader):
    """Plans two partitions from the options that the bridge added."""

    def __init__(self, store: Store, schema: StructType) -> None:
        self.store = store
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self.store.options
        metadata = json.loads(options.get("__rmqlog.metadata", "{}"))
        # A schema of the user's own carries no snapshot.
        size = metadata.get("label", {}).get("end", -1)
        rows = [row_of(number) for number in range(self.store.size() if size < 0 else size)]
        rows = self._filtered(rows)
        if "__rmqlog.limit" in options:
            rows = rows[: int(options["__rmqlog.limit"])]
        if "__rmqlog.aggregate" in options:
            parts = [self._aggregated(rows[0::2]), self._aggregated(rows[1::2])]
        else:
            parts = [rows[0::2], rows[1::2]]
        self.store.note("partitions", schema=json.loads(self.schema.json()))
        return [Partition(parts[0], self._report(rows)), Partition(parts[1], "")]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Partition)
        for row in partition.rows:
            yield tuple(row[name] for name in self.schema.fieldNames())

    def _filtered(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        tree = json.loads(self.store.options.get("__rmqlog.filters", '{"op": "and", "args": []}'))
        known = [arg for arg in tree["args"] if not _has_unknown(arg)]
        return [row for row in rows if evaluate({"op": "and", "args": known}, row) is True]

    def _aggregated(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        wanted = json.loads(self.store.options["__rmqlog.aggregate"])
        keys = wanted["groupBy"]
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {} if keys else {(): []}
        for row in rows:
            groups.setdefault(tuple(row[key] for key in keys), []).append(row)
        answers = []
        for key, members in groups.items():
            values = [self._aggregate(one, members) for one in wanted["aggregates"]]
            answers.append(dict(zip(self.schema.fieldNames(), [*key, *values], strict=True)))
        return answers

    def _aggregate(self, wanted: dict[str, str], rows: list[dict[str, Any]]) -> Any:
        if "column" not in wanted:
            return len(rows)
        values = [row[wanted["column"]] for row in rows if row[wanted["column"]] is not None]
        if wanted["func"] == "count":
            return len(values)
        return {"min": min, "max": max}[wanted["func"]](values, default=None)

    def _report(self, rows: list[dict[str, Any]]) -> str:
        if self.store.options.get("report") == "none":
            return ""
        report = {
            "description": f"path=probe, rows={len(rows)} of <all>",
            "details": {"Path": "probe", "Files": "3 of 7"},
            "metrics": {"files planned": 3},
            "rows": len(rows),
            "bytes": len(rows) * 100,
        }
        text = json.dumps(report).replace("<", "\\u003c")
        if self.store.options.get("report") == "broken":
            text = "{" + text
        return "<rmqlog-report>" + text + "</rmqlog-report>"


class Written(WriterCommitMessage):
    """The rows of one task."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows


class ProbeWriter(DataSourceWriter):
    """Notes rows, mode and options at commit."""

    def __init__(self, store: Store, overwrite: bool, schema: StructType) -> None:
        self.store = store
        self.overwrite = overwrite
        self.schema = schema

    def write(self, iterator: Iterator[Any]) -> Written:
        return Written([{"label": row.label, "a": row.a} for row in iterator])

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        rows = [row for message in messages if isinstance(message, Written) for row in message.rows]
        rows.sort(key=lambda row: (row["a"] is None, row["a"]))
        self.store.commit(rows=rows, overwrite=self.overwrite, columns=self.schema.fieldNames())


class ProbeSource(DataSource):
    """The source behind the bridge."""

    @classmethod
    def name(cls) -> str:
        return "rmqlog_probe"

    def schema(self) -> StructType:
        store = Store(self.options)
        store.note("schema")
        question = store.options.get("__rmqlog.catalog")
        if question == "tables":
            return _names(store.topics())
        if question == "metadata":
            return _names(["files", "queues"])
        if question == "table" and not self._exists(store):
            return StructType([])
        if "__rmqlog.aggregate" in store.options:
            return self._aggregate_schema(store)
        return self._row_schema(store)

    def reader(self, schema: StructType) -> DataSourceReader:
        return ProbeReader(Store(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return ProbeWriter(Store(self.options), overwrite, schema)

    @staticmethod
    def _exists(store: Store) -> bool:
        topic = store.options.get("topic")
        return (
            topic in store.topics()
            if topic
            else store.options.get("metadata") in ("files", "queues")
        )

    @staticmethod
    def _row_schema(store: Store) -> StructType:
        fields = [StructField(name, kind, True) for name, kind in COLUMNS.items()]
        fields[0].metadata["end"] = store.size()
        if store.options.get("exact") == "true":
            fields[1].metadata["rmqlog.exactFilters"] = True
        return StructType(fields)

    @staticmethod
    def _aggregate_schema(store: Store) -> StructType:
        wanted = json.loads(store.options["__rmqlog.aggregate"])
        if "label" in wanted["groupBy"]:
            return StructType([])
        fields = [StructField(name, COLUMNS[name]) for name in wanted["groupBy"]]
        for number, one in enumerate(wanted["aggregates"]):
            kind = LongType() if one["func"] == "count" else COLUMNS[one["column"]]
            fields.append(StructField(f"aggregate{number}", kind))
        if store.options.get("answer") == "short":
            del fields[-1]
        return StructType(fields)


def _names(names: list[str]) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])
