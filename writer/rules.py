"""The rules of a broker's ``putMessage``, each a typed error that names rule, row and value.

Sources of the rules: TopicValidator, HookUtils.checkBeforePutMessage, MessageExtEncoder. The
first row that breaks a rule is named; nothing of its batch is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.encoding import ByteColumn
from rmqlog.commitlog_format.errors import RuleViolationError
from rmqlog.writer.settings import StoreSettings

_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)
#: Topics that a broker writes itself and lets no client send to (TopicValidator).
_BROKER_TOPICS = frozenset(
    {
        layout.SCHEDULE_TOPIC,
        layout.TRANSACTION_HALF_TOPIC,
        layout.TRANSACTION_OP_TOPIC,
        layout.TIMER_TOPIC,
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
#: More queues than this a topic never has; a larger number is a mistake.
QUEUE_COUNT_MAX = 65_536
_SHOWN_LENGTH = 120

# Each of them has the name of the column that breaks it, or the value has.
RULE_TOPIC_MISSING = "a message has a topic"
RULE_TOPIC_NAME = "a topic consists of letters, digits and % | _ -"
RULE_TOPIC_LENGTH = "a topic has at most 127 bytes"
RULE_TOPIC_LENGTH_RETRY = "a retry topic has at most 255 bytes"
RULE_TOPIC_V2 = (
    "a topic of more than 127 bytes needs messageVersion V2, which brokers before 5.1 cut off"
)
RULE_TOPIC_OWN = "a topic of the broker's own cannot be written to"
RULE_TOPIC_BATCH = "a topic with BatchConsumeQueues takes inner batches, which are not written"
RULE_INTEGER = "a whole number fits into its field"
RULE_QUEUE_ID = f"queueId is from 0 to {QUEUE_COUNT_MAX - 1}"
RULE_BODY_MISSING = "a message has a body, though it may be empty"
RULE_BODY_SIZE = "a body, compressed or not, has at most maxMessageSize bytes"
RULE_TEXT = "texts are well-formed UTF-8"
RULE_SEPARATOR = "names and values contain neither 0x01 nor 0x02"
RULE_PROPERTY_NAME = "each of the properties has a name"
RULE_PROPERTY_VALUE = "each of the properties has a value (readers drop empty ones)"
RULE_PROPERTIES_SIZE = "the properties have at most 32767 bytes together"
RULE_DELAY_LEVEL = "delayLevel is 0 or more"
RULE_RECORD_SIZE = "a record, with its body and its properties, and a filler fit into a segment"
RULE_BATCH_SIZE = "a client batch fits into a segment and has at most maxMessageSize bytes"
RULE_HOST = "bornHost is an address and a port"
RULE_COMPRESSION = "a compression is zlib, lz4 or zstd"


def check_topic(topic: str | None, row: int, *, allow_v2: bool) -> None:
    """Raise unless a client may send to a topic of this name."""
    if not topic:
        raise RuleViolationError(RULE_TOPIC_MISSING, row, topic)
    if not _TOPIC.fullmatch(topic):
        raise RuleViolationError(RULE_TOPIC_NAME, row, _shown(topic))
    if topic in _BROKER_TOPICS:
        raise RuleViolationError(RULE_TOPIC_OWN, row, topic)
    size = len(topic)  # ASCII, as checked
    if size <= layout.MAX_TOPIC_SIZE_V1:
        return
    if not topic.startswith(layout.RETRY_TOPIC_PREFIX):
        raise RuleViolationError(RULE_TOPIC_LENGTH, row, f"{_shown(topic)} ({size} bytes)")
    if size > layout.MAX_TOPIC_SIZE:
        raise RuleViolationError(RULE_TOPIC_LENGTH_RETRY, row, f"{_shown(topic)} ({size} bytes)")
    if not allow_v2:
        raise RuleViolationError(RULE_TOPIC_V2, row, f"{_shown(topic)} ({size} bytes)")


def check_topics(
    topics: Sequence[str], topic_codes: NDArray[np.int32], *, allow_v2: bool
) -> None:
    """:func:`check_topic` for every distinct topic; the row named is the first that has it."""
    for code, topic in enumerate(topics):
        rows = np.flatnonzero(topic_codes == code)
        if len(rows):
            check_topic(topic, int(rows[0]), allow_v2=allow_v2)


def check_topic_kinds(
    topics: Sequence[str], topic_codes: NDArray[np.int32], is_batch: Callable[[str], bool]
) -> None:
    """Raise for a topic whose queues hold inner batches."""
    for code, topic in enumerate(topics):
        if is_batch(topic):
            row = int(np.flatnonzero(topic_codes == code)[0])
            raise RuleViolationError(RULE_TOPIC_BATCH, row, topic)


def check_queue_ids(queue_ids: NDArray[np.int32], given: NDArray[np.bool_]) -> None:
    """Raise unless every queue id that was given can be one."""
    bad = given & ((queue_ids < 0) | (queue_ids >= QUEUE_COUNT_MAX))
    _refuse_first(bad, RULE_QUEUE_ID, queue_ids)


def check_integers(column: pa.Array, name: str, kind: pa.DataType) -> None:
    """Raise for a whole number that is none of ``kind``, a signed one; ``name`` says which column
    it is of."""
    allowed = np.iinfo(f"i{kind.bit_width // 8}")
    values = np.asarray(column.fill_null(0))
    bad = np.flatnonzero((values < allowed.min) | (values > allowed.max))
    if len(bad):
        row = int(bad[0])
        raise RuleViolationError(
            RULE_INTEGER, row, f"{name} {values[row]}", f"{allowed.min} to {allowed.max}"
        )


def check_delay_levels(levels: NDArray[np.int32]) -> None:
    """Raise unless every delay level can be one; too high ones count as the highest."""
    _refuse_first(levels < 0, RULE_DELAY_LEVEL, levels)


def check_bodies_present(bodies: pa.Array) -> None:
    """Raise for a null body."""
    if bodies.null_count:
        _refuse_first(np.asarray(bodies.is_null()), RULE_BODY_MISSING, None)


def check_body_sizes(sizes: NDArray[np.int64], settings: StoreSettings) -> None:
    """Raise for a stored body that is too large."""
    _refuse_first(
        sizes > settings.maxMessageSize, RULE_BODY_SIZE, sizes, settings.maxMessageSize
    )


def check_well_formed(
    texts: pa.StringArray, name: str, rows: NDArray[np.int64] | None = None
) -> None:
    """Raise for a text that is no UTF-8: not even its hash could be told.

    ``rows`` says whose text each one is, and ``name`` which column they are of.
    """
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        for index, value in enumerate(texts.cast(pa.binary()).to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                row = index if rows is None else int(rows[index])
                shown = f"{name} {_shown(repr(value))}"
                raise RuleViolationError(RULE_TEXT, row, shown) from error
        raise


def check_separators(
    column: ByteColumn, name: str, rows: NDArray[np.int64] | None = None
) -> None:
    """Raise for a value with a separator in it; ``rows`` says whose value each one is, and
    ``name`` which column they are of."""
    if not len(column) or not len(column.data):
        return
    # Values of a column lie in one stretch of its buffer: one look at the whole is enough.
    low = int(column.starts.min())
    high = int((column.starts + column.sizes).max())
    found = np.flatnonzero(_is_separator(column.data[low:high])) + low
    if not len(found):
        return
    for index in range(len(column)):
        value = column.value(index)
        if any(map(_SEPARATORS.__contains__, value)):
            row = index if rows is None else int(rows[index])
            raise RuleViolationError(RULE_SEPARATOR, row, f"{name} {_shown(repr(value))}")


_SEPARATORS = frozenset({layout.NAME_VALUE_SEPARATOR, layout.PROPERTY_SEPARATOR})


def _is_separator(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (data - np.uint8(layout.NAME_VALUE_SEPARATOR)) <= 1
    return found


def check_property_entries(
    names: ByteColumn, values: ByteColumn, rows: NDArray[np.int64], null_values: NDArray[np.bool_]
) -> None:
    """Raise for entries of ``properties`` without name or value, or with separators."""
    for bad, rule in (
        (names.sizes == 0, RULE_PROPERTY_NAME),
        (null_values | (values.sizes == 0), RULE_PROPERTY_VALUE),
    ):
        if bad.any():
            entry = int(np.flatnonzero(bad)[0])
            shown = names.value(entry).decode(errors="replace")
            raise RuleViolationError(rule, int(rows[entry]), _shown(repr(shown)))
    check_separators(names, "properties", rows)
    check_separators(values, "properties", rows)


def check_properties_sizes(sizes: NDArray[np.int64]) -> None:
    """Raise for properties that are too large."""
    too_large = sizes > layout.MAX_PROPERTIES_SIZE
    _refuse_first(too_large, RULE_PROPERTIES_SIZE, sizes, layout.MAX_PROPERTIES_SIZE)


def check_record_sizes(sizes: NDArray[np.int64], settings: StoreSettings) -> None:
    """Raise for a record that no segment has room for."""
    most = settings.mappedFileSizeCommitLog - layout.SEGMENT_END_RESERVE
    _refuse_first(sizes > most, RULE_RECORD_SIZE, sizes, most)


def check_client_batch(sizes: NDArray[np.int64], settings: StoreSettings) -> None:
    """Raise for a client batch that cannot be placed as a whole."""
    most = min(
        settings.mappedFileSizeCommitLog - layout.SEGMENT_END_RESERVE, settings.maxMessageSize
    )
    total = int(sizes.sum())
    if total > most:
        row = int(np.searchsorted(np.cumsum(sizes), most, side="right"))
        raise RuleViolationError(RULE_BATCH_SIZE, row, total, most)


def _refuse_first(
    bad: NDArray[np.bool_],
    rule: str,
    values: NDArray[np.int32] | NDArray[np.int64] | None,
    expected: object = None,
) -> None:
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        value = None if values is None else int(values[row])
        raise RuleViolationError(rule, row, value, expected)


def _shown(text: str) -> str:
    """Enough of a text to recognise it by."""
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."
