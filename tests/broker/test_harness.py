"""The judge itself: it opens, boots, sends, pulls and stops, and what it says is what is there."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker.java_driver import JavaDriver, JavaError
from broker.java_toolchain import Line
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
    java_driver: Callable[[Line], JavaDriver], line: Line, golden: GoldenStore
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


def test_a_broker_boots_takes_messages_gives_them_back_and_stops(
    broker: Callable[..., Any], line: Line, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    real_broker = broker(line, store)
    real_broker.create_topic("orders", 2)
    sent = [
        {
            "topic": "orders",
            "queueId": number % 2,
            "tags": "PAID",
            "keys": f"order-{number}",
            "bodyBase64": base64.b64encode(b"body %d" % number).decode(),
        }
        for number in range(100)
    ]
    answers = real_broker.send(sent)
    queues = real_broker.pull([("orders", 0), ("orders", 1)])
    (by_key,) = real_broker.ask("query-key", topic="orders", key="order-7")
    real_broker.stop()

    assert [answer["status"] for answer in answers] == ["SEND_OK"] * 100
    for queue_id, queue in enumerate(queues):
        expected = [message for message in sent if message["queueId"] == queue_id]
        assert (queue["minOffset"], queue["maxOffset"]) == (0, 50)
        assert [m["queueOffset"] for m in queue["messages"]] == list(range(50))
        for name in ("topic", "queueId", "tags", "keys", "bodyBase64"):
            assert [m[name] for m in queue["messages"]] == [m[name] for m in expected]
    assert by_key["msgId"] == answers[7]["msgId"]
    assert not real_broker.running
    assert not (store / "abort").exists()


def test_a_killed_broker_leaves_abort_behind_and_the_real_store_recovers_what_it_took(
    broker: Callable[..., Any],
    java_driver: Callable[[Line], JavaDriver],
    line: Line,
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    real_broker = broker(line, store)
    real_broker.create_topic("orders", 1)
    message = {"topic": "orders", "queueId": 0, "bodyBase64": "AAAA"}
    real_broker.send([message] * 20)
    real_broker.kill()

    assert (store / "abort").exists()
    (opened,) = java_driver(line).open_stores([store], real_broker.store_settings)
    (queue,) = [queue for queue in opened["queues"] if queue["topic"] == "orders"]
    assert (queue["minOffset"], queue["maxOffset"]) == (0, 20)
    assert not (store / "abort").exists()
