"""The bloom bits of a group, as BloomFilter.java computes them."""

from __future__ import annotations

from rmqlog.commitlog_format.bloom import bloom_bits, is_hit


def bitmap_of(*bits: int, size: int = 14) -> bytes:
    value = 0
    for bit in bits:
        value |= 1 << bit
    return value.to_bytes(size, "little")


def test_the_golden_vector_is_computed() -> None:
    assert bloom_bits("GroupA", "TopicTest") == (105, 17, 70)


def test_the_bits_that_a_real_broker_stored_for_its_groups_are_computed() -> None:
    assert bloom_bits("gen_sql_0", "orders") == (70, 100, 96)
    assert bloom_bits("gen_sql_1", "orders") == (111, 54, 34)
    assert bloom_bits("gen_sql_2", "orders") == (58, 10, 64)
    assert bloom_bits("gen_sql_3", "orders") == (26, 60, 49)


def test_a_group_is_hit_only_if_all_its_bits_are_set() -> None:
    assert is_hit(bitmap_of(105, 17, 70), "GroupA", "TopicTest")
    assert is_hit(bitmap_of(105, 17, 70, 3), "GroupA", "TopicTest")
    assert not is_hit(bitmap_of(105, 17), "GroupA", "TopicTest")
    assert not is_hit(bitmap_of(), "GroupA", "TopicTest")


def test_a_bitmap_of_another_length_excludes_nobody() -> None:
    for bitmap in (b"", bytes(13), bytes(15)):
        assert is_hit(bitmap, "GroupA", "TopicTest")
