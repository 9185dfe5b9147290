"""The demo's plots, straight from the store's files, without Spark."""

from __future__ import annotations

import warnings
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.usage import topic_usages
from rmqlog.demo.job import Timing
from rmqlog.demo.shop import DAY_MS, Shop

_BIN_COUNT = 96
_DPI = 110
_TOPICS = ("orders", "payments", "shipments", "clicks")


def draw_plots(shop: Shop, timings: list[Timing], directory: Path) -> list[Path]:
    """Two PNG files: the day's traffic by topic with storage, and times with and without
    pushdown. None without matplotlib."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import matplotlib as mpl
        except ImportError:
            return []
        mpl.use("Agg")
        return [
            _draw_traffic(shop, directory / "traffic.png"),
            _draw_times(timings, directory / "pushdown.png"),
        ]


def _draw_traffic(shop: Shop, path: Path) -> Path:
    from matplotlib import pyplot as plt

    store = Store(shop.path)
    figure, (traffic, storage) = plt.subplots(
        1, 2, figsize=(11, 4), width_ratios=(3, 1), layout="constrained"
    )
    edges = np.linspace(shop.start_ms, shop.start_ms + DAY_MS, _BIN_COUNT + 1)
    minutes = DAY_MS / _BIN_COUNT / 60_000
    moments = [datetime.fromtimestamp(edge / 1000, timezone.utc) for edge in edges[:-1]]
    below = np.zeros(_BIN_COUNT)
    for topic in _TOPICS:
        counts = np.zeros(_BIN_COUNT)
        for batch in store.read(topic, columns=("bornTimestamp",)):
            times = batch["bornTimestamp"].cast("int64").to_numpy() // 1000
            counts += np.histogram(times, edges)[0]
        traffic.fill_between(moments, below, below + counts / minutes, label=topic)
        below += counts / minutes
    traffic.set_title("Messages a minute (UTC)")
    traffic.legend(loc="upper left")
    traffic.tick_params(axis="x", rotation=30)
    usages = {usage.topic: usage.size / 2**20 for usage in topic_usages(store)}
    storage.barh(_TOPICS, [usages[topic] for topic in _TOPICS])
    storage.set_title("MiB of the log")
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
    return path


def _draw_times(timings: list[Timing], path: Path) -> Path:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    places = np.arange(len(timings))
    axes.bar(places - 0.2, [one.scanned_s for one in timings], 0.4, label="without pushdown")
    axes.bar(places + 0.2, [one.pushed_s for one in timings], 0.4, label="with pushdown")
    axes.set_xticks(places, [one.title for one in timings])
    axes.set_ylabel("seconds")
    axes.set_title("The same query, the same answer")
    axes.legend()
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
    return path
