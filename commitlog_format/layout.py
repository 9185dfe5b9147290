"""Every file of the store, declared once: names, magic numbers, sizes, dtypes, flags.

All integers on disk are big-endian and signed (Java's ``ByteBuffer``). The rules were read
from RocketMQ's sources (class names below) and checked against brokers 5.5.0 and 4.9.5.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag

import numpy as np

# --- Names in a store directory (StorePathConfigHelper) ------------------------------------

COMMIT_LOG_DIRECTORY = "commitlog"
CONSUME_QUEUE_DIRECTORY = "consumequeue"
CONSUME_QUEUE_EXT_DIRECTORY = "consumequeue_ext"
BATCH_CONSUME_QUEUE_DIRECTORY = "batchconsumequeue"
INDEX_DIRECTORY = "index"
CONFIG_DIRECTORY = "config"
CHECKPOINT_FILE = "checkpoint"
ABORT_FILE = "abort"
LOCK_FILE = "lock"
#: Our own folder in a store: manifests, staging, transaction versions. Brokers ignore it.
RMQLOG_DIRECTORY = "rmqlog"
#: In it, while a batch commit is under way: JSON whose member says where in the log it starts.
COMMIT_MANIFEST_FILE = "commit.json"
COMMIT_MANIFEST_START = "startOffset"
#: In it too: which batch commits are done, and what tasks have encoded for those to come.
COMMIT_RECORDS_FILE = "commits.json"
STAGING_DIRECTORY = "staging"
#: In it too: how much of the last index file is known to be on disk.
INDEX_NOTES_FILE = "index-notes"
#: A note's sum over slots counts each by a pseudo-random factor (the finaliser of splitmix64).
SLOT_WEIGHT_FACTORS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)
#: A DLedger broker keeps its log in ``dledger-<id>/data`` instead of ``commitlog``.
DLEDGER_DIRECTORY_PREFIX = "dledger-"
DLEDGER_DATA_DIRECTORY = "data"
#: Present in ``consumequeue`` when ``storeType=defaultRocksDB`` made it a database.
ROCKSDB_MARKER_FILE = "CURRENT"

#: Segments and queue files are named by the offset of their first byte (UtilAll.java).
OFFSET_NAME_DIGITS = 20
#: Index files are named by creation time, ``yyyyMMddHHmmssSSS``.
INDEX_NAME_DIGITS = 17

# --- Default sizes (MessageStoreConfig) -----------------------------------------------------

COMMIT_LOG_FILE_SIZE = 1 << 30
CONSUME_QUEUE_FILE_UNITS = 300_000
INDEX_SLOT_COUNT = 5_000_000
INDEX_ENTRY_COUNT = 4 * INDEX_SLOT_COUNT
MAX_MESSAGE_SIZE = 4 * 1024 * 1024
CONSUME_QUEUE_EXT_FILE_SIZE = 48 * 1024 * 1024

# --- CommitLog records (MessageExtEncoder, MessageDecoder) ----------------------------------
#
#   TOTALSIZE MAGIC BODYCRC QUEUEID FLAG QUEUEOFFSET PHYSICALOFFSET SYSFLAG BORNTIMESTAMP
#   BORNHOST STORETIMESTAMP STOREHOST RECONSUMETIMES PREPAREDOFFSET
#   BODYLEN body  TOPICLEN topic  PROPERTIESLEN properties
#
# BODYCRC is zlib's CRC-32 of the stored (compressed) body without its top bit; nothing else in
# a record is protected, unless the broker appends the ``__CRC32#`` property. A host is 4 or 16
# address bytes (SYSFLAG says which, for each of the two) and a 4-byte port. TOPICLEN is one
# signed byte in V1 records and two in V2.

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
#: The filler that ends a segment: TOTALSIZE is what is left of the file, at least 8.
MAGIC_BLANK = 0xCBD43194
FILLER_HEADER_SIZE = 8
#: A record leaves room for a filler: it is appended only if its size + 8 fits.
SEGMENT_END_RESERVE = FILLER_HEADER_SIZE

IPV4_HOST_SIZE = 8
IPV6_HOST_SIZE = 20

CRC_MASK = 0x7FFFFFFF


class SysFlag(IntFlag):
    """The bits of SYSFLAG (MessageSysFlag)."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80


TRANSACTION_MASK = 0xC
HOSTS_V6_MASK = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
COMPRESSION_MASK = 0x700
COMPRESSION_SHIFT = 8


class Compression(IntEnum):
    """The compression type in SYSFLAG bits 8 to 10; 0 is what brokers before 4.9.4 wrote."""

    ZLIB_LEGACY = 0
    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def record_header_dtype(born_v6: bool, store_v6: bool) -> np.dtype[np.void]:
    """The fixed part of a record, TOTALSIZE to BODYLEN, for one combination of host widths."""
    born_size = IPV6_HOST_SIZE if born_v6 else IPV4_HOST_SIZE
    store_size = IPV6_HOST_SIZE if store_v6 else IPV4_HOST_SIZE
    return np.dtype(
        [
            ("total_size", ">i4"),
            ("magic", ">u4"),
            ("body_crc", ">i4"),
            ("queue_id", ">i4"),
            ("flag", ">i4"),
            ("queue_offset", ">i8"),
            ("physical_offset", ">i8"),
            ("sys_flag", ">i4"),
            ("born_timestamp", ">i8"),
            ("born_host", f"V{born_size}"),
            ("store_timestamp", ">i8"),
            ("store_host", f"V{store_size}"),
            ("reconsume_times", ">i4"),
            ("prepared_transaction_offset", ">i8"),
            ("body_size", ">i4"),
        ]
    )


#: By ``sys_flag & HOSTS_V6_MASK``.
RECORD_HEADERS = {
    flags: record_header_dtype(
        bool(flags & SysFlag.BORN_HOST_V6), bool(flags & SysFlag.STORE_HOST_V6)
    )
    for flags in (0x00, 0x10, 0x20, 0x30)
}
RECORD_HEADER_V4 = RECORD_HEADERS[0]
#: Where STORETIMESTAMP is; by the same bits.
STORE_TIMESTAMP_POSITIONS = {
    flags: 48 + (IPV6_HOST_SIZE if flags & SysFlag.BORN_HOST_V6 else IPV4_HOST_SIZE)
    for flags in RECORD_HEADERS
}
assert RECORD_HEADER_V4.itemsize == 88
assert RECORD_HEADERS[0x30].itemsize == 112

#: TOTALSIZE and MAGIC, enough to walk a log.
RECORD_PREFIX = np.dtype([("total_size", ">i4"), ("magic", ">u4")])
MAGIC_POSITION = 4
QUEUE_OFFSET_POSITION = 20
PHYSICAL_OFFSET_POSITION = 28
SYS_FLAG_POSITION = 36
BORN_TIMESTAMP_POSITION = 40
#: QUEUEOFFSET and PHYSICALOFFSET, which a batch commit assigns.
ASSIGNED_OFFSETS = np.dtype([("queue_offset", ">i8"), ("physical_offset", ">i8")])
#: Topic of one byte, no body, no properties; with the topic length of V1 and IPv4 hosts.
MIN_RECORD_SIZE = RECORD_HEADER_V4.itemsize + 1 + 2

#: TOPICLEN by the record's magic.
TOPIC_SIZES: dict[int, np.dtype[np.signedinteger]] = {
    MAGIC_V1: np.dtype(">i1"),
    MAGIC_V2: np.dtype(">i2"),
}
#: A physical offset, as message ids hold it.
PHYSICAL_OFFSET = np.dtype(">i8")

#: The scalar codec reads the same fields field by field.
I8 = struct.Struct(">b")
I16 = struct.Struct(">h")
I32 = struct.Struct(">i")
U32 = struct.Struct(">I")
I64 = struct.Struct(">q")

#: TOTALSIZE and MAGIC for scalar walks.
PREFIX = struct.Struct(">iI")

#: PROPERTIESLEN of many records.
PROPERTIES_SIZE = np.dtype(">i2")

#: TOTALSIZE, MAGIC, QUEUEID, QUEUEOFFSET, PHYSICALOFFSET and SYSFLAG in one step.
RECORD_PEEK = struct.Struct(">iI4xi4xqqi")
assert RECORD_PEEK.size == SYS_FLAG_POSITION + I32.size

MAX_TOPIC_SIZE_V1 = 127
MAX_TOPIC_SIZE = 255
MAX_PROPERTIES_SIZE = 32_767

# --- Properties (MessageDecoder.messageProperties2String, MessageConst) ---------------------

NAME_VALUE_SEPARATOR = 0x01
PROPERTY_SEPARATOR = 0x02

PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_UNIQ_KEY = "UNIQ_KEY"
PROPERTY_DELAY = "DELAY"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_TRANSACTION = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_TRANSACTION_ID = "__transactionId__"
PROPERTY_TRANSACTION_CHECKS = "TRANSACTION_CHECK_TIMES"
PROPERTY_TIMER_OUT = "TIMER_OUT_MS"
PROPERTY_TIMER_DELETE = "TIMER_DEL_UNIQKEY"
PROPERTY_WAIT = "WAIT"
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
PROPERTY_INNER_COUNT = "INNER_NUM"
PROPERTY_INNER_BASE = "INNER_BASE"
PROPERTY_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
PROPERTY_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
PROPERTY_CRC = "__CRC32#"



def uniq_key_dtype(address_size: int) -> np.dtype[np.void]:
    """The bytes whose hex digits are a client's UNIQ_KEY (MessageClientIDSetter.java)."""
    return np.dtype(
        [
            ("address", f"V{address_size}"),
            ("process", ">u2"),
            ("salt", ">u4"),  # a class loader's hash: it tells programs on one host apart
            ("time_ms", ">u4"),  # since the start of the month
            ("counter", ">u2"),
        ]
    )


assert uniq_key_dtype(4).itemsize == 16

KEY_SEPARATOR = " "
MULTI_DISPATCH_SEPARATOR = ","

#: ``__CRC32#`` 0x01, ten digits (least significant first), 0x02: the last bytes of a record.
PROPERTY_CRC_DIGITS = 10
PROPERTY_CRC_SIZE = len(PROPERTY_CRC) + 1 + PROPERTY_CRC_DIGITS + 1
assert PROPERTY_CRC_SIZE == 20

# --- Inner batches (MessageDecoder.decodeMessages: the client's batch form) -----------------

#: size, magic (0), body crc (0), flag, body size; then body, i16 properties size, properties.
INNER_MESSAGE = struct.Struct(">iiiii")

# --- ConsumeQueue (ConsumeQueue.java) -------------------------------------------------------

CONSUME_QUEUE_UNIT = np.dtype(
    [
        ("commit_log_offset", ">i8"),
        ("size", ">i4"),  # of the whole record, although the sources say "body size"
        ("tags_code", ">i8"),  # hash of the tag, delivery time, or an address of the ext file
    ]
)
assert CONSUME_QUEUE_UNIT.itemsize == 20

#: What fills the first file of a queue that starts above 0: offset 0, this size, tags code 0.
PRE_BLANK_SIZE = 0x7FFFFFFF

#: A tags code at or below this is an address in the ext file: code + 2**63.
EXT_ADDRESS_MAX = -(2**31) - 1
EXT_ADDRESS_BASE = -(2**63)
#: In place of a size: no unit fits any more. So many bytes of a file are left for it.
EXT_FILE_END = -1
EXT_FILE_END_SIZE = 4

CONSUME_QUEUE_EXT_HEADER = np.dtype(
    [
        ("size", ">i2"),  # of the whole unit; -1 or 0 ends the file
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("bitmap_size", ">i2"),
    ]
)
assert CONSUME_QUEUE_EXT_HEADER.itemsize == 20

BATCH_CONSUME_QUEUE_UNIT = np.dtype(
    [
        ("commit_log_offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("base_offset", ">i8"),  # queue offset of the first inner message
        ("batch_count", ">i2"),
        ("compacted_offset", ">i4"),
        ("reserved", ">i4"),
    ]
)
assert BATCH_CONSUME_QUEUE_UNIT.itemsize == 46

# --- Bloom bitmap of the ext file (BloomFilter.java, defaults of BrokerConfig) --------------

BLOOM_HASH_COUNT = 3
BLOOM_BIT_COUNT = 112

# --- IndexFile (IndexFile.java, IndexHeader.java) -------------------------------------------
#
# header, slots (i32 each: number of the newest entry, 0 when empty), entries. Entries count
# from 1; the place of entry 0 is never used, and index_count is one more than there are.

INDEX_HEADER = np.dtype(
    [
        ("begin_timestamp", ">i8"),
        ("end_timestamp", ">i8"),
        ("begin_physical_offset", ">i8"),
        ("end_physical_offset", ">i8"),
        ("hash_slot_count", ">i4"),  # slots in use (before 4.7.1: entries)
        ("index_count", ">i4"),
    ]
)
assert INDEX_HEADER.itemsize == 40
INDEX_SLOT = np.dtype(">i4")
INDEX_ENTRY = np.dtype(
    [
        ("key_hash", ">i4"),
        ("physical_offset", ">i8"),
        ("time_diff_s", ">i4"),  # seconds after begin_timestamp, cut off, never negative
        ("previous", ">i4"),  # the next older entry of the same slot, 0 at the end
    ]
)
assert INDEX_ENTRY.itemsize == 20
#: The same for a walk along one chain.
INDEX_ENTRY_FIELDS = struct.Struct(">iqii")
assert INDEX_ENTRY_FIELDS.size == INDEX_ENTRY.itemsize
INDEX_KEY_SEPARATOR = "#"
#: 5.5 indexes each tag as well, under ``topic#T#tag``.
INDEX_TAG_PREFIX = "T#"
#: With the default ratio of four entries a slot, the slot count follows from the file's size.
INDEX_BYTES_PER_SLOT = INDEX_SLOT.itemsize + 4 * INDEX_ENTRY.itemsize

# --- Staged batches (our own: what a task of a batch write leaves for the commit) -----------
#
# Batch after batch: prefix, queues (JSON), rows, hashes of the index entries; the records in
# files beside it. The commit fills in what they lack. Never read by another machine: native
# byte order.

#: Magic, bytes of the queues, rows, hashes, bytes of the records, CRC-32 of what is in between.
STAGED_PREFIX = struct.Struct("<4sIIIQI")
STAGED_MAGIC = b"rmq1"
STAGED_ROW = np.dtype(
    [
        ("size", "<i4"),  # of the record
        ("queue_code", "<i4"),  # position in the batch's queues
        ("sys_flag", "<i4"),
        ("hash_count", "<i4"),  # index entries
        ("tags_code", "<i8"),  # if it is a delay, the store time is to be added
        ("is_delay", "?"),
        ("is_born_open", "?"),  # the born time is to be the store time
    ]
)
STAGED_HASH = np.dtype("<i4")
#: A file of staged records that has so many bytes is followed by another one.
STAGED_RECORDS_SIZE = 32 * 1024 * 1024

# --- checkpoint (StoreCheckpoint.java) ------------------------------------------------------

CHECKPOINT = np.dtype(
    [
        ("physic_msg_timestamp", ">i8"),
        ("logics_msg_timestamp", ">i8"),
        ("index_msg_timestamp", ">i8"),
        ("master_flushed_offset", ">i8"),  # since 5.0
        ("confirm_phy_offset", ">i8"),  # since 5.1.1
        ("logics_physical_offset", ">i8"),  # since 5.5
    ]
)
assert CHECKPOINT.itemsize == 48
CHECKPOINT_FILE_SIZE = 4096

# --- DLedger log (DLedgerEntryCoder.java) ---------------------------------------------------

DLEDGER_ENTRY_HEADER = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),  # header and body
        ("index", ">i8"),
        ("term", ">i8"),
        ("position", ">i8"),
        ("channel", ">i4"),
        ("chain_crc", ">i4"),
        ("body_crc", ">i4"),
        ("body_size", ">i4"),
    ]
)
assert DLEDGER_ENTRY_HEADER.itemsize == 48
#: Magic and size of an entry, for scalar walks.
DLEDGER_PREFIX = struct.Struct(">ii")
DLEDGER_MAGIC = 1
DLEDGER_MAGIC_BLANK = -1
DLEDGER_INDEX_UNIT = np.dtype(
    [("magic", ">i4"), ("position", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
assert DLEDGER_INDEX_UNIT.itemsize == 32
DLEDGER_CHECKPOINT_FILE = "checkpoint"
DLEDGER_INDEX_DIRECTORY = "index"

# --- Topics (TopicValidator.java, MixAll.java) ----------------------------------------------

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TRANSACTION_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANSACTION_OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
#: Its consumer offset in the half topic tells how far the broker's checks have come.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
RETRY_TOPIC_PREFIX = "%RETRY%"
DLQ_TOPIC_PREFIX = "%DLQ%"
LMQ_TOPIC_PREFIX = "%LMQ%"

SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        SCHEDULE_TOPIC,
        TRANSACTION_HALF_TOPIC,
        TRANSACTION_OP_TOPIC,
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "BenchmarkTest",
        "CHECKPOINT_TOPIC",
    }
)
SYSTEM_TOPIC_PREFIXES = (
    "rmq_sys_",
    "RMQ_SYS_",
    RETRY_TOPIC_PREFIX,
    DLQ_TOPIC_PREFIX,
    LMQ_TOPIC_PREFIX,
)

#: ``messageDelayLevel``'s default, 1s to 2h; level 1 is the first. The queue is level - 1.
DELAY_LEVELS_MS = tuple(
    1000 * seconds
    for seconds in (
        *(1, 5, 10, 30, 60, 120, 180, 240, 300),
        *(360, 420, 480, 540, 600, 1200, 1800, 3600, 7200),
    )
)
UNKNOWN_DELAY_LEVEL_MS = 1000
