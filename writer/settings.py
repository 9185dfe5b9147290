"""A store's settings, under the names and with the defaults that a broker gives them.

They are read from a file like the broker's own ``broker.conf``, so that one file can serve
both. File sizes are not stored in a store: on an existing one they must equal what is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import InvalidSettingError
from rmqlog.commitlog_format.files import FileAccess, LocalFiles
from rmqlog.commitlog_format.segment import FileQueue

_UNIT_SIZE = layout.CONSUME_QUEUE_UNIT.itemsize
_EXT_FILE_SIZE_MIN = layout.CONSUME_QUEUE_EXT_HEADER.itemsize + layout.EXT_FILE_END_SIZE
_DURATION = re.compile(r"(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_VERSION = re.compile(r"(\d+)\.(\d+)(\.\d+)?")
#: Since this version each tag is indexed too.
_TAG_INDEX_VERSION = (5, 5)
#: The smallest segment that makes sense: one short record and its filler.
_SEGMENT_SIZE_MIN = 256


class FlushDiskType(Enum):
    """When an append returns: before its bytes are on disk, or after."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


@dataclass(frozen=True)
class StoreSettings:
    """What a broker's ``MessageStoreConfig`` and ``BrokerConfig`` say, where it matters here.

    Times are milliseconds, as the broker's are, except ``fileReservedTime`` (hours).
    ``brokerVersion`` is ours: which broker's dispatch to reproduce.
    """

    mappedFileSizeCommitLog: int = layout.COMMIT_LOG_FILE_SIZE
    mappedFileSizeConsumeQueue: int = layout.CONSUME_QUEUE_FILE_UNITS * _UNIT_SIZE
    mapperFileSizeBatchConsumeQueue: int = (
        layout.CONSUME_QUEUE_FILE_UNITS * layout.BATCH_CONSUME_QUEUE_UNIT.itemsize
    )
    enableConsumeQueueExt: bool = False
    mappedFileSizeConsumeQueueExt: int = layout.CONSUME_QUEUE_EXT_FILE_SIZE
    maxHashSlotNum: int = layout.INDEX_SLOT_COUNT
    maxIndexNum: int = layout.INDEX_ENTRY_COUNT
    messageIndexEnable: bool = True
    maxMessageSize: int = layout.MAX_MESSAGE_SIZE
    messageDelayLevel: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    enableLmq: bool = False
    enableMultiDispatch: bool = False
    warmMapedFileEnable: bool = False

    flushDiskType: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    flushIntervalCommitLog: int = 500
    flushCommitLogLeastPages: int = 4
    flushCommitLogThoroughInterval: int = 10_000
    flushIntervalConsumeQueue: int = 1_000
    flushConsumeQueueLeastPages: int = 2
    flushConsumeQueueThoroughInterval: int = 60_000
    syncFlushTimeout: int = 5_000
    transientStorePoolEnable: bool = False
    transientStorePoolSize: int = 5
    commitIntervalCommitLog: int = 200
    commitCommitLogLeastPages: int = 4
    commitCommitLogThoroughInterval: int = 200

    fileReservedTime: int = 72
    diskMaxUsedSpaceRatio: int = 75
    diskSpaceCleanForciblyRatio: int = 85

    brokerName: str = "broker-a"
    brokerClusterName: str = "DefaultCluster"
    brokerIP1: str = "127.0.0.1"
    listenPort: int = 10_911
    defaultTopicQueueNums: int = 8
    brokerVersion: str = "5.5.0"

    def __post_init__(self) -> None:
        # The broker's getter rounds up too (MessageStoreConfig.getMappedFileSizeConsumeQueue).
        units = -(-self.mappedFileSizeConsumeQueue // _UNIT_SIZE)
        object.__setattr__(self, "mappedFileSizeConsumeQueue", units * _UNIT_SIZE)
        for name, least in (
            ("mappedFileSizeCommitLog", _SEGMENT_SIZE_MIN),
            ("mappedFileSizeConsumeQueue", _UNIT_SIZE),
            ("mappedFileSizeConsumeQueueExt", _EXT_FILE_SIZE_MIN),
            ("maxHashSlotNum", 1),
            ("maxIndexNum", 2),
            ("maxMessageSize", 1),
            ("defaultTopicQueueNums", 1),
            ("transientStorePoolSize", 2),
        ):
            if getattr(self, name) < least:
                raise InvalidSettingError(
                    f"{name} is too small", found=getattr(self, name), expected=f">= {least}"
                )
        if not _VERSION.fullmatch(self.brokerVersion):
            raise InvalidSettingError(
                "brokerVersion is no version", found=self.brokerVersion, expected="such as 5.5.0"
            )
        self.delay_levels_ms  # noqa: B018 - raises for a text that cannot be parsed

    @cached_property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """How long each delay level waits; level 1 is the first."""
        levels = []
        for text in self.messageDelayLevel.split():
            match = _DURATION.fullmatch(text)
            if match is None:
                raise InvalidSettingError(
                    "messageDelayLevel is no list of durations", found=text,
                    expected="such as 10s, 5m, 1h or 1d",
                )
            levels.append(int(match.group(1)) * _SECONDS[match.group(2)] * 1000)
        return tuple(levels)

    @property
    def store_host(self) -> str:
        """The address and port that records name as their store host."""
        is_v6 = ":" in self.brokerIP1
        address = f"[{self.brokerIP1}]" if is_v6 else self.brokerIP1
        return f"{address}:{self.listenPort}"

    @property
    def indexes_tags(self) -> bool:
        """Whether each tag gets an index entry of its own."""
        return self.version >= _TAG_INDEX_VERSION

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor of the broker whose bytes are reproduced."""
        major, minor = self.brokerVersion.split(".")[:2]
        return int(major), int(minor)

    @property
    def index_file_size(self) -> int:
        """Bytes of an index file with these slots and entries."""
        return (
            layout.INDEX_HEADER.itemsize
            + self.maxHashSlotNum * layout.INDEX_SLOT.itemsize
            + self.maxIndexNum * layout.INDEX_ENTRY.itemsize
        )

    @classmethod
    def from_mapping(cls, values: Mapping[str, str]) -> StoreSettings:
        """Settings from text values; names that only a broker knows are ignored."""
        known = {field.name: field for field in fields(cls)}
        parsed: dict[str, Any] = {
            name: _parse(name, text.strip(), known[name].default)
            for name, text in values.items()
            if name in known
        }
        return cls(**parsed)

    @classmethod
    def from_file(cls, path: str | Path) -> StoreSettings:
        """Settings from a file like ``broker.conf``: ``name = value``, ``#`` for comments."""
        values = {}
        for line in Path(path).read_text("utf-8").splitlines():
            name, separator, value = line.strip().partition("=")
            if separator and not name.startswith("#"):
                values[name.strip()] = value
        return cls.from_mapping(values)

    @classmethod
    def of_store(cls, path: str, **chosen: Any) -> StoreSettings:
        """The settings of an existing store as far as its files tell, else ``chosen``, else
        the defaults. A chosen file size that differs from what is there raises."""
        found = file_sizes(path, LocalFiles())
        settings = cls(**{**found, **chosen})
        settings.check_store(path)
        return settings

    def with_changes(self, **changes: Any) -> StoreSettings:
        """These settings with some of them replaced."""
        return replace(self, **changes)

    def check_store(self, path: str) -> None:
        """Raise ``InvalidSettingError`` where a file size differs from the store's files."""
        for name, found in file_sizes(path, LocalFiles()).items():
            wanted = getattr(self, name)
            if name in ("maxHashSlotNum", "maxIndexNum"):
                continue  # they follow from the file's size only if their ratio is the default
            if found != wanted:
                raise InvalidSettingError(
                    f"{name} differs from the files of the store", path, found=wanted,
                    expected=found,
                )
        index_size = _index_file_size(path, LocalFiles())
        if index_size and index_size != self.index_file_size:
            raise InvalidSettingError(
                "maxHashSlotNum and maxIndexNum differ from the files of the store", path,
                found=f"{self.index_file_size} bytes an index file",
                expected=f"{index_size} bytes",
            )


def file_sizes(path: str, access: FileAccess) -> dict[str, int]:
    """The settings that an existing store's files tell, by name; none for an empty store."""
    found: dict[str, int] = dict.fromkeys(_switches_in_use(path, access), True)
    log_size = _first_file_size(access, f"{path}/{layout.COMMIT_LOG_DIRECTORY}")
    if log_size:
        found["mappedFileSizeCommitLog"] = log_size
    for name, directory in (
        ("mappedFileSizeConsumeQueue", layout.CONSUME_QUEUE_DIRECTORY),
        ("mapperFileSizeBatchConsumeQueue", layout.BATCH_CONSUME_QUEUE_DIRECTORY),
        ("mappedFileSizeConsumeQueueExt", layout.CONSUME_QUEUE_EXT_DIRECTORY),
    ):
        queue_size = _queue_file_size(access, f"{path}/{directory}")
        if queue_size:
            found[name] = queue_size
    index_size = _index_file_size(path, access)
    if index_size:
        slots = (index_size - layout.INDEX_HEADER.itemsize) // layout.INDEX_BYTES_PER_SLOT
        found["maxHashSlotNum"] = slots
        found["maxIndexNum"] = 4 * slots
    return found


def _switches_in_use(path: str, access: FileAccess) -> list[str]:
    """The switches that somebody has written this store with: without them, what they made would
    be lost or led astray."""
    names = []
    if _is_directory(access, f"{path}/{layout.CONSUME_QUEUE_EXT_DIRECTORY}"):
        names.append("enableConsumeQueueExt")
    topics = _directories(access, f"{path}/{layout.CONSUME_QUEUE_DIRECTORY}")
    if any(topic.rpartition("/")[2].startswith(layout.LMQ_TOPIC_PREFIX) for topic in topics):
        names += ["enableLmq", "enableMultiDispatch"]
    return names


def _first_file_size(access: FileAccess, directory: str) -> int:
    if not _is_directory(access, directory):
        return 0
    return FileQueue.open(access, [directory]).file_size


def _queue_file_size(access: FileAccess, directory: str) -> int:
    """The size of the first queue file that is found."""
    for topic in _directories(access, directory):
        for queue in _directories(access, topic):
            size = _first_file_size(access, queue)
            if size:
                return size
    return 0


def _index_file_size(path: str, access: FileAccess) -> int:
    directory = f"{path}/{layout.INDEX_DIRECTORY}"
    if not _is_directory(access, directory):
        return 0
    sizes = [entry.size for entry in access.list(directory) if entry.is_file and entry.size]
    return sizes[-1] if sizes else 0


def _directories(access: FileAccess, directory: str) -> list[str]:
    if not _is_directory(access, directory):
        return []
    entries = access.list(directory)
    return [f"{directory}/{entry.name}" for entry in entries if entry.is_directory]


def _is_directory(access: FileAccess, path: str) -> bool:
    parent, _, name = path.rpartition("/")
    if not Path(parent).is_dir():
        return False
    return any(entry.is_directory and entry.name == name for entry in access.list(parent))


def _parse(name: str, text: str, default: object) -> object:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, int):
            return int(text)
        if isinstance(default, FlushDiskType):
            return FlushDiskType(text)
    except (ValueError, KeyError) as error:
        raise InvalidSettingError(
            f"{name} has a value that cannot be read", found=repr(text),
            expected=f"such as {default}",
        ) from error
    return text
