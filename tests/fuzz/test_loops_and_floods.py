"""Files that lead in circles, and files with too much of one thing: an end, and flat memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bad_input import run_in_child, value_or_error
from built_stores import ROOT, build_store, numbered_records, offset_name
from index_files import IndexFileModel
from memory_files import MemoryFiles
from random_records import PLAIN_RECORD, build_log
from twelve_records import inner_batch, inner_message

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.checksum import body_crc
from rmqlog.commitlog_format.errors import (
    CorruptIndexError,
    CorruptRecordError,
    StoreError,
)
from rmqlog.commitlog_format.hashing import index_hash
from rmqlog.commitlog_format.index_file import IndexFile
from rmqlog.commitlog_format.layout import PREFIX
from rmqlog.commitlog_format.message import decode_message, encode_record
from rmqlog.commitlog_format.message_reader import MessageReader, ReadPolicy
from rmqlog.commitlog_format.records import RecordDecoder
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import QueueKey, QueueKind
from rmqlog.commitlog_format.units import Units

pytestmark = pytest.mark.fuzz

MIB = 1 << 20
GIB = 1 << 30


def index_of(model: IndexFileModel) -> IndexFile:
    """The index file that a model describes."""
    return IndexFile(MemoryFiles({"index": model.content()}), "index")


def small_index() -> IndexFileModel:
    """Six entries of one key: one chain."""
    model = IndexFileModel()
    for number in range(6):
        assert model.put("topic", "key", 100 * number, 1_000)
    return model


class TestIndexChains:
    """Chains must lead to older entries."""

    KEY_HASH = index_hash("topic", "key")

    @pytest.mark.parametrize("previous", [6, 5, 3, 19, 20, 2**31 - 1, -1])
    def test_a_ring_or_a_wild_link_is_an_error(self, previous: int) -> None:
        model = small_index()
        model.entries["previous"][3] = previous
        file = index_of(model)
        with pytest.raises(CorruptIndexError):
            file.lookup(self.KEY_HASH)
        with pytest.raises(CorruptIndexError):
            file.lookup_many(np.full(40, self.KEY_HASH))

    @pytest.mark.parametrize("head", [20, 2**31 - 1, -1])
    def test_a_slot_that_points_past_the_end_is_an_error(self, head: int) -> None:
        model = small_index()
        model.slots[self.KEY_HASH % model.slot_count] = head
        with pytest.raises(CorruptIndexError):
            index_of(model).lookup(self.KEY_HASH)


class TestQueueUnits:
    """Units that point where no message of their queue is."""

    @staticmethod
    def store_with_unit(offset: int, size: int, tags_code: int = 0) -> Store:
        """A sound store, the third unit of whose one queue is replaced."""
        built = build_store(numbered_records(8, topics=1, queues=1))
        path = f"{ROOT}/consumequeue/topic-0/0/{offset_name(0)}"
        units = np.frombuffer(built.files[path], layout.CONSUME_QUEUE_UNIT).copy()
        units[2] = (offset, size, tags_code)
        return Store(ROOT, access=MemoryFiles(built.files | {path: units.tobytes()}))

    @pytest.mark.parametrize("offset", [0, 7, 1000, 2**62])
    @pytest.mark.parametrize("size", [1, 91, 2**31 - 2, 100 * MIB])
    def test_a_unit_that_points_nowhere_is_an_error_and_drops_only_itself(
        self, offset: int, size: int
    ) -> None:
        store = self.store_with_unit(offset, size)
        with pytest.raises(StoreError):
            list(store.read("topic-0"))
        lenient = ReadPolicy(drop_malformed=True, skip_expired=True)
        assert sum(batch.num_rows for batch in store.read("topic-0", policy=lenient)) == 7

    @pytest.mark.parametrize(
        ("offset", "size"),
        [(-1, 91), (-1, -5), (-(2**63), 2**31 - 1), (500, 0), (500, -5), (0, 2**31 - 1)],
    )
    def test_a_unit_that_cannot_be_one_never_makes_the_answer_short(
        self, offset: int, size: int
    ) -> None:
        store = self.store_with_unit(offset, size)
        found = value_or_error(lambda: sum(batch.num_rows for batch in store.read("topic-0")))
        assert found == 8 or isinstance(found, StoreError)

    def test_two_units_of_one_record_with_different_sizes_drop_one_row(self) -> None:
        log = MemoryFiles(dict(build_store(numbered_records(4, topics=1, queues=1)).files))
        store = Store(ROOT, access=log)
        units = store.queue("topic-0", 0).units(0, 4)
        twice = Units(
            units.queue_offsets[:2], units.offsets[[1, 1]], units.sizes[[1, 1]] - [0, 1],
            units.tags_codes[:2],
        )
        reader = store.reader(["body"], ReadPolicy(drop_malformed=True))
        key = QueueKey("topic-0", 0)
        batches = list(reader.read(key, QueueKind.SIMPLE, twice))
        assert sum(batch.num_rows for batch in batches) == 1
        assert reader.report.malformed_count == 1

    def test_units_that_claim_millions_of_messages_come_in_bounded_batches(self) -> None:
        count = 2_000
        units = Units(
            np.arange(count) * 32_767, np.arange(count), np.full(count, 100),
            np.zeros(count, np.int64), np.full(count, 32_767),
        )
        log = Store(ROOT, access=MemoryFiles({f"{ROOT}/commitlog/{offset_name(0)}": b"\0"})).log
        batches = MessageReader(log, ["queueOffset"]).read(
            QueueKey("batch", 0), QueueKind.BATCH, units
        )
        assert max(next(batches).num_rows for _ in range(5)) <= 32_767


class TestLogs:
    """Segments that go nowhere."""

    @staticmethod
    def store_of(*parts: bytes, size: int = 4096) -> Store:
        data = b"".join(parts).ljust(size, b"\0")
        return Store(ROOT, access=MemoryFiles({f"{ROOT}/commitlog/{offset_name(0)}": data}))

    @pytest.mark.parametrize("size", [0, 7, 8, -1, 2**31 - 1])
    def test_a_filler_of_any_size_ends_its_segment(self, size: int) -> None:
        record = encode_record(PLAIN_RECORD)
        store = self.store_of(record, PREFIX.pack(size, layout.MAGIC_BLANK), record)
        assert sum(batch.num_rows for batch in store.scan()) == 1

    @pytest.mark.parametrize("queue_offset", [2**63 - 1, -(2**63), -1, 2**62])
    def test_a_queue_offset_at_the_end_of_numbers_is_an_error_or_a_place(
        self, queue_offset: int
    ) -> None:
        record = replace(PLAIN_RECORD, queue_offset=queue_offset)
        store = self.store_of(build_log([record, record]).window.tobytes())
        found = value_or_error(
            lambda: [row for batch in store.read("TopicTest") for row in batch.to_pylist()]
        )
        if queue_offset == 2**63 - 1:
            assert isinstance(found, CorruptRecordError)
            assert found.path.endswith(offset_name(0))
        else:
            assert not isinstance(found, StoreError)
            assert found[0]["queueOffset"] == queue_offset

    @pytest.mark.parametrize(
        ("count", "base"),
        [("0", "0"), ("-1", "0"), ("999999999999999999", "0"), ("32768", "0"), ("x", "9" * 18)],
    )
    def test_an_inner_batch_with_a_wild_count_is_an_error(self, count: str, base: str) -> None:
        record = inner_batch(inner_message(b"x", b""), inner_message(b"y", b""))
        properties = f"INNER_NUM\x01{count}\x02INNER_BASE\x01{base}\x02".encode()
        store = self.store_of(encode_record(replace(record, properties=properties)))
        with pytest.raises(CorruptRecordError):
            list(store.read("TopicTest"))

    def test_inner_batches_that_overlap_are_an_error(self) -> None:
        record = inner_batch(inner_message(b"x", b""), inner_message(b"y", b""), base=5)
        store = self.store_of(build_log([record, record]).window.tobytes())
        with pytest.raises(CorruptRecordError, match="no place in its queue"):
            _ = store.topics

    def test_properties_of_nothing_but_separators_are_none(self) -> None:
        for pair in (b"\x02", b"\x01", b"\x01\x02", b"a\x01\x02"):
            raw = pair * (layout.MAX_PROPERTIES_SIZE // len(pair))
            log = build_log([replace(PLAIN_RECORD, properties=raw)])
            assert decode_message(log.record(0), 0).properties == {}
            batch = RecordDecoder(["properties", "tags"]).decode(log.window, 0, log.offsets)
            assert batch["properties"].to_pylist() == [[]]


@pytest.fixture
def sparse_path() -> Iterator[Path]:
    """A folder of a file system that has room for holes."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


SCAN_A_GIBIBYTE = '''
from rmqlog.commitlog_format.store import Store

store = Store(sys.argv[1])
growth_limit(200 << 20)  # mappings included
reset_peak()
before = memory("VmHWM")
rows = sum(batch.num_rows for batch in store.scan(["commitLogOffset", "body"]))
print(json.dumps({"rows": rows, "end": store.end, "growth": memory("VmHWM") - before}))
'''


def test_a_segment_of_a_gibibyte_of_zeros_is_empty(sparse_path: Path) -> None:
    (sparse_path / "commitlog").mkdir()
    with open(sparse_path / "commitlog" / offset_name(0), "wb") as file:
        file.truncate(GIB)
    result = run_in_child(SCAN_A_GIBIBYTE, sparse_path)

    assert (result["rows"], result["end"]) == (0, 0)


def test_a_gibibyte_is_scanned_in_less_than_200_mib_mappings_included(sparse_path: Path) -> None:
    """Records of 4 MiB whose bodies are holes: a whole segment, and next to no disk."""
    body = bytes(4 * MIB - 4096)
    record = replace(PLAIN_RECORD, body=body, body_crc=body_crc(body))
    count = (GIB - layout.SEGMENT_END_RESERVE) // record.total_size
    header_size = layout.RECORD_HEADER_V4.itemsize
    (sparse_path / "commitlog").mkdir()
    with open(sparse_path / "commitlog" / offset_name(0), "wb") as file:
        for number in range(count):
            offset = number * record.total_size
            data = encode_record(replace(record, physical_offset=offset))
            file.write(data[:header_size])
            file.seek(len(body), os.SEEK_CUR)
            file.write(data[header_size + len(body) :])
        file.write(PREFIX.pack(GIB - file.tell(), layout.MAGIC_BLANK))
        file.truncate(GIB)
    result = run_in_child(SCAN_A_GIBIBYTE, sparse_path)

    assert result["rows"] == count == 256
    assert result["growth"] < 200 * MIB


def test_small_records_are_scanned_in_flat_memory(sparse_path: Path) -> None:
    """96 MiB of the smallest records, over a million of them: a gibibyte takes only longer."""
    data = encode_record(replace(PLAIN_RECORD, body=b"", topic=b"", properties=b""))
    assert len(data) == layout.MIN_RECORD_SIZE == 91
    count = 96 * MIB // len(data)
    rows = np.tile(np.frombuffer(data, np.uint8), (count, 1))
    offsets = np.arange(count, dtype=np.int64) * len(data)
    rows[:, 28:36] = offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
    (sparse_path / "commitlog").mkdir()
    rows.tofile(sparse_path / "commitlog" / offset_name(0))
    result = run_in_child(SCAN_A_GIBIBYTE, sparse_path)

    assert result["rows"] == count
    assert result["growth"] < 128 * MIB


def test_twenty_thousand_topics_are_listed_and_one_is_read() -> None:
    built = build_store(numbered_records(40, topics=2, queues=1))
    names = [f"{ROOT}/consumequeue/t{number}/0/{offset_name(0)}" for number in range(20_000)]
    access = MemoryFiles(built.files | dict.fromkeys(names, bytes(320)))
    end = built.records[-1].physical_offset + built.records[-1].total_size
    store = Store(ROOT, access=access, end=end, dispatched_end=end)

    assert len(store.files.queues) == 20_002
    assert sum(batch.num_rows for batch in store.read("topic-0", columns=["queueOffset"])) == 20
