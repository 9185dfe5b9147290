"""One log, dispatched by RocketMQ and by us: the queue and index files are byte for byte the same.

Both get a store that has nothing but its log. 5.5 gets ``abort`` too, so that the recovery after a
crash dispatches. 4.9 does not: its recovery runs before it has read its delay levels, and gives
scheduled messages the hash of their tag for a time of delivery; its ordinary dispatch is right.
Index files are named by the time of their creation: only their order is compared. RocketMQ's
driver is one that makes no two of them in a millisecond.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from broker.features import DISPATCH_TWINS, Comparisons
from broker.java_driver import JavaDriver, Settings
from broker.java_toolchain import LINE_4, LINE_5, Line
from broker.traffic import ordinary_messages
from broker.written_stores import SMALL_FILES, write_everything
from golden_stores import GoldenStore

from rmqlog.writer.rebuild import rebuild
from rmqlog.writer.settings import StoreSettings


@dataclass(frozen=True)
class Twins:
    """The same log twice: ``theirs`` is for RocketMQ, ``ours`` for us."""

    theirs: Path
    ours: Path
    settings: Settings


def twins_of(store: Path, settings: Settings, scratch: Path) -> Twins:
    """Two stores that have only the log and the topics of another one."""
    for name in ("theirs", "ours"):
        shutil.copytree(store / "commitlog", scratch / name / "commitlog")
        if (store / "config" / "topics.json").exists():
            (scratch / name / "config").mkdir()
            shutil.copy(store / "config" / "topics.json", scratch / name / "config")
    return Twins(scratch / "theirs", scratch / "ours", settings)


def assert_dispatched_alike(
    twins: Twins, driver: JavaDriver, comparisons: Comparisons, name: str
) -> None:
    """Let both dispatch their copy of the log and compare what they made."""
    if driver.line == LINE_5:
        (twins.theirs / "abort").touch()
    (opened,) = driver.open_stores([twins.theirs], twins.settings)
    assert "error" not in opened
    named = {name: str(value) for name, value in twins.settings.items()}
    known = {name: named[name] for name in named if hasattr(StoreSettings, name)}
    settings = StoreSettings.from_mapping({**known, "brokerVersion": driver.line.version})
    rebuild(twins.ours, settings)

    for kind in ("consumequeue", "batchconsumequeue", "consumequeue_ext"):
        theirs, ours = files_below(twins.theirs / kind), files_below(twins.ours / kind)
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if ours[name] != theirs[name]] == []
    theirs, ours = files_below(twins.theirs / "index"), files_below(twins.ours / "index")
    assert len(ours) == len(theirs) > 0
    different = [
        place
        for place, pair in enumerate(zip(sorted(ours), sorted(theirs), strict=True))
        if ours[pair[0]] != theirs[pair[1]]
    ]
    assert different == []
    unit_count = sum(len(queue["units"]) for queue in opened["queues"])
    comparisons.count(DISPATCH_TWINS, driver.line, f"units of {name}", unit_count)


def files_below(folder: Path) -> dict[str, bytes]:
    """The contents of all files below a folder by their relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (LINE_5, "rmq-5.5.0-clean"),
        (LINE_5, "rmq-4.9.5-clean"),
        (LINE_5, "rmq-5.5.0-bcq"),
        (LINE_5, "rmq-5.5.0-cqext"),
        (LINE_4, "rmq-4.9.5-clean"),
    ],
    ids=lambda value: getattr(value, "version", value),
)
def test_the_log_of_a_real_broker_gives_identical_files(
    unhurried_driver: Callable[[Line], JavaDriver],
    golden_store: Callable[[str], GoldenStore],
    comparisons: Comparisons,
    tmp_path: Path,
    line: Line,
    name: str,
) -> None:
    golden = golden_store(name)
    twins = twins_of(golden.path, golden.settings, tmp_path)
    assert_dispatched_alike(twins, unhurried_driver(line), comparisons, name)


def test_our_own_log_gives_identical_files(
    unhurried_driver: Callable[[Line], JavaDriver],
    comparisons: Comparisons,
    tmp_path: Path,
    line: Line,
) -> None:
    store = tmp_path / "store"
    write_everything(store, line)
    twins = twins_of(store, SMALL_FILES, tmp_path)
    assert_dispatched_alike(twins, unhurried_driver(line), comparisons, "StoreWriter's log")


def numbered_messages() -> list[dict[str, Any]]:
    """Messages for putMessage, which gives them no unique keys."""
    return [
        {**message, "properties": {**message.get("properties", {}), "UNIQ_KEY": f"{number:032X}"}}
        for number, message in enumerate(ordinary_messages())
    ]


def test_a_log_that_putmessage_wrote_gives_identical_files(
    unhurried_driver: Callable[[Line], JavaDriver],
    comparisons: Comparisons,
    tmp_path: Path,
    line: Line,
) -> None:
    messages = numbered_messages()
    store = tmp_path / "store"
    answers = unhurried_driver(line).put_messages(store, SMALL_FILES, messages)

    assert {answer["status"] for answer in answers} == {"PUT_OK"}
    twins = twins_of(store, SMALL_FILES, tmp_path)
    assert_dispatched_alike(twins, unhurried_driver(line), comparisons, "putMessage's log")


def test_ext_files_and_light_message_queues_are_identical(
    unhurried_driver: Callable[[Line], JavaDriver],
    comparisons: Comparisons,
    tmp_path: Path,
    line: Line,
) -> None:
    settings = {
        **SMALL_FILES, "enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 4096,
        "enableLmq": True, "enableMultiDispatch": True,
    }
    messages = numbered_messages()
    for number, message in enumerate(messages):
        if number % 3 == 0:
            names = "%LMQ%all" if number % 2 else f"%LMQ%all,%LMQ%of-{number % 4}"
            message["properties"]["INNER_MULTI_DISPATCH"] = names
    store = tmp_path / "store"
    answers = unhurried_driver(line).put_messages(store, settings, messages)

    assert {answer["status"] for answer in answers} == {"PUT_OK"}
    assert len(list((store / "consumequeue").glob("%LMQ%*"))) == 3
    assert any((store / "consumequeue_ext").rglob("0*4096"))
    twins = twins_of(store, settings, tmp_path)
    assert_dispatched_alike(twins, unhurried_driver(line), comparisons, "ext and light queues")
    assert files_below(twins.ours / "consumequeue") == files_below(store / "consumequeue")
    assert files_below(twins.ours / "consumequeue_ext") == files_below(store / "consumequeue_ext")
