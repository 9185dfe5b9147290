"""Properties of many records at once: uniform, mixed, repeated and broken ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from random_records import PLAIN_RECORD, build_log

from rmqlog.commitlog_format.properties import parse_properties
from rmqlog.commitlog_format.records import RecordDecoder
from rmqlog.commitlog_format.text import decode_text

pytestmark = pytest.mark.usefixtures("loops")

COLUMNS = ["uniqKey", "tags", "keys", "properties"]
MANY_NAMES = b"".join(b"name-%d\x01value\x02" % number for number in range(70))


def rows(strings: list[bytes], columns: list[str] = COLUMNS) -> list[dict[str, object]]:
    log = build_log([replace(PLAIN_RECORD, properties=string) for string in strings])
    batch = RecordDecoder(columns).decode(log.window, log.base_offset, log.offsets)
    batch.validate(full=True)
    found: list[dict[str, object]] = batch.to_pylist()
    return found


@pytest.mark.parametrize(
    "strings",
    [
        [b"KEYS\x01k\x02TAGS\x01a\x02", b"KEYS\x01other\x02TAGS\x01b\x02"],
        [b"KEYS\x01k\x02TAGS\x01a", b"KEYS\x01other\x02TAGS\x01b"],
        [b"KEYS\x01k\x02TAGS\x01a", b"KEYS\x01k\x02TAGS\x01a\x02"],
        [b"KEYS\x01k\x02TAGS\x01a\x02", b"TAGS\x01a\x02KEYS\x01k\x02"],
        [b"KEYS\x01k\x02", b"KEYZ\x01k\x02"],
        [b"KEYS\x01k\x02", b"KEY\x01kk\x02"],
        [b"KEYS\x01\x02TAGS\x01a\x02", b"KEYS\x01k\x02TAGS\x01a\x02"],
        [b"TAGS\x01a\x02TAGS\x01b\x02", b"TAGS\x01a\x02TAGS\x01c\x02"],
        [b"TAGS\x01a\x02KEYS\x01k\x02TAGS\x01b\x02", b""],
        [b"TAGS\x01a\x01b\x02", b"TAGS\x01a\x01b\x02"],
        [b"TAGS\x01a\x00", b"TAGS\x01a\x00"],
        [b"TAGS\x01a\x02\x00", b"TAGS\x01a\x00\x02"],
        [b"TAGS\x02a\x01", b"TAGS\x02a\x01"],
        [b"\x01a\x02", b"\x01b\x02"],
        [b"TAGS\x01a\x02", b"TAGS\x01a\x02b\x01c\x02", b"none"],
        ["标签\x01已支付\x02".encode(), "标签\x01😀\x02".encode()],
        [b"\xff\x01a\x02\xfe\x01b\x02", b"\xff\x01a\x02\xfe\x01b\x02"],
        [b"a\x01\xff\x02", b"a\x01b\x02"],
        [MANY_NAMES, b"TAGS\x01a\x02"],
        [MANY_NAMES + b"name-3\x01last\x02", b"TAGS\x01a\x02"],
        [b"", b""],
        [],
    ],
)
def test_columns_are_what_the_parser_of_one_string_gives(strings: list[bytes]) -> None:
    parsed = [parse_properties(decode_text(string)) for string in strings]
    assert rows(strings) == [
        {
            "uniqKey": pairs.get("UNIQ_KEY"),
            "tags": pairs.get("TAGS"),
            "keys": pairs.get("KEYS"),
            "properties": list(pairs.items()),
        }
        for pairs in parsed
    ]
    assert rows(strings, ["tags"]) == [{"tags": pairs.get("TAGS")} for pairs in parsed]
