"""Questions about frames that were loaded already: how they are read, and where they end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rmqlog.commitlog_format.errors import InvalidSettingError
from rmqlog.commitlog_format.store import Store
from rmqlog.spark_datasource.metadata_tables import table_types
from rmqlog.spark_datasource.offsets import OffsetBounds
from rmqlog.spark_datasource.options import Options
from rmqlog.spark_datasource.planning import plan_scan
from rmqlog.spark_datasource.request import Request
from rmqlog.spark_datasource.snapshots import SNAPSHOT_KEY, Snapshot, open_pinned
from rmqlog.spark_datasource.topics import select_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCAN_CLASS = "org.rmqlog.spark.RmqlogScan"
_TIME_OPTIONS = ("startingTimestamp", "endingTimestamp")


def explain_frame(frame: DataFrame) -> str:
    """A text about every scan of rmqlog in a frame, those of subqueries too."""
    plan = _query(frame).optimizedPlan()
    reports = [report for leaf in _leaves(plan) for report in _leaf_reports(leaf)]
    if reports:
        return "\n\n".join(map(_for_people, reports))
    if not list(_snapshots(frame)):
        raise InvalidSettingError("the frame reads no store of rmqlog")
    return "rmqlog reads nothing: Spark answers from its cache, or without any rows"


def frame_ending_offsets(frame: DataFrame) -> str:
    """The offsets behind the last message of each queue that a frame's options mean, as JSON."""
    found = list({snapshot.to_json(): snapshot for snapshot in _snapshots(frame)}.values())
    if len(found) != 1:
        raise InvalidSettingError(
            "ending offsets are those of one load() without a schema of the user's own",
            found=f"{len(found)} in this frame",
        )
    snapshot = found[0]
    options = Options(snapshot.options)
    timed = [name for name in _TIME_OPTIONS if options[name] is not None]
    if timed:
        raise InvalidSettingError(
            "a frame bounded by time has no ending offsets", found=", ".join(timed),
            expected="startingOffsets and endingOffsets",
        )
    stores = open_pinned(options, snapshot)
    bounds = OffsetBounds.of(options, snapshot.group_offsets)
    by_broker = {
        store.broker_name: _store_ending_offsets(store, options, bounds) for store in stores
    }
    return json.dumps(by_broker if len(stores) > 1 else by_broker[stores[0].broker_name])


def _store_ending_offsets(
    store: Store, options: Options, bounds: OffsetBounds
) -> dict[str, dict[str, int]]:
    selection = select_topics(store, options)
    offsets: dict[str, dict[str, int]] = {}
    for key in sorted({*store.files.queues, *store.tail}):
        if selection.includes(key.topic):
            _, stop = bounds.of_queue(store.broker_name, store.queue_view(key))
            offsets.setdefault(key.topic, {})[str(key.queue_id)] = stop
    return offsets


def _query(frame: DataFrame) -> Any:
    java = getattr(frame, "_jdf", None)
    if java is None:
        raise InvalidSettingError(
            "a frame of Spark Connect does not show its plan", expected="a classic session"
        )
    return java.queryExecution()


def _leaf_reports(leaf: Any) -> Iterator[Mapping[str, Any]]:
    """The report on a leaf of a plan if it is a scan of rmqlog, with the bridge or without."""
    if leaf.getClass().getSimpleName() != "DataSourceV2ScanRelation":
        return
    if leaf.scan().getClass().getName() == _SCAN_CLASS:
        yield json.loads(leaf.scan().report())
    else:
        yield from map(_plan_without_bridge, _leaf_snapshots(leaf))


def _snapshots(frame: DataFrame) -> Iterator[Snapshot]:
    """The snapshots of the loads that a frame is made of, in the order of its plan."""
    for leaf in _leaves(_query(frame).analyzed()):
        yield from _leaf_snapshots(leaf)


def _leaf_snapshots(leaf: Any) -> Iterator[Snapshot]:
    for attribute in _elements(leaf.output()):
        metadata = json.loads(attribute.metadata().json())
        if SNAPSHOT_KEY in metadata:
            yield Snapshot.from_json(metadata[SNAPSHOT_KEY])


def _leaves(plan: Any) -> Iterator[Any]:
    """The leaves of a plan, then those of its subqueries."""
    for part in (plan, *_elements(plan.subqueriesAll())):
        yield from _elements(part.collectLeaves())


def _elements(sequence: Any) -> Iterator[Any]:
    """The elements of a sequence of Scala's."""
    return map(sequence.apply, range(sequence.size()))


def _plan_without_bridge(snapshot: Snapshot) -> Mapping[str, Any]:
    """The report on a scan without any pushdown, which is what there is without the jar."""
    options = Options(snapshot.options)
    stores = open_pinned(options, snapshot)
    report = plan_scan(Request(options), list(table_types(options)), stores, snapshot).report
    return {
        "description": report.description + " (without the bridge: only options prune)",
        "details": report.details, "metrics": report.metrics, "rows": report.rows,
        "bytes": report.size,
    }


def _for_people(report: Mapping[str, Any]) -> str:
    lines = [f"rmqlog {report['description']}"]
    lines += [f"  {name}: {text}" for name, text in report["details"].items()]
    lines += [f"  {name}: {number:,}" for name, number in report["metrics"].items()]
    lines.append(f"  expected: {report['rows']:,} rows, {report['bytes']:,} bytes")
    return "\n".join(lines)
