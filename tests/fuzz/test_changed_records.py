"""Every small change of twelve records: both decoders refuse it, or both give the same fields.

Every position with every value of its byte, every truncation, and every pair of length fields
with every pair of boundary values, all through both decoders. One record is 32 KiB long, nearly
all of it the text of one property: of it the first 512 bytes are changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pyarrow as pa
import pytest
from bad_input import check_error
from faults import in_two_processes
from numpy.typing import NDArray
from twelve_records import TWELVE_RECORDS

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS
from rmqlog.commitlog_format.errors import StoreError, TruncatedRecordError
from rmqlog.commitlog_format.inner_batch import expand
from rmqlog.commitlog_format.message import (
    Message,
    Record,
    decode_message,
    decode_record,
    encode_record,
    to_message,
)
from rmqlog.commitlog_format.message_reader import messages_to_batch
from rmqlog.commitlog_format.properties import parse_properties
from rmqlog.commitlog_format.record_peek import peek_record
from rmqlog.commitlog_format.records import RecordDecoder

pytestmark = [pytest.mark.fuzz, pytest.mark.usefixtures("loops")]

COLUMNS = [name for name in MESSAGE_COLUMNS if name != "brokerName"]
#: Of a long record only so many bytes are changed.
CHANGED_SIZE = 512
#: Changed records are decoded together, in windows of about this size.
WINDOW_SIZE = 8 * 1024 * 1024
BASE_OFFSET = 4096
#: What a changed TOTALSIZE may reach behind its record.
SLACK_SIZE = 64

BOUNDARIES = (
    -(2**31), -(2**31) + 1, -32_769, -32_768, -129, -128, -2, -1, 0, 1, 2, 90, 91, 92, 126, 127,
    128, 255, 256, 32_767, 32_768, 65_536, 2**31 - 2, 2**31 - 1,
)


class Twins:
    """Both decoders on the same damaged records, which must not be told apart."""

    def __init__(self) -> None:
        self.decoder = RecordDecoder(COLUMNS)
        self.accepted_count = self.refused_count = 0
        self._checked_reasons: set[tuple[type[StoreError], str]] = set()

    def compare(self, rows: NDArray[np.uint8]) -> None:
        """Decode records that lie one behind another, one to a row."""
        size = rows.shape[1]
        window = np.concatenate([rows.ravel(), np.zeros(SLACK_SIZE, np.uint8)])
        offsets = BASE_OFFSET + np.arange(len(rows), dtype=np.int64) * size
        malformed = self.decoder.find_malformed(window, BASE_OFFSET, offsets)
        data = window.tobytes()
        messages: list[Message] = []
        for row, is_malformed in enumerate(malformed.tolist()):
            start = row * size
            message = self._decode(data[start : start + size + SLACK_SIZE], BASE_OFFSET + start)
            assert (message is None) == is_malformed, f"decoders disagree: {rows[row].tobytes()!r}"
            if message is not None:
                messages.append(message)
        good = offsets[~malformed]
        batch = self.decoder.decode(window, BASE_OFFSET, good)
        assert batch.equals(messages_to_batch(messages, COLUMNS))
        self.accepted_count += len(messages)
        self.refused_count += len(rows) - len(messages)
        self._check_columnar_error(window, offsets, malformed)

    def _decode(self, data: bytes, offset: int) -> Message | None:
        try:
            record = decode_record(data, offset, path="log")
        except StoreError as error:
            self._check_once(error)
            with pytest.raises(type(error)):
                peek_record(data, offset, "log")
            return None
        peek = peek_record(data, offset, "log")
        assert (peek.queue_id, peek.queue_offset, peek.sys_flag, peek.total_size) == (
            record.queue_id, record.queue_offset, record.sys_flag, record.total_size
        )
        try:
            message = to_message(record, path="log")
        except StoreError as error:
            self._check_once(error)
            return None
        assert peek.topic == message.topic
        assert parse_properties(peek.properties) == message.properties
        try:
            expand(message, path="log")
        except StoreError as error:
            self._check_once(error)
        return message

    def _check_columnar_error(
        self, window: NDArray[np.uint8], offsets: NDArray[np.int64], malformed: NDArray[np.bool_]
    ) -> None:
        for row in np.flatnonzero(malformed)[:: max(1, int(malformed.sum()) // 4)]:
            with pytest.raises(StoreError) as caught:
                self.decoder.decode(window, BASE_OFFSET, offsets[row : row + 1], path="log")
            check_error(caught.value)
            assert caught.value.path == "log"
            assert caught.value.offset == offsets[row]

    def _check_once(self, error: StoreError) -> None:
        """Pickling takes longer than decoding: one error of each kind is sent on a journey."""
        assert error.path == "log"
        kind = (type(error), error.reason)
        if kind not in self._checked_reasons:
            self._checked_reasons.add(kind)
            check_error(error)


def placed_records(record: Record, count: int) -> NDArray[np.uint8]:
    """So many copies of a record, each of which knows where it lies."""
    data = np.frombuffer(encode_record(record), np.uint8)
    rows = np.tile(data, (count, 1))
    offsets = BASE_OFFSET + np.arange(count, dtype=np.int64) * len(data)
    place = layout.PHYSICAL_OFFSET_POSITION
    rows[:, place : place + 8] = offsets.astype(">i8").view(np.uint8).reshape(count, 8)
    return rows


def chunks(count: int, size: int) -> Iterator[range]:
    """``range(count)`` in parts of at most ``size``."""
    for start in range(0, count, size):
        yield range(start, min(start + size, count))


@pytest.mark.parametrize("name", TWELVE_RECORDS)
def test_every_change_of_one_byte_is_refused_or_read_by_both_decoders_alike(name: str) -> None:
    record = TWELVE_RECORDS[name]
    size = len(encode_record(record))
    positions = range(size)[:CHANGED_SIZE]

    def work(index: int, count: int) -> int:
        cases = list(product(positions[index::count], range(256)))
        twins = Twins()
        for part in chunks(len(cases), WINDOW_SIZE // size):
            rows = placed_records(record, len(part))
            changed, values = np.array(cases[part.start : part.stop]).T
            rows[np.arange(len(rows)), changed] = values
            twins.compare(rows)
        assert twins.accepted_count > 0
        assert twins.refused_count >= 8 // count * 255  # TOTALSIZE and MAGICCODE
        return twins.accepted_count + twins.refused_count

    assert in_two_processes(work) == len(positions) * 256


@pytest.mark.parametrize("name", TWELVE_RECORDS)
def test_every_truncation_is_a_truncated_record_for_both_decoders(name: str) -> None:
    data = encode_record(replace(TWELVE_RECORDS[name], physical_offset=BASE_OFFSET))
    window = np.frombuffer(data, np.uint8)
    # The end of a record is compared before any column is made, so for most one column does.
    whole, narrow = RecordDecoder(COLUMNS), RecordDecoder(["commitLogOffset"])
    offsets = np.array([BASE_OFFSET])
    for size in range(len(data)):
        with pytest.raises(TruncatedRecordError):
            decode_message(data[:size], BASE_OFFSET)
        decoder = whole if min(size, len(data) - size) <= CHANGED_SIZE // 2 else narrow
        with pytest.raises(TruncatedRecordError):
            decoder.decode(window[:size], BASE_OFFSET, offsets)


def length_fields(record: Record) -> dict[str, tuple[int, int]]:
    """Position and width of the four length fields of a record."""
    header = layout.RECORD_HEADERS[record.sys_flag & layout.HOSTS_V6_MASK].itemsize
    topic = header + len(record.body)
    topic_width = 1 if record.magic == layout.MAGIC_V1 else 2
    return {
        "total": (0, 4),
        "body": (header - 4, 4),
        "topic": (topic, topic_width),
        "properties": (topic + topic_width + len(record.topic), 2),
    }


@pytest.mark.parametrize("name", TWELVE_RECORDS)
def test_all_pairs_of_lengths_at_their_bounds_are_refused_or_read_alike(name: str) -> None:
    record = TWELVE_RECORDS[name]
    size = len(encode_record(record))
    cases = [
        (*fields, *values)
        for fields in combinations(length_fields(record).values(), 2)
        for values in product(BOUNDARIES, repeat=2)
    ]
    assert len(cases) == 6 * 24 * 24
    twins = Twins()
    for part in chunks(len(cases), max(1, WINDOW_SIZE // size)):
        rows = placed_records(record, len(part))
        for row, case in zip(rows, cases[part.start : part.stop], strict=True):
            for (position, width), value in zip(case[:2], case[2:], strict=True):
                raw = (value % 2 ** (8 * width)).to_bytes(width, "big")
                row[position : position + width] = np.frombuffer(raw, np.uint8)
        twins.compare(rows)

    assert twins.accepted_count + twins.refused_count == len(cases)
    assert twins.refused_count > 0


def test_a_window_split_anywhere_gives_the_records_of_the_whole() -> None:
    encoded, offset = [], BASE_OFFSET
    for record in TWELVE_RECORDS.values():
        encoded.append(encode_record(replace(record, physical_offset=offset)))
        offset += len(encoded[-1])
    sizes = np.array([len(data) for data in encoded])
    offsets = BASE_OFFSET + np.cumsum(sizes) - sizes
    window = np.frombuffer(b"".join(encoded), np.uint8)
    decoder = RecordDecoder(COLUMNS)
    whole = pa.Table.from_batches([decoder.decode(window, BASE_OFFSET, offsets)])
    for split in range(1, len(encoded)):
        cut = int(offsets[split])
        parts = [
            decoder.decode(window[: cut - BASE_OFFSET], BASE_OFFSET, offsets[:split]),
            decoder.decode(window[cut - BASE_OFFSET :], cut, offsets[split:]),
        ]
        assert pa.Table.from_batches(parts).combine_chunks() == whole.combine_chunks()


def test_a_record_that_is_encoded_again_is_the_same_bytes() -> None:
    for record in TWELVE_RECORDS.values():
        data = encode_record(record)
        assert encode_record(decode_record(data)) == data
