"""Properties that hold for any bytes and any text: a value or a typed error, and never two answers.

500 examples each; ``--hypothesis-profile night`` tries 20,000.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from bad_input import value_or_error
from built_stores import ROOT, build_store, numbered_records, offset_name
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_files import MemoryFiles
from random_records import PLAIN_RECORD, build_log, records, with_body
from twelve_records import TWELVE_RECORDS, inner_batch, inner_message

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.address import decode_message_id, format_host, parse_host
from rmqlog.commitlog_format.batch_consume_queue import BatchConsumeQueue
from rmqlog.commitlog_format.checkpoint import Checkpoint, decode_checkpoint
from rmqlog.commitlog_format.compression import compress, decompress
from rmqlog.commitlog_format.config_files import parse_json, read_config_files
from rmqlog.commitlog_format.consume_queue import ConsumeQueue
from rmqlog.commitlog_format.consume_queue_ext import ConsumeQueueExt
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.index_file import IndexFile
from rmqlog.commitlog_format.inner_batch import expand
from rmqlog.commitlog_format.layout import Compression
from rmqlog.commitlog_format.limits import Limits
from rmqlog.commitlog_format.message import (
    Record,
    decode_message,
    decode_record,
    encode_record,
    to_message,
)
from rmqlog.commitlog_format.message_reader import ReadPolicy
from rmqlog.commitlog_format.properties import format_properties, parse_properties
from rmqlog.commitlog_format.records import RecordDecoder
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.tags import TagFilter

pytestmark = [pytest.mark.fuzz, pytest.mark.usefixtures("loops")]

#: A store is opened for each example of these: a fifth of the examples.
EXPENSIVE = settings(max_examples=max(1, settings().max_examples // 5))
LOG_PATH = f"{ROOT}/commitlog/{offset_name(0)}"
TABLES = ("topicConfigTable", "offsetTable", "lmqOffsetTable", "subscriptionGroupTable")
CONFIG_FILES = (
    "topics.json", "consumerOffset.json", "delayOffset.json", "subscriptionGroup.json",
    "lmqConsumerOffset.json",
)
INTERESTING = st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 91, 100, 20])
WORDS = st.one_of(INTERESTING, st.integers(-(2**31), 2**31 - 1)).map(
    lambda number: number.to_bytes(4, "big", signed=True)
)
ALMOST_WORDS = st.lists(WORDS, max_size=60).map(b"".join)
MAGICS = st.sampled_from(
    [value.to_bytes(4, "big") for value in (layout.MAGIC_V1, layout.MAGIC_V2, layout.MAGIC_BLANK)]
)
#: Bytes that look like a log here and there.
ALMOST_LOG = st.lists(
    st.one_of(
        st.binary(max_size=40), MAGICS, WORDS,
        st.sampled_from([encode_record(record) for record in TWELVE_RECORDS.values()][:10]),
        st.integers(0, 300).map(bytes),
    ),
    max_size=8,
).map(b"".join)
ALMOST_JSON = st.text(alphabet='{}[]",:\\0123456789- a').map(str.encode)
ANY_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def queue_of(data: bytes) -> FileQueue:
    """One file with these bytes."""
    return FileQueue.open(MemoryFiles({f"queue/{offset_name(0)}": data}), ["queue"])


@given(st.one_of(st.binary(max_size=200), ALMOST_LOG), st.integers(-(2**63), 2**63 - 1))
def test_any_bytes_are_a_message_or_an_error(data: bytes, offset: int) -> None:
    value_or_error(lambda: decode_message(data, offset))
    value_or_error(lambda: decode_message(data))


@given(records())
def test_a_record_that_is_encoded_decodes_to_itself(record: Record) -> None:
    assert decode_record(encode_record(record), record.physical_offset) == record


@given(records(), records(), st.data())
def test_two_records_grafted_onto_each_other_are_read_alike_by_both_decoders(
    first: Record, second: Record, data: st.DataObject
) -> None:
    log = build_log([first])
    graft = encode_record(second)
    cut = data.draw(st.integers(0, int(log.sizes[0])))
    window = np.frombuffer(log.window.tobytes()[:cut] + graft[cut:] + bytes(32), np.uint8)
    decoder = RecordDecoder(["body", "topic", "properties", "bornHost", "tagsCode", "msgId"])
    is_malformed = bool(decoder.find_malformed(window, 0, np.array([0]))[0])
    alone = value_or_error(lambda: decode_message(window.tobytes(), 0))
    together = value_or_error(lambda: decoder.decode(window, 0, np.array([0])))
    # A timestamp is checked only where its column is wanted.
    if not (isinstance(alone, StoreError) and "TIMESTAMP is no time" in alone.reason):
        assert isinstance(alone, StoreError) == isinstance(together, StoreError) == is_malformed


@given(st.dictionaries(st.text(min_size=1), st.text(min_size=1), max_size=5), st.text())
def test_properties_that_are_formatted_parse_to_themselves(
    properties: dict[str, str], text: str
) -> None:
    formatted = value_or_error(lambda: format_properties(properties))
    if isinstance(formatted, str):
        assert parse_properties(formatted) == properties
    assert all(name and value for name, value in parse_properties(text).items())


@given(st.one_of(ALMOST_WORDS, st.binary(max_size=80)), st.integers(0, 3))
def test_any_body_is_an_inner_batch_or_an_error(body: bytes, count: int) -> None:
    good = [inner_message(b"x", b"a\x01b\x02")] * count
    message = to_message(with_body(inner_batch(*good, body), b"".join(good) + body))
    found = value_or_error(lambda: expand(message, limits=Limits(inner_batch_count=2)))
    assert isinstance(found, StoreError) or len(found) <= 2


@given(st.one_of(st.binary(max_size=60), ALMOST_JSON))
def test_any_bytes_are_a_config_object_or_an_error(data: bytes) -> None:
    found = value_or_error(lambda: parse_json(data, "config"))
    assert isinstance(found, StoreError | dict)


@given(st.sampled_from(CONFIG_FILES), st.dictionaries(st.sampled_from(TABLES), ANY_JSON), ANY_JSON)
def test_any_json_is_a_configuration_or_an_error(name: str, tables: Any, other: Any) -> None:
    for content in (tables, other, {table: {"topic@group": other} for table in TABLES}):
        access = MemoryFiles({f"{ROOT}/config/{name}": json.dumps(content).encode()})
        value_or_error(lambda: read_config_files(access, ROOT))  # noqa: B023


@given(st.binary(max_size=64), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=6, max_size=6))
def test_any_bytes_are_a_checkpoint_or_an_error(data: bytes, numbers: list[int]) -> None:
    value_or_error(lambda: decode_checkpoint(data, "checkpoint"))
    checkpoint = Checkpoint(*numbers)
    assert decode_checkpoint(checkpoint.encode()) == checkpoint


@given(st.integers(1, 3), st.data())
def test_any_index_file_gives_one_answer_to_one_key_and_to_many(
    slot_count: int, data: st.DataObject
) -> None:
    size = layout.INDEX_HEADER.itemsize + slot_count * layout.INDEX_BYTES_PER_SLOT
    content = data.draw(st.lists(WORDS, max_size=size // 4)).__iter__()
    filled = b"".join(content).ljust(size, b"\0")[:size]
    extra = data.draw(st.sampled_from([b"", b"x", bytes(20)]))
    access = MemoryFiles({"index": filled + extra})
    file = value_or_error(lambda: IndexFile(access, "index", data.draw(st.sampled_from([None, 2]))))
    if isinstance(file, IndexFile):
        for key_hash in range(3):
            alone = value_or_error(lambda: file.lookup(key_hash))  # noqa: B023
            many = value_or_error(
                lambda: file.lookup_many(np.full(30, key_hash, np.int64))  # noqa: B023
            )
            assert isinstance(alone, StoreError) == isinstance(many, StoreError)
            if not isinstance(alone, StoreError) and not isinstance(many, StoreError):
                assert many[1].tolist() == alone * 30


@given(st.one_of(st.binary(max_size=120), ALMOST_WORDS), st.integers(0, 200))
def test_any_bytes_are_queue_units_or_an_error(data: bytes, log_start: int) -> None:
    queue = value_or_error(lambda: ConsumeQueue(queue_of(data)))
    if isinstance(queue, ConsumeQueue):
        end = queue.find_end(lambda unit, _: bool(unit["size"] == 100), log_start)
        assert queue.first_index <= queue.find_start(log_start, end) <= end <= queue.stop_index
        found = value_or_error(lambda: queue.matching_units(0, queue.stop_index, [0, 1, 100]))
        if not isinstance(found, StoreError):
            codes = queue.units(0, queue.stop_index)["tags_code"]
            assert found[0].tolist() == np.flatnonzero(np.isin(codes, [0, 1, 100])).tolist()


@given(st.lists(WORDS, max_size=60).map(b"".join), st.integers(0, 100))
def test_any_bytes_are_batch_units_or_an_error(data: bytes, queue_offset: int) -> None:
    padded = data.ljust(-(-len(data) // 46) * 46, b"\0")
    queue = BatchConsumeQueue(queue_of(padded))
    end = queue.find_end(lambda unit, _: bool(unit["size"] > 0))
    found = value_or_error(lambda: queue.offset_range(queue.first_index, end))
    if not isinstance(found, StoreError):
        assert 0 <= found[0] <= found[1] < 2**63
        value_or_error(lambda: queue.find(queue_offset, queue.first_index, end))


@given(st.one_of(st.binary(max_size=120), ALMOST_WORDS), st.lists(st.integers(0, 130), max_size=5))
def test_any_address_in_any_ext_file_is_a_tags_code_or_an_error(
    data: bytes, places: list[int]
) -> None:
    ext = ConsumeQueueExt(queue_of(data))
    addresses = np.array([layout.EXT_ADDRESS_BASE + place for place in places], np.int64)
    value_or_error(lambda: ext.resolve(addresses))
    for address in addresses.tolist():
        value_or_error(lambda: ext.bitmap(address))  # noqa: B023


@given(
    st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20)), st.text()
)
def test_any_host_has_a_text_and_any_text_is_a_host_or_an_error(host: bytes, text: str) -> None:
    port = int.from_bytes(host[-4:], "big")
    again = value_or_error(lambda: parse_host(format_host(host)))
    mapped = len(host) == 20 and host.startswith(bytes(10) + b"\xff\xff")
    if port <= 0xFFFF and not mapped:
        assert again == host
    value_or_error(lambda: parse_host(text))
    value_or_error(lambda: decode_message_id(text))


@given(st.binary(max_size=300), st.sampled_from(list(Compression)), st.integers(-1, 9))
def test_a_body_survives_compression_and_any_bytes_decompress_or_are_an_error(
    data: bytes, kind: Compression, unknown_kind: int
) -> None:
    packed = compress(data, kind)
    assert decompress(packed, kind) == data
    value_or_error(lambda: decompress(data, kind))
    value_or_error(lambda: decompress(data, unknown_kind))
    for cut in {0, 1, len(packed) // 2, len(packed) - 1}:
        assert isinstance(value_or_error(lambda: decompress(packed[:cut], kind)), StoreError)  # noqa: B023
    found = value_or_error(lambda: decompress(packed, kind, Limits(decompressed_size=100)))
    assert isinstance(found, StoreError) == (len(data) > 100)


@EXPENSIVE
@given(ALMOST_LOG)
def test_any_bytes_as_a_log_end_somewhere_and_are_read_alike_by_scan_and_queues(
    data: bytes,
) -> None:
    store = Store(ROOT, access=MemoryFiles({LOG_PATH: data or b"\0"}))
    end = value_or_error(lambda: store.end)
    assert isinstance(end, StoreError) or 0 <= end <= max(len(data), 1)
    for policy in (ReadPolicy(), ReadPolicy(drop_malformed=True, skip_expired=True)):
        value_or_error(lambda: list(store.scan(policy=policy)))  # noqa: B023
        topics = value_or_error(lambda: store.topics)
        for topic in [] if isinstance(topics, StoreError) else topics:
            value_or_error(lambda: list(store.read(topic, policy=policy)))  # noqa: B023
            for view in store.queues_of(topic):
                assert len(view) >= 0


@EXPENSIVE
@given(st.integers(1, 12), st.integers(0, 12), st.integers(400, 1000))
def test_a_log_split_anywhere_into_segments_is_the_same_log(
    count: int, dispatched: int, segment_size: int
) -> None:
    built = build_store(numbered_records(count, queues=1), segment_size, dispatched)
    store = Store(ROOT, access=MemoryFiles(dict(built.files)))
    bodies = [body for batch in store.scan(["body"]) for body in batch["body"].to_pylist()]
    assert bodies == [record.body for record in built.records]
    read = [
        body for topic in store.topics for batch in store.read(topic, columns=["body"])
        for body in batch["body"].to_pylist()
    ]
    assert sorted(read) == sorted(bodies)


@given(st.text(max_size=20), st.sampled_from(["topic", layout.SCHEDULE_TOPIC]))
def test_any_tag_expression_is_a_filter_or_an_error(expression: str, topic: str) -> None:
    found = value_or_error(lambda: TagFilter.parse(expression, topic))
    if isinstance(found, TagFilter):
        assert found.tags is None or (found.tags and all(found.tags))


@given(st.binary(max_size=60))
def test_any_bytes_as_properties_give_the_same_map_in_both_decoders(raw: bytes) -> None:
    log = build_log([Record(**{**fields_of(PLAIN_RECORD), "properties": raw})])
    batch = RecordDecoder(["properties"]).decode(log.window, 0, log.offsets)
    assert dict(batch["properties"][0].as_py()) == decode_message(log.record(0), 0).properties


def fields_of(record: Record) -> dict[str, Any]:
    """The fields of a record by name."""
    return {name: getattr(record, name) for name in Record.__slots__}
