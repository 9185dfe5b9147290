"""The files of ``config/``: JSON as fastjson writes it, with a backup beside each.

Maps with integer keys are written without quotes, which is no JSON; a kill while a file is
replaced leaves only its ``.bak`` (ConfigManager.java).
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass, field
from typing import Any

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import (
    CorruptConfigError,
    LimitExceededError,
    SegmentExpiredError,
)
from rmqlog.commitlog_format.files import FileAccess
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits

TOPICS = "topics.json"
CONSUMER_OFFSETS = "consumerOffset.json"
DELAY_OFFSETS = "delayOffset.json"
SUBSCRIPTION_GROUPS = "subscriptionGroup.json"
LMQ_CONSUMER_OFFSETS = "lmqConsumerOffset.json"
BACKUP_SUFFIX = ".bak"

_GROUP_SEPARATOR = "@"
_INTEGER_KEY = re.compile(r"(?<=[{,])(\s*)(-?\d+)(\s*:)")
#: JSON nests deeper than this only in an attack on the parser's stack.
_MAX_NESTING = 64

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic as ``topics.json`` describes it."""

    name: str
    read_queue_count: int
    write_queue_count: int
    perm: int
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """What a store's ``config/`` says; a missing file is an empty table.

    ``consumer_offsets`` is by (topic, group): queue → the next offset to consume;
    ``delay_offsets`` by delay level: the next unit of its queue to deliver. It is empty too while
    nothing was delivered, so ``has_delay_offsets`` tells whether the file is there.
    """

    topics: dict[str, TopicConfig]
    consumer_offsets: dict[tuple[str, str], dict[int, int]]
    delay_offsets: dict[int, int]
    has_delay_offsets: bool
    subscription_groups: dict[str, Json]


def read_config_files(
    access: FileAccess, directory: str, limits: Limits = DEFAULT_LIMITS
) -> ConfigFiles:
    """Read ``<directory>/config``; a damaged file without a good backup raises."""
    config = f"{directory}/{layout.CONFIG_DIRECTORY}"

    def table(name: str, member: str) -> tuple[str, Json]:
        path, content = _read_json(access, f"{config}/{name}", limits)
        return path, _member(content, member, path)

    path, topics = table(TOPICS, "topicConfigTable")
    topic_configs = {name: _topic(name, value, path) for name, value in topics.items()}
    path, offsets = table(CONSUMER_OFFSETS, "offsetTable")
    consumer_offsets = {_topic_group(key, path): _integers(value, path)
                        for key, value in offsets.items()}
    path, lmq_offsets = table(LMQ_CONSUMER_OFFSETS, "lmqOffsetTable")
    for key, value in lmq_offsets.items():
        consumer_offsets[_topic_group(key, path)] = _integers({"0": value}, path)
    path, delays = _read_json(access, f"{config}/{DELAY_OFFSETS}", limits)
    delay_offsets = _integers(_member(delays, "offsetTable", path), path)
    path_of_groups, groups = table(SUBSCRIPTION_GROUPS, "subscriptionGroupTable")
    for name, value in groups.items():
        _expect_object(value, f"group {name}", path_of_groups)
    return ConfigFiles(topic_configs, consumer_offsets, delay_offsets, bool(delays), groups)


def parse_json(data: bytes, path: str = "") -> Json:
    """A JSON object as fastjson writes it: integer keys may lack their quotes."""
    try:
        text = data.decode("utf-8")
        _check_nesting(text, path)
        content = json.loads(_quote_integer_keys(text))
    except (ValueError, RecursionError) as error:
        raise CorruptConfigError("not JSON", path, found=str(error)) from error
    return _expect_object(content, "the file", path)


def _quote_integer_keys(text: str) -> str:
    """Quotes around integer keys; strings are left alone. In linear time and memory."""
    quoted = io.StringIO()
    position = 0
    while position < len(text):
        string_start = text.find('"', position)
        if string_start < 0:
            string_start = len(text)
        quoted.write(_INTEGER_KEY.sub(r'\1"\2"\3', text[position:string_start]))
        position = _string_end(text, string_start + 1)
        quoted.write(text[string_start:position])
    return quoted.getvalue()


def _string_end(text: str, start: int) -> int:
    """The position behind the quote that ends a string, or behind the text."""
    while True:
        end = text.find('"', start)
        if end < 0:
            return len(text)
        piece = text[start:end]
        if (len(piece) - len(piece.rstrip("\\"))) % 2 == 0:
            return end + 1
        start = end + 1  # this quote was escaped


def _check_nesting(text: str, path: str) -> None:
    depth = 0
    for bracket in re.finditer(r"[\[\]{}]", text):
        depth += 1 if bracket.group() in "[{" else -1
        if depth > _MAX_NESTING:
            raise CorruptConfigError(
                "nested too deeply", path, bracket.start(), depth, f"at most {_MAX_NESTING}"
            )


def _read_json(access: FileAccess, path: str, limits: Limits) -> tuple[str, Json]:
    """The file, or its backup when the file is missing, empty or damaged; else an empty one."""
    damage: CorruptConfigError | None = None
    for candidate in (path, path + BACKUP_SUFFIX):
        try:
            file = access.open(candidate)
        except SegmentExpiredError:
            continue
        size = file.size()
        if size > limits.config_size:
            raise LimitExceededError(
                "config file is larger than allowed", candidate, found=size,
                expected=limits.config_size,
            )
        if size == 0:
            continue
        try:
            return candidate, parse_json(file.read(0, size), candidate)
        except CorruptConfigError as error:
            damage = damage or error
    if damage is not None:
        raise damage
    return path, {}


def _member(content: Json, name: str, path: str) -> Json:
    value = content.get(name)
    return {} if value is None else _expect_object(value, name, path)


def _topic(name: str, value: object, path: str) -> TopicConfig:
    fields = _expect_object(value, f"topic {name}", path)
    attributes = _expect_object(fields.get("attributes") or {}, f"attributes of {name}", path)
    return TopicConfig(
        name,
        _integer(fields.get("readQueueNums", 16), path),
        _integer(fields.get("writeQueueNums", 16), path),
        _integer(fields.get("perm", 6), path),
        bool(fields.get("order", False)),
        {key: str(text) for key, text in attributes.items()},
    )


def _topic_group(key: str, path: str) -> tuple[str, str]:
    # Neither a topic nor a group may contain the separator; group names come last.
    topic, separator, group = key.rpartition(_GROUP_SEPARATOR)
    if not separator:
        raise CorruptConfigError("not topic@group", path, found=repr(key))
    return topic, group


def _integers(value: object, path: str) -> dict[int, int]:
    table = _expect_object(value, "an offset table", path)
    return {_integer(key, path): _integer(number, path) for key, number in table.items()}


def _integer(value: object, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise CorruptConfigError("not a whole number", path, found=repr(value)[:80])
    try:
        return int(value)
    except ValueError as error:
        raise CorruptConfigError("not a whole number", path, found=repr(value)[:80]) from error


def _expect_object(value: object, what: str, path: str) -> Json:
    if not isinstance(value, dict):
        raise CorruptConfigError(f"{what} is not an object", path, found=repr(value)[:80])
    return value
