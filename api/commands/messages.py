"""Messages themselves: ``cat`` and ``find``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from datetime import tzinfo
from enum import Enum
from itertools import islice
from typing import Annotated

import typer

from rmqlog.commands.guard import UsageError, findings
from rmqlog.commands.message_stream import (
    Row,
    Selection,
    print_message,
    read_in_log_order,
    row_as_json,
    row_as_line,
)
from rmqlog.commands.output import (
    parse_time,
    parse_zone,
    print_json,
    print_line,
    print_note,
)
from rmqlog.commands.parameters import (
    BodyOption,
    CommitLogOption,
    JsonOption,
    StoreArgument,
    ZoneOption,
    open_store,
)
from rmqlog.commands.progress import progress_bar
from rmqlog.commitlog_format.find_messages import Search, find_by_id, find_everywhere

_POLL_S = 0.5


class MessageFormat(str, Enum):
    """How ``cat`` writes messages."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


def cat(
    store: StoreArgument,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="System topics too.")],
    queue: Annotated[int | None, typer.Option("--queue", "-q", help="Only this queue.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Begin at this queue offset.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only what was stored then or later.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only what was stored earlier.")
    ] = None,
    tags: Annotated[
        str | None, typer.Option(metavar="TAGS", help="Only these tags: 'PAID || SHIPPED'.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="At most so many messages.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show what is stored from now on, until Ctrl-C; "
                                                 "--since and --offset begin earlier.")
    ] = False,
    form: Annotated[
        MessageFormat, typer.Option("--format", help="A line each, JSON lines, or raw bodies.")
    ] = MessageFormat.TEXT,
    null: Annotated[
        bool, typer.Option("--null", "-0", help="End raw bodies by a NUL, not by a newline.")
    ] = False,
    body: BodyOption = False,
    commit_log: CommitLogOption = None,
    as_json: JsonOption = False,
    tz: ZoneOption = None,
) -> None:
    """Show the messages of a topic or queue.

    In the order in which they were stored, all queues together. A line has the store time,
    queue:offset, tags, keys and the start of the body. A TIME without an offset is in --tz.
    """
    zone = parse_zone(tz)
    wanted = Selection(
        topic, queue, offset,
        None if since is None else parse_time(since, zone),
        None if until is None else parse_time(until, zone),
        tags,
    )
    if follow:
        rows = _follow(store, commit_log, wanted)
    else:
        rows = read_in_log_order(open_store(store, commit_log), wanted)
    _write(islice(rows, limit), MessageFormat.JSON if as_json else form, zone,
           whole_body=body, end=b"\0" if null else b"\n")


def _write(
    rows: Iterable[Row], form: MessageFormat, zone: tzinfo | None, *, whole_body: bool, end: bytes
) -> None:
    for row in rows:
        if form is MessageFormat.RAW:
            sys.stdout.flush()
            sys.stdout.buffer.write(row["body"] + end)
        elif form is MessageFormat.JSON:
            print_json(row_as_json(row, zone, whole_body=whole_body))
        else:
            print_line(row_as_line(row, zone, whole_body=whole_body))


def _follow(path: str, commit_log: list[str] | None, wanted: Selection) -> Iterator[Row]:
    """What is wanted now, then what comes; without a start, only what comes."""
    store = open_store(path, commit_log)
    starts = {}
    if wanted.offset is None and wanted.since_ms is None:
        starts = {view.key: view.max_offset for view in wanted.views(store)}
    while True:
        yield from read_in_log_order(store, wanted, starts)
        starts = {view.key: view.max_offset for view in wanted.views(store)}
        sys.stdout.flush()
        time.sleep(_POLL_S)
        store = open_store(path, commit_log)


def find(
    stores: Annotated[
        list[str],
        typer.Argument(metavar="STORE...", help="One store, or those of a cluster's brokers."),
    ],
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="A key that the message was sent with.")
    ] = None,
    msg_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="An offset id, or the uniq key that consoles "
                                                "call message id."),
    ] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Look in this topic only.")
    ] = None,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="In deleted topics too: reads the whole log.")
    ] = False,
    body: BodyOption = False,
    commit_log: CommitLogOption = None,
    as_json: JsonOption = False,
    tz: ZoneOption = None,
) -> None:
    """Find messages by key or by id: all of them.

    Retries, dead letters, delayed and half messages are found as well. The index is used where
    it covers the log, the rest is read; how much that was is said on stderr. Exit code 1 when
    nothing is found.
    """
    zone = parse_zone(tz)
    if (key is None) == (msg_id is None):
        raise UsageError("name what to find, by --key or by --id")
    found_count = 0
    for path in stores:
        with progress_bar("searching") as progress:
            search = Search(open_store(path, commit_log), topic, deleted, progress)
            rows = find_everywhere(search, key) if key is not None else find_by_id(
                search, str(msg_id)
            )
            for row in rows:
                _print_found(path, row, zone, whole_body=body, as_json=as_json)
        sys.stdout.flush()
        print_note(f"{path}: {search.summary()}")
        found_count += search.found_count
    if not found_count:
        raise findings()


def _print_found(
    path: str, row: Row, zone: tzinfo | None, *, whole_body: bool, as_json: bool
) -> None:
    if as_json:
        print_json({"store": path, **row_as_json(row, zone, whole_body=whole_body)})
        return
    print_message(row, zone, whole_body=whole_body)
    print_line()
