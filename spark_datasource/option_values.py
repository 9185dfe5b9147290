"""How the text of an option becomes a value: what reading and writing have in common.

Names are case-insensitive, as everywhere in Spark; an unknown or malformed option raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from rmqlog.commitlog_format.errors import InvalidSettingError, nearest_name

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


def read_text(text: str) -> str:
    """A text that is not empty."""
    if not text:
        raise ValueError("a text that is not empty")
    return text


def read_boolean(text: str) -> bool:
    """``true`` or ``false``."""
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def read_count(text: str) -> int:
    """A whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 19 and int(text) > 0):
        raise ValueError("a whole number of at least 1")
    return int(text)


def _with_unit(
    units: Mapping[str, int], expected: str, least: int = 0
) -> Callable[[str], int]:
    def parse(text: str) -> int:
        match = _NUMBER_AND_UNIT.fullmatch(text.strip())
        if match is None or match.group(2).lower() not in units or int(match.group(1)) < least:
            raise ValueError(expected)
        return int(match.group(1)) * units[match.group(2).lower()]

    return parse


read_size = _with_unit(_SIZE_UNITS, "bytes, such as 1048576, 64m or 1g")
#: A limit of no bytes would leave nothing to be read.
read_limit = _with_unit(_SIZE_UNITS, "bytes, at least 1, such as 1048576, 64m or 1g", least=1)
read_duration = _with_unit(_TIME_UNITS, "seconds, or a number with ms, s, m, h or d")


def read_timestamp(text: str) -> int:
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


def read_names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("names separated by commas")
    return names


def one_of(*choices: str) -> Callable[[str], str]:
    """One of some words, in any case."""
    def parse(text: str) -> str:
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise ValueError(" or ".join(choices))

    return parse


def read_json(text: str, expected: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = json.loads(text)
    except ValueError:
        raise ValueError(expected) from None
    if not isinstance(found, dict):
        raise ValueError(expected)
    return found


def find_option(name: str, known: Iterable[Option]) -> Option:
    """The option of a name, in any case; an unknown one raises and suggests the nearest."""
    by_name = {option.name.lower(): option for option in known}
    option = by_name.get(name.lower())
    if option is None:
        names = [option.name for option in by_name.values()]
        raise InvalidSettingError(
            "unknown option", found=name,
            expected=nearest_name(name, names, "an option of rmqlog"),
        )
    return option


def parse_option(option: Option, given: Mapping[str, str]) -> Any:
    """An option's value: the given one, its default, or ``None``."""
    text = given.get(option.name, option.default)
    if not text and option.name not in given:
        return None
    try:
        return option.parse(text)
    except ValueError as error:
        raise InvalidSettingError(
            f"malformed option {option.name}", found=text, expected=str(error)
        ) from None


def local_path(path: str) -> str:
    """A path of this machine without ``file:``; other file systems raise."""
    scheme, separator, rest = path.partition(":")
    if not separator or "/" in scheme:
        return path
    if scheme.lower() != "file":
        raise InvalidSettingError(
            "only local file systems can be used", found=path, expected="a path of this machine"
        )
    return "/" + rest.lstrip("/")
