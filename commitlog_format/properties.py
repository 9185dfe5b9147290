"""A record's properties string: ``name 0x01 value 0x02``, repeated (MessageDecoder.java)."""

from __future__ import annotations

from collections.abc import Mapping

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import InvalidNameError

_NAME_VALUE = chr(layout.NAME_VALUE_SEPARATOR)
_PAIR_END = chr(layout.PROPERTY_SEPARATOR)


def parse_properties(text: str) -> dict[str, str]:
    """The properties as RocketMQ's decoder (4.9.1 and later) gives them.

    The last pair may lack its separator. An empty name or value vanishes; of two pairs with one
    name the last one wins, in the place of the first; a value may hold further 0x01.
    """
    found: dict[str, str] = {}
    for pair in text.split(_PAIR_END):
        name, _, value = pair.partition(_NAME_VALUE)
        if name and value:
            found[name] = value
    return found


def format_properties(properties: Mapping[str, str]) -> str:
    """The string of a mapping, with the trailing separator that every broker accepts."""
    for name, value in properties.items():
        for text in (name, value):
            if _NAME_VALUE in text or _PAIR_END in text:
                raise InvalidNameError(
                    "a property may not contain the separators 0x01 and 0x02", found=repr(text)
                )
    return "".join(
        f"{name}{_NAME_VALUE}{value}{_PAIR_END}" for name, value in properties.items()
    )


def split_keys(keys: str | None) -> list[str]:
    """The tokens of KEYS that a broker indexes, duplicates kept."""
    return [key for key in (keys or "").split(layout.KEY_SEPARATOR) if key]
