"""Every kind of message that a real client can send, sent to a real broker.

``send_everything`` fills a fresh store; ``stream`` goes on sending from another thread while
a test copies the store, reads it, or kills the broker.
"""

from __future__ import annotations

import base64
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .java_toolchain import LINE_5
from .real_broker import RealBroker

Specification = dict[str, Any]

#: Aa and BB, and order-Aa and order-BB, have equal hashes; the last two are no ASCII.
TAGS = (None, "PAID", "CREATED", "Aa", "BB", "a b", "已支付", "😀tag")
KEYS = (None, "order-%d", "order-%d alt-%d", "order-Aa", "order-BB", "订单-%d")
HOT_KEY = "hot"
HOT_COUNT = 250
GROUP = "judge-group"
COMMITTED_OFFSETS = {0: 3, 1: 5}
WAIT_LIMIT_SECONDS = 30.0
#: A connection breaks a moment before a killed process is gone.
BROKEN_LIMIT_SECONDS = 5.0
#: No body is compressed by the client unless a test asks for it.
NEVER = 2**30


def message(topic: str, queue_id: int, body: bytes, **fields: Any) -> Specification:
    """What the driver needs to know about a message to send it; fields that are None are left."""
    given = {name: value for name, value in fields.items() if value is not None}
    encoded = base64.b64encode(body).decode()
    return {"topic": topic, "queueId": queue_id, "bodyBase64": encoded, **given}


def send_everything(broker: RealBroker) -> list[dict[str, Any]]:
    """Send all kinds of messages and wait for what the broker does by itself.

    Returns the answers to the ordinary messages, in the order of ``ordinary_messages``.
    """
    for topic, queue_count in (("orders", 4), ("kinds", 2), ("trans", 1), ("doomed", 1)):
        broker.create_topic(topic, queue_count)
    answers = broker.send(list(ordinary_messages()), compressOver=NEVER)
    assert {answer["status"] for answer in answers} == {"SEND_OK"}
    _send_compressed(broker)
    batch = [message("kinds", 0, b"batch %d" % item, keys=f"b-{item}") for item in range(10)]
    for _ in range(5):
        broker.send(batch, batch=True)
    _send_delayed(broker)
    _send_transactions(broker)
    _send_back(broker)
    broker.send([message("doomed", 0, b"doomed %d" % n, keys=f"doomed-{n}") for n in range(20)])
    broker.ask("delete-topic", topic="doomed")
    for queue_id, offset in COMMITTED_OFFSETS.items():
        place = {"topic": "orders", "queueId": queue_id, "queueOffset": offset}
        broker.ask("commit-offset", **place, group=GROUP)
    return answers


def ordinary_messages() -> Iterator[Specification]:
    """Tags, keys, bodies of 1 byte to 1 MB, flags and user properties in all mixtures."""
    source = random.Random(7)
    for number in range(600):
        keys = source.choice(KEYS)
        yield message(
            "orders",
            number % 4,
            source.randbytes(source.choice((1, 2, 40, 300, 2_000))),
            tags=source.choice(TAGS),
            keys=keys and keys.replace("%d", str(number)),
            flag=source.choice((0, 1, -1, 2**31 - 1, -(2**31))),
            properties=source.choice((None, {"region": "eu", "naïve": "“quoted” = 😀"})),
        )
    for number in range(HOT_COUNT):
        yield message("orders", number % 4, b"hot %d" % number, keys=f"{HOT_KEY} n-{number}")
    for size in (100_000, 500_000, 1_000_000):
        yield message("orders", 0, source.randbytes(size), keys=f"size-{size}", tags="BIG")


def _send_compressed(broker: RealBroker) -> None:
    for kind in ("ZLIB", "LZ4", "ZSTD"):
        bodies = [kind.encode() * size for size in (2_000, 20_000, 100_000)]
        broker.send(
            [message("kinds", 1, body, tags=kind, keys=f"{kind}-{len(body)}") for body in bodies],
            compression=kind,
        )


def _send_delayed(broker: RealBroker) -> None:
    """Of each kind five that are delivered within seconds, and five that stay."""
    expected = max_offset(broker, "kinds", 0) + 5
    for level in (1, 18):
        broker.send([message("kinds", 0, b"delay", tags=f"L{level}", delayLevel=level)] * 5)
    if broker.driver.line == LINE_5:
        for milliseconds in (2_000, 86_400_000):
            timer = {"TIMER_DELAY_MS": str(milliseconds)}
            broker.send([message("kinds", 0, b"timer", tags="TIMER", properties=timer)] * 5)
        expected += 5
    await_until(lambda: max_offset(broker, "kinds", 0) == expected)


def _send_transactions(broker: RealBroker) -> None:
    for outcome in ("COMMIT", "ROLLBACK", "OPEN"):
        bodies = [f"{outcome} {number}".encode() for number in range(5)]
        broker.ask(
            "send-transactions",
            messages=[message("trans", 0, body, outcome=outcome) for body in bodies],
        )
    await_until(lambda: max_offset(broker, "trans", 0) == 5)


def _send_back(broker: RealBroker) -> None:
    """Three messages to the retry topic of a group, two to its dead letters."""
    for offset, level in enumerate((1, 1, 1, -1, -1)):
        place = {"topic": "orders", "queueId": 0, "queueOffset": offset}
        broker.ask("send-back", **place, delayLevel=level, group=GROUP)
    await_until(lambda: max_offset(broker, f"%RETRY%{GROUP}", 0) == 3)
    await_until(lambda: max_offset(broker, f"%DLQ%{GROUP}", 0) == 2)


def max_offset(broker: RealBroker, topic: str, queue_id: int) -> int:
    """How many messages a queue has had so far."""
    return int(broker.ask("max-offset", topic=topic, queueId=queue_id))


def await_until(condition: Callable[[], bool]) -> None:
    """Wait for what the broker does in its own time."""
    deadline = time.monotonic() + WAIT_LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the broker did not do it in time"
        time.sleep(0.2)


@contextmanager
def stream(
    broker: RealBroker, messages: Sequence[Specification], chunk: int = 50
) -> Iterator[None]:
    """Send in the background, over and over, until the block ends or the broker is gone.

    The block begins when the first messages have been taken.
    """
    began, stopped = threading.Event(), threading.Event()

    def send() -> None:
        start = 0
        while not stopped.is_set():
            try:
                broker.send(messages[start : start + chunk], compressOver=NEVER)
            except Exception:
                if not stopped.is_set() and not broker.ends_within(BROKEN_LIMIT_SECONDS):
                    raise
                return
            began.set()
            start = (start + chunk) % len(messages)

    thread = threading.Thread(target=send, name="traffic")
    thread.start()
    try:
        assert began.wait(WAIT_LIMIT_SECONDS), "the broker takes no messages"
        yield
    finally:
        stopped.set()
        thread.join()
