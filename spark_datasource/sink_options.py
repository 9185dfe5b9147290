"""Every option of a write, once: name, type, default and meaning."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Final

from rmqlog.commitlog_format.address import parse_host
from rmqlog.commitlog_format.errors import InvalidNameError, InvalidSettingError
from rmqlog.commitlog_format.store_set import is_glob
from rmqlog.spark_datasource.option_values import (
    BRIDGE_PREFIX,
    Option,
    find_option,
    local_path,
    one_of,
    parse_option,
    read_count,
    read_duration,
    read_size,
    read_text,
)
from rmqlog.spark_datasource.options import READ_OPTIONS
from rmqlog.writer.settings import StoreSettings

#: ``queueBy`` of a column of the frame, whatever its name.
COLUMN_PREFIX: Final = "column:"
#: Options of reading that say where messages are. To ignore them would lead rows elsewhere.
_OTHER_PLACES = frozenset({"paths", "storePathCommitLog"})
#: The broker's settings that files cannot do without; on an existing store they must be its own.
_FILE_SIZES = (
    "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum",
)

logger = logging.getLogger(__name__)


def _whole_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError("a whole number")
    return int(text)


def _queue_by(text: str) -> str:
    if text.lower() in ("roundrobin", "keys"):
        return "keys" if text.lower() == "keys" else "roundRobin"
    if text.startswith(COLUMN_PREFIX) and len(text) > len(COLUMN_PREFIX):
        return text
    raise ValueError("roundRobin, keys or column:<name of a column>")


def _host(text: str) -> str:
    try:
        parse_host(text)
    except InvalidNameError:
        raise ValueError("an address and a port, such as 10.0.0.1:10911") from None
    return text


WRITE_OPTIONS: tuple[Option, ...] = (
    Option("path", "path", "", "the store's directory; `save()` sets it. No glob: a write goes to "
           "one store", read_text),
    Option("topic", "name", "", "the topic of all rows; beats the column `topic`", read_text),
    Option("queueNums", "count", "4",
           "queues of a new topic; one that exists gets more where it has fewer and this is given",
           read_count),
    Option("queueBy", "rule", "roundRobin",
           "the queue of rows without `queueId`: `roundRobin` in turn, `keys` by the hash of "
           "KEYS, `column:<name>` by the hash of any column (rows without a value: in turn)",
           _queue_by),
    Option("compression", "format", "none", "of bodies: `none`, `zlib`, `lz4` or `zstd`",
           one_of("none", "zlib", "lz4", "zstd")),
    Option("compressionThreshold", "size", "4096", "bodies of fewer bytes are not compressed",
           read_size),
    Option("txnAppId", "name", "",
           "with `txnVersion`: who writes; the same write again changes nothing", read_text),
    Option("txnVersion", "number", "",
           "a write whose version is not above the application's last one is a no-op",
           _whole_number),
    Option("storeHost", "host", "127.0.0.1:10911",
           "address and port of the broker that will serve the store; message ids contain it",
           _host),
    Option("messageVersion", "version", "V1",
           "`V2` allows `%RETRY%` topics of more than 127 bytes, at which brokers before 5.1 cut "
           "the log off", one_of("V1", "V2")),
    Option("mappedFileSizeCommitLog", "size", "1g", "of a new store: bytes of a segment",
           read_size),
    Option("mappedFileSizeConsumeQueue", "size", "6000000",
           "of a new store: bytes of a queue file", read_size),
    Option("maxHashSlotNum", "count", "5000000", "of a new store: slots of an index file",
           read_count),
    Option("maxIndexNum", "count", "20000000", "of a new store: entries of an index file",
           read_count),
    Option("lockTimeout", "duration", "60s", "how long the commit waits for another writer",
           read_duration),
)


class SinkOptions:
    """The options of one write, parsed; ``options["topic"]`` is ``None`` where not given.

    Most options of reading are ignored: a catalog has one set of defaults for both.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        known = {option.name for option in WRITE_OPTIONS}
        named = {
            find_option(name, (*WRITE_OPTIONS, *READ_OPTIONS)).name: text
            for name, text in given.items() if not name.lower().startswith(BRIDGE_PREFIX)
        }
        for name in sorted(_OTHER_PLACES & named.keys()):
            raise InvalidSettingError(
                f"{name} cannot be written to", found=named[name],
                expected="a path of one store, with its log in it",
            )
        ignored = sorted(named.keys() - known)
        if ignored:
            logger.warning("options that only concern reading: %s", ", ".join(ignored))
        self.given = {name: text for name, text in named.items() if name in known}
        self._values = {option.name: parse_option(option, self.given) for option in WRITE_OPTIONS}
        if ("txnAppId" in self.given) != ("txnVersion" in self.given):
            raise InvalidSettingError(
                "txnAppId and txnVersion need each other",
                found=next(name for name in ("txnAppId", "txnVersion") if name in self.given),
                expected="both or none",
            )

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    @property
    def path(self) -> str:
        """The store's directory: absolute, and without its ``file:``."""
        path: str | None = self["path"]
        if path is None:
            raise InvalidSettingError(
                "no path", expected='save("/path/of/the/store"); INSERT INTO a table that was '
                "created by CREATE TABLE … USING rmqlog needs the bridge's jar",
            )
        # Tasks may run where the working directory is another one.
        found = os.path.abspath(local_path(path))
        if is_glob(path) and not os.path.isdir(found):
            raise InvalidSettingError(
                "a glob stands for several stores, and one is written at a time", found=path,
                expected="the path of one store",
            )
        return found

    @property
    def queue_by_column(self) -> str | None:
        """The column whose hash chooses the queue, if one does."""
        rule: str = self["queueBy"]
        if rule == "roundRobin":
            return None
        return rule.removeprefix(COLUMN_PREFIX)

    def settings(self) -> StoreSettings:
        """The settings of the store; a file size that differs from what is there raises."""
        address, _, port = self["storeHost"].rpartition(":")
        chosen = {name: self[name] for name in _FILE_SIZES if name in self.given}
        return StoreSettings.of_store(
            self.path, brokerIP1=address.strip("[]"), listenPort=int(port),
            defaultTopicQueueNums=self["queueNums"], **chosen,
        )
