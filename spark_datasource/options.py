"""Every option of a read, once: name, type, default and meaning.

The README's tables are made from :data:`READ_OPTIONS` by :func:`options_table`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS
from rmqlog.commitlog_format.errors import InvalidNameError, InvalidSettingError
from rmqlog.commitlog_format.tags import TagFilter
from rmqlog.spark_datasource.option_values import (
    BRIDGE_PREFIX,
    Option,
    find_option,
    local_path,
    one_of,
    parse_option,
    read_boolean,
    read_count,
    read_duration,
    read_json,
    read_limit,
    read_names,
    read_text,
    read_timestamp,
)


def _columns(text: str) -> tuple[str, ...]:
    names = read_names(text)
    for name in names:
        if name not in (*MESSAGE_COLUMNS, KEY_COLUMN) or names.count(name) > 1:
            near = get_close_matches(name, MESSAGE_COLUMNS, 1)
            raise ValueError(
                f"distinct columns of messages, did you mean {near[0]}?" if near
                else "distinct columns of messages"
            )
    return names


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(read_text(text))
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None


def _version(text: str) -> int | dict[str, int]:
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    found = read_json(text, "a physical offset, or JSON of broker name to physical offset")
    return {name: _offset(value) for name, value in found.items()}


def _offsets(text: str) -> str | dict[str, Any]:
    """``earliest``, ``latest``, ``group:<name>`` or the JSON of :mod:`offsets`."""
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    if text.startswith(GROUP_PREFIX) and len(text) > len(GROUP_PREFIX):
        return text
    expected = 'earliest, latest, group:<consumer group> or JSON such as {"orders": {"0": 100}}'
    found = read_json(text, expected)
    if not (_is_by_topic(found) or all(map(_is_by_topic, found.values()))):
        raise ValueError(expected)
    return found


def _is_by_topic(found: object) -> bool:
    """Whether a value is offsets by topic and queue; else they may be by broker besides."""
    return isinstance(found, dict) and all(map(_is_by_queue, found.values()))


def _is_by_queue(found: object) -> bool:
    return isinstance(found, dict) and all(
        _QUEUE_ID.fullmatch(name) and type(offset) is int and offset >= EARLIEST
        for name, offset in found.items()
    )


def _tags(text: str) -> str:
    try:
        TagFilter.parse(read_text(text), "")
    except InvalidNameError:
        raise ValueError("tags such as A || B") from None
    return text


def _key(text: str) -> str:
    if layout.KEY_SEPARATOR in read_text(text):
        raise ValueError("one key: a space separates the keys of a message")
    return text


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("offsets that are whole numbers")
    return value


#: The column that ``explodeKeys`` adds.
KEY_COLUMN: Final = "key"
GROUP_PREFIX: Final = "group:"
#: Kafka's words for the two ends of a queue in JSON.
LATEST: Final = -1
EARLIEST: Final = -2
METADATA_TABLES: Final = ("topics", "queues", "groups", "files")
_QUEUE_ID = re.compile(r"0|[1-9][0-9]{0,9}")

READ_OPTIONS: tuple[Option, ...] = (
    Option("path", "path", "", "the store's directory; `load()` sets it. A glob is a cluster",
           read_text),
    Option("paths", "JSON list", "", "several stores as one cluster; `load([…])` sets it",
           read_text),
    Option("topic", "name", "", "the one topic to read, system topics too", read_text),
    Option("topics", "names", "", "the topics to read, separated by commas", read_names),
    Option("topicsPattern", "regular expression", "",
           "the topics whose whole name matches; system topics only with `includeSystemTopics`",
           _pattern),
    Option("includeSystemTopics", "boolean", "false",
           "without a named topic: also delays, retries, dead letters, half messages",
           read_boolean),
    Option("includeDeletedTopics", "boolean", "false",
           "also records in the log whose topic has no queues any more", read_boolean),
    Option("brokerName", "name", "", "the value of the column `brokerName` (one store only)",
           read_text),
    Option("startingOffsets", "offsets", "earliest",
           "first queue offsets: `earliest`, `latest`, `group:<consumer group>`, or JSON "
           "`{topic: {queue: offset}}` (several stores: `{broker: {topic: …}}`); "
           "what is not named starts at the earliest, -2 is earliest, -1 latest", _offsets),
    Option("endingOffsets", "offsets", "latest",
           "queue offsets to stop before, in the same forms; what is not named ends at the "
           "latest", _offsets),
    Option("startingTimestamp", "time", "",
           "only messages stored at or after: milliseconds, or ISO time with its offset",
           read_timestamp),
    Option("endingTimestamp", "time", "", "only messages stored before", read_timestamp),
    Option("timeSlack", "duration", "60s",
           "how far back the broker's clock may have stepped; seeks by time allow for it",
           read_duration),
    Option("versionAsOf", "physical offset", "",
           "the store as it was when its log ended there (several stores: JSON by broker name)",
           _version),
    Option("tags", "tags", "", "only messages with one of the tags: `A || B`", _tags),
    Option("key", "key", "", "only messages with this token among their KEYS", _key),
    Option("explodeKeys", "boolean", "false",
           "a column `key` and a row for each distinct token of KEYS", read_boolean),
    Option("tailMessages", "count", "", "only the last so many messages of each queue", read_count),
    Option("columns", "names", "", "the columns of the table of messages, in this order", _columns),
    Option("metadata", "table", "",
           "a table about the store instead of its messages: "
           + ", ".join(f"`{name}`" for name in METADATA_TABLES), one_of(*METADATA_TABLES)),
    Option("storePathCommitLog", "paths", "",
           "the log's folders, separated by commas, when it is not in `commitlog` (one store "
           "only)", read_names),
    Option("minPartitions", "count", "", "at least so many partitions, if there are rows for them",
           read_count),
    Option("maxRecordsPerPartition", "count", "", "at most so many messages in a partition",
           read_count),
    Option("maxPartitionBytes", "size", "128m", "at most about so many bytes in a partition",
           read_limit),
    Option("failOnDataLoss", "boolean", "true",
           "fail when messages expired that the query should see; false skips and counts them",
           read_boolean),
    Option("mode", "mode", "FAILFAST",
           "damaged records: `FAILFAST`, or `DROPMALFORMED` which counts and logs what it drops",
           one_of("FAILFAST", "DROPMALFORMED")),
    Option("checkCrc", "boolean", "true", "compare the checksum of each body that is read",
           read_boolean),
    Option("bodyFormat", "format", "binary",
           "`binary`, or `string` for bodies as UTF-8 text (what is malformed becomes U+FFFD)",
           one_of("binary", "string")),
    Option("useIndex", "boolean", "true", "look keys up in the index files", read_boolean),
    Option("maxHashSlotNum", "count", "",
           "the broker's setting, needed when index files do not have four entries to a slot",
           read_count),
    Option("pushdown", "boolean", "true",
           "use filters, limits and counts for planning; false reads everything", read_boolean),
    Option("maxRecordSize", "size", "128m", "a record larger than this is damage", read_limit),
    Option("maxDecompressedSize", "size", "64m",
           "a compressed body that grows beyond this is damage", read_limit),
)


class Options:
    """The options of one read, parsed; ``options["topic"]`` is ``None`` where not given."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = {
            find_option(name, READ_OPTIONS).name: text
            for name, text in given.items() if not name.lower().startswith(BRIDGE_PREFIX)
        }
        self._values = {option.name: parse_option(option, self.given) for option in READ_OPTIONS}
        named = [name for name in ("topic", "topics", "topicsPattern") if name in self.given]
        if len(named) > 1:
            raise InvalidSettingError(
                "options exclude each other", found=" and ".join(named), expected="one of them"
            )

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    @property
    def topics(self) -> tuple[str, ...] | None:
        """The topics that are named, if any."""
        if self["topic"] is not None:
            return (self["topic"],)
        named: tuple[str, ...] | None = self["topics"]
        return named

    @property
    def paths(self) -> list[str]:
        """The paths and globs of ``load()``, local ones without their ``file:``."""
        text = self["paths"]
        given = [self["path"]] if text is None else _path_list(text)
        if given == [None]:
            raise InvalidSettingError("no path", expected='load("/path/of/the/store")')
        return [local_path(path) for path in given]


def options_table(options: Iterable[Option] = READ_OPTIONS) -> str:
    """The options as a Markdown table."""
    lines = ["| option | type | default | meaning |", "|---|---|---|---|"]
    for option in options:
        default = f"`{option.default}`" if option.default else ""
        meaning = option.meaning.replace("|", "\\|")
        lines.append(f"| `{option.name}` | {option.kind} | {default} | {meaning} |")
    return "\n".join(lines)


def _path_list(text: str) -> list[str]:
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise InvalidSettingError("malformed option paths", found=text, expected="a JSON list")
    return paths
