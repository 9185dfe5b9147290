"""The planner and the reader without Spark: what a scan would give, partition by partition."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

from rmqlog.commitlog_format.store import Store
from rmqlog.spark_datasource.partitions import Partition
from rmqlog.spark_datasource.planning import Plan, plan_scan
from rmqlog.spark_datasource.reader import RmqlogReader
from rmqlog.spark_datasource.request import parse_request
from rmqlog.spark_datasource.schema import message_types, schema_of
from rmqlog.spark_datasource.snapshots import Snapshot, open_new

Opened = tuple[list[Store], Snapshot]

class InProcessScan:
    """One scan: the user's options, a filter tree and columns as the bridge would give them."""

    def __init__(
        self, path: Any, options: dict[str, Any] | None = None, tree: dict[str, Any] | None = None,
        columns: Sequence[str] | None = None, **bridge: Any,
    ) -> None:
        given = {name: str(value) for name, value in (options or {}).items()}
        if isinstance(path, list):
            given["paths"] = json.dumps([str(one) for one in path])
        else:
            given["path"] = str(path)
        added = {**bridge, **({} if tree is None else {"filters": _rooted(tree)})}
        if added:
            given["__rmqlog.bridge"] = "1"
        for name, value in added.items():
            given[f"__rmqlog.{name}"] = value if isinstance(value, str) else json.dumps(value)
        self.options = given
        self.request = parse_request(given)
        types = message_types(self.request.options)
        self.columns = list(columns) if columns is not None else list(types)
        self.schema = schema_of({name: types[name] for name in self.columns})

    def open(self) -> Opened:
        """The stores as they are now."""
        return open_new(self.request.options)

    def plan(self, opened: Opened | None = None) -> Plan:
        """The plan for stores that were opened already, or as they are now."""
        stores, snapshot = opened or self.open()
        return plan_scan(self.request, self.columns, stores, snapshot)

    def read(self, partitions: Sequence[Partition]) -> list[dict[str, Any]]:
        """The rows of partitions, each pickled as on its way to a task."""
        reader = pickle.loads(pickle.dumps(RmqlogReader(self.options, self.schema)))
        rows: list[dict[str, Any]] = []
        for partition in partitions:
            for batch in reader.read(pickle.loads(pickle.dumps(partition))):
                rows += map(_plain, batch.to_pylist())
        return rows

    def rows(self, opened: Opened | None = None) -> list[dict[str, Any]]:
        """Plan and read everything."""
        return self.read(self.plan(opened).partitions)


def _rooted(tree: dict[str, Any]) -> dict[str, Any]:
    return tree if tree["op"] == "and" else {"op": "and", "args": [tree]}


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Times as microseconds, maps as dictionaries: as the reference has them."""
    for name in ("bornTimestamp", "storeTimestamp"):
        if row.get(name) is not None:
            row[name] = round(row[name].timestamp() * 1_000_000)
    if "properties" in row:
        row["properties"] = dict(row["properties"])
    return row
