"""A store of the probe source, and what the source was asked about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def plan_of(frame: DataFrame) -> str:
    """Spark's physical plan of a frame."""
    plan: str = frame._jdf.queryExecution().executedPlan().toString()
    return plan


class ProbeStore:
    """One probe store of ten rows and three topics."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark = spark
        self.path = path
        (path / "topics").mkdir(parents=True)
        for topic in ("orders", "my-topic", "%RETRY%g"):
            (path / "topics" / topic).touch()
        self.grow(10)

    def grow(self, size: int) -> None:
        """Makes the store this many rows long."""
        (self.path / "size").write_text(str(size))

    def load(self, **options: str) -> DataFrame:
        """The store as a frame, through the bridge."""
        return self.spark.read.format("rmqlog").options(**options).load(str(self.path))

    def scan_of(self, frame: DataFrame) -> dict[str, Any]:
        """The options with which the frame's one scan is planned; nothing is read."""
        plan_of(frame)
        return self.scan()

    def calls(self, call: str) -> list[dict[str, Any]]:
        """What the source was asked by this call, oldest first."""
        entries = self._entries("journal")
        return [entry for entry in entries if entry["call"] == call]

    def scan(self) -> dict[str, Any]:
        """The options of the last planned scan."""
        options: dict[str, Any] = self.calls("partitions")[-1]["options"]
        return options

    def columns(self) -> list[str]:
        """The columns of the last planned scan."""
        return [field["name"] for field in self.calls("partitions")[-1]["schema"]["fields"]]

    def commits(self) -> list[dict[str, Any]]:
        """The writes, oldest first."""
        return self._entries("committed")

    def _entries(self, folder: str) -> list[dict[str, Any]]:
        files = sorted((self.path / folder).glob("*.json"))
        return [json.loads(file.read_text()) for file in files]
