"""The columnar decoder: golden stores, its scalar twin, and records that are damaged."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from golden_stores import GOLDEN_NAMES, GoldenStore, expected_row
from hypothesis import given
from hypothesis import strategies as st
from random_records import (
    PLAIN_RECORD,
    Log,
    build_log,
    message_row,
    records,
    with_body,
    with_property_crc,
)

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.address import parse_host
from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS, MESSAGE_SCHEMA
from rmqlog.commitlog_format.errors import (
    BatchLimitExceededError,
    ChecksumError,
    CorruptRecordError,
    InvalidNameError,
    LimitExceededError,
    StoreError,
    TruncatedRecordError,
)
from rmqlog.commitlog_format.layout import Compression
from rmqlog.commitlog_format.limits import Limits
from rmqlog.commitlog_format.message import Record, decode_message
from rmqlog.commitlog_format.records import RecordDecoder

pytestmark = pytest.mark.usefixtures("loops")

ALL_COLUMNS = [name for name in MESSAGE_COLUMNS if name != "brokerName"]
SEGMENT_FOLDERS = ("commitlog", "cl_a", "cl_b", "dledger-n0/data")


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch, timestamps as microseconds: Python's own have a smaller range."""
    arrays = [
        array.view(pa.int64()) if pa.types.is_timestamp(array.type) else array
        for array in batch.columns
    ]
    rows: list[dict[str, Any]] = pa.RecordBatch.from_arrays(arrays, batch.schema.names).to_pylist()
    return rows


def decode(log: Log, columns: list[str] = ALL_COLUMNS, **settings: Any) -> pa.RecordBatch:
    decoder = RecordDecoder(columns, **settings)
    return decoder.decode(log.window, log.base_offset, log.offsets, path="log", sizes=log.sizes)


def scalar_rows(log: Log) -> list[dict[str, Any]]:
    return [
        message_row(decode_message(log.record(row), int(offset)))
        for row, offset in enumerate(log.offsets)
    ]


def damaged(log: Log, row: int, position: int, data: bytes) -> Log:
    """The log with some bytes of one record replaced."""
    window = log.window.copy()
    start = int(log.offsets[row]) - log.base_offset + position
    window[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return replace(log, window=window)


class TestGoldenStores:
    """Every record of every golden store, as units and as the log list them."""

    @pytest.mark.parametrize("name", GOLDEN_NAMES)
    @pytest.mark.parametrize("listing", ["units", "log"])
    def test_every_field_is_what_rocketmq_decoded(
        self, golden_store: Callable[[str], GoldenStore], name: str, listing: str
    ) -> None:
        store = golden_store(name)
        lines = [line for line in getattr(store, listing) if "msg" in line]
        assert lines
        for base_offset, window, own_lines in self.by_segment(store, lines):
            log = Log(
                window, base_offset,
                np.array([line["commitLogOffset"] for line in own_lines]),
                np.array([line["storeSize"] for line in own_lines]),
            )
            batch = decode(log)
            batch.validate(full=True)
            rows = rows_of(batch)
            assert rows == scalar_rows(log)
            for row, line in zip(rows, own_lines, strict=True):
                self.assert_equal(row, expected_row(line), ext_units="cqext" in name)

    @staticmethod
    def by_segment(store: GoldenStore, lines: list[dict[str, Any]]) -> list[Any]:
        paths = [path for folder in SEGMENT_FOLDERS for path in store.path.glob(f"{folder}/*")]
        found = []
        for path in sorted(paths, key=lambda path: path.name):
            start, end = int(path.name), int(path.name) + path.stat().st_size
            own_lines = [line for line in lines if start <= line["commitLogOffset"] < end]
            found.append((start, np.fromfile(path, np.uint8), own_lines))
        assert sum(len(own_lines) for _, _, own_lines in found) == len(lines)
        return found

    @staticmethod
    def assert_equal(row: dict[str, Any], expected: dict[str, Any], *, ext_units: bool) -> None:
        for name in ("bornTimestamp", "storeTimestamp"):
            expected[name] *= 1000
        if ext_units:  # their code is an address in the ext file
            expected.pop("tagsCode", None)
        got = {name: row[name] for name in expected} | {"properties": dict(row["properties"])}
        assert got == expected


class TestGoldenVectors:
    """Records whose bytes RocketMQ's own encoder made."""

    M1 = (
        "0000005edaa320a758932aac0000000000000000000000000000000000000000000000000000000000000"
        "18bcfe568007f000001000004d20000018bcfe568017f00000100002a9f00000000000000000000000000"
        "000002686901540000"
    )
    M3 = (
        "00000093daa320a777d189820000000100000007000000000000000500000000000003e80000003000000"
        "18bcfe5687b20010db80000000000000000000000010000b26e0000018bcfe56be8fe8000000000000000"
        "0000000000000200002a9f0000000200000000000000000000000548656c6c6f09546f706963546573740"
        "0124b455953016b310254414753015461674102"
    )

    def test_the_smallest_message(self) -> None:
        row = rows_of(self.decode_one(bytes.fromhex(self.M1), 0))[0]
        assert row["topic"] == "T"
        assert row["body"] == b"hi"
        assert row["properties"] == []
        assert row["bornHost"] == "127.0.0.1:1234"
        assert row["msgId"] == "7F00000100002A9F0000000000000000"

    def test_a_message_with_ipv6_hosts(self) -> None:
        row = rows_of(self.decode_one(bytes.fromhex(self.M3), 1000))[0]
        assert (row["bornHost"], row["storeHost"]) == ("[2001:db8::1]:45678", "[fe80::2]:10911")
        assert (row["keys"], row["tags"], row["tagsCode"]) == ("k1", "TagA", 2598919)
        assert row["msgId"] == "FE80000000000000000000000000000200002A9F00000000000003E8"

    def test_a_long_topic_in_a_v2_record(self) -> None:
        topic = b"%RETRY%" + b"g" * 121
        log = build_log([replace(PLAIN_RECORD, magic=layout.MAGIC_V2, topic=topic)], 1000)
        assert log.window[:8].tobytes().hex() == "000000f3daa320ab"
        assert rows_of(decode(log))[0]["topic"] == topic.decode()

    def test_the_crc_property_is_a_property(self) -> None:
        record = with_property_crc(replace(PLAIN_RECORD, physical_offset=1000))
        row = rows_of(decode(build_log([record], 1000)))[0]
        assert row["properties"][-1] == ("__CRC32#", "4715456710")

    @staticmethod
    def decode_one(data: bytes, offset: int) -> pa.RecordBatch:
        window = np.frombuffer(data, np.uint8)
        return RecordDecoder(ALL_COLUMNS).decode(window, offset, np.array([offset]))


class TestScalarTwin:
    """Columns and single messages say the same of any records."""

    @given(st.lists(records(), max_size=4), st.integers(0, 2**40))
    def test_random_records_decode_alike(self, some: list[Record], base_offset: int) -> None:
        log = build_log(some, base_offset)
        batch = decode(log)
        batch.validate(full=True)
        assert rows_of(batch) == scalar_rows(log)

    @given(records(), st.integers(2, 8))
    def test_repeated_records_decode_alike(self, record: Record, times: int) -> None:
        """Batches in which all records carry the same names."""
        log = build_log([record] * times)
        assert rows_of(decode(log)) == scalar_rows(log)

    @given(records(), st.data())
    def test_damaged_records_fail_alike(self, record: Record, data: st.DataObject) -> None:
        log = build_log([record], 4096, tail=bytes(8))
        position = data.draw(st.integers(0, int(log.sizes[0]) - 1))
        log = damaged(log, 0, position, bytes([data.draw(st.integers(0, 255))]))
        log = replace(log, window=log.window[: data.draw(st.integers(0, len(log.window)))])
        decoder = RecordDecoder(ALL_COLUMNS)
        try:
            expected = scalar_rows(log)
        except StoreError:
            with pytest.raises(StoreError):
                decoder.decode(log.window, log.base_offset, log.offsets)
        else:
            rows = rows_of(decoder.decode(log.window, log.base_offset, log.offsets))
            assert rows == expected


class TestColumns:
    """What is asked for, and no more."""

    @pytest.mark.parametrize("name", ALL_COLUMNS)
    def test_a_column_alone_is_the_column_among_all(self, name: str) -> None:
        some = [PLAIN_RECORD, with_body(PLAIN_RECORD, b"x" * 500, Compression.LZ4)]
        log = build_log([*some, replace(PLAIN_RECORD, properties=b"")])
        alone = decode(log, [name])
        assert alone.schema == pa.schema([MESSAGE_SCHEMA.field(name)])
        assert alone.column(0) == decode(log).column(name)

    def test_columns_come_in_the_wanted_order_with_the_types_of_the_schema(self) -> None:
        wanted = list(reversed(ALL_COLUMNS))
        batch = decode(build_log([PLAIN_RECORD]), wanted)
        assert batch.schema == pa.schema([MESSAGE_SCHEMA.field(name) for name in wanted])

    @pytest.mark.parametrize("columns", [["brokerName"], ["nonsense"]])
    def test_a_column_that_no_record_has_is_refused(self, columns: list[str]) -> None:
        with pytest.raises(InvalidNameError):
            RecordDecoder(columns)

    def test_no_records_give_an_empty_batch(self) -> None:
        batch = decode(build_log([]))
        assert batch.num_rows == 0
        assert batch.schema.names == ALL_COLUMNS

    def test_rows_are_in_the_order_of_the_offsets_even_if_repeated(self) -> None:
        log = build_log([replace(PLAIN_RECORD, queue_offset=number) for number in range(5)])
        order = [3, 0, 3, 4]
        log = replace(log, offsets=log.offsets[order], sizes=log.sizes[order])
        assert decode(log, ["queueOffset"]).column(0).to_pylist() == order

    def test_rows_of_different_layouts_keep_their_order(self) -> None:
        v6 = replace(PLAIN_RECORD, sys_flag=0x20, store_host=parse_host("[::1]:1"))
        v2 = replace(PLAIN_RECORD, magic=layout.MAGIC_V2)
        log = build_log([v6, PLAIN_RECORD, v2, v6, PLAIN_RECORD])
        hosts = decode(log, ["storeHost"]).column(0).to_pylist()
        assert hosts == [row["storeHost"] for row in scalar_rows(log)]

    def test_the_batch_shares_no_memory_with_the_window(self) -> None:
        log = build_log([PLAIN_RECORD] * 3)
        window = log.window.copy()
        batch = decode(replace(log, window=window))
        before = rows_of(batch)
        window[:] = 0xFF
        assert rows_of(batch) == before

    def test_a_scheduled_message_has_its_delivery_time_as_tags_code(self) -> None:
        scheduled = replace(
            PLAIN_RECORD, topic=layout.SCHEDULE_TOPIC.encode(), properties=b"DELAY\x013\x02"
        )
        codes = decode(build_log([scheduled, PLAIN_RECORD]), ["tagsCode"]).column(0).to_pylist()
        assert codes == [1_700_000_011_000, 2598919]

    def test_a_container_of_an_inner_batch_is_one_record(self) -> None:
        container = with_body(replace(PLAIN_RECORD, sys_flag=0xC0), b"the inner messages")
        row = rows_of(decode(build_log([container])))[0]
        assert (row["sysFlag"], row["body"]) == (0xC0, b"the inner messages")


class TestDamage:
    """A record is believed only if everything about it fits."""

    LOG = build_log([PLAIN_RECORD] * 6, 1000)

    @pytest.mark.parametrize(
        ("position", "data", "error", "found", "expected"),
        [
            (0, b"\x00\x00\x00\x7a", CorruptRecordError, 122, 123),
            (4, b"\xcb\xd4\x31\x94", CorruptRecordError, 0xCBD43194, None),
            (28, b"\x01", CorruptRecordError, (1 << 56) + 1246, 1246),
            (84, b"\xff\xff\xff\xff", CorruptRecordError, -1, 123),
            (84, b"\x7f\xff\xff\xff", CorruptRecordError, 2**31 - 1, 123),
            (93, b"\x80", CorruptRecordError, -128, 27),
            (103, b"\x00\x11", CorruptRecordError, 17, 18),
            (103, b"\xff\xff", CorruptRecordError, -1, 18),
            (88, b"J", ChecksumError, None, 0x77D18982),
            (40, b"\x7f", CorruptRecordError, None, None),
        ],
        ids=[
            *("size", "filler", "physical offset", "negative body size", "large body size"),
            *("topic size", "properties size", "negative properties size", "body", "timestamp"),
        ],
    )
    def test_the_error_names_the_place_and_both_values(
        self, position: int, data: bytes, error: type[StoreError], found: object, expected: object
    ) -> None:
        log = damaged(self.LOG, 2, position, data)
        with pytest.raises(error) as caught:
            decode(log)
        assert type(caught.value) is error
        assert (caught.value.path, caught.value.offset) == ("log", 1246)
        assert found is None or caught.value.found == found
        assert expected is None or caught.value.expected == expected
        assert pickle.loads(pickle.dumps(caught.value)) == caught.value

    def test_without_sizes_of_units_the_size_must_still_add_up(self) -> None:
        log = damaged(self.LOG, 2, 0, b"\x00\x00\x00\x7a")
        with pytest.raises(CorruptRecordError, match="add up"):
            RecordDecoder(["topic"]).decode(log.window, log.base_offset, log.offsets)

    def test_the_first_bad_record_is_named_whatever_is_wrong_with_it(self) -> None:
        bad_body = damaged(self.LOG, 1, 88, b"J")
        bad_magic_behind = damaged(bad_body, 4, 4, b"\x00")
        with pytest.raises(ChecksumError) as caught:
            decode(bad_magic_behind)
        assert caught.value.offset == 1123

    def test_first_means_first_in_the_order_of_the_offsets(self) -> None:
        log = damaged(damaged(self.LOG, 1, 4, b"\x00"), 4, 4, b"\x00")
        log = replace(log, offsets=log.offsets[::-1], sizes=log.sizes[::-1])
        with pytest.raises(CorruptRecordError) as caught:
            decode(log)
        assert caught.value.offset == 1000 + 4 * 123

    def test_malformed_records_are_found_whatever_is_wrong_with_them(self) -> None:
        log = damaged(damaged(self.LOG, 0, 4, b"\x00"), 3, 88, b"J")
        log = damaged(log, 5, 40, b"\x7f")
        decoder = RecordDecoder(ALL_COLUMNS)
        malformed = decoder.find_malformed(
            log.window, log.base_offset, log.offsets, sizes=log.sizes
        )
        assert malformed.tolist() == [True, False, False, True, False, True]

    def test_a_record_with_the_wrong_size_in_its_unit_is_malformed(self) -> None:
        sizes = self.LOG.sizes.copy()
        sizes[1] += 1
        malformed = RecordDecoder(["topic"]).find_malformed(
            self.LOG.window, self.LOG.base_offset, self.LOG.offsets, sizes=sizes
        )
        assert np.flatnonzero(malformed).tolist() == [1]

    def test_only_what_is_read_is_checked(self) -> None:
        log = damaged(damaged(self.LOG, 3, 88, b"J"), 5, 40, b"\x7f")
        assert decode(log, ["topic", "properties"]).num_rows == 6
        assert decode(log, ["body"], check_crc=False).num_rows == 6

    def test_an_empty_body_is_not_checked(self) -> None:
        log = build_log([replace(PLAIN_RECORD, body=b"", body_crc=77, sys_flag=1)])
        assert decode(log, ["body"]).column(0).to_pylist() == [b""]

    def test_every_truncation_is_a_truncated_record(self) -> None:
        v6 = replace(
            PLAIN_RECORD, sys_flag=0x30,
            born_host=parse_host("[::1]:1"), store_host=parse_host("[::1]:1"),
        )
        for record in (PLAIN_RECORD, v6):
            log = build_log([record], 50)
            for size in range(len(log.window)):
                with pytest.raises(TruncatedRecordError):
                    decode(replace(log, window=log.window[:size]))

    @pytest.mark.parametrize("offset", [-1, 999, -(2**63)])
    def test_an_offset_before_the_window_is_an_error(self, offset: int) -> None:
        with pytest.raises(CorruptRecordError, match="before"):
            RecordDecoder(["topic"]).decode(self.LOG.window, 1000, np.array([offset]))

    def test_an_offset_behind_the_window_is_an_error(self) -> None:
        with pytest.raises(TruncatedRecordError):
            RecordDecoder(["topic"]).decode(self.LOG.window, 1000, np.array([2**63 - 1]))


class TestLimits:
    """No record and no batch takes more than it may."""

    def test_a_window_larger_than_any_segment_is_refused(self) -> None:
        window = np.broadcast_to(np.uint8(0), 2**31)
        with pytest.raises(LimitExceededError, match="window"):
            RecordDecoder(["topic"]).decode(window, 0, np.array([0]))

    def test_a_record_beyond_the_limit_is_refused(self) -> None:
        with pytest.raises(LimitExceededError, match="larger than allowed"):
            decode(build_log([PLAIN_RECORD]), limits=Limits(record_size=122))

    def test_a_body_that_grows_beyond_the_limit_is_refused(self) -> None:
        bomb = with_body(PLAIN_RECORD, bytes(2000), Compression.ZSTD)
        log = build_log([PLAIN_RECORD, bomb], 70)
        with pytest.raises(LimitExceededError) as caught:
            decode(log, limits=Limits(decompressed_size=1999))
        assert caught.value.offset == 70 + 123

    def test_bodies_that_are_too_much_together_are_split_into_batches(self) -> None:
        log = build_log([with_body(PLAIN_RECORD, bytes(1000), Compression.ZLIB)] * 5)
        limits = Limits(batch_decompressed_size=2500)
        with pytest.raises(BatchLimitExceededError):
            decode(log, limits=limits)
        decoder = RecordDecoder(["body", "commitLogOffset"], limits=limits)
        batches = list(
            decoder.decode_batches(log.window, log.base_offset, log.offsets, sizes=log.sizes)
        )
        assert len(batches) > 1
        offsets = [value for batch in batches for value in batch.column(1).to_pylist()]
        assert offsets == log.offsets.tolist()
        assert not decoder.find_malformed(log.window, log.base_offset, log.offsets).any()

    def test_one_row_beyond_the_limit_of_a_batch_is_malformed(self) -> None:
        log = build_log([with_body(PLAIN_RECORD, bytes(1000), Compression.ZLIB)])
        decoder = RecordDecoder(["body"], limits=Limits(batch_decompressed_size=999))
        with pytest.raises(BatchLimitExceededError):
            list(decoder.decode_batches(log.window, log.base_offset, log.offsets))
        assert decoder.find_malformed(log.window, log.base_offset, log.offsets).all()
