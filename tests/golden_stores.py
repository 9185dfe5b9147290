"""The stores in ``tests/golden``: written by real brokers, dumped by RocketMQ's own decoder.

``NAME.tar.zst`` is a store directory; the ``.jsonl.zst`` files beside it say what is in it:
``expected`` one line for each ConsumeQueue unit, ``log.expected`` the log in order,
``index.expected`` the index files and all offsets of each key in ``keys.tsv``.
"""

from __future__ import annotations

import base64
import io
import ipaddress
import json
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import zstandard

GOLDEN_DIRECTORY = Path(__file__).parent / "golden"
GOLDEN_NAMES = (
    "rmq-5.5.0-clean",
    "rmq-4.9.5-clean",
    "rmq-5.5.0-cqext",
    "rmq-5.5.0-bcq",
    "rmq-5.5.0-multipath",
    "rmq-5.5.0-retention",
    "rmq-5.5.0-dledger",
)


@dataclass(frozen=True)
class GoldenStore:
    """One unpacked store and what RocketMQ's own classes found in it. Do not change its files."""

    name: str
    path: Path

    @cached_property
    def units(self) -> list[dict[str, Any]]:
        """One dictionary for each ConsumeQueue unit, its record under ``msg`` if it is there."""
        return _read_lines(self.name, "expected")

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """The log in order: kinds ``record``, ``filler`` and one ``end``."""
        return _read_lines(self.name, "log.expected")

    @cached_property
    def index(self) -> list[dict[str, Any]]:
        """Kinds ``indexFile`` (headers) and ``key`` (offsets, newest first, collisions too)."""
        return _read_lines(self.name, "index.expected")

    @cached_property
    def keys(self) -> list[tuple[str, str, bool]]:
        """The keys to look up: topic, key, and whether it is a unique key."""
        text = (GOLDEN_DIRECTORY / f"{self.name}.keys.tsv").read_text("utf-8")
        rows = [line.split("\t") for line in text.split("\n") if line]
        return [(row[0], row[1], row[2:] == ["uniq"]) for row in rows]

    @cached_property
    def settings(self) -> dict[str, str]:
        """The broker's settings, most of them file sizes."""
        text = (GOLDEN_DIRECTORY / f"{self.name}.properties").read_text("utf-8")
        lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
        return dict(line.split("=", 1) for line in lines)  # type: ignore[misc]


def unpack_golden_store(name: str, target: Path) -> GoldenStore:
    """Unpack a golden store below ``target``; holes stay holes."""
    packed = (GOLDEN_DIRECTORY / f"{name}.tar.zst").read_bytes()
    with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
        unpacked = io.BytesIO(reader.read())
    with tarfile.open(fileobj=unpacked) as archive:
        archive.extractall(target, filter="data")
    return GoldenStore(name, target / name)


def expected_row(line: dict[str, Any]) -> dict[str, Any]:
    """A line of kind ``unit`` or ``record`` as a row in our columns, without brokerName.

    ``bodySha1`` is left out; timestamps stay in milliseconds, properties a dictionary.
    tagsCode is the unit's, absent for lines of the log.
    """
    message = line["msg"]
    same = (
        *("topic", "queueId", "queueOffset", "msgId", "uniqKey", "tags", "keys", "flag"),
        *("bornTimestamp", "storeTimestamp", "reconsumeTimes", "preparedTransactionOffset"),
        *("bodyCrc", "properties"),
    )
    row = {name: message[name] for name in same}
    row["body"] = base64.b64decode(message["bodyBase64"] or "")
    row["bornHost"] = host_text(message["bornHost"])
    row["storeHost"] = host_text(message["storeHost"])
    row["sysFlag"] = line["rawSysFlag"]
    row["commitLogOffset"] = line["commitLogOffset"]
    row["storeSize"] = line["storeSize"]
    if "unitTagsCode" in line:
        row["tagsCode"] = line["unitTagsCode"]
    return row


def host_text(java_form: str) -> str:
    """``0:0:0:0:0:0:0:1:1234`` as ``[::1]:1234``; IPv4 stays as it is."""
    address_text, port = java_form.rsplit(":", 1)
    address = ipaddress.ip_address(address_text)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _read_lines(name: str, kind: str) -> list[dict[str, Any]]:
    packed = (GOLDEN_DIRECTORY / f"{name}.{kind}.jsonl.zst").read_bytes()
    with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
        text = reader.read().decode("utf-8")
    return [json.loads(line) for line in text.split("\n") if line]
