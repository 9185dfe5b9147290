"""Taking messages out of a store: ``export``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from datetime import tzinfo
from enum import Enum
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer

from rmqlog.commands.guard import UsageError
from rmqlog.commands.message_stream import row_as_json
from rmqlog.commands.output import json_line, parse_time, parse_zone, print_json, print_line
from rmqlog.commands.parameters import (
    CommitLogOption,
    JsonOption,
    StoreArgument,
    ZoneOption,
    open_store,
)
from rmqlog.commands.progress import Report, progress_bar
from rmqlog.commitlog_format.columns import MESSAGE_SCHEMA
from rmqlog.commitlog_format.errors import TopicNotFoundError
from rmqlog.commitlog_format.find_messages import scan_deleted
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.store_writer import StoreWriter

_ROW_GROUP_COUNT = 122_880
Batches = Iterator[pa.RecordBatch]


class ExportFormat(str, Enum):
    """What ``export`` writes."""

    PARQUET = "parquet"
    JSON = "jsonl"
    STORE = "store"


def export(
    store: StoreArgument,
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="Topics; deleted ones too.")
    ],
    target: Annotated[
        str, typer.Option("--to", metavar="PATH", help="A file, or the directory of a new store.")
    ],
    form: Annotated[
        ExportFormat | None,
        typer.Option("--format", help="By default what PATH's ending says: .parquet, .jsonl, "
                                      "else a store.", show_default=False),
    ] = None,
    tags: Annotated[str | None, typer.Option(help="Only these tags: 'PAID || SHIPPED'.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only what was stored then or later.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only what was stored earlier.")
    ] = None,
    commit_log: CommitLogOption = None,
    as_json: JsonOption = False,
    tz: ZoneOption = None,
) -> None:
    """Write topics to Parquet, JSON lines or a new store.

    A topic without queues was deleted perhaps: its messages are taken from the log as long as
    they are there. PATH appears when it is complete; nothing is left of an export that fails.
    """
    zone = parse_zone(tz)
    if os.path.lexists(target):
        raise UsageError(f"{target} exists already")
    parent = os.path.dirname(target.rstrip("/")) or "."
    if not os.path.isdir(parent):
        raise UsageError(f"no such directory: {parent}")
    opened = open_store(store, commit_log)
    since_ms = None if since is None else parse_time(since, zone)
    until_ms = None if until is None else parse_time(until, zone)
    chosen = form or _format_of(target)
    writers: dict[ExportFormat, Callable[[str, Batches], int]] = {
        ExportFormat.PARQUET: _write_parquet,
        ExportFormat.JSON: lambda path, found: _write_json(path, found, zone),
        ExportFormat.STORE: _write_store,
    }
    with progress_bar("exporting") as progress:
        batches = _between(_read(opened, topics, tags, progress), since_ms, until_ms)
        count = _write_whole(target, batches, writers[chosen])
    if as_json:
        print_json({"messages": count, "path": target, "format": chosen.value})
    else:
        print_line(f"{count} messages written to {target} ({chosen.value})")


def _format_of(target: str) -> ExportFormat:
    endings = {".parquet": ExportFormat.PARQUET, ".jsonl": ExportFormat.JSON,
               ".json": ExportFormat.JSON}
    return endings.get(os.path.splitext(target)[1].lower(), ExportFormat.STORE)


def _read(store: Store, topics: list[str], tags: str | None, progress: Report) -> Batches:
    """The messages of topics, one topic after another; a topic that is nowhere raises."""
    living = set(store.topics)
    for topic in topics:
        if topic in living:
            yield from _read_queues(store, topic, tags, progress)
            continue
        is_found = False
        for batch in scan_deleted(store, topic, progress):
            is_found = True
            yield _with_tags(batch, tags)
        if not is_found:
            try:
                store.queues_of(topic)  # raises, and suggests the nearest names
            except TopicNotFoundError as error:
                reason = "no such topic, neither with queues nor in the log"
                raise TopicNotFoundError(
                    reason, error.path, found=error.found, expected=error.expected
                ) from None


def _read_queues(store: Store, topic: str, tags: str | None, progress: Report) -> Batches:
    views = store.queues_of(topic)
    total = sum(map(len, views))
    done = 0
    for view in views:
        for batch in store.read(topic, view.queue_id, tags=tags):
            yield batch
            if batch.num_rows:
                last = batch["queueOffset"][-1].as_py()
                progress(done + last + 1 - view.min_offset, total)
        done += len(view)


def _with_tags(batch: pa.RecordBatch, tags: str | None) -> pa.RecordBatch:
    if tags is None:
        return batch
    wanted = [tag.strip() for tag in tags.split("||")]
    return batch.filter(pc.is_in(batch["tags"], pa.array(wanted, pa.string())))


def _between(batches: Batches, since_ms: int | None, until_ms: int | None) -> Batches:
    for batch in batches:
        for bound_ms, compare in ((since_ms, pc.greater_equal), (until_ms, pc.less)):
            if bound_ms is not None:
                bound = pa.scalar(bound_ms * 1000, MESSAGE_SCHEMA.field("storeTimestamp").type)
                batch = batch.filter(compare(batch["storeTimestamp"], bound))
        if batch.num_rows:
            yield batch


def _write_whole(target: str, batches: Batches, write: Callable[[str, Batches], int]) -> int:
    """Write beside the target and rename, so that it is there whole or not at all."""
    partial = f"{target.rstrip('/')}.partial-{os.getpid()}"
    try:
        count = write(partial, batches)
        os.rename(partial, target)
    except BaseException:
        if os.path.isdir(partial):
            shutil.rmtree(partial, ignore_errors=True)
        elif os.path.exists(partial):
            os.unlink(partial)
        raise
    return count


def _write_parquet(path: str, batches: Batches) -> int:
    count = 0
    with pq.ParquetWriter(path, MESSAGE_SCHEMA, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch, row_group_size=_ROW_GROUP_COUNT)
            count += batch.num_rows
    return count


def _write_json(path: str, batches: Batches, zone: tzinfo | None) -> int:
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for batch in batches:
            for row in batch.to_pylist():
                file.write(json_line(row_as_json(row, zone, whole_body=True)))
                count += 1
    return count


def _write_store(path: str, batches: Batches) -> int:
    count = 0
    with StoreWriter(path) as writer:
        for batch in batches:
            writer.append(batch)
            count += batch.num_rows
    return count
