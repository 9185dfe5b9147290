"""The account of what was compared: every kind is in the page, and nothing is counted twice."""

from __future__ import annotations

from pathlib import Path

from broker.features import FEATURES, THEY_WRITE, Comparisons
from broker.java_toolchain import LINE_4, LINE_5

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
ROW = {
    "topic": "orders", "queueId": 0, "queueOffset": 0, "tags": "Aa", "keys": None, "body": b"1",
    "properties": {}, "sysFlag": 0, "storeSize": 100, "bornHost": "[::1]:1",
    "storeHost": "127.0.0.1:2",
}  # fmt: skip


def test_the_page_about_compatibility_has_a_row_for_every_feature() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    rows = {line.split("|")[1].strip() for line in lines if "|" in line}
    assert FEATURES.keys() - rows == set()


def test_a_message_that_is_compared_twice_is_one_message_of_its_kind() -> None:
    comparisons = Comparisons()
    for way in ("Python", "Spark"):
        comparisons.messages(THEY_WRITE, LINE_4, way, "store", {("orders", 0): [ROW]})
    comparisons.messages(THEY_WRITE, LINE_4, "other", "another store", {("orders", 0): [ROW]})

    report = list(comparisons.report())
    assert "| tags of equal hash | 0 | 0 | 2 | 0 |" in report
    assert "| no tag | 0 | 0 | 0 | 0 |" in report
    assert f"| Spark | {THEY_WRITE} | 0 | 1 |" in report
    assert LINE_5.version in report[0]


def test_nothing_is_reported_where_nothing_was_compared() -> None:
    assert list(Comparisons().report()) == []
