"""A copy of a live store: what is torn ends the snapshot, and every row is one that was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from built_stores import ROOT, BuiltStore, build_store, numbered_records, offset_name
from golden_stores import GOLDEN_NAMES, GoldenStore
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memory_files import MemoryFiles
from random_records import PLAIN_RECORD, with_body, with_property_crc

from rmqlog.commitlog_format.errors import CorruptRecordError, StoreError
from rmqlog.commitlog_format.log_walk import LogWalk
from rmqlog.commitlog_format.message import Record, encode_record
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.torn_records import _sign_of_a_tear, why_torn

SEGMENT = f"{ROOT}/commitlog/{offset_name(0)}"
SEGMENT_SIZE = 65_536
PAGE_SIZE = 4096
COUNT = 10
#: How many of the records have queue units: a log that is newer than its queues, or older.
DISPATCHED = (0, COUNT - 3, COUNT)


def _record(number: int) -> Record:
    """Records of some 400 bytes, half of them properties; some without any."""
    plain = numbered_records(COUNT)[number]
    pairs = {"KEYS": f"order-{number} also-{number}", "TAGS": f"T{number % 3}",
             "城市": "已支付" * 9, "UNIQ_KEY": f"{number:032X}", "note": f"{number} " * 20}
    properties = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())
    if number % 7 == 6:
        properties = ""
    if number % 5 == 4:  # as brokers 4.9.1 to 5.1.4 write them
        properties = properties.removesuffix("\x02")
    return replace(plain, properties=properties.encode())


RECORDS = [_record(number) for number in range(COUNT)]
BUILT = {count: build_store(RECORDS, SEGMENT_SIZE, count) for count in DISPATCHED}
PLACED = BUILT[COUNT].records
LOG = BUILT[COUNT].files[SEGMENT]
END = PLACED[-1].physical_offset + PLACED[-1].total_size
#: The first byte of the last records.
FIRST = PLACED[-4].physical_offset


def _open(built: BuiltStore, log: bytes, *, killed: bool = True) -> Store:
    files = {**built.files, SEGMENT: log, **({f"{ROOT}/abort": b""} if killed else {})}
    return Store(ROOT, access=MemoryFiles(files))


def _rows(store: Store) -> dict[int, dict[str, Any]]:
    """The rows of all topics by their physical offsets, each of them once."""
    found = [
        row for topic in store.topics for batch in store.read(topic) for row in batch.to_pylist()
    ]
    by_offset = {row["commitLogOffset"]: row for row in found}
    assert len(by_offset) == len(found)
    return by_offset


ORIGINAL = _rows(_open(BUILT[COUNT], LOG))


def _assert_whole(store: Store, log: bytes) -> None:
    """The rows are those of the records that are all there, and nothing else, nor an error."""
    rows = _rows(store)
    assert all(rows[offset] == ORIGINAL[offset] for offset in rows)
    whole = []
    for record in PLACED:
        place = slice(record.physical_offset, record.physical_offset + record.total_size)
        if log[place] != LOG[place]:
            break
        whole.append(record.physical_offset)
    assert sorted(rows) == whole


@pytest.mark.parametrize("dispatched", DISPATCHED)
@pytest.mark.parametrize("killed", [True, False])
def test_a_log_that_is_zero_from_any_byte_on_gives_the_records_before_it(
    dispatched: int, killed: bool
) -> None:
    # Most of the last record's text, and some of all others.
    text_start = END - len(PLACED[-1].properties) - len(PLACED[-1].topic)
    places = [*range(FIRST, text_start, 29), *range(text_start, END, 3 if killed else 29)]
    for place in places:
        torn = LOG[:place].ljust(SEGMENT_SIZE, b"\0")
        _assert_whole(_open(BUILT[dispatched], torn, killed=killed), torn)


@pytest.mark.parametrize("dispatched", DISPATCHED)
def test_a_file_that_ends_at_any_byte_gives_the_records_before_it(dispatched: int) -> None:
    for place in range(FIRST, END, 29):
        _assert_whole(_open(BUILT[dispatched], LOG[:place]), LOG[:place])


def _shifted(start: int) -> tuple[BuiltStore, bytes]:
    """The store with its records moved so that any byte of the last ones may be a border."""
    first = with_body(PLAIN_RECORD, b"." * start)
    built = build_store([first, *RECORDS], SEGMENT_SIZE)
    return built, built.files[SEGMENT]


@settings(max_examples=60)
@given(shift=st.integers(0, PAGE_SIZE), back=st.integers(1, 1500))
@example(shift=1205, back=346)  # the record behind the hole's first one is gone, the next is whole
def test_a_copy_that_went_on_later_gives_no_other_text_in_its_last_record(
    shift: int, back: int
) -> None:
    """Zeros end at a border, behind it the log is newer: a record may lie on both sides."""
    built, log = _shifted(shift)
    original = _rows(_open(built, log))
    last = built.records[-1]
    end = last.physical_offset + last.total_size
    border = (end - 1) // PAGE_SIZE * PAGE_SIZE
    start = max(0, border - back)
    torn = log[:start] + bytes(border - start) + log[border:]
    try:
        rows = _rows(_open(built, torn))
    except StoreError:  # whole records follow the hole: then it is damage, and named
        return
    ends = {record.physical_offset: record.physical_offset + record.total_size
            for record in built.records}
    text_start = end - len(last.properties) - 2 - len(last.topic)
    for offset, row in rows.items():
        is_last = offset == last.physical_offset
        behind = slice(ends[offset], ends.get(ends[offset]))
        is_followed = offset < max(rows) or torn[behind] == log[behind]
        if start < text_start if is_last else is_followed:
            # No checksum covers these bytes, and what follows says that they were written.
            checked = ("topic", "body", "commitLogOffset", "storeSize", "bodyCrc")
            assert [row[name] for name in checked] == [original[offset][name] for name in checked]
        else:
            assert row == original[offset]


@settings(max_examples=60)
@given(place=st.integers(FIRST, END - 1), seed=st.integers(0, 50), size=st.integers(0, 900))
def test_old_bytes_behind_a_tear_give_no_other_body_and_no_other_record(
    place: int, seed: int, size: int
) -> None:
    """Where a log was cut off, an earlier life's bytes stand: only text without NUL can pass."""
    older = [with_body(one, bytes([seed, 65 + seed]) * (size + 1)) for one in RECORDS]
    stale = build_store(older, SEGMENT_SIZE).files[SEGMENT]
    store = _open(BUILT[COUNT], LOG[:place] + stale[place:])
    for offset, row in _rows(store).items():
        assert offset in ORIGINAL
        passed = {**row, **{name: ORIGINAL[offset][name] for name in (
            "properties", "tags", "keys", "uniqKey")}}
        assert passed == ORIGINAL[offset]
        if row != ORIGINAL[offset]:
            assert offset == store.end - store.log.record(offset).total_size
            assert "\0" not in str(row["properties"])


def _last(properties: bytes, behind: bytes = b"", **changes: Any) -> Store:
    record = replace(PLAIN_RECORD, properties=properties, **changes)
    log = encode_record(record) + behind
    return Store(ROOT, access=MemoryFiles({SEGMENT: log.ljust(8192, b"\0")}))


@pytest.mark.parametrize("properties", [
    b"", b"a\x01b\x02", b"a\x01b", b"a\x01b\0c\x02", b"a\x01\0\0\0\x02", b"\0\x01\0\x02",
    b"a\x01" + bytes(600) + b"\x02", b"\x02\x02", b"no pair", b"a\x01b\x01c\x02", b"a\x01\x02",
    b"\xff\xfe\x01b\x02", "城市\x01北京\x02".encode(),
])
def test_whatever_a_client_may_write_is_a_row(properties: bytes) -> None:
    assert len(_rows(_last(properties))) == 1


@pytest.mark.parametrize("properties", [b"", b"a\x01b\x02"])
def test_a_record_may_end_where_its_file_ends(properties: bytes) -> None:
    log = encode_record(replace(PLAIN_RECORD, properties=properties))
    assert len(_rows(Store(ROOT, access=MemoryFiles({SEGMENT: log})))) == 1


@pytest.mark.parametrize(("properties", "sign"), [
    (b"a\x01b\0", "end in zeros"), (b"\0", "end in zeros"), (b"a\x01b\x02" + bytes(9), "zeros"),
])
def test_properties_that_end_in_zeros_end_the_log(properties: bytes, sign: str) -> None:
    store = _last(properties)
    assert store.end == 0
    assert isinstance(store.log_end.reason, CorruptRecordError)
    assert sign in str(store.log_end.reason)
    # Once something is written behind it, a record is whole.
    size = replace(PLAIN_RECORD, properties=properties).total_size
    again = replace(PLAIN_RECORD, physical_offset=size, queue_offset=6)
    assert len(_rows(_last(properties, encode_record(again)))) == 2


def test_a_topic_with_a_zero_ends_the_log() -> None:
    assert _last(b"", topic=b"Topic\0\0\0\0").end == 0


def test_a_checksum_over_all_bytes_says_that_a_record_is_whole() -> None:
    odd = with_property_crc(replace(PLAIN_RECORD, properties=b"\0\x02"))
    garbage = b"garbage!"
    assert len(_rows(_last(odd.properties, garbage))) == 1
    assert _last(b"\0\x02", garbage).end == 0


@pytest.mark.parametrize("properties", [
    b"a\x01b\x02\xff\xff", b"a\x01b\x02\x01c", b"a\x01b\x02no pair", b"a\x01\0b\x02"])
def test_old_bytes_behind_properties_that_are_none_end_the_log(properties: bytes) -> None:
    assert _last(properties, b"old bytes of a record").end == 0
    assert len(_rows(_last(properties))) == 1


@pytest.mark.parametrize(("killed", "is_damage"), [(True, False), (False, True)])
def test_a_body_that_does_not_match_is_a_torn_tail_only_if_nobody_stopped_the_broker(
    killed: bool, is_damage: bool
) -> None:
    last = PLACED[-1]
    place = last.physical_offset + 100
    damaged = LOG[:place] + b"#" + LOG[place + 1 :]
    store = _open(BUILT[COUNT], damaged, killed=killed)
    assert (store.end == END) == is_damage
    if is_damage:
        with pytest.raises(CorruptRecordError, match="BODYCRC"):
            _rows(store)
    else:
        _assert_whole(store, damaged)


def test_many_bad_records_at_the_end_are_damage() -> None:
    built = build_store(numbered_records(30), SEGMENT_SIZE)
    log = bytearray(built.files[SEGMENT])
    for record in built.records[1:]:
        log[record.physical_offset + 90] ^= 1
    with pytest.raises(CorruptRecordError, match="BODYCRC"):
        _rows(_open(built, bytes(log)))


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_no_record_of_a_real_broker_looks_torn(
    name: str, golden_store: Callable[[str], GoldenStore]
) -> None:
    """Each record as if it were the last one, old bytes behind it or not."""
    golden = golden_store(name)
    folders = sorted(str(path) for path in golden.path.glob("cl_*"))
    store = Store(str(golden.path), log_directories=folders)
    offsets = [
        offset for run in LogWalk(store.log, store.start, store.end)
        for offset in run.offsets.tolist()
    ]
    assert offsets
    for offset in offsets:
        record = store.log.record(offset)
        assert _sign_of_a_tear(store.log, record, old_bytes_follow=True) is None
    assert why_torn(store.log, store.log.record(offsets[-1])) is None
