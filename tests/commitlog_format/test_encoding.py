"""The columnar encoder says byte for byte what its scalar twin says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from golden_stores import GoldenStore
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.checksum import body_crc
from rmqlog.commitlog_format.encoding import (
    ByteColumn,
    RecordColumns,
    dictionary_codes,
    encode_properties,
    encode_property_map,
    encode_records,
    filler,
    put_values,
)
from rmqlog.commitlog_format.layout import SysFlag
from rmqlog.commitlog_format.message import Record, decode_record, encode_record
from rmqlog.commitlog_format.properties import format_properties
from rmqlog.commitlog_format.store import Store

pytestmark = pytest.mark.usefixtures("loops")
IPV4 = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
IPV6 = bytes(range(16)) + bytes([0, 0, 0x2A, 0x9F])
#: Around every size class of the copy, and around its largest window.
SIZES = [0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 31, 64, 300, 1000, 4095, 4096, 4097, 9000]
TEXT = st.text(st.characters(min_codepoint=3, codec="utf-8"), max_size=20)


def columns_of(records: list[Record]) -> RecordColumns:
    """Records with one store host as columns."""
    topics = sorted({record.topic for record in records})
    hosts = sorted({record.born_host for record in records})

    def integers(name: str, kind: type[np.signedinteger]) -> np.ndarray:
        return np.array([getattr(record, name) for record in records], kind)

    return RecordColumns(
        topics=topics,
        topic_codes=np.array([topics.index(record.topic) for record in records], np.int32),
        queue_id=integers("queue_id", np.int32),
        queue_offset=integers("queue_offset", np.int64),
        flag=integers("flag", np.int32),
        sys_flag=integers("sys_flag", np.int32),
        born_timestamp=integers("born_timestamp", np.int64),
        born_hosts=hosts,
        born_host_codes=np.array([hosts.index(record.born_host) for record in records], np.int32),
        store_timestamp=integers("store_timestamp", np.int64),
        store_host=records[0].store_host,
        reconsume_times=integers("reconsume_times", np.int32),
        prepared_transaction_offset=integers("prepared_transaction_offset", np.int64),
        body_crc=integers("body_crc", np.int32),
        bodies=ByteColumn.of([record.body for record in records]),
        properties=ByteColumn.of([record.properties for record in records]),
    )


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    store_host = draw(st.sampled_from([IPV4, IPV6]))
    store_flag = int(SysFlag.STORE_HOST_V6) if store_host is IPV6 else 0
    records: list[Record] = []
    for _ in range(draw(st.integers(1, 12))):
        body = draw(st.sampled_from(SIZES).map(lambda size: bytes(range(256)) * (size // 256 + 1)))
        body = body[: draw(st.sampled_from(SIZES))]
        born_host = draw(st.sampled_from([IPV4, IPV6]))
        topic = draw(st.sampled_from([b"t", b"orders", b"x" * 127, b"y" * 128, b"z" * 255]))
        records.append(
            Record(
                magic=layout.MAGIC_V1 if len(topic) <= 127 else layout.MAGIC_V2,
                body_crc=body_crc(body),
                queue_id=draw(st.integers(0, 2**31 - 1)),
                flag=draw(st.integers(-(2**31), 2**31 - 1)),
                queue_offset=draw(st.integers(0, 2**63 - 1)),
                physical_offset=0,
                sys_flag=store_flag
                | (int(SysFlag.BORN_HOST_V6) if born_host is IPV6 else 0)
                | draw(st.sampled_from([0, 1, 8, 0x301])),
                born_timestamp=draw(st.integers(-(2**63), 2**63 - 1)),
                born_host=born_host,
                store_timestamp=draw(st.integers(1, 2**63 - 1)),
                store_host=store_host,
                reconsume_times=draw(st.integers(0, 2**31 - 1)),
                prepared_transaction_offset=draw(st.integers(0, 2**63 - 1)),
                body=body,
                topic=topic,
                properties=draw(st.binary(max_size=200)),
            )
        )
    return records


@settings(max_examples=60)
@given(record_lists(), st.integers(0, 2**40))
def test_columns_and_single_records_encode_to_the_same_bytes(
    records: list[Record], physical_offset: int
) -> None:
    expected = b""
    for record in records:
        placed = physical_offset + len(expected)
        fields = {name: getattr(record, name) for name in Record.__slots__}
        expected += encode_record(Record(**{**fields, "physical_offset": placed}))

    columns = columns_of(records)

    assert encode_records(columns, physical_offset).tobytes() == expected
    assert columns.total_sizes().tolist() == [record.total_size for record in records]


@pytest.mark.parametrize("name", ["rmq-5.5.0-clean", "rmq-4.9.5-clean"])
def test_the_records_of_a_real_broker_encode_to_themselves(
    golden_store: Callable[[str], GoldenStore], name: str
) -> None:
    log = Store(str(golden_store(name).path)).log
    lines = [line for line in golden_store(name).log if line["kind"] == "record"]
    by_host: dict[bytes, list[Record]] = {}
    for line in lines:
        record = log.record(line["commitLogOffset"])
        by_host.setdefault(record.store_host, []).append(record)

    for records in by_host.values():
        encoded = encode_records(columns_of(records), 0).tobytes()
        position = 0
        for record in records:
            found = decode_record(encoded[position : position + record.total_size])
            position += record.total_size
            assert found == decode_record(
                encode_record(
                    Record(
                        **{
                            **{field: getattr(record, field) for field in Record.__slots__},
                            "physical_offset": position - record.total_size,
                        }
                    )
                )
            )
    assert sum(map(len, by_host.values())) > 2000


def test_no_records_are_no_bytes() -> None:
    record = Record(
        layout.MAGIC_V1, 0, 0, 0, 0, 0, 0, 0, IPV4, 1, IPV4, 0, 0, b"", b"t", b""
    )

    assert len(encode_records(columns_of([record])[0:0], 0)) == 0


@given(st.lists(st.sampled_from(SIZES), min_size=1, max_size=40))
def test_values_of_any_sizes_are_copied_exactly_and_nothing_beside_them(
    sizes: list[int],
) -> None:
    values = [bytes([index % 251 + 1]) * size for index, size in enumerate(sizes)]
    column = ByteColumn.of(values)
    order = np.random.default_rng(len(sizes)).permutation(len(values))
    gaps = np.array([size + 3 for size in sizes])[order]
    positions = np.cumsum(gaps) - gaps
    target = np.zeros(int(gaps.sum()), np.uint8)

    put_values(target, positions, column[order])

    expected = b"".join(values[index] + b"\0\0\0" for index in order.tolist())
    assert target.tobytes() == expected


def test_a_column_of_an_arrow_slice_with_nulls_has_its_own_rows_only() -> None:
    array = pa.array(["skip", "a", None, "", "long enough", "skip"], pa.string())[1:5]

    column = ByteColumn.from_arrow(array)

    assert [column.value(row) for row in range(4)] == [b"a", b"", b"", b"long enough"]
    assert column.to_arrow().to_pylist() == [b"a", b"", b"", b"long enough"]


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_every_arrow_form_of_text_gives_the_same_column(kind: pa.DataType) -> None:
    array = pa.array(["one", None, "three"], pa.string()).cast(kind)

    column = ByteColumn.from_arrow(array)

    assert [column.value(row) for row in range(3)] == [b"one", b"", b"three"]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.just(""), TEXT),
            st.one_of(st.just(""), TEXT),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_properties_of_columns_are_the_strings_of_their_rows(rows: list[tuple[str, str]]) -> None:
    keys = ByteColumn.of([key.encode() for key, _ in rows])
    tags = ByteColumn.of([tag.encode() for _, tag in rows])
    others = ByteColumn.of([b"x\x01y\x02" if key else b"" for key, _ in rows])

    encoded = encode_properties([("KEYS", keys), ("TAGS", tags)], others)

    for row, (key, tag) in enumerate(rows):
        present = {name: value for name, value in (("KEYS", key), ("TAGS", tag)) if value}
        expected = format_properties(present) + ("x\x01y\x02" if key else "")
        assert encoded.value(row) == expected.encode()


def test_a_map_column_becomes_one_string_for_each_row() -> None:
    names = ByteColumn.of([b"a", b"name", b"b"])
    values = ByteColumn.of([b"1", b"value", b"2"])

    encoded = encode_property_map(names, values, np.array([0, 2, 2, 3]))

    assert [encoded.value(row) for row in range(3)] == [
        b"a\x011\x02name\x01value\x02", b"", b"b\x012\x02",
    ]


def test_the_filler_of_a_segment_is_what_is_left_and_the_blank_magic() -> None:
    assert filler(100) == bytes.fromhex("00000064cbd43194")


@pytest.mark.parametrize(
    "values",
    [
        ["same"] * 5, ["same", "same", "sane"], ["a", "bb", "a"], ["", ""], ["one"], [],
        ["ab", "ba", "ab"], ["\u00e4", "\u00e4"],
    ],
)
def test_the_codes_of_a_column_lead_back_to_its_values(values: list[str]) -> None:
    column = pa.array(values, pa.string())
    forms = (column, column.dictionary_encode(), column.cast(pa.large_string()))
    for array in (*forms, pa.array(["x", *values, "y"]).slice(1, len(values))):
        found, codes = dictionary_codes(array)
        assert [found[code] for code in codes] == values
        assert sorted(found) == sorted(set(found))


def test_numbers_have_codes_too() -> None:
    found, codes = dictionary_codes(pa.array([7, 7, 8], pa.int32()))
    assert [found[code] for code in codes] == [7, 7, 8]
