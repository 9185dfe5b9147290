"""From a request to partitions: one plan for each scan, made on the driver."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rmqlog.commitlog_format.errors import InvalidSettingError
from rmqlog.commitlog_format.message_reader import ReadPolicy
from rmqlog.commitlog_format.store import Store
from rmqlog.spark_datasource.access_paths import Findings, StorePaths
from rmqlog.spark_datasource.aggregates import aggregate_rows
from rmqlog.spark_datasource.estimates import needs_log
from rmqlog.spark_datasource.expiry import Expiry
from rmqlog.spark_datasource.metadata_tables import metadata_rows
from rmqlog.spark_datasource.offsets import OffsetBounds, check_offset_names
from rmqlog.spark_datasource.options import KEY_COLUMN, Options
from rmqlog.spark_datasource.partitions import (
    Partition,
    PartitionSizes,
    Piece,
    RowList,
    bundle_queues,
    divide,
)
from rmqlog.spark_datasource.report import ScanReport
from rmqlog.spark_datasource.request import Request
from rmqlog.spark_datasource.row_filters import RowFilter
from rmqlog.spark_datasource.snapshots import PinnedStore, Snapshot
from rmqlog.spark_datasource.topics import check_topics_exist, select_topics


@dataclass(frozen=True, slots=True)
class Plan:
    """What the tasks will read, and what the user is told about it."""

    partitions: list[Partition]
    report: ScanReport


def plan_scan(
    request: Request, columns: Sequence[str], stores: Sequence[Store], snapshot: Snapshot
) -> Plan:
    """Plan one scan of the given columns of a snapshot's stores."""
    options = request.options
    findings = Findings()
    check_topics_exist(stores, options)
    if options["metadata"] is not None:
        findings.note_path("metadata")
        rows = metadata_rows(options["metadata"], columns, stores, options)
        findings.note_answer(rows)
        return _finish(request, [RowList(rows)] if rows else [], findings, stores)
    check_offset_names(stores, options)
    bounds = OffsetBounds.of(options, snapshot.group_offsets)
    paths = [
        _store_paths(request, columns, store, pin, bounds, findings)
        for store, pin in zip(stores, snapshot.stores, strict=True)
    ]
    if request.aggregate is not None:
        findings.note_path("queue bounds")
        answer = aggregate_rows(request.aggregate, paths)
        findings.note_answer(answer)
        pieces: list[Piece] = [RowList(answer)]
    else:
        pieces = [piece for of_store in paths for piece in of_store.pieces()]
        if request.limit is not None and RowFilter.of(request).is_everything:
            pieces = list(_first_rows(pieces, request.limit))
        if any(needs_log(of_store.columns) for of_store in paths):
            pieces = list(bundle_queues(pieces))
    return _finish(request, pieces, findings, stores)


def read_policy(options: Options) -> ReadPolicy:
    """What the options say about damage and expiry."""
    return ReadPolicy(
        check_crc=options["checkCrc"],
        drop_malformed=options["mode"] == "DROPMALFORMED",
        skip_expired=not options["failOnDataLoss"],
    )


def _store_paths(
    request: Request, columns: Sequence[str], store: Store, pin: PinnedStore,
    bounds: OffsetBounds, findings: Findings,
) -> StorePaths:
    options = request.options
    row_filter = RowFilter.of(request)
    if options["includeDeletedTopics"] and not bounds.is_everything:
        raise InvalidSettingError(
            "deleted topics have no queues, so no bounds by queue offset apply to them",
            found="includeDeletedTopics with startingOffsets, endingOffsets or tailMessages",
        )
    names = {"keys" if name == KEY_COLUMN else name for name in columns}
    if options["explodeKeys"]:
        names.add("keys")
    expiry = Expiry(store.path, pin.start, store.start)
    findings.expired_size += expiry.size
    return StorePaths(
        store, expiry, request.filters, row_filter.constraints(), bounds,
        select_topics(store, options),
        frozenset({*names, *row_filter.columns}), read_policy(options), options["useIndex"],
        options["timeSlack"], options["includeDeletedTopics"], findings,
    )


def _first_rows(pieces: Iterable[Piece], limit: int) -> Iterable[Piece]:
    """The pieces that hold the first ``limit`` rows: any rows will do."""
    left = limit
    for piece in pieces:
        if left <= 0:
            return
        count = min(piece.row_count, left)
        yield piece.part(0, count)
        left -= count


def _finish(
    request: Request, pieces: Sequence[Piece], findings: Findings, stores: Sequence[Store]
) -> Plan:
    options = request.options
    sizes = PartitionSizes(
        options["minPartitions"], options["maxRecordsPerPartition"],
        options["maxPartitionBytes"], os.cpu_count() or 1,
    )
    # An empty plan keeps one empty partition, to carry the report.
    parts = divide(pieces, sizes) or [()]
    report = ScanReport.of(
        request, findings, sum(map(bool, parts)), [store.path for store in stores]
    )
    partitions = [Partition(part, request.limit) for part in parts]
    partitions[0].report = report.to_text()
    return Plan(partitions, report)
