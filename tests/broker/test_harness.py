"""The judge itself: what it says about a store is what is there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker.features import THEY_WRITE, Comparisons
from broker.java_driver import JavaDriver, JavaError
from broker.java_toolchain import LINE_5, JavaUnavailableError, Line, prepare
from golden_stores import GoldenStore


def golden_name(line: Line) -> str:
    return f"rmq-{line.version}-clean"


@pytest.fixture
def golden(line: Line, golden_store: Callable[[str], GoldenStore], tmp_path: Path) -> GoldenStore:
    """A copy of the line's golden store that a broker may change."""
    original = golden_store(golden_name(line))
    shutil.copytree(original.path, tmp_path / original.name)
    return GoldenStore(original.name, tmp_path / original.name)


def test_an_unknown_command_is_an_error_and_the_driver_lives_on(java5: JavaDriver) -> None:
    with pytest.raises(JavaError, match="unknown command"):
        java5.request("no-such-command")
    assert java5.decode([b""]) == [{"message": None, "check": {"success": False, "size": -1}}]


def test_the_real_store_opens_a_golden_store_and_finds_what_was_expected(
    java_driver: Callable[[Line], JavaDriver],
    comparisons: Comparisons,
    line: Line,
    golden: GoldenStore,
) -> None:
    keys = [(topic, key) for topic, key, _ in golden.keys]
    (opened,) = java_driver(line).open_stores(
        [golden.path], golden.settings, messages=True, keys=keys
    )

    assert "error" not in opened
    assert opened["maxPhyOffset"] == golden.log[-1]["commitLogOffset"]
    assert _units(opened) == {
        (u["topic"], u["queueId"], u["queueOffset"], u["commitLogOffset"], u["storeSize"],
         u["unitTagsCode"]) for u in golden.units
    }  # fmt: skip
    assert _messages(opened) == {
        (u["topic"], u["queueId"], u["queueOffset"]): _without_derived(u["msg"])
        for u in golden.units
    }
    expected_offsets = [row["offsets"] for row in golden.index if row["kind"] == "key"]
    assert opened["keyOffsets"] == expected_offsets
    comparisons.count(THEY_WRITE, line, "golden store", len(golden.units))


def _units(opened: dict[str, Any]) -> set[tuple[Any, ...]]:
    return {
        (queue["topic"], queue["queueId"], *unit)
        for queue in opened["queues"]
        for unit in queue["units"]
    }


def _messages(opened: dict[str, Any]) -> dict[tuple[str, int, int], dict[str, Any]]:
    return {
        (queue["topic"], queue["queueId"], unit[0]): _without_derived(message)
        for queue in opened["queues"]
        for unit, message in zip(queue["units"], queue["messages"], strict=True)
    }


def _without_derived(message: dict[str, Any]) -> dict[str, Any]:
    """The fields that both dumps have under one name."""
    left_out = {"bodySha1", "bodyLength", "commitLogOffset", "storeSize"}
    return {name: value for name, value in message.items() if name not in left_out}


def test_a_machine_without_maven_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(JavaUnavailableError, match="java is not on PATH"):
        prepare(LINE_5)


def test_a_machine_without_a_way_to_maven_central_is_told_what_maven_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("java", "javac", "mvn"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho '[ERROR] Could not transfer artifact'\nexit 1\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    with pytest.raises(JavaUnavailableError, match=r"5\.5\.0: \[ERROR\] Could not transfer"):
        prepare(LINE_5)
