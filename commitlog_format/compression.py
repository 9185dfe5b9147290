"""Compressed bodies: zlib, LZ4 frames and zstd, never more memory than the limits allow.

A few bytes can ask for gigabytes, and a declared size can lie; so every codec is driven in
steps whose output is bounded. LZ4 and zstd bodies may be several frames, as for the Java
streams; a zlib body is one stream. Whatever is left over or missing is an error.
"""

from __future__ import annotations

import zlib
from typing import NoReturn

import lz4.frame
import zstandard

from rmqlog.commitlog_format.errors import NO_OFFSET, CorruptRecordError, LimitExceededError
from rmqlog.commitlog_format.layout import Compression
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits

#: ``rocketmq.message.compressLevel`` of the Java clients.
DEFAULT_LEVEL = 5
#: More frames than this in one body are an attack on our time, not data.
_MAX_FRAME_COUNT = 64
#: An LZ4 sequence gives at most 255 bytes for each of its own.
_LZ4_MAX_RATIO = 255
#: A zstd block of 4 bytes gives up to 128 KiB, and the binding has no bound for the output of
#: a step: with so little input a step stays below 16 MiB.
_ZSTD_STEP_SIZE = 512


def decompress(
    data: bytes,
    kind: int,
    limits: Limits = DEFAULT_LIMITS,
    *,
    path: str = "",
    offset: int = NO_OFFSET,
) -> bytes:
    """The plain body. ``kind`` is the type in SYSFLAG, see :class:`layout.Compression`.

    Damaged data raises ``CorruptRecordError``, a body that grows beyond
    ``limits.decompressed_size`` raises ``LimitExceededError``; both name the record.
    """
    try:
        if kind in (Compression.ZLIB, Compression.ZLIB_LEGACY):
            return _decompress_zlib(data, limits.decompressed_size)
        if kind == Compression.LZ4:
            return _decompress_lz4(data, limits.decompressed_size)
        if kind == Compression.ZSTD:
            return _decompress_zstd(data, limits)
        raise _BadBodyError("unknown compression type", kind, "0 to 3")
    except _TooLargeError:
        raise LimitExceededError(
            "the body grows beyond the limit when decompressed",
            path, offset, f"more than {limits.decompressed_size} bytes",
            f"at most {limits.decompressed_size} bytes",
        ) from None
    except _BadBodyError as error:
        reason, found, expected = error.args
        raise CorruptRecordError(
            f"the body cannot be decompressed: {reason}", path, offset, found, expected
        ) from None


def compress(data: bytes, kind: Compression, level: int = DEFAULT_LEVEL) -> bytes:
    """The body as the Java clients compress it; LZ4 has no levels there."""
    if kind == Compression.LZ4:
        # lz4-java reads independent blocks only. A stream, because the one-shot call takes
        # smaller blocks for small bodies and so another header.
        frame = lz4.frame.LZ4FrameCompressor(
            block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False
        )
        return bytes(frame.begin() + frame.compress(data) + frame.flush())
    if kind == Compression.ZSTD:
        # A stream, so without the size in the header.
        stream = zstandard.ZstdCompressor(level=level).compressobj()
        blocks: bytes = stream.compress(data) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        return blocks + stream.flush()
    return zlib.compress(data, level)


class _TooLargeError(Exception):
    """The output passed the limit."""


class _BadBodyError(Exception):
    """The input is damaged: reason, found, expected."""


def _decompress_zlib(data: bytes, size_limit: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(data, size_limit + 1)
    except zlib.error as error:
        raise _BadBodyError("no valid zlib stream", str(error), None) from None
    if len(body) > size_limit:
        raise _TooLargeError
    if not stream.eof:
        _refuse_truncated(data)
    if stream.unused_data:
        _refuse_trailing(stream.unused_data)
    return body


def _decompress_lz4(data: bytes, size_limit: int) -> bytes:
    pieces: list[bytes] = []
    size_left = size_limit
    rest = data
    for _ in range(_MAX_FRAME_COUNT):
        stream = lz4.frame.LZ4FrameDecompressor()
        # The binding allocates what it is allowed, so it is allowed no more than can come out.
        step_limit = min(size_left, len(rest) * _LZ4_MAX_RATIO) + 1
        try:
            piece = stream.decompress(rest, max_length=step_limit)
        except (RuntimeError, ValueError, EOFError, MemoryError) as error:
            raise _BadBodyError("no valid LZ4 frame", str(error), None) from None
        if len(piece) > size_left:
            raise _TooLargeError
        if not stream.eof:
            _refuse_truncated(data)
        pieces.append(piece)
        size_left -= len(piece)
        rest = stream.unused_data or b""
        if not rest:
            return b"".join(pieces)
    return _refuse_trailing(rest)


def _decompress_zstd(data: bytes, limits: Limits) -> bytes:
    pieces: list[bytes] = []
    size_left = limits.decompressed_size
    decompressor = zstandard.ZstdDecompressor(max_window_size=limits.zstd_window_size)
    stream = decompressor.decompressobj()
    frame_count = 1
    position = 0
    while True:
        step = data[position : position + _ZSTD_STEP_SIZE]
        if not step:
            _refuse_truncated(data)
        try:
            piece = stream.decompress(step)
        except zstandard.ZstdError as error:
            if "too much memory" in str(error):
                raise _TooLargeError from None
            raise _BadBodyError("no valid zstd frame", str(error), None) from None
        if len(piece) > size_left:
            raise _TooLargeError
        pieces.append(piece)
        size_left -= len(piece)
        position += len(step) - len(stream.unused_data)
        if stream.eof:
            if position == len(data):
                return b"".join(pieces)
            if frame_count == _MAX_FRAME_COUNT:
                _refuse_trailing(data[position:])
            frame_count += 1
            stream = decompressor.decompressobj()


def _refuse_truncated(data: bytes) -> NoReturn:
    raise _BadBodyError("it ends too early", f"{len(data)} bytes", "more")


def _refuse_trailing(rest: bytes) -> NoReturn:
    raise _BadBodyError("bytes behind its end", f"{len(rest)} more bytes", "none")
