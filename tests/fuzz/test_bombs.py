"""A few bytes that ask for gigabytes: a typed error, and no memory beyond the limit.

The children may take 512 MiB more than an interpreter with Arrow loaded; the growth that counts
is that of the largest resident size, beyond the limit of the body itself.
"""

from __future__ import annotations

import pytest
from bad_input import run_in_child

pytestmark = pytest.mark.fuzz

MIB = 1 << 20
#: The largest body that brokers take by default.
BODY_LIMIT = 4 * MIB

BOMBS = '''
import zlib
import lz4.frame
import zstandard
from rmqlog.commitlog_format.layout import Compression

SIZE = 256 << 20
ZEROS = bytes(1 << 20)

def zlib_bomb():
    stream = zlib.compressobj(9)
    return b"".join([stream.compress(ZEROS) for _ in range(SIZE >> 20)]) + stream.flush()

def lz4_bomb(block_linked=False):
    stream = lz4.frame.LZ4FrameCompressor(block_size=7, block_linked=block_linked)
    header = stream.begin()
    blocks = [stream.compress(ZEROS) for _ in range(SIZE >> 20)]
    return b"".join([header, *blocks, stream.flush()])

def zstd_bomb(declared, window_log=20):
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=window_log)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    stream = compressor.compressobj(size=SIZE if declared else -1)
    return b"".join([stream.compress(ZEROS) for _ in range(SIZE >> 20)]) + stream.flush()

def declared_lie(size):
    """A frame header that promises a size, and nothing behind it."""
    return bytes.fromhex("28b52ffd") + bytes([0xE0]) + size.to_bytes(8, "little") + b"\\1\\0\\0"

MAKERS = {
    "zlib": (Compression.ZLIB, zlib_bomb),
    "old zlib": (Compression.ZLIB_LEGACY, zlib_bomb),
    "lz4": (Compression.LZ4, lz4_bomb),
    "lz4, linked blocks": (Compression.LZ4, lambda: lz4_bomb(block_linked=True)),
    "lz4, many frames": (
        Compression.LZ4, lambda: lz4.frame.compress(bytes(8 << 20)) * 32
    ),
    "zstd, declared size": (Compression.ZSTD, lambda: zstd_bomb(True)),
    "zstd, no declared size": (Compression.ZSTD, lambda: zstd_bomb(False)),
    "zstd, huge window": (Compression.ZSTD, lambda: zstd_bomb(False, window_log=27)),
    "zstd, many frames": (
        Compression.ZSTD, lambda: zstandard.ZstdCompressor().compress(bytes(8 << 20)) * 32
    ),
    "zstd, a size that is a lie": (Compression.ZSTD, lambda: declared_lie(2**40)),
    "zlib in zlib": (Compression.ZLIB, lambda: zlib.compress(zlib_bomb(), 9)),
    "zstd in zstd": (
        Compression.ZSTD, lambda: zstandard.ZstdCompressor().compress(zstd_bomb(True))
    ),
}
'''

DEFUSE = BOMBS + '''
from dataclasses import replace
import numpy as np
from random_records import PLAIN_RECORD, build_log
from rmqlog.commitlog_format.checksum import body_crc
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.limits import Limits
from rmqlog.commitlog_format.message import decode_message
from rmqlog.commitlog_format.records import RecordDecoder

kind, make = MAKERS[sys.argv[1]]
limits = Limits(decompressed_size=int(sys.argv[2]))
body = make()
record = replace(PLAIN_RECORD, body=body, body_crc=body_crc(body), sys_flag=1 | kind << 8)
log = build_log([record])
data = log.record(0)
plain = build_log([PLAIN_RECORD])
RecordDecoder(["body"]).decode(plain.window, 0, plain.offsets)  # now all of Arrow is loaded
growth_limit(512 << 20)
reset_peak()
before = memory("VmHWM")
outcomes = []
for decode in (
    lambda: decode_message(data, 0, limits=limits).body,
    lambda: RecordDecoder(["body"], limits=limits).decode(
        log.window, 0, log.offsets
    )["body"][0].as_py(),
):
    try:
        outcomes.append(len(decode()))
    except StoreError as error:
        outcomes.append(type(error).__name__)
print(json.dumps({"outcomes": outcomes, "size": len(body), "growth": memory("VmHWM") - before}))
'''


@pytest.mark.parametrize(
    "name",
    [
        "zlib", "old zlib", "lz4", "lz4, linked blocks", "lz4, many frames",
        "zstd, declared size", "zstd, no declared size", "zstd, huge window", "zstd, many frames",
        "zstd, a size that is a lie", "zlib in zlib", "zstd in zstd",
    ],
)
def test_a_bomb_is_an_error_within_the_memory_of_its_limit(name: str) -> None:
    result = run_in_child(DEFUSE, name, BODY_LIMIT)

    assert result["size"] < 4 * MIB
    assert result["growth"] < 64 * MIB
    if " in " in name:  # one layer is unpacked: it is small, and the next one is only a body
        assert result["outcomes"][0] == result["outcomes"][1] < 4 * MIB
    elif "lie" in name:
        assert set(result["outcomes"]) <= {"CorruptRecordError", "LimitExceededError"}
    else:
        assert result["outcomes"] == ["LimitExceededError", "LimitExceededError"]


MANY_SMALL_BOMBS = '''
import zlib
from dataclasses import replace
from built_stores import ROOT, build_store
from memory_files import MemoryFiles
from random_records import PLAIN_RECORD
from twelve_records import inner_batch, inner_message
from rmqlog.commitlog_format.checksum import body_crc
from rmqlog.commitlog_format.layout import Compression
from rmqlog.commitlog_format.store import Store
from random_records import with_body

what = sys.argv[1]
if what == "bodies":
    record = with_body(PLAIN_RECORD, bytes(4 << 20), Compression.ZLIB)
else:
    record = inner_batch(*[inner_message(b"", b"")] * 20_000)
    record = with_body(record, record.body, Compression.ZLIB)
    record = replace(record, sys_flag=record.sys_flag | 0xC0)
count = int(sys.argv[2])
built = build_store([record] * count, 1 << 20)
if what != "bodies":  # a batch topic has no such queue
    built = replace(built, files={k: v for k, v in built.files.items() if "commitlog" in k})
store = Store(ROOT, access=MemoryFiles(dict(built.files)))
_ = store.end
reset_peak()
before = memory("VmHWM")
rows = 0
batches = store.scan(["body"]) if what == "inner" else store.read("TopicTest", columns=["body"])
for batch in batches:
    rows += batch.num_rows
    del batch
print(json.dumps({"rows": rows, "growth": memory("VmHWM") - before}))
'''


def test_many_bodies_that_are_fine_alone_come_in_several_batches() -> None:
    result = run_in_child(MANY_SMALL_BOMBS, "bodies", 150)  # 600 MiB, when unpacked

    assert result["rows"] == 150
    assert result["growth"] < 384 * MIB


def test_inner_batches_unpack_into_bounded_batches() -> None:
    result = run_in_child(MANY_SMALL_BOMBS, "inner", 20)

    assert result["rows"] == 20 * 20_000
    assert result["growth"] < 200 * MIB
