"""Malformed UTF-8, against what Java 17 made of it."""

from __future__ import annotations

import pytest

from rmqlog.commitlog_format.text import decode_text

R = "\ufffd"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("e4b8ade69687", "中文"),
        ("f09f9880", "😀"),
        ("ff41", R + "A"),
        ("e4b841", R + "A"),
        ("c080", R + R),
        ("eda080", R),
        ("eda0", R),
        ("eda08041edbfbf", R + "A" + R),
        ("f4908080", R * 4),
        ("f09f98", R),
    ],
)
def test_text_reads_as_in_java(data: str, expected: str) -> None:
    assert decode_text(bytes.fromhex(data)) == expected
