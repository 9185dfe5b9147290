"""Compressed bodies: what the Java clients write, and what an attacker might."""

from __future__ import annotations

import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rmqlog.commitlog_format.compression import compress, decompress
from rmqlog.commitlog_format.errors import CorruptRecordError, LimitExceededError
from rmqlog.commitlog_format.layout import Compression
from rmqlog.commitlog_format.limits import Limits

KINDS = list(Compression)
FRAMED = [Compression.LZ4, Compression.ZSTD]
SMALL = Limits(decompressed_size=1000)
BOMB_SIZE = 100_000_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", [b"", b"a", b"a" * 100, bytes(range(256)) * 1000])
def test_what_was_compressed_comes_back(kind: Compression, body: bytes) -> None:
    assert decompress(compress(body, kind), kind) == body


def test_bodies_begin_as_those_of_the_java_clients() -> None:
    body = b"a" * 100
    assert compress(body, Compression.ZLIB).hex() == "785e4b4ca43d00007a4725e5"
    assert compress(body, Compression.ZSTD).hex() == "28b52ffd005844000010616101003f012c010000"
    assert compress(body, Compression.LZ4).hex().startswith("04224d18607073")
    assert compress(body, Compression.LZ4).hex().endswith("00000000")


@pytest.mark.parametrize("kind", FRAMED)
def test_several_frames_are_one_body(kind: Compression) -> None:
    frames = compress(b"one ", kind) + compress(b"", kind) + compress(b"two", kind)
    assert decompress(frames, kind) == b"one two"


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncation_is_an_error(kind: Compression) -> None:
    data = compress(b"truncated somewhere " * 9, kind)
    for size in range(len(data)):
        with pytest.raises(CorruptRecordError):
            decompress(data[:size], kind)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_behind_the_end_are_an_error(kind: Compression) -> None:
    with pytest.raises(CorruptRecordError):
        decompress(compress(b"body", kind) + b"\x00garbage", kind)


@pytest.mark.parametrize("kind", FRAMED)
def test_a_flood_of_empty_frames_is_an_error(kind: Compression) -> None:
    with pytest.raises(CorruptRecordError, match="behind its end"):
        decompress(compress(b"", kind) * 10_000, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_may_be_as_large_as_the_limit_and_no_larger(kind: Compression) -> None:
    assert len(decompress(compress(b"x" * 1000, kind), kind, SMALL)) == 1000
    with pytest.raises(LimitExceededError):
        decompress(compress(b"x" * 1001, kind), kind, SMALL)


@pytest.mark.parametrize("kind", FRAMED)
def test_the_limit_is_for_all_frames_together(kind: Compression) -> None:
    with pytest.raises(LimitExceededError):
        decompress(compress(b"x" * 600, kind) * 2, kind, SMALL)


@pytest.mark.parametrize(
    ("kind", "bomb"),
    [
        (Compression.ZLIB, zlib.compress(bytes(BOMB_SIZE))),
        (Compression.LZ4, lz4.frame.compress(bytes(BOMB_SIZE))),
        (Compression.ZSTD, zstandard.ZstdCompressor().compress(bytes(BOMB_SIZE))),
        (Compression.ZSTD, compress(bytes(BOMB_SIZE), Compression.ZSTD)),
    ],
    ids=["zlib", "lz4", "zstd with its size", "zstd stream"],
)
def test_a_bomb_exceeds_the_limit(kind: Compression, bomb: bytes) -> None:
    with pytest.raises(LimitExceededError):
        decompress(bomb, kind)


def test_a_zstd_window_beyond_the_limit_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = stream.compress(b"x") + stream.flush()
    with pytest.raises(LimitExceededError):
        decompress(data, Compression.ZSTD)


@pytest.mark.parametrize("kind", [4, 5, 6, 7])
def test_an_unknown_type_is_an_error_that_names_it(kind: int) -> None:
    with pytest.raises(CorruptRecordError, match=f"found {kind}"):
        decompress(b"x", kind)


def test_errors_name_the_record() -> None:
    with pytest.raises(CorruptRecordError) as caught:
        decompress(b"no zlib", Compression.ZLIB, path="commitlog/0", offset=1000)
    assert (caught.value.path, caught.value.offset) == ("commitlog/0", 1000)


@given(st.binary(max_size=200), st.integers(0, 7))
def test_any_bytes_give_a_body_or_a_typed_error(data: bytes, kind: int) -> None:
    try:
        body = decompress(data, kind, SMALL)
    except CorruptRecordError:
        return
    assert len(body) <= SMALL.decompressed_size


@given(st.data(), st.sampled_from(KINDS))
def test_any_changed_byte_gives_a_body_or_a_typed_error(data: st.DataObject, kind: int) -> None:
    whole = bytearray(compress(b"some body that repeats, repeats" * 4, Compression(kind)))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] = data.draw(st.integers(0, 255))
    try:
        body = decompress(bytes(whole), kind, SMALL)
    except CorruptRecordError:
        return
    assert len(body) <= SMALL.decompressed_size
