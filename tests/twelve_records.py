"""Twelve records, one for each thing that makes a record special; what fuzz tests damage.

They are made by the scalar encoder, which gives the bytes of the golden vectors and of every
record of the golden stores.
"""

from __future__ import annotations

from dataclasses import replace

from random_records import PLAIN_RECORD, with_body, with_property_crc

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.address import parse_host
from rmqlog.commitlog_format.layout import I16, INNER_MESSAGE, Compression, SysFlag
from rmqlog.commitlog_format.message import Record

BODY = b"The same words, the same words, the same words again."


def inner_message(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    """One message of an inner batch."""
    size = INNER_MESSAGE.size + len(body) + I16.size + len(properties)
    header = INNER_MESSAGE.pack(size, 0, 0, flag, len(body))
    return header + body + I16.pack(len(properties)) + properties


def inner_batch(*messages: bytes, base: int = 5) -> Record:
    """A record that holds these messages."""
    properties = f"INNER_NUM\x01{len(messages)}\x02INNER_BASE\x01{base}\x02".encode()
    record = with_body(PLAIN_RECORD, b"".join(messages))
    return replace(
        record, properties=properties,
        sys_flag=record.sys_flag | SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP,
    )


TWELVE_RECORDS: dict[str, Record] = {
    "V1": PLAIN_RECORD,
    "V2": replace(PLAIN_RECORD, magic=layout.MAGIC_V2),
    "IPv6 born host": replace(
        PLAIN_RECORD, sys_flag=int(SysFlag.BORN_HOST_V6), born_host=parse_host("[2001:db8::1]:9")
    ),
    "IPv6 store host": replace(
        PLAIN_RECORD, sys_flag=int(SysFlag.STORE_HOST_V6), store_host=parse_host("[fe80::2]:10911")
    ),
    "zlib": with_body(PLAIN_RECORD, BODY, Compression.ZLIB),
    "lz4": with_body(PLAIN_RECORD, BODY, Compression.LZ4),
    "zstd": with_body(PLAIN_RECORD, BODY, Compression.ZSTD),
    "inner batch": inner_batch(
        inner_message(b"one", b"TAGS\x01a\x02"), inner_message(b"", b""), inner_message(b"3", b"x")
    ),
    "empty body": with_body(PLAIN_RECORD, b""),
    "127-byte topic": replace(PLAIN_RECORD, topic=b"%RETRY%" + b"t" * 120),
    "32,767-byte properties": replace(
        PLAIN_RECORD,
        properties=(PLAIN_RECORD.properties + b"long\x01").ljust(layout.MAX_PROPERTIES_SIZE, b"v"),
    ),
    "property CRC": with_property_crc(PLAIN_RECORD),
}
