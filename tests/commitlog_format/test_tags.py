"""Tag expressions as a broker's subscriptions have them."""

from __future__ import annotations

import pytest

from rmqlog.commitlog_format.errors import InvalidNameError
from rmqlog.commitlog_format.hashing import java_hash
from rmqlog.commitlog_format.layout import SCHEDULE_TOPIC
from rmqlog.commitlog_format.tags import TagFilter


@pytest.mark.parametrize("expression", [None, "", "  ", "*", " * "])
def test_no_expression_and_a_star_want_every_tag(expression: str | None) -> None:
    assert TagFilter.parse(expression, "orders") == TagFilter(None, None)


def test_alternatives_are_compared_by_their_hashes_first() -> None:
    wanted = frozenset({"PAID", "SENT"})

    assert TagFilter.parse("PAID||  SENT || ", "orders") == TagFilter(
        wanted, frozenset(map(java_hash, wanted))
    )
    # There units hold times of delivery.
    assert TagFilter.parse("PAID || SENT", SCHEDULE_TOPIC) == TagFilter(wanted, None)


@pytest.mark.parametrize("expression", ["||", " || || "])
def test_alternatives_without_a_tag_are_refused(expression: str) -> None:
    with pytest.raises(InvalidNameError, match="no tag"):
        TagFilter.parse(expression, "orders")
