"""Damage to CommitLog records, one kind at a time, from a seeded random source."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from golden_stores import GoldenStore

from rmqlog.commitlog_format.layout import I16, I32, I64, MAGIC_V2, U32, SysFlag
from rmqlog.commitlog_format.message import host_size

SEED_RECORD_SIZE_MAX = 3_000
SEED_RECORDS_OF_A_KIND = 2

LENGTHS = (0, 1, -1, 2, 7, 8, 91, 92, 127, 128, 255, 256, 32_767, -32_768, 2**31 - 1, -(2**31))
PORTS = (0, 1, 65_535, 65_536, -1, 2**31 - 1)
TIMES = (0, 1, -1, 2**53, 2**63 - 1, -(2**63))
# Surrogates, overlong forms, truncated and impossible sequences.
BAD_UTF8 = (
    *(b"\xed\xa0\x80", b"\xed\xa0a", b"\xc0\x80a", b"\xf0\x9f\x98", b"\xff\xfea"),
    *(b"\xe4\xb8a", b"\xf4\x90\x80"),
)


def seed_records(stores: Iterable[GoldenStore]) -> list[bytes]:
    """Records of real brokers: a few of each topic, format version and set of flags."""
    seeds = []
    for store in stores:
        files = {int(path.name): path.read_bytes() for path in (store.path / "commitlog").iterdir()}
        segment_size = len(next(iter(files.values())))
        taken: Counter[tuple[str, int, str]] = Counter()
        for row in store.log:
            if row["kind"] != "record" or row["storeSize"] > SEED_RECORD_SIZE_MAX:
                continue
            kind = (row["magic"], row["rawSysFlag"], row["msg"]["topic"])
            taken[kind] += 1
            if taken[kind] <= SEED_RECORDS_OF_A_KIND:
                start = row["commitLogOffset"] % segment_size
                segment = files[row["commitLogOffset"] - start]
                seeds.append(segment[start : start + row["storeSize"]])
    return seeds


@dataclass(frozen=True)
class Places:
    """Where the fields of an undamaged record lie whose place depends on others."""

    born_port: int
    store_timestamp: int
    store_port: int
    body_size: int
    topic_size: int
    properties_size: int

    @classmethod
    def of(cls, record: bytes) -> Places:
        """The places in one record."""
        sys_flag = I32.unpack_from(record, 36)[0]
        born = host_size(sys_flag, SysFlag.BORN_HOST_V6)
        store = host_size(sys_flag, SysFlag.STORE_HOST_V6)
        body_size = 68 + born + store
        topic_size = body_size + 4 + I32.unpack_from(record, body_size)[0]
        if U32.unpack_from(record, 4)[0] == MAGIC_V2:
            topic_end = topic_size + 2 + I16.unpack_from(record, topic_size)[0]
        else:
            topic_end = topic_size + 1 + record[topic_size]
        return cls(
            born_port=48 + born - 4,
            store_timestamp=48 + born,
            store_port=56 + born + store - 4,
            body_size=body_size,
            topic_size=topic_size,
            properties_size=topic_end,
        )


def mutate(source: random.Random, seed: bytes) -> bytes:
    """A copy of a record with one kind of damage; one in fifteen is left as it was."""
    record = bytearray(seed)
    damage = source.choice((*DAMAGES, _any_byte, _any_byte, _nothing))
    damage(source, record, Places.of(seed))
    return bytes(record)


def _nothing(source: random.Random, record: bytearray, places: Places) -> None:
    pass


def _any_byte(source: random.Random, record: bytearray, places: Places) -> None:
    record[source.randrange(len(record))] = source.randrange(256)


def _any_bit(source: random.Random, record: bytearray, places: Places) -> None:
    record[source.randrange(len(record))] ^= 1 << source.randrange(8)


def _total_size(source: random.Random, record: bytearray, places: Places) -> None:
    I32.pack_into(record, 0, source.choice((*LENGTHS, len(record) - 1, len(record) + 1)))


def _magic(source: random.Random, record: bytearray, places: Places) -> None:
    record[4 + source.randrange(4)] = source.randrange(256)


def _sys_flag(source: random.Random, record: bytearray, places: Places) -> None:
    U32.pack_into(record, 36, U32.unpack_from(record, 36)[0] ^ 1 << source.randrange(32))


def _port(source: random.Random, record: bytearray, places: Places) -> None:
    place = source.choice((places.born_port, places.store_port))
    I32.pack_into(record, place, source.choice(PORTS))


def _time(source: random.Random, record: bytearray, places: Places) -> None:
    I64.pack_into(record, source.choice((40, places.store_timestamp)), source.choice(TIMES))


def _body_size(source: random.Random, record: bytearray, places: Places) -> None:
    I32.pack_into(record, places.body_size, source.choice(LENGTHS))


def _topic_size(source: random.Random, record: bytearray, places: Places) -> None:
    record[places.topic_size] = source.randrange(256)


def _properties_size(source: random.Random, record: bytearray, places: Places) -> None:
    size = max(-32_768, min(32_767, source.choice(LENGTHS)))
    I16.pack_into(record, places.properties_size, size)


def _separator(source: random.Random, record: bytearray, places: Places) -> None:
    start = places.properties_size + 2
    if start < len(record):
        record[source.randrange(start, len(record))] = source.choice((0, 1, 2))


def _bad_utf8(source: random.Random, record: bytearray, places: Places) -> None:
    start = places.properties_size + 2
    if start + 3 < len(record):
        place = source.randrange(start, len(record) - 3)
        record[place : place + 3] = source.choice(BAD_UTF8)


def _truncate(source: random.Random, record: bytearray, places: Places) -> None:
    del record[source.randrange(len(record)) :]


DAMAGES: tuple[Callable[[random.Random, bytearray, Places], None], ...] = (
    *(_any_bit, _total_size, _magic, _sys_flag, _port, _time, _body_size, _topic_size),
    *(_properties_size, _separator, _bad_utf8, _truncate),
)
