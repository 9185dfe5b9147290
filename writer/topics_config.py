"""``config/topics.json`` and ``config/delayOffset.json``, as a broker writes them.

A broker serves only topics that it finds there. What the files hold besides is kept.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from typing import Any

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.config_files import (
    BACKUP_SUFFIX,
    DELAY_OFFSETS,
    TOPICS,
    parse_json,
)
from rmqlog.commitlog_format.errors import CorruptConfigError
from rmqlog.commitlog_format.store_files import QueueKey, QueueKind
from rmqlog.writer.posix import Posix
from rmqlog.writer.settings import StoreSettings

_PERM_READ_WRITE = 6
_PERM_BITS = 0b110


class ConfigFile:
    """One JSON file of ``config/`` with its backup, kept as it is except for what is changed."""

    def __init__(self, posix: Posix, store_path: str, name: str) -> None:
        self._posix = posix
        self._directory = f"{store_path}/{layout.CONFIG_DIRECTORY}"
        self._path = f"{self._directory}/{name}"
        self.content: dict[str, Any] = self._read()

    @property
    def exists(self) -> bool:
        """Whether the file is there."""
        return os.path.exists(self._path)

    def _read(self) -> dict[str, Any]:
        """The file, or its backup where it is missing, empty or damaged (ConfigManager.load)."""
        damage: CorruptConfigError | None = None
        for path in (self._path, self._path + BACKUP_SUFFIX):
            if not os.path.exists(path) or os.path.getsize(path) == 0:
                continue
            try:
                with open(path, "rb") as file:
                    return parse_json(file.read(), path)
            except CorruptConfigError as error:
                damage = damage or error
        if damage is not None:
            raise damage
        return {}

    def write(self) -> None:
        """Put the content on disk: the old file becomes the backup, and neither is ever missing."""
        self._count_version()
        self._posix.mkdir(self._directory)
        if os.path.exists(self._path):
            with open(self._path, "rb") as file:
                self._posix.replace_file(self._path + BACKUP_SUFFIX, file.read())
        text = json.dumps(self.content, indent="\t", separators=(",", ":"), ensure_ascii=False)
        self._posix.replace_file(self._path, text.encode())

    def _count_version(self) -> None:
        version = self.content.setdefault("dataVersion", {})
        version["counter"] = int(version.get("counter", 0)) + 1
        version.setdefault("stateVersion", 0)
        version["timestamp"] = time.time_ns() // 1_000_000


class TopicTable:
    """The topics of a store and how many queues each has."""

    def __init__(self, posix: Posix, store_path: str, settings: StoreSettings) -> None:
        self._file = ConfigFile(posix, store_path, TOPICS)
        self._default_count = settings.defaultTopicQueueNums
        self._delay_level_count = len(settings.delay_levels_ms)
        self._topics: dict[str, dict[str, Any]] = self._file.content.setdefault(
            "topicConfigTable", {}
        )
        self._is_changed = False

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def queue_count(self, topic: str) -> int:
        """The queues that messages are spread over: the topic's, or those it will get."""
        known = self._topics.get(topic)
        return int(known["writeQueueNums"]) if known else self._default_count

    def is_batch(self, topic: str) -> bool:
        """Whether a topic's queues are BatchConsumeQueues."""
        attributes = (self._topics.get(topic) or {}).get("attributes") or {}
        return bool(attributes.get("queue.type") == QueueKind.BATCH.value)

    def create(self, topic: str, queue_count: int) -> None:
        """See that a topic is there with at least so many queues, readable and writable."""
        known = self._topics.get(topic)
        if known is None:
            self._topics[topic] = _new_topic(topic, queue_count)
            self._is_changed = True
            return
        for name in ("readQueueNums", "writeQueueNums"):
            if int(known.get(name, 0)) < queue_count:
                known[name] = queue_count
                self._is_changed = True
        if int(known.get("perm", 0)) & _PERM_BITS != _PERM_BITS:
            known["perm"] = int(known.get("perm", 0)) | _PERM_BITS
            self._is_changed = True

    def cover(self, queues: Iterable[QueueKey]) -> None:
        """See that the topic of each queue is there, with so many queues."""
        for key in queues:
            known = self._topics.get(key.topic)
            needed = key.queue_id + 1
            if key.topic == layout.SCHEDULE_TOPIC:
                needed = max(needed, self._delay_level_count)
            elif known is None and key.topic not in layout.SYSTEM_TOPICS:
                needed = max(needed, self._default_count)
            self.create(key.topic, needed)

    def save(self) -> None:
        """Put new or grown topics on disk; without any it does nothing."""
        if self._is_changed:
            self._file.write()
            self._is_changed = False


class DelayOffsets:
    """How far each delay level was delivered: the next unit of its queue."""

    def __init__(self, posix: Posix, store_path: str) -> None:
        self._file = ConfigFile(posix, store_path, DELAY_OFFSETS)
        table = self._file.content.setdefault("offsetTable", {})
        self.offsets: dict[int, int] = {int(level): int(n) for level, n in table.items()}
        self._saved = dict(self.offsets) if self._file.exists else None

    def save(self) -> None:
        """Put the offsets on disk, unless they are there already."""
        if self.offsets != self._saved:
            self._file.content["offsetTable"] = {
                str(level): offset for level, offset in sorted(self.offsets.items())
            }
            self._file.write()
            self._saved = dict(self.offsets)


def _new_topic(topic: str, queue_count: int) -> dict[str, Any]:
    return {
        "attributes": {},
        "order": False,
        "perm": _PERM_READ_WRITE,
        "readQueueNums": queue_count,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
        "writeQueueNums": queue_count,
    }
