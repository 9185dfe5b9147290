"""How commands speak: tables for people, JSON lines for machines, times with their zone."""

from __future__ import annotations

import base64
import codecs
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rmqlog.commands.guard import UsageError

PREVIEW_WIDTH = 60
_CHARACTER_SIZE_MAX = 4
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
#: What a terminal would act upon, and what would break a line.
_UNPRINTABLE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


class _PipeConsole(Console):
    """A console that lets the caller know when the reader of its output has gone."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """The console on stdout: colours on a terminal only, 80 columns where there is none."""
    return _PipeConsole(
        file=sys.stdout, force_terminal=sys.stdout.isatty(), highlight=False, markup=False,
        emoji=False,
    )


def print_line(text: str = "") -> None:
    """A line on stdout, as it is."""
    sys.stdout.write(text + "\n")


def print_note(text: str) -> None:
    """A line on stderr, beside the answer."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on one line of stdout."""
    sys.stdout.write(json_line(value))


def json_line(value: Mapping[str, Any]) -> str:
    """One JSON object as a line."""
    return json.dumps(value, ensure_ascii=False) + "\n"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table without lines: ``>`` before a column's name aligns it right, ``=`` keeps its cells
    on one line; others are folded to fit.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        if name.startswith(">"):
            table.add_column(name[1:], justify="right", no_wrap=True)
        elif name.startswith("="):
            table.add_column(name[1:], no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out = console()
    with out.capture() as captured:
        out.print(table)
    for line in captured.get().splitlines():
        print_line(line.rstrip())


def print_fields(fields: Sequence[tuple[str, str]], indent: str = "") -> None:
    """Names and values, one pair a line, values aligned."""
    width = max((len(name) for name, _ in fields), default=0)
    for name, value in fields:
        print_line(f"{indent}{name:<{width}}  {value}".rstrip())


def parse_zone(name: str | None) -> tzinfo | None:
    """The zone of ``--tz``; ``None`` is this machine's."""
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (LookupError, OSError, ValueError):
        raise UsageError(
            f"no such time zone: {name}; expected a name such as UTC or Asia/Shanghai"
        ) from None


def format_time(milliseconds: int | None, zone: tzinfo | None, *, exact: bool = True) -> str:
    """A time with its offset from UTC, to the millisecond if ``exact``; "-" for none."""
    if milliseconds is None:
        return "-"
    try:
        moment = (_EPOCH + timedelta(milliseconds=milliseconds)).astimezone(zone)
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
    return moment.isoformat(" ", "milliseconds" if exact else "seconds")


def json_time(milliseconds: int | None, zone: tzinfo | None) -> str | None:
    """The same for machines: ISO 8601, ``None`` for none."""
    if milliseconds is None:
        return None
    return format_time(milliseconds, zone).replace(" ", "T", 1)


def parse_time(text: str, zone: tzinfo | None) -> int:
    """Milliseconds of an ISO time, which is in ``zone`` unless it says so, or of a number."""
    if text.isascii() and text.isdigit() and len(text) > 8:
        return int(text)
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(
            f"no time: {text}; expected such as 2026-01-31T12:00:00+08:00, or milliseconds"
        ) from None
    if moment.tzinfo is None:
        moment = moment.astimezone() if zone is None else moment.replace(tzinfo=zone)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def format_size(size: int) -> str:
    """Bytes with a unit: ``1.5 MiB``."""
    value = float(size)
    for unit in _SIZE_UNITS:
        if value < 1024 or unit == _SIZE_UNITS[-1]:
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def format_duration(milliseconds: int | None) -> str:
    """A duration in its two largest units: ``3h 05m``, ``12.3s``."""
    if milliseconds is None:
        return "-"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02}h"
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {seconds:02}s"


def printable(text: str) -> str:
    """Text without what a terminal would act upon."""
    return text.translate(_UNPRINTABLE)


def body_preview(body: bytes, width: int | None = PREVIEW_WIDTH) -> str:
    """The start of a body in so many columns, all of it for ``None``: as text, else in hex."""
    head = body if width is None else body[: width * _CHARACTER_SIZE_MAX]
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        # A character that the cut went through is no damage.
        text = printable(decoder.decode(head, final=len(head) == len(body)))
    except UnicodeDecodeError:
        text = head.hex(" ")
    if width is None or (len(head) == len(body) and cell_len(text) <= width):
        return text
    return f"{_first_columns(text, width - 1)}…"


def _first_columns(text: str, width: int) -> str:
    """As much of a text as fits into so many columns."""
    ends = itertools.accumulate(map(cell_len, text))
    return text[: sum(1 for _ in itertools.takewhile(lambda end: end <= width, ends))]


def body_fields(body: bytes, *, is_whole: bool) -> dict[str, Any]:
    """A body for JSON: a preview, or the whole of it as text, or in base64 where it is no text."""
    fields: dict[str, Any] = {"bodySize": len(body)}
    if not is_whole:
        return {**fields, "bodyPreview": body_preview(body)}
    try:
        return {**fields, "body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {**fields, "bodyBase64": base64.b64encode(body).decode()}
