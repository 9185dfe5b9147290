"""The life of a store that brokers write, and what each way of reading shows at every stage.

One broker lives through every kind of message, a copy in mid-traffic and an orderly stop; then
a second one with IPv6 hosts is killed in mid-traffic. ``DefaultMessageStore`` opens copies.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmqlog.commitlog_format.store import Store

from .java_driver import JavaDriver
from .java_toolchain import Line
from .message_rows import QueueRows
from .reading_ways import ReadStore
from .real_broker import RealBroker
from .traffic import GROUP, HOT_KEY, message, ordinary_messages, send_everything, stream

IPV6_LOOPBACK = {"brokerIP1": "0:0:0:0:0:0:0:1", "bindAddress": "::1"}
ORDERS = [("orders", queue_id) for queue_id in range(4)]
PULLED = [
    *ORDERS,
    *(("kinds", 0), ("kinds", 1), ("trans", 0)),
    *((f"%RETRY%{GROUP}", 0), (f"%DLQ%{GROUP}", 0)),
]

#: The log offsets of the messages with each key, by topic.
KeyOffsets = dict[str, dict[str, set[int]]]


@dataclass
class History:
    """What was seen in the life of one store, ours (by each way of reading) and theirs."""

    line: Line
    answers: list[dict[str, Any]]
    pulled: list[dict[str, Any]]
    by_hot_key: list[dict[str, Any]]
    idle_snapshot: Store
    idle_rows: dict[str, QueueRows]
    busy_rows: dict[str, QueueRows]
    busy_copy: Path
    clean_store: Path
    clean_keys: KeyOffsets
    clean_uniq_keys: KeyOffsets
    clean_opened: dict[str, Any]
    killed_store: Path
    killed_opened: dict[str, Any]
    #: The same log without its queues and index: all of it is dispatched, deleted topics too.
    rebuilt_opened: dict[str, Any]

    @property
    def all_keys(self) -> list[tuple[str, str]]:
        """Topic and key, of all keys and uniq keys, as they were looked up."""
        return topics_and_keys(self.clean_keys, self.clean_uniq_keys)


def live_through(
    line: Line,
    start_broker: Callable[..., RealBroker],
    driver: JavaDriver,
    root: Path,
    ways: Mapping[str, ReadStore],
) -> History:
    """Write with a broker of a line, and look at every stage."""
    store = root / "store"
    seen: dict[str, Any] = {"line": line}
    first = start_broker(line, store)

    seen["answers"] = send_everything(first)
    seen["pulled"] = first.pull(PULLED)
    seen["by_hot_key"] = first.ask("query-key", topic="orders", key=HOT_KEY, maxCount=10_000)
    seen["idle_snapshot"] = Store(str(store))
    seen["idle_rows"] = {way: read(store) for way, read in ways.items()}

    with stream(first, list(ordinary_messages())[:600]):
        seen["busy_rows"] = {way: read(store) for way, read in ways.items()}
        seen["busy_copy"] = Path(shutil.copytree(store, root / "busy"))
        time.sleep(0.5)
    first.stop()
    seen["clean_store"] = Path(shutil.copytree(store, root / "clean"))

    second = start_broker(line, store, IPV6_LOOPBACK)
    with stream(second, [message("orders", 1, b"killed", keys="last")] * 500, chunk=20):
        time.sleep(1.0)
        second.kill()
    seen["killed_store"] = store

    seen["clean_keys"], seen["clean_uniq_keys"] = offsets_of_keys(
        ways["Python"](seen["clean_store"])
    )
    keys = topics_and_keys(seen["clean_keys"], seen["clean_uniq_keys"])
    clean, killed = (
        Path(shutil.copytree(seen[name], root / f"{name}-judged"))
        for name in ("clean_store", "killed_store")
    )
    (seen["clean_opened"],) = driver.open_stores(
        [clean], first.store_settings, messages=True, keys=keys
    )
    rebuilt = only_log(seen["killed_store"], root / "rebuilt")
    seen["killed_opened"], seen["rebuilt_opened"] = driver.open_stores(
        [killed, rebuilt], first.store_settings, messages=True
    )
    return History(**seen)


def only_log(store: Path, target: Path) -> Path:
    """A copy that has nothing but the log and the config of a store."""
    for name in ("commitlog", "config"):
        shutil.copytree(store / name, target / name)
    return target


def offsets_of_keys(queues: QueueRows) -> tuple[KeyOffsets, KeyOffsets]:
    """Where the messages of every key are, and those of every uniq key."""
    offsets: KeyOffsets = {}
    uniq_offsets: KeyOffsets = {}
    for (topic, _), rows in queues.items():
        by_key, by_uniq_key = offsets.setdefault(topic, {}), uniq_offsets.setdefault(topic, {})
        for row in rows:
            for key in set((row["keys"] or "").split(" ")) - {""}:
                by_key.setdefault(key, set()).add(row["commitLogOffset"])
            if row["uniqKey"]:
                by_uniq_key.setdefault(row["uniqKey"], set()).add(row["commitLogOffset"])
    return offsets, uniq_offsets


def topics_and_keys(*offsets: KeyOffsets) -> list[tuple[str, str]]:
    """Every key with its topic."""
    return [(topic, key) for one in offsets for topic, keys in one.items() for key in keys]
