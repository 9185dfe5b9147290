"""Every option of the source, once: name, type, default and meaning.

The README's tables are made from :data:`READ_OPTIONS` by :func:`options_table`. Names are
case-insensitive, as everywhere in Spark; an unknown or malformed option raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final

from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS
from rmqlog.commitlog_format.errors import InvalidSettingError

#: What the bridge adds; see bridge/README.md.
BRIDGE_PREFIX: Final = "__rmqlog."

_SIZE_UNITS = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30,
               "gb": 2**30}
_TIME_UNITS = {"ms": 1, "": 1000, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NUMBER_AND_UNIT = re.compile(r"(\d{1,18})\s*([A-Za-z]*)")
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: how its text is read, what holds without it, and what it means."""

    name: str
    kind: str
    default: str
    meaning: str
    parse: Callable[[str], Any]


def _text(text: str) -> str:
    if not text:
        raise ValueError("a text that is not empty")
    return text


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 19 and int(text) > 0):
        raise ValueError("a whole number of at least 1")
    return int(text)


def _with_unit(units: Mapping[str, int], expected: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        match = _NUMBER_AND_UNIT.fullmatch(text.strip())
        if match is None or match.group(2).lower() not in units:
            raise ValueError(expected)
        return int(match.group(1)) * units[match.group(2).lower()]

    return parse


_size = _with_unit(_SIZE_UNITS, "bytes, such as 1048576, 64m or 1g")
_duration = _with_unit(_TIME_UNITS, "seconds, or a number with ms, s, m, h or d")


def _timestamp(text: str) -> int:
    """Milliseconds of a number, or of an ISO time; without its offset a time is a guess."""
    expected = "milliseconds, or an ISO time with its offset such as 2026-01-31T12:00:00+08:00"
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(expected) from None
    if moment.tzinfo is None:
        raise ValueError(expected)
    # Upwards, so that [start, end) keeps its meaning between two milliseconds.
    return -((_EPOCH - moment) // _MILLISECOND)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("names separated by commas")
    return names


def _columns(text: str) -> tuple[str, ...]:
    names = _names(text)
    for name in names:
        if name not in (*MESSAGE_COLUMNS, KEY_COLUMN) or names.count(name) > 1:
            near = get_close_matches(name, MESSAGE_COLUMNS, 1)
            raise ValueError(
                f"distinct columns of the table, did you mean {near[0]}?" if near
                else "distinct columns of the table"
            )
    return names


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(_text(text))
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise ValueError(" or ".join(choices))

    return parse


def _version(text: str) -> int | dict[str, int]:
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    found = _json(text, "a physical offset, or JSON of broker name to physical offset")
    return {name: _offset(value) for name, value in found.items()}


def _offsets(text: str) -> str | dict[str, Any]:
    """``earliest``, ``latest``, ``group:<name>`` or the JSON of :mod:`offsets`."""
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    if text.startswith(GROUP_PREFIX) and len(text) > len(GROUP_PREFIX):
        return text
    return _json(
        text, 'earliest, latest, group:<consumer group> or JSON such as {"orders": {"0": 100}}'
    )


def _json(text: str, expected: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise ValueError(expected) from None
    if not isinstance(found, dict):
        raise ValueError(expected)
    return found


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("offsets that are whole numbers")
    return value


#: The column that ``explodeKeys`` adds.
KEY_COLUMN: Final = "key"
GROUP_PREFIX: Final = "group:"
METADATA_TABLES: Final = ("topics", "queues", "groups", "files")

READ_OPTIONS: tuple[Option, ...] = (
    Option("path", "path", "", "the store's directory; `load()` sets it. A glob is a cluster",
           _text),
    Option("paths", "JSON list", "", "several stores as one cluster; `load([…])` sets it", _text),
    Option("topic", "name", "", "the one topic to read, system topics too", _text),
    Option("topics", "names", "", "the topics to read, separated by commas", _names),
    Option("topicsPattern", "regular expression", "",
           "the topics whose whole name matches; system topics only with `includeSystemTopics`",
           _pattern),
    Option("includeSystemTopics", "boolean", "false",
           "without a named topic: also delays, retries, dead letters, half messages", _boolean),
    Option("includeDeletedTopics", "boolean", "false",
           "also records in the log whose topic has no queues any more", _boolean),
    Option("brokerName", "name", "", "the value of the column `brokerName` (one store only)",
           _text),
    Option("startingOffsets", "offsets", "earliest",
           "first queue offsets: `earliest`, `latest`, `group:<consumer group>`, or JSON "
           "`{topic: {queue: offset}}` (several stores: `{broker: {topic: …}}`); "
           "what is not named starts at the earliest, -2 is earliest, -1 latest", _offsets),
    Option("endingOffsets", "offsets", "latest",
           "queue offsets to stop before, in the same forms; what is not named ends at the "
           "latest", _offsets),
    Option("startingTimestamp", "time", "",
           "only messages stored at or after: milliseconds, or ISO time with its offset",
           _timestamp),
    Option("endingTimestamp", "time", "", "only messages stored before", _timestamp),
    Option("timeSlack", "duration", "60s",
           "how far back the broker's clock may have stepped; seeks by time allow for it",
           _duration),
    Option("versionAsOf", "physical offset", "",
           "the store as it was when its log ended there (several stores: JSON by broker name)",
           _version),
    Option("tags", "tags", "", "only messages with one of the tags: `A || B`", _text),
    Option("key", "key", "", "only messages with this token among their KEYS", _text),
    Option("explodeKeys", "boolean", "false",
           "a column `key` and a row for each distinct token of KEYS", _boolean),
    Option("tailMessages", "count", "", "only the last so many messages of each queue", _count),
    Option("columns", "names", "", "the columns of the table, in this order", _columns),
    Option("metadata", "table", "",
           "a table about the store instead of its messages: "
           + ", ".join(f"`{name}`" for name in METADATA_TABLES), _one_of(*METADATA_TABLES)),
    Option("storePathCommitLog", "paths", "",
           "the log's folders, separated by commas, when it is not in `commitlog` (one store "
           "only)", _names),
    Option("minPartitions", "count", "", "at least so many partitions, if there are rows for them",
           _count),
    Option("maxRecordsPerPartition", "count", "", "at most so many messages in a partition",
           _count),
    Option("maxPartitionBytes", "size", "128m", "at most about so many bytes in a partition",
           _size),
    Option("failOnDataLoss", "boolean", "true",
           "fail when messages expired that the query should see; false skips and counts them",
           _boolean),
    Option("mode", "mode", "FAILFAST",
           "damaged records: `FAILFAST`, or `DROPMALFORMED` which counts and logs what it drops",
           _one_of("FAILFAST", "DROPMALFORMED")),
    Option("checkCrc", "boolean", "true", "compare the checksum of each body that is read",
           _boolean),
    Option("bodyFormat", "format", "binary",
           "`binary`, or `string` for bodies as UTF-8 text (what is malformed becomes U+FFFD)",
           _one_of("binary", "string")),
    Option("useIndex", "boolean", "true", "look keys up in the index files", _boolean),
    Option("maxHashSlotNum", "count", "",
           "the broker's setting, needed when index files do not have four entries to a slot",
           _count),
    Option("pushdown", "boolean", "true",
           "use filters, limits and counts for planning; false reads everything", _boolean),
    Option("maxRecordSize", "size", "128m", "a record larger than this is damage", _size),
    Option("maxDecompressedSize", "size", "64m",
           "a compressed body that grows beyond this is damage", _size),
)
_BY_NAME = {option.name.lower(): option for option in READ_OPTIONS}


class Options:
    """The options of one read, parsed; ``options["topic"]`` is ``None`` where not given."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = {
            find_option(name).name: text
            for name, text in given.items() if not name.lower().startswith(BRIDGE_PREFIX)
        }
        self._values = {option.name: _parse(option, self.given) for option in READ_OPTIONS}
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
        return [_local_path(path) for path in given]


def find_option(name: str, known: Iterable[Option] = READ_OPTIONS) -> Option:
    """The option of a name, in any case; an unknown one raises and suggests the nearest."""
    by_name = _BY_NAME if known is READ_OPTIONS else {one.name.lower(): one for one in known}
    option = by_name.get(name.lower())
    if option is None:
        near = get_close_matches(name.lower(), by_name, 1)
        raise InvalidSettingError(
            "unknown option", found=name,
            expected=f"did you mean {by_name[near[0]].name}?" if near else "an option of rmqlog",
        )
    return option


def options_table(options: Iterable[Option] = READ_OPTIONS) -> str:
    """The options as a Markdown table."""
    lines = ["| option | type | default | meaning |", "|---|---|---|---|"]
    for option in options:
        default = f"`{option.default}`" if option.default else ""
        meaning = option.meaning.replace("|", "\\|")
        lines.append(f"| `{option.name}` | {option.kind} | {default} | {meaning} |")
    return "\n".join(lines)


def _parse(option: Option, given: Mapping[str, str]) -> Any:
    text = given.get(option.name, option.default)
    if not text and option.name not in given:
        return None
    try:
        return option.parse(text)
    except ValueError as error:
        raise InvalidSettingError(
            f"malformed option {option.name}", found=text, expected=str(error)
        ) from None


def _path_list(text: str) -> list[str]:
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise InvalidSettingError("malformed option paths", found=text, expected="a JSON list")
    return paths


def _local_path(path: str) -> str:
    scheme, separator, rest = path.partition(":")
    if not separator or "/" in scheme:
        return path
    if scheme.lower() != "file":
        raise InvalidSettingError(
            "only local file systems are read", found=path, expected="a path of this machine"
        )
    return "/" + rest.lstrip("/")
