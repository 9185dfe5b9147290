"""The bloom bitmap of an ext unit: which SQL92 groups a message may be for (BloomFilter.java)."""

from __future__ import annotations

import mmh3

from rmqlog.commitlog_format.layout import BLOOM_BIT_COUNT, BLOOM_HASH_COUNT


def bloom_bits(group: str, topic: str, bit_count: int = BLOOM_BIT_COUNT) -> tuple[int, ...]:
    """The bits that a consumer group sets for the messages of a topic that it wants."""
    low_word = mmh3.hash64(f"{group}#{topic}", seed=0, x64arch=True, signed=False)[0]
    first, second = low_word & 0xFFFFFFFF, low_word >> 32
    bits = []
    for round_number in range(1, BLOOM_HASH_COUNT + 1):
        # Java's int arithmetic: the sum wraps, and a negative one is complemented.
        combined = (first + round_number * second) & 0xFFFFFFFF
        if combined & 0x80000000:
            combined ^= 0xFFFFFFFF
        bits.append(combined % bit_count)
    return tuple(bits)


def is_hit(bitmap: bytes, group: str, topic: str, bit_count: int = BLOOM_BIT_COUNT) -> bool:
    """Whether the message may be for the group; ``False`` is certain.

    A bitmap of another length (an empty one: the broker did not compute it) excludes nobody,
    as in ExpressionMessageFilter.java.
    """
    if 8 * len(bitmap) != bit_count:
        return True
    return all(bitmap[bit // 8] >> (bit % 8) & 1 for bit in bloom_bits(group, topic, bit_count))
