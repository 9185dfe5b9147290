"""Records for tests: a log built from them, hypothesis strategies, and the rows to expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.address import parse_host
from rmqlog.commitlog_format.checksum import body_crc, encode_property_crc, property_crc
from rmqlog.commitlog_format.compression import compress
from rmqlog.commitlog_format.layout import Compression, SysFlag
from rmqlog.commitlog_format.message import Message, Record, encode_record

PLAIN_RECORD = Record(
    magic=layout.MAGIC_V1,
    body_crc=body_crc(b"Hello"),
    queue_id=1,
    flag=7,
    queue_offset=5,
    physical_offset=0,
    sys_flag=0,
    born_timestamp=1_700_000_000_123,
    born_host=parse_host("10.1.2.3:45678"),
    store_timestamp=1_700_000_001_000,
    store_host=parse_host("192.168.0.10:10911"),
    reconsume_times=2,
    prepared_transaction_offset=0,
    body=b"Hello",
    topic=b"TopicTest",
    properties=b"KEYS\x01k1\x02TAGS\x01TagA\x02",
)


@dataclass(frozen=True)
class Log:
    """Adjacent records, the first one at ``base_offset``."""

    window: NDArray[np.uint8]
    base_offset: int
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int32]

    def record(self, row: int) -> bytes:
        """The bytes from a record's start to the log's end."""
        return self.window[int(self.offsets[row]) - self.base_offset :].tobytes()


def build_log(records: Sequence[Record], base_offset: int = 0, tail: bytes = b"") -> Log:
    """A log of these records, each given the physical offset where it comes to lie."""
    encoded = []
    offset = base_offset
    for record in records:
        encoded.append(encode_record(replace(record, physical_offset=offset)))
        offset += len(encoded[-1])
    sizes = np.array([len(data) for data in encoded], np.int32)
    offsets = base_offset + np.cumsum(sizes, dtype=np.int64) - sizes
    window = np.frombuffer(b"".join(encoded) + tail, np.uint8)
    return Log(window, base_offset, offsets, sizes)


def with_body(record: Record, body: bytes, kind: Compression | None = None) -> Record:
    """The record with another body, compressed if a kind is given."""
    sys_flag = record.sys_flag & ~(layout.COMPRESSION_MASK | SysFlag.COMPRESSED)
    if kind is not None:
        body = compress(body, kind)
        sys_flag |= SysFlag.COMPRESSED | kind << layout.COMPRESSION_SHIFT
    return replace(record, body=body, body_crc=body_crc(body), sys_flag=sys_flag)


def with_property_crc(record: Record) -> Record:
    """The record with the ``__CRC32#`` property at its end."""
    padded = replace(record, properties=record.properties + encode_property_crc(0))
    crc = property_crc(encode_record(padded))
    return replace(record, properties=record.properties + encode_property_crc(crc))


def message_row(message: Message) -> dict[str, Any]:
    """A message in our columns, timestamps in microseconds, properties as pairs."""
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "uniqKey": message.uniq_key,
        "tags": message.tags,
        "keys": message.keys,
        "body": message.body,
        "properties": list(message.properties.items()),
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp_ms * 1000,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_timestamp_ms * 1000,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "commitLogOffset": message.commit_log_offset,
        "storeSize": message.store_size,
        "bodyCrc": message.body_crc,
        "tagsCode": message.tags_code,
    }


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


_TIMES = st.integers(-(2**63 - 1) // 1000 + 1, (2**63 - 1) // 1000)
_NAMES = st.sampled_from(
    ["KEYS", "TAGS", "UNIQ_KEY", "DELAY", "WAIT", "CLUSTER", "a", "城市", "a name of 20 letters"]
)
_VALUES = st.one_of(
    st.sampled_from(["", "1", "3", "99", "PAID", "😀tag", "已支付"]), st.text(max_size=30)
)


def _encode_pairs(pairs: list[tuple[str, str]], end: str) -> bytes:
    return ("\x02".join(f"{name}\x01{value}" for name, value in pairs) + end).encode(
        "utf-8", "replace"
    )


_PROPERTIES = st.one_of(
    st.builds(
        _encode_pairs, st.lists(st.tuples(_NAMES, _VALUES), max_size=6),
        st.sampled_from(["\x02", "", "\x02\x02", "\x01", "\x00"]),
    ),
    st.lists(
        st.sampled_from([b"\0", b"\1", b"\2", b"TAGS", b"a", b"\xff", b"\xe4\xb8", b"\xed\xa0"]),
        max_size=12,
    ).map(b"".join),
)
_TOPICS = st.one_of(
    st.sampled_from([b"orders", b"TopicTest", layout.SCHEDULE_TOPIC.encode(), b"", b"\xff\xfe"]),
    st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace")),
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Records of every layout with messy properties; their checksums are right."""
    hosts_v6 = draw(st.sampled_from([0x00, 0x00, 0x10, 0x20, 0x30]))
    flags = draw(_integers(32)) & ~(layout.HOSTS_V6_MASK | layout.COMPRESSION_MASK | 1)
    born_size = layout.IPV6_HOST_SIZE if hosts_v6 & 0x10 else layout.IPV4_HOST_SIZE
    store_size = layout.IPV6_HOST_SIZE if hosts_v6 & 0x20 else layout.IPV4_HOST_SIZE
    record = Record(
        magic=draw(st.sampled_from([layout.MAGIC_V1, layout.MAGIC_V1, layout.MAGIC_V2])),
        body_crc=0,
        queue_id=draw(_integers(32)),
        flag=draw(_integers(32)),
        queue_offset=draw(_integers(64)),
        physical_offset=0,
        sys_flag=flags | hosts_v6,
        born_timestamp=draw(_TIMES),
        born_host=draw(st.binary(min_size=born_size, max_size=born_size)),
        store_timestamp=draw(_TIMES),
        store_host=draw(st.binary(min_size=store_size, max_size=store_size)),
        reconsume_times=draw(_integers(32)),
        prepared_transaction_offset=draw(_integers(64)),
        body=b"",
        topic=draw(_TOPICS),
        properties=draw(_PROPERTIES),
    )
    kind = draw(st.one_of(st.none(), st.none(), st.sampled_from(list(Compression))))
    record = with_body(record, draw(st.binary(max_size=40)), kind)
    return with_property_crc(record) if draw(st.booleans()) else record
