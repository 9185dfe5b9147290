"""Filter trees: three-valued logic, binding, and constraints that never exclude a true row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from query_reference import answers

from rmqlog.commitlog_format.errors import InvalidSettingError
from rmqlog.commitlog_format.hashing import java_hash
from rmqlog.spark_datasource.constraints import Constraints, constraints_of
from rmqlog.spark_datasource.intervals import EVERYTHING, NOTHING, Intervals
from rmqlog.spark_datasource.predicates import (
    FALSE,
    TRUE,
    Unknown,
    bind,
    columns_of,
    describe,
    parse_filters,
)

TEXTS = ("Aa", "BB", "a b", "b", "", "已支付", "0A0B0C0D00002A9F0000000000000005", "zz")
NUMBERS = (-1, 0, 1, 5, 6, 2**40)
TEXT_COLUMNS = ("tags", "keys", "uniqKey", "msgId", "topic", "brokerName")
NUMBER_COLUMNS = ("queueId", "queueOffset", "commitLogOffset", "storeTimestamp", "storeSize")

_text_leaf = st.builds(
    lambda op, column, value: {"op": op, "column": column, "type": "string", "value": value},
    st.sampled_from(["eq", "eqNullSafe", "lt", "ge", "startsWith", "endsWith", "contains"]),
    st.sampled_from(TEXT_COLUMNS), st.none() | st.sampled_from(TEXTS),
)
_number_leaf = st.builds(
    lambda op, column, value: {"op": op, "column": column, "type": "long", "value": value},
    st.sampled_from(["eq", "eqNullSafe", "lt", "le", "gt", "ge"]),
    st.sampled_from(NUMBER_COLUMNS), st.none() | st.sampled_from(NUMBERS),
)
_in_leaf = st.one_of(
    st.builds(
        lambda column, values: {"op": "in", "column": column, "type": "string", "values": values},
        st.sampled_from(TEXT_COLUMNS), st.lists(st.none() | st.sampled_from(TEXTS), min_size=1)),
    st.builds(
        lambda column, values: {"op": "in", "column": column, "type": "long", "values": values},
        st.sampled_from(NUMBER_COLUMNS),
        st.lists(st.none() | st.sampled_from(NUMBERS), min_size=1)),
)
_null_leaf = st.builds(
    lambda op, column: {"op": op, "column": column},
    st.sampled_from(["isNull", "isNotNull"]), st.sampled_from(TEXT_COLUMNS + NUMBER_COLUMNS),
)
_constant = st.sampled_from([{"op": "true"}, {"op": "false"}])
TREES = st.recursive(
    st.one_of(_text_leaf, _number_leaf, _in_leaf, _null_leaf, _constant),
    lambda inner: st.one_of(
        st.builds(
            lambda op, args: {"op": op, "args": args},
            st.sampled_from(["and", "or"]), st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda arg: {"op": "not", "args": [arg]}, inner)),
    max_leaves=8,
)
#: No property has an empty value.
_property = st.none() | st.sampled_from([text for text in TEXTS if text])
ROWS = st.fixed_dictionaries({
    **dict.fromkeys(("tags", "keys", "uniqKey"), _property),
    **dict.fromkeys(("topic", "brokerName"), st.sampled_from(TEXTS)),
    "msgId": st.sampled_from(["0A0B0C0D00002A9F0000000000000005", "0" * 31 + "1"]),
    **dict.fromkeys(("queueId", "queueOffset", "storeTimestamp"), st.sampled_from(NUMBERS)),
    "storeSize": st.none() | st.sampled_from(NUMBERS),
})


def _with_place(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "commitLogOffset": int(row["msgId"][-16:], 16)}


@given(TREES, ROWS.map(_with_place))
def test_binding_every_column_gives_sqls_answer(tree: dict[str, Any], row: dict[str, Any]) -> None:
    parsed = parse_filters(json.dumps(tree))
    assert bind(parsed, row) == (TRUE if answers(tree, row) is True else FALSE)


@given(TREES, ROWS.map(_with_place))
def test_a_true_row_satisfies_every_constraint(tree: dict[str, Any], row: dict[str, Any]) -> None:
    if answers(tree, row) is not True:
        return
    parsed = parse_filters(json.dumps(tree))
    known = {name: row[name] for name in ("brokerName", "topic", "queueId")}
    for found in (constraints_of(parsed), constraints_of(bind(parsed, known))):
        assert _satisfies(found, row), (found, row)


def _satisfies(found: Constraints, row: dict[str, Any]) -> bool:
    tokens = {*(row["keys"] or "").split(" "), row["uniqKey"]}
    codes = found.tags_codes
    return (
        not found.is_never
        and (found.tags is None or row["tags"] in found.tags)
        and (codes is None or (java_hash(row["tags"]) if row["tags"] else 0) in codes)
        and (found.tokens is None or not found.tokens.isdisjoint(tokens))
        and _holds(found.queue_offsets, row["queueOffset"])
        and _holds(found.log_offsets, row["commitLogOffset"])
        and _holds(found.store_times_us, row["storeTimestamp"])
        and (row["storeSize"] is None or _holds(found.sizes, row["storeSize"]))
    )


def _holds(intervals: Intervals, value: int) -> bool:
    return any(first <= value <= last for first, last in intervals.runs)


RUNS = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), max_size=5)


@given(RUNS, RUNS, st.integers(0, 3))
def test_intervals_are_sets(one: list[Any], two: list[Any], margin: int) -> None:
    def members(found: Intervals) -> set[int]:
        return {number for number in range(-30, 31) if _holds(found, number)}

    first, second = Intervals.of(one), Intervals.of(two)
    assert members(first & second) == members(first) & members(second)
    assert members(first | second) == members(first) | members(second)
    assert members(first.complement()) == set(range(-30, 31)) - members(first)
    near = {n + d for n in members(first) for d in range(-margin, margin + 1)}
    assert members(first.widened(margin)) == near
    assert (first & EVERYTHING) == first
    assert (first & NOTHING) == NOTHING


@pytest.mark.parametrize("text", [
    "no json", "[]", '{"op": "and"}', '{"op": "xor", "args": []}',
    '{"op": "eq", "column": "tags", "type": "colour", "value": 1}',
    '{"op": "eq", "column": "queueId", "type": "long", "value": "1"}',
    '{"op": "like", "column": "tags", "type": "string", "value": "a%"}',
    '{"op": "not", "args": []}',
])
def test_a_form_that_the_contract_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettingError, match="contract"):
        parse_filters(text)


def test_an_unknown_condition_is_left_to_spark() -> None:
    leaf = {"op": "eq", "column": "tags", "type": "string", "value": "A"}
    both = parse_filters(json.dumps({"op": "and", "args": [leaf, {"op": "unknown"}]}))
    either = parse_filters(json.dumps({"op": "or", "args": [leaf, {"op": "unknown"}]}))
    assert parse_filters('{"op": "not", "args": [{"op": "unknown"}]}') == Unknown()
    assert constraints_of(both).tags == frozenset({"A"})
    assert constraints_of(either).tags is None
    assert columns_of(both) == {"tags"}
    assert describe(both) == "(tags eq 'A' AND ?)"


def test_a_tag_that_holds_a_replacement_character_is_not_looked_up_by_hash() -> None:
    tree = parse_filters(json.dumps(
        {"op": "eq", "column": "tags", "type": "string", "value": "a\ufffd"}))
    assert constraints_of(tree).tags_codes is None
