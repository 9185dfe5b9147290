"""``demo``: a store of a small shop, the main Spark job on it, two plots."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Annotated

import typer

from rmqlog.commands.guard import UsageError
from rmqlog.commands.output import print_line
from rmqlog.commands.spark_session import require_java, spark_session
from rmqlog.demo.job import run_step, spark_settings, steps, warm_up, write_back
from rmqlog.demo.plots import draw_plots
from rmqlog.demo.shop import LAGGING_GROUP, Shop, make_shop

_STORE = "shop-store"
#: In a store that the demo made, and may therefore remove.
_MARKER = "made-by-rmqlog-demo"
_MESSAGE_COUNT = 500_000
#: With fewer there is no order 4711.
_MESSAGE_COUNT_LEAST = 20_000


def demo(
    target: Annotated[
        str, typer.Option("--to", metavar="DIR", help="Where store and plots go.")
    ] = "demo-output",
    messages: Annotated[
        int, typer.Option(min=_MESSAGE_COUNT_LEAST, help="How many messages the shop has.")
    ] = _MESSAGE_COUNT,
) -> None:
    """Make a store, query it with Spark, draw it (needs Java).

    A shop's day: several topics, hot keys, tags, delays, an open transaction, a consumer group
    that lags. The store stays for you to try the other commands on; another run replaces it.
    """
    begun = time.perf_counter()
    require_java()
    directory = Path(target)
    path = _fresh_store_path(directory)
    print_line(f"Making a shop's day: {messages:,} messages in {path}")
    shop = _make_store(path, messages)
    made_s = time.perf_counter() - begun
    print_line(f"made in {made_s:.1f} s ({messages / made_s:,.0f} messages a second); "
               "starting Spark …")
    with spark_session(settings=spark_settings(shop.path)) as spark:
        warm_up(spark)
        timings = [run_step(spark, number, step) for number, step in enumerate(steps(shop), 1)]
        write_back(spark, shop, len(timings) + 1)
    plots = draw_plots(shop, timings, directory)
    _print_end(shop, plots, time.perf_counter() - begun)


def _fresh_store_path(directory: Path) -> Path:
    """Where the store goes; one of an earlier demo is removed, anything else is left alone."""
    path = directory / _STORE
    if (path / _MARKER).exists():
        shutil.rmtree(path)
    if os.path.lexists(path):
        raise UsageError(f"{path} exists and is no demo's store; choose another place by --to")
    directory.mkdir(parents=True, exist_ok=True)
    return path


def _make_store(path: Path, message_count: int) -> Shop:
    """Make the store, whole or not at all."""
    try:
        shop = make_shop(str(path), message_count, time.time_ns() // 1_000_000)
        (path / _MARKER).touch()
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return shop


def _print_end(shop: Shop, plots: list[Path], seconds: float) -> None:
    print_line()
    for plot in plots:
        print_line(f"drawn: {plot}")
    if not plots:
        print_line("no plots: pip install 'rmqlog[plots]' brings matplotlib")
    print_line(f"All of it took {seconds:.0f} s. What to try next:\n")
    for line in (
        f"rmqlog info {shop.path}",
        f"rmqlog find {shop.path} --key order-4711",
        f"rmqlog pending {shop.path} | tail",
        f"rmqlog groups {shop.path} {LAGGING_GROUP}",
        f"rmqlog verify {shop.path}",
        f"rmqlog sql {shop.path} 'SHOW TABLES'",
    ):
        print_line(f"  {line}")
    print_line("\nand the notebooks in notebooks/, each a story from a question to a plot.")
