"""Java's string hash, against values that Java computed."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqlog.commitlog_format.hashing import index_hash, index_hashes, java_hash, java_hashes

pytestmark = pytest.mark.usefixtures("loops")

GOLDEN_HASHES = {
    "": 0,
    "TagA": 2598919,
    "order-1": -1207111310,
    "TopicTest#order-1": -1829193424,
    "polygenelubricants": -2147483648,
    "中文": 646394,
    "标签": 857175,
    "😀": 1772899,
    "SCHEDULE_TOPIC_XXXX": -1995822632,
}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize(("text", "expected"), GOLDEN_HASHES.items())
def test_one_string_hashes_as_in_java(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_a_column_hashes_as_in_java_and_null_as_the_empty_string() -> None:
    column = pa.array([*GOLDEN_HASHES, None])
    assert java_hashes(column).tolist() == [*GOLDEN_HASHES.values(), 0]


def test_a_slice_of_a_column_hashes_its_own_strings() -> None:
    column = pa.array(list(GOLDEN_HASHES)).slice(2, 4)
    assert java_hashes(column).tolist() == list(GOLDEN_HASHES.values())[2:6]


def test_an_empty_column_has_no_hashes() -> None:
    assert java_hashes(pa.array([], pa.string())).tolist() == []
    assert index_hashes("orders", pa.array([], pa.string())).tolist() == []


def test_equal_hashes_of_different_strings_are_equal_here_too() -> None:
    assert java_hash("Aa") == java_hash("BB")


def test_the_index_hash_is_absolute_and_of_topic_and_key() -> None:
    assert index_hash("TopicTest", "order-1") == 1829193424


def test_the_index_hash_of_the_smallest_number_is_zero() -> None:
    topic, key = "JyHaNws", "a"  # their hash, joined by "#", is -2**31
    assert java_hash(f"{topic}#{key}") == -(2**31)
    assert index_hash(topic, key) == 0
    assert index_hashes(topic, pa.array([key])).tolist() == [0]


@given(st.lists(texts, max_size=30))
def test_columns_and_single_strings_agree(values: list[str]) -> None:
    assert java_hashes(pa.array(values, pa.string())).tolist() == [java_hash(v) for v in values]


@given(st.lists(st.tuples(texts, texts), max_size=20), texts)
def test_index_hashes_of_columns_and_single_keys_agree(
    pairs: list[tuple[str, str]], topic: str
) -> None:
    topics = pa.array([pair[0] for pair in pairs], pa.string())
    keys = pa.array([pair[1] for pair in pairs], pa.string())
    assert index_hashes(topics, keys).tolist() == [index_hash(*pair) for pair in pairs]
    assert index_hashes(topic, keys).tolist() == [index_hash(topic, pair[1]) for pair in pairs]
