"""The command ``rmqlog``: every command with its examples, and what they share."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import typer

from rmqlog import __version__
from rmqlog.commands import (
    demo,
    export_messages,
    inspect_records,
    messages,
    overview,
    repair,
    spark,
)
from rmqlog.commands.guard import guarded
from rmqlog.commands.output import print_line
from rmqlog.commands.parameters import examples

app = typer.Typer(
    name="rmqlog",
    help="Read, check, repair and export RocketMQ's message store, without a broker.",
    epilog="Exit codes: 0 fine; 1 damage, or nothing found; 2 wrong usage; 3 the store cannot be "
    "read or written; 4 this machine lacks something (rmqlog doctor); 130 interrupted.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)


@app.callback()
def _options(
    _version: bool = typer.Option(
        False, "--version", help="Show the version and stop.", is_eager=True,
        callback=lambda wanted: _show_version() if wanted else None,
    ),
) -> None:
    """Read, check, repair and export RocketMQ's message store, without a broker."""


def _show_version() -> None:
    print_line(f"rmqlog {__version__}")
    raise typer.Exit


def _add(command: Callable[..., None], *lines: str, name: str | None = None) -> None:
    """Add a command, its errors guarded, with examples at the end of its help."""
    app.command(name or command.__name__, epilog=examples(*lines))(guarded(command))


_add(overview.info,
     "rmqlog info /data/store",
     "rmqlog info /data/store --conf broker.conf --tz Asia/Shanghai",
     "rmqlog info /data/store --commit-log /a/commitlog --commit-log /b/commitlog")
_add(overview.topics,
     "rmqlog topics /data/store",
     "rmqlog topics /data/store --json | jq -r .topic")
_add(overview.queues,
     "rmqlog queues /data/store",
     "rmqlog queues /data/store orders")
_add(overview.groups,
     "rmqlog groups /data/store",
     "rmqlog groups /data/store billing --json")
_add(messages.cat,
     "rmqlog cat /data/store orders --tags 'PAID || SHIPPED' | head",
     "rmqlog cat /data/store orders --since 2026-01-31T03:00:00+08:00 --json",
     "rmqlog cat /data/store orders --queue 2 --offset 1000 --limit 1 --format raw",
     "rmqlog cat /data/store orders --follow")
_add(messages.find,
     "rmqlog find /data/store --key order-1",
     "rmqlog find /data/broker-*/store --id 7F0000010A2C18B4AAC2123456780000",
     "rmqlog find /data/store --key order-1 --topic orders --body --json")
_add(inspect_records.hexdump,
     "rmqlog hexdump /data/store 402272",
     "rmqlog hexdump /data/store 7F00000100002A9F0000000000062360 --all")
_add(inspect_records.pending,
     "rmqlog pending /data/store",
     "rmqlog pending /data/store --ended --json | jq -r .state | sort | uniq -c")
_add(repair.verify,
     "rmqlog verify /data/store",
     "rmqlog verify /data/store --json | jq -c 'select(.severity == \"damage\")'")
_add(repair.recover,
     "rmqlog recover /data/store --dry-run",
     "rmqlog recover /data/store --yes")
_add(repair.expire,
     "rmqlog expire /data/store --dry-run",
     "rmqlog expire /data/store --hours 24 --yes")
_add(repair.rebuild,
     "rmqlog rebuild /data/store --dry-run",
     "rmqlog rebuild /data/store --yes")
_add(export_messages.export,
     "rmqlog export /data/store orders --to orders.parquet",
     "rmqlog export /data/store orders payments --to /data/new-store",
     "rmqlog export /data/store deleted_topic --to rescued.jsonl")
_add(demo.demo,
     "rmqlog demo",
     "rmqlog demo --to elsewhere --messages 100000")
_add(spark.sql,
     "rmqlog sql /data/store 'SELECT tags, count(*) FROM orders GROUP BY tags'",
     "rmqlog sql /data/store 'SELECT * FROM orders WHERE tags = \"PAID\"' --json",
     "rmqlog sql '/data/broker-*/store' 'SELECT brokerName, count(*) FROM orders GROUP BY 1'")
_add(spark.doctor,
     "rmqlog doctor",
     "rmqlog doctor --start")


def main() -> None:
    """Run the command line."""
    logging.getLogger("rmqlog").addHandler(logging.NullHandler())
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    app(prog_name="rmqlog")
