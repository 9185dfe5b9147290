"""Looking closely: ``hexdump`` and ``pending``."""

from __future__ import annotations

import textwrap
from collections import Counter
from datetime import tzinfo
from itertools import zip_longest
from typing import Annotated, Any

import typer

from rmqlog.commands.guard import UsageError, findings
from rmqlog.commands.output import (
    body_preview,
    format_time,
    json_time,
    parse_zone,
    print_json,
    print_line,
    print_table,
    printable,
)
from rmqlog.commands.parameters import (
    CommitLogOption,
    JsonOption,
    StoreArgument,
    ZoneOption,
    open_store,
)
from rmqlog.commands.progress import progress_bar
from rmqlog.commitlog_format.address import decode_message_id
from rmqlog.commitlog_format.anatomy import RecordField, dissect, read_record_bytes, record_start
from rmqlog.commitlog_format.errors import InvalidNameError
from rmqlog.commitlog_format.pending import PendingMessage, pending_messages
from rmqlog.commitlog_format.store import Store

_BYTES_PER_LINE = 8
_LINES_MAX = 4
_LEFT_WIDTH = 32
_TEXT_WIDTH = 80 - _LEFT_WIDTH - 16


def hexdump(
    store: StoreArgument,
    place: Annotated[
        str, typer.Argument(metavar="OFFSET", help="A physical offset of the log, or an offset "
                                                   "message id.")
    ],
    whole: Annotated[bool, typer.Option("--all", help="All bytes of long fields.")] = False,
    commit_log: CommitLogOption = None,
    as_json: JsonOption = False,
    tz: ZoneOption = None,
) -> None:
    """Show a record field by field, with what each means.

    It shows damaged records too; '!' marks what cannot be true, and the exit code is 1 then. An
    offset within a record shows the record that holds it.
    """
    zone = parse_zone(tz)
    opened = open_store(store, commit_log)
    offset = _physical_offset(place)
    start = record_start(opened.log, offset)
    if start is None:
        start = offset
    fields = dissect(read_record_bytes(opened.log, start), start)
    if as_json:
        for field in fields:
            print_json(_field_facts(field, start, zone))
    else:
        _print_record(opened, fields, start, offset, zone, whole=whole)
    if any(field.is_wrong for field in fields):
        raise findings()


def _physical_offset(place: str) -> int:
    if place.isascii() and place.isdigit() and len(place) < 19:
        return int(place)
    try:
        return decode_message_id(place)[1]
    except InvalidNameError:
        raise UsageError(
            f"no offset: {place}; expected a number, or an offset message id"
        ) from None


def _field_facts(field: RecordField, start: int, zone: tzinfo | None) -> dict[str, Any]:
    facts = {
        "field": field.name, "offset": start + field.position, "size": len(field.data),
        "hex": field.data.hex(), "value": field.value, "meaning": field.meaning,
        "isWrong": field.is_wrong,
    }
    if field.time_ms is not None:
        facts["time"] = json_time(field.time_ms, zone)
    return facts


def _print_record(
    store: Store, fields: list[RecordField], start: int, asked: int, zone: tzinfo | None, *,
    whole: bool,
) -> None:
    print_line(f"{store.log.path_of(start)}")
    inside = "" if start == asked else f"; {asked} is byte {asked - start} of it"
    print_line(f"record at physical offset {start}{inside}")
    print_line()
    for field in fields:
        left = _hex_lines(field, whole=whole)
        right = _text_lines(field, zone)
        for number, (bytes_text, text) in enumerate(zip_longest(left, right, fillvalue="")):
            name = field.name if number == 0 else ""
            mark = "!" if field.is_wrong and number == 0 else " "
            print_line(f"{mark}{bytes_text:<{_LEFT_WIDTH - 2}} {name:<15} {text}".rstrip())


def _hex_lines(field: RecordField, *, whole: bool) -> list[str]:
    size = _BYTES_PER_LINE
    pieces = [field.data[at : at + size] for at in range(0, len(field.data), size)]
    lines = [
        f"+{field.position + number * size:<5}{piece.hex(' ')}"
        for number, piece in enumerate(pieces)
    ] or [f"+{field.position:<5}"]
    if not whole and len(lines) > _LINES_MAX:
        rest = len(field.data) - _LINES_MAX * size
        lines = [*lines[:_LINES_MAX], f"      … {rest} more bytes"]
    return lines


def _text_lines(field: RecordField, zone: tzinfo | None) -> list[str]:
    value = field.value
    if field.name == "BODY":
        value = body_preview(field.data)
    parts = [printable(value)]
    if field.time_ms is not None:
        parts.append(format_time(field.time_ms, zone))
    parts.append(field.meaning)
    joined = ": ".join(part for part in parts if part)
    if len(joined) <= _TEXT_WIDTH:
        return [joined]
    return [line for part in parts if part for line in textwrap.wrap(part, _TEXT_WIDTH)]


def pending(
    store: StoreArgument,
    ended: Annotated[
        bool, typer.Option("--ended", help="Also transactions that were committed, rolled back "
                                           "or discarded.")
    ] = False,
    commit_log: CommitLogOption = None,
    as_json: JsonOption = False,
    tz: ZoneOption = None,
) -> None:
    """List what consumers do not see yet.

    Delayed messages and timers with the time when they are due, half messages with the state of
    their transaction and how often the broker has asked their producer.
    """
    zone = parse_zone(tz)
    opened = open_store(store, commit_log)
    with progress_bar("reading the waiting queues"):
        waiting = sorted(
            pending_messages(opened, include_ended=ended),
            key=lambda one: (one.due_ms is None, one.due_ms or one.stored_ms),
        )
    if as_json:
        for message in waiting:
            print_json(_pending_facts(message, zone))
        return
    if waiting:
        print_table(
            ("kind", "=due, or state", "for topic", ">queue", "keys", ">log offset"),
            [
                (one.kind.value, _due_or_state(one, zone), printable(one.topic),
                 str(one.queue_id), printable(one.keys or one.uniq_key or "-"),
                 str(one.commit_log_offset))
                for one in waiting
            ],
        )
        print_line()
    counts = Counter(
        one.kind.value if one.state is None else f"{one.kind.value} {one.state.value}"
        for one in waiting
    )
    listed = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print_line(f"{listed or 'nothing'} waiting" if not ended else listed or "nothing")


def _due_or_state(message: PendingMessage, zone: tzinfo | None) -> str:
    if message.state is None:
        return format_time(message.due_ms, zone, exact=False)
    checks = f", {message.check_count} checks" if message.check_count else ""
    return f"{message.state.value}{checks}"


def _pending_facts(message: PendingMessage, zone: tzinfo | None) -> dict[str, Any]:
    return {
        "kind": message.kind.value,
        "due": json_time(message.due_ms, zone),
        "state": None if message.state is None else message.state.value,
        "checks": message.check_count,
        "topic": message.topic,
        "queueId": message.queue_id,
        "uniqKey": message.uniq_key,
        "tags": message.tags,
        "keys": message.keys,
        "stored": json_time(message.stored_ms, zone),
        "waitingQueueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
    }
