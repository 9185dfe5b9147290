"""A record field by field: right for whatever brokers wrote, and it goes on where decoders stop."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from built_stores import SEGMENT_SIZE, build_store, numbered_records
from golden_stores import GOLDEN_NAMES, GoldenStore
from random_records import PLAIN_RECORD
from twelve_records import TWELVE_RECORDS

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.anatomy import RecordField, dissect, read_record_bytes, record_start
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.layout import SysFlag
from rmqlog.commitlog_format.message import encode_record
from rmqlog.commitlog_format.store import Store

Golden = Callable[[str], GoldenStore]

PLAIN = encode_record(PLAIN_RECORD)
FIXED_FIELDS = (
    "TOTALSIZE", "MAGICCODE", "BODYCRC", "QUEUEID", "FLAG", "QUEUEOFFSET", "PHYSICALOFFSET",
    "SYSFLAG", "BORNTIMESTAMP", "BORNHOST", "STORETIMESTAMP", "STOREHOST", "RECONSUMETIMES",
    "PREPAREDOFFSET", "BODYLEN", "BODY", "TOPICLEN", "TOPIC", "PROPERTIESLEN",
)


def by_name(fields: list[RecordField]) -> dict[str, RecordField]:
    """Fields by their names; the properties are left out."""
    return {field.name: field for field in fields if field.name != "PROPERTIES"}


def wrong(fields: list[RecordField]) -> list[str]:
    """The names of the fields that cannot be true."""
    return [field.name for field in fields if field.is_wrong]


def changed(position: int, data: bytes) -> list[RecordField]:
    """The fields of a plain record with other bytes at a position."""
    return dissect(
        PLAIN[:position] + data + PLAIN[position + len(data) :], PLAIN_RECORD.physical_offset
    )


def place_of(name: str) -> int:
    """Where a field of the plain record lies."""
    return by_name(dissect(PLAIN, PLAIN_RECORD.physical_offset))[name].position


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_golden_record_is_taken_apart_into_its_expected_fields(
    name: str, golden_store: Golden
) -> None:
    golden = golden_store(name)
    folders = [str(folder) for folder in sorted(golden.path.glob("cl_*"))]
    log = Store(str(golden.path), log_directories=folders).log
    for line in golden.log:
        if line["kind"] != "record":
            continue
        offset, message = line["commitLogOffset"], line["msg"]
        data = read_record_bytes(log, offset)
        fields = dissect(data, offset)
        found = by_name(fields)

        assert wrong(fields) == []
        assert tuple(found) == FIXED_FIELDS
        assert found["TOPIC"].value == message["topic"]
        assert int(found["QUEUEID"].value) == message["queueId"]
        assert int(found["QUEUEOFFSET"].value) == message["queueOffset"]
        assert found["STORETIMESTAMP"].time_ms == message["storeTimestamp"]
        assert int(found["SYSFLAG"].value, 16) == line["rawSysFlag"]
        if not line["rawSysFlag"] & SysFlag.COMPRESSED:
            assert found["BODY"].data == base64.b64decode(message["bodyBase64"] or "")
        pairs = [field.value.split(" = ", 1) for field in fields if field.name == "PROPERTIES"]
        assert dict(pairs) == message["properties"]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", TWELVE_RECORDS)
def test_the_fields_lie_one_behind_another_and_make_up_the_record(name: str) -> None:
    record = TWELVE_RECORDS[name]
    data = encode_record(record)
    fields = dissect(data, record.physical_offset)

    position = 0
    for field in fields:
        gap = data[position : field.position]
        assert gap in (b"", bytes([layout.PROPERTY_SEPARATOR]))
        assert data[field.position : field.position + len(field.data)] == field.data
        position = field.position + len(field.data)
    assert data[position:] in (b"", bytes([layout.PROPERTY_SEPARATOR]))


@pytest.mark.parametrize(
    ("flags", "meaning"),
    [
        (0, "an ordinary message"),
        (SysFlag.COMPRESSED, "compressed (zlib, as before 4.9.4)"),
        (SysFlag.COMPRESSED | 1 << layout.COMPRESSION_SHIFT, "compressed (lz4)"),
        (SysFlag.COMPRESSED | 2 << layout.COMPRESSION_SHIFT, "compressed (zstd)"),
        (SysFlag.COMPRESSED | 3 << layout.COMPRESSION_SHIFT, "compressed (zlib)"),
        (SysFlag.COMPRESSED | 7 << layout.COMPRESSION_SHIFT, "compressed (unknown kind 7)"),
        (SysFlag.MULTI_TAGS, "several tags"),
        (SysFlag.TRANSACTION_PREPARED, "prepared"),
        (SysFlag.TRANSACTION_COMMIT, "committed transaction"),
        (SysFlag.TRANSACTION_ROLLBACK, "rolled back"),
        (SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH, "to be unwrapped, inner batch"),
    ],
)
def test_the_flags_are_told_in_words(flags: int, meaning: str) -> None:
    data = encode_record(replace(PLAIN_RECORD, sys_flag=int(flags)))
    found = by_name(dissect(data, PLAIN_RECORD.physical_offset))

    assert found["SYSFLAG"].meaning == meaning


def test_hosts_are_told_in_both_widths() -> None:
    for name, field, text in (
        ("IPv6 born host", "BORNHOST", "[2001:db8::1]:9"),
        ("IPv6 store host", "STOREHOST", "[fe80::2]:10911"),
    ):
        record = TWELVE_RECORDS[name]
        found = by_name(dissect(encode_record(record), record.physical_offset))
        assert found[field].value == text
        assert "on IPv6" in found["SYSFLAG"].meaning


def test_a_body_that_does_not_match_is_wrong_and_the_rest_is_still_shown() -> None:
    fields = changed(place_of("BODY"), b"\xff")

    assert wrong(fields) == ["BODY"]
    assert "does not match BODYCRC" in by_name(fields)["BODY"].meaning
    assert by_name(fields)["TOPIC"].value == PLAIN_RECORD.topic.decode()


def test_a_record_that_says_it_lies_elsewhere_is_wrong() -> None:
    fields = dissect(PLAIN, PLAIN_RECORD.physical_offset + 5)

    assert wrong(fields) == ["PHYSICALOFFSET"]
    expected = f"the record lies at {PLAIN_RECORD.physical_offset + 5}"
    assert by_name(fields)["PHYSICALOFFSET"].meaning == expected


def test_a_magic_that_nobody_writes_ends_the_fields() -> None:
    fields = changed(place_of("MAGICCODE"), b"\1\2\3\4")

    assert [field.name for field in fields] == ["TOTALSIZE", "MAGICCODE"]
    assert wrong(fields) == ["MAGICCODE"]
    assert fields[-1].value == "0x01020304"


@pytest.mark.parametrize(
    ("length", "part"),
    [("BODYLEN", "BODY"), ("TOPICLEN", "TOPIC"), ("PROPERTIESLEN", "PROPERTIES")],
)
def test_a_length_that_does_not_fit_ends_the_fields_and_says_how_much_is_left(
    length: str, part: str
) -> None:
    for data in (b"\x7f", b"\xff"):  # too large, and negative
        fields = changed(place_of(length), data)
        last = fields[-1]
        assert wrong(fields) == [part]
        assert last.name == part
        assert last.meaning.startswith("does not fit: ")
        assert last.meaning.endswith(f"bytes wanted, {len(PLAIN) - last.position} left")
        assert last.data == PLAIN[last.position :]


@pytest.mark.parametrize("size", [0, 3, 6, 20, 60, 89])
def test_a_record_that_breaks_off_shows_what_is_there(size: int) -> None:
    fields = dissect(PLAIN[:size], PLAIN_RECORD.physical_offset)

    assert len(wrong(fields)) == 1
    assert fields[-1].is_wrong
    assert b"".join(field.data for field in fields) == PLAIN[:size]


def test_a_total_size_that_disagrees_with_the_fields_is_told_at_the_end() -> None:
    fields = changed(0, (len(PLAIN) + 1).to_bytes(4, "big"))

    assert wrong(fields) == ["(end)"]
    assert fields[-1].meaning == f"the fields end here, TOTALSIZE says {len(PLAIN) + 1}"


# --- in a log ---------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    """Records in segments of 4 KiB, each but the last ending in filler."""
    return Store(str(BUILT.write(tmp_path))).log


BUILT = build_store(numbered_records(60))


def test_any_byte_of_a_record_leads_to_its_start(log: CommitLog) -> None:
    for record in BUILT.records[::7]:
        start, size = record.physical_offset, record.total_size
        for offset in (start, start + 1, start + size // 2, start + size - 1):
            assert record_start(log, offset) == start


def test_a_byte_of_the_filler_leads_to_the_filler(log: CommitLog) -> None:
    last = max(record.physical_offset for record in BUILT.records
               if record.physical_offset < SEGMENT_SIZE)
    filler = last + next(record.total_size for record in BUILT.records
                         if record.physical_offset == last)

    assert record_start(log, SEGMENT_SIZE - 1) == filler
    data = read_record_bytes(log, filler)
    assert [field.meaning for field in dissect(data, filler)] == [
        "bytes of the whole record", "filler: nothing follows in this segment"
    ]


def test_unused_space_belongs_to_no_record(log: CommitLog) -> None:
    assert record_start(log, log.end - 1) is None


def test_behind_damage_no_start_is_found_in_that_segment(tmp_path: Path) -> None:
    path = BUILT.write(tmp_path)
    victim = BUILT.records[3].physical_offset
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(victim)
        file.write(b"\xff" * 8)
    log = Store(str(path)).log

    assert record_start(log, victim + 200) is None
    assert record_start(log, victim - 1) == BUILT.records[2].physical_offset


def test_a_size_beyond_the_segment_gives_the_bytes_up_to_its_end(tmp_path: Path) -> None:
    path = BUILT.write(tmp_path)
    victim = BUILT.records[3].physical_offset
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(victim)
        file.write(b"\x7f")
    log = Store(str(path)).log

    assert len(read_record_bytes(log, victim)) == SEGMENT_SIZE - victim
    assert len(read_record_bytes(log, SEGMENT_SIZE - 4)) == 4
