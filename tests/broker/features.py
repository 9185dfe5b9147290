"""The kinds of messages that the tests send and write, told from the messages themselves.

``Comparisons`` counts, for each kind, release line and direction, the messages that were compared;
the table is printed when the session ends, and is that of docs/compatibility.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from rmqlog.commitlog_format.layout import (
    COMPRESSION_MASK,
    COMPRESSION_SHIFT,
    SCHEDULE_TOPIC,
    Compression,
)

from .java_toolchain import LINE_4, LINE_5, Line
from .traffic import HOT_KEY

if TYPE_CHECKING:  # its asserts are rewritten, which must be asked for before it is imported
    from .message_rows import QueueRows, Row

THEY_WRITE: Final = "they write, we read"
WE_WRITE: Final = "we write, they read"
DISPATCH_TWINS: Final = "dispatch twins"
CRASH_STORES: Final = "crash stores"
DIFFERENTIAL_DECODING: Final = "differential decoding"
LARGE_BODY_SIZE: Final = 100_000
_TIMER_TOPIC = "rmq_sys_wheel_timer"
_HALF_TOPIC, _OPERATION_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
_V1_TOPIC_SIZE_MAX = 127


def _compressed(row: Row, *kinds: Compression) -> bool:
    """A record that is smaller than its body was compressed."""
    kind = (row["sysFlag"] & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    return row["storeSize"] < len(row["body"]) and kind in kinds


FEATURES: Final[dict[str, Callable[[Row], bool]]] = {
    "no tag": lambda row: row["tags"] is None,
    "unicode tag": lambda row: not (row["tags"] or "").isascii(),
    "tags of equal hash": lambda row: row["tags"] in ("Aa", "BB"),
    "no key": lambda row: row["keys"] is None,
    "several keys": lambda row: " " in (row["keys"] or ""),
    "unicode key": lambda row: not (row["keys"] or "").isascii(),
    "keys of equal hash": lambda row: row["keys"] in ("order-Aa", "order-BB"),
    "one key in 250 messages": lambda row: HOT_KEY in (row["keys"] or "").split(" "),
    "properties of users": lambda row: "region" in row["properties"],
    "empty body": lambda row: row["body"] == b"",
    "body of 1 byte": lambda row: len(row["body"]) == 1,
    "body of 100 KB to 1 MB": lambda row: row["storeSize"] > LARGE_BODY_SIZE,
    "zlib": lambda row: _compressed(row, Compression.ZLIB, Compression.ZLIB_LEGACY),
    "LZ4": lambda row: _compressed(row, Compression.LZ4),
    "zstd": lambda row: _compressed(row, Compression.ZSTD),
    "client batch": lambda row: row["body"].startswith((b"batch ", b"item ")),
    "delay level, pending": lambda row: row["topic"] == SCHEDULE_TOPIC,
    "delay level, delivered": lambda row: row["topic"] == "kinds" and row["tags"] in ("L1", "SOON"),
    "timer, pending": lambda row: row["topic"] == _TIMER_TOPIC,
    "timer, delivered": lambda row: row["topic"] == "kinds" and row["tags"] == "TIMER",
    "half message": lambda row: row["topic"] == _HALF_TOPIC,
    "end of a transaction": lambda row: row["topic"] == _OPERATION_TOPIC,
    "committed transaction": lambda row: row["topic"] == "trans",
    "retry": lambda row: row["topic"].startswith("%RETRY%"),
    "dead letter": lambda row: row["topic"].startswith("%DLQ%"),
    "deleted topic": lambda row: row["topic"] == "doomed",
    "IPv6 client": lambda row: row["bornHost"].startswith("["),
    "IPv6 broker": lambda row: row["storeHost"].startswith("["),
    "V2 record": lambda row: len(row["topic"].encode()) > _V1_TOPIC_SIZE_MAX,
}


def features_in(queues: QueueRows) -> set[str]:
    """The names of the kinds that are there."""
    rows = [row for messages in queues.values() for row in messages]
    return {name for name, is_one in FEATURES.items() if any(map(is_one, rows))}


class Comparisons:
    """What was compared in a session: messages by kind, and everything by situation.

    A message that is compared in several situations is one message of its kind.
    """

    def __init__(self) -> None:
        self._features: dict[tuple[str, str, Line], set[tuple[str, str, int, int]]] = (
            defaultdict(set)
        )
        self._situations: dict[tuple[str, str], dict[Line, int]] = defaultdict(dict)

    def messages(
        self, direction: str, line: Line, situation: str, store: str, queues: QueueRows
    ) -> None:
        """Messages of a store were compared field by field and found equal."""
        rows = [row for messages in queues.values() for row in messages]
        for name, is_one in FEATURES.items():
            self._features[name, direction, line].update(
                (store, row["topic"], row["queueId"], row["queueOffset"])
                for row in rows
                if is_one(row)
            )
        self.count(direction, line, situation, len(rows))

    def count(self, direction: str, line: Line, situation: str, number: int) -> None:
        """So many things were compared in a situation."""
        self._situations[situation, direction][line] = number

    def report(self) -> Iterator[str]:
        """Two tables in Markdown; nothing where nothing was compared."""
        if not self._situations:
            return
        columns = [(line, way) for line in (LINE_5, LINE_4) for way in (THEY_WRITE, WE_WRITE)]
        yield from _header("feature", *(f"{line.version}: {way}" for line, way in columns))
        for name in FEATURES:
            counts = (len(self._features[name, way, line]) for line, way in columns)
            yield _row(name, *counts)
        yield ""
        yield from _header("situation", "direction", LINE_5.version, LINE_4.version)
        for (situation, direction), counted in self._situations.items():
            yield _row(situation, direction, counted.get(LINE_5, 0), counted.get(LINE_4, 0))


def _header(*names: str) -> Iterator[str]:
    yield _row(*names)
    yield "|" + "---|" * len(names)


def _row(*cells: str | int) -> str:
    texts = [f"{cell:,}" if isinstance(cell, int) else cell for cell in cells]
    return f"| {' | '.join(texts)} |"
