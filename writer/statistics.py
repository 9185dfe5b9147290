"""What a writer did: counted as it happens, asked for at any time, logged at the end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rmqlog.commitlog_format.errors import StoreError
from rmqlog.writer.appender import AppendResult
from rmqlog.writer.flush import SLOW_FLUSH_MS


@dataclass(frozen=True, slots=True)
class StatisticsSnapshot:
    """The counts of one moment. Topics are those that records were stored under."""

    messages_by_topic: Mapping[str, int]
    bytes_by_topic: Mapping[str, int]
    failures_by_reason: Mapping[str, int]
    dropped_properties: Mapping[str, int]
    batches: int
    flushes: int
    slow_flushes: int
    longest_flush_ms: float

    @property
    def messages(self) -> int:
        """Messages of all topics."""
        return sum(self.messages_by_topic.values())

    @property
    def bytes(self) -> int:
        """Bytes of all records."""
        return sum(self.bytes_by_topic.values())


@dataclass
class Statistics:
    """The counters of one writer; threads may share it."""

    _messages: Counter[str] = field(default_factory=Counter)
    _bytes: Counter[str] = field(default_factory=Counter)
    _failures: Counter[str] = field(default_factory=Counter)
    _dropped: Counter[str] = field(default_factory=Counter)
    _batches: int = 0
    _flushes: int = 0
    _slow_flushes: int = 0
    _longest_flush_ms: float = 0.0
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def count_append(self, result: AppendResult, dropped: Mapping[str, int]) -> None:
        """Note an append: where its messages went, and the properties that were left out."""
        messages = np.bincount(result.topic_codes, minlength=len(result.topics))
        sums = np.bincount(
            result.topic_codes, weights=result.store_size, minlength=len(result.topics)
        )
        with self._mutex:
            self._batches += 1
            for topic, count, size in zip(result.topics, messages, sums, strict=True):
                if count:
                    self._messages[topic] += int(count)
                    self._bytes[topic] += int(size)
            self._dropped.update(dropped)

    def count_failure(self, error: StoreError) -> None:
        """Note an append that failed, under the rule that was broken or the kind of error."""
        with self._mutex:
            self._failures[str(getattr(error, "rule", type(error).__name__))] += 1

    def count_flush(self, took_ms: float) -> None:
        """Note a flush of the log."""
        with self._mutex:
            self._flushes += 1
            self._slow_flushes += took_ms > SLOW_FLUSH_MS
            self._longest_flush_ms = max(self._longest_flush_ms, took_ms)

    def snapshot(self) -> StatisticsSnapshot:
        """The counts now."""
        with self._mutex:
            return StatisticsSnapshot(
                dict(self._messages), dict(self._bytes), dict(self._failures),
                dict(self._dropped), self._batches, self._flushes, self._slow_flushes,
                self._longest_flush_ms,
            )
