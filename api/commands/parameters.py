"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqlog.commitlog_format.store import Store

StoreArgument = Annotated[
    str, typer.Argument(metavar="STORE", help="The store's directory.", show_default=False)
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON object a line, for machines.")
]
ZoneOption = Annotated[
    str | None,
    typer.Option(
        "--tz", metavar="ZONE", show_default=False,
        help="Time zone of all times, such as UTC or Asia/Shanghai; this machine's without.",
    ),
]
CommitLogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--commit-log", metavar="DIR", show_default=False,
        help="The log's folder if it is not STORE/commitlog; may be repeated.",
    ),
]
BodyOption = Annotated[
    bool, typer.Option("--body", help="Whole bodies instead of previews.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would be done; change nothing.")
]


def open_store(path: str, commit_log: list[str] | None = None) -> Store:
    """The store of a command line, as a snapshot."""
    return Store(path, log_directories=tuple(commit_log or ()))


def examples(*lines: str) -> str:
    """The end of a command's help: examples, each on a line of its own."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))
