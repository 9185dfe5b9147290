"""Whether the last record of a log is all there: in a copy, or after a crash, it may not be.

BODYCRC covers the body alone, so topic and properties need signs of their own. A log is written
from front to back, into space that is zero: what was not written yet when it was copied is zero
up to the record's end, or, if the copy went on later, up to the border of a page. Where a broker
had cut the log off, old bytes may stand there instead.

A property may hold zeros by right, so only the last record is judged: once something is written
behind a record, it is whole.
"""

from __future__ import annotations

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.checksum import property_crc, stored_property_crc
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.errors import CorruptRecordError, StoreError
from rmqlog.commitlog_format.layout import PREFIX
from rmqlog.commitlog_format.message import Record, check_body_crc, encode_record

#: A copy that is taken while the log grows is newer from the border of some page on.
_PAGE_SIZE = 4096
_MAGICS = (layout.MAGIC_V1, layout.MAGIC_V2, layout.MAGIC_BLANK)
_PAIR_END = bytes([layout.PROPERTY_SEPARATOR])
_NAME_VALUE = bytes([layout.NAME_VALUE_SEPARATOR])


def why_not_whole(log: CommitLog, offset: int, size: int, *, check_crc: bool) -> StoreError | None:
    """What is wrong with the record that the last unit of a queue points to."""
    try:
        record = log.record(offset)
        if check_crc:
            check_body_crc(record, log.path_of(offset))
    except StoreError as error:
        return error
    if record.total_size != size:
        return CorruptRecordError(
            "TOTALSIZE is not the size that the queue unit claims", log.path_of(offset), offset,
            record.total_size, size,
        )
    return why_torn(log, record)


def why_torn(log: CommitLog, record: Record) -> StoreError | None:
    """Why a record whose structure and body are sound was only written in part; or ``None``."""
    size, magic = _prefix_behind(log, record)
    if magic in _MAGICS:
        return None
    old_bytes_follow = bool(size or magic)
    sign = _sign_of_a_tear(log, record, old_bytes_follow=old_bytes_follow)
    if sign is None or _matches_property_crc(record):
        return None
    offset = record.physical_offset
    return CorruptRecordError(
        f"the record was only written in part: {sign}", log.path_of(offset), offset
    )


def _sign_of_a_tear(log: CommitLog, record: Record, *, old_bytes_follow: bool) -> str | None:
    if 0 in record.topic:
        return "its topic has a zero"
    if record.properties.endswith(b"\0"):
        return "its properties end in zeros"
    if _has_hole(log, record):
        return "its properties are zero up to the border of a page"
    if old_bytes_follow and not _is_well_formed(record.properties):
        return "its properties are none, and old bytes follow"
    return None


def _has_hole(log: CommitLog, record: Record) -> bool:
    """Whether zeros in the properties end at the border of a page."""
    end = record.physical_offset + record.total_size
    start = end - len(record.properties)
    # How far behind the properties' first byte the first border is that has one before it.
    first = 1 + -(start + 1 - log.files.file_of(record.physical_offset).start) % _PAGE_SIZE
    data = record.properties
    return any(
        data[border - 1] == 0 and data[border] != 0
        for border in range(first, len(data), _PAGE_SIZE)
    )


def _is_well_formed(properties: bytes) -> bool:
    """Whether these are pairs of names and values as brokers write them."""
    try:
        properties.decode("utf-8")
    except UnicodeDecodeError:
        return False
    if not properties:
        return True
    pairs = properties.removesuffix(_PAIR_END).split(_PAIR_END)
    return 0 not in properties and all(pair.find(_NAME_VALUE) > 0 for pair in pairs)


def _matches_property_crc(record: Record) -> bool:
    """Whether the record carries a checksum of all its bytes, and they have it."""
    data = encode_record(record)
    claimed = stored_property_crc(data)
    return claimed is not None and claimed == property_crc(data)


def _prefix_behind(log: CommitLog, record: Record) -> tuple[int, int]:
    """Size and magic number of what stands behind a record; zeros at the end of its file."""
    offset = record.physical_offset
    position = offset + record.total_size + log.entry_header_size(offset)
    if position + PREFIX.size > log.files.file_of(offset).end:
        return 0, 0
    try:
        size, magic = PREFIX.unpack(log.files.read(position, PREFIX.size))
    except StoreError:  # the file of a copy may be shorter by now
        return 0, 0
    return int(size), int(magic)
