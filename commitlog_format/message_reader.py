"""From queue units, or from the log itself, to batches of messages.

Every record that is read is checked before it is believed; what fails goes by the reader's
policy. Columns that a unit holds never touch the log.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.binary_columns import repeat_string
from rmqlog.commitlog_format.columns import MESSAGE_SCHEMA, UNIT_COLUMNS, select_columns
from rmqlog.commitlog_format.commit_log import CommitLog, RecordRun
from rmqlog.commitlog_format.errors import (
    CorruptRecordError,
    SegmentExpiredError,
    StoreError,
    TruncatedFileError,
)
from rmqlog.commitlog_format.inner_batch import expand
from rmqlog.commitlog_format.message import Message
from rmqlog.commitlog_format.records import RecordDecoder
from rmqlog.commitlog_format.store_files import QueueKey, QueueKind
from rmqlog.commitlog_format.units import Units

logger = logging.getLogger(__name__)

#: Rows of a batch: fewer lose to the cost of calls, more fall out of the processor's cache.
BATCH_ROW_COUNT = 12_288
#: Rows of a batch that needs nothing but units, and so has few columns.
_UNIT_BATCH_ROW_COUNT = 32_768
#: Record bytes of a batch.
BATCH_SIZE = 8 * 1024 * 1024

#: What a unit of a batch queue tells; size and tags code belong to the inner messages.
_BATCH_UNIT_COLUMNS = UNIT_COLUMNS - {"storeSize", "tagsCode"}
#: Of a record that was found through a unit these come from the unit.
_UNIT_BEATS_RECORD = frozenset({"queueOffset", "tagsCode"})

#: Rows of a run: nearly always all of them, and then none is copied to choose them.
_Rows: TypeAlias = slice | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReadPolicy:
    """What a reader does about what it cannot read; by default every damage raises."""

    check_crc: bool = True
    drop_malformed: bool = False
    skip_expired: bool = False


@dataclass(slots=True)
class ReadReport:
    """What a reader left out, by its policy: counts, and the first few reasons."""

    malformed_count: int = 0
    expired_count: int = 0
    reasons: list[str] = field(default_factory=list)

    REASON_COUNT_MAX = 20

    def note_malformed(self, error: StoreError, count: int = 1) -> None:
        """Count messages that are damaged, and keep the reason."""
        self.malformed_count += count
        self.note(error)

    def note(self, error: StoreError) -> None:
        """Keep a reason, and log it."""
        if len(self.reasons) < self.REASON_COUNT_MAX:
            self.reasons.append(str(error))
        logger.warning("left out: %s", error)


@dataclass(frozen=True, slots=True)
class QueueSpan:
    """A queue of which messages are wanted; of an inner batch those in ``[start, stop)``."""

    key: QueueKey
    start: int | None = None
    stop: int | None = None


class MessageReader:
    """Reads messages of one store as Arrow batches with the wanted columns."""

    def __init__(
        self,
        log: CommitLog,
        columns: Iterable[str] | None = None,
        *,
        broker_name: str = "",
        policy: ReadPolicy | None = None,
    ) -> None:
        self.log = log
        self.columns = select_columns(columns)
        self.schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in self.columns])
        self.broker_name = broker_name
        self.policy = policy or ReadPolicy()
        self.report = ReadReport()
        from_record = [name for name in self.columns if name != "brokerName"]
        # Topic, queue and flags are always read: a record must belong to the queue that names
        # it, and flags tell an inner batch.
        needed = dict.fromkeys([*from_record, "topic", "queueId", "sysFlag", "commitLogOffset"])
        self._decoder = self._decoder_of(needed)
        # What the queue itself tells is not worked out from the record.
        self._queue_decoder = self._decoder_of(
            name for name in needed if name not in _UNIT_BEATS_RECORD
        )

    def _decoder_of(self, columns: Iterable[str]) -> RecordDecoder:
        return RecordDecoder(
            tuple(columns), check_crc=self.policy.check_crc, limits=self.log.limits
        )

    def needs_log(self, kind: QueueKind) -> bool:
        """Whether the wanted columns need more than the units of a queue."""
        known = UNIT_COLUMNS if kind is QueueKind.SIMPLE else _BATCH_UNIT_COLUMNS
        return not known.issuperset(self.columns)

    def read(
        self, key: QueueKey, kind: QueueKind, units: Units,
        start: int | None = None, stop: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The messages of a queue's units; of an inner batch those in ``[start, stop)``."""
        if not self.needs_log(kind):
            for part in units.slices(_UNIT_BATCH_ROW_COUNT):
                yield self._from_units(key, part, start, stop)
            return
        queue = QueueSpan(key, start, stop)
        for path, decoded, own in self._records(units):
            yield from self._of_queue(queue, path, decoded, own)

    def read_merged(
        self, queues: Sequence[QueueSpan], units: Units
    ) -> Iterator[pa.RecordBatch]:
        """The messages of units of several simple queues of one topic, in the units' order.

        Each unit's owner is the place of its queue among ``queues``.
        """
        topic = queues[0].key.topic
        queue_ids = np.array([queue.key.queue_id for queue in queues], np.int32)
        for path, decoded, own in self._records(units):
            owners = np.zeros(len(own), np.intp) if own.owners is None else own.owners
            is_plain = (
                _is_of_topic(decoded, topic)
                and np.array_equal(decoded["queueId"].to_numpy(), queue_ids[owners])
                and not _has_inner_batch(decoded)
            )
            if is_plain:
                yield self._finish(decoded, own)
                continue
            for place, queue in enumerate(queues):
                of_queue = owners == place
                yield from self._of_queue(
                    queue, path, decoded.filter(pa.array(of_queue)), own.take(of_queue)
                )

    def _records(self, units: Units) -> Iterator[tuple[str, pa.RecordBatch, Units]]:
        """The records of units in batches: the file, the columns, and the units they are of."""
        # Where windows must be small, so must be what is made of them.
        size_max = min(BATCH_SIZE, self.log.limits.window_size // 2)
        for part in units.slices(BATCH_ROW_COUNT, size_max):
            for run, run_units in self._runs(part):
                for rows, decoded in self._decode(self._queue_decoder, run, run_units.sizes):
                    yield run.window.path, decoded, run_units.take(rows)

    def read_run(
        self, run: RecordRun, keep: Callable[[pa.RecordBatch], NDArray[np.bool_]] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The messages of a run of the log, inner batches expanded.

        ``keep`` may choose records by their topic, queue and flags.
        """
        for _, decoded in self._decode(self._decoder, run):
            if keep is not None:
                decoded = decoded.filter(pa.array(keep(decoded)))
            if _has_inner_batch(decoded):
                yield from self._expanded(decoded["commitLogOffset"].to_pylist(), run.window.path)
            elif decoded.num_rows:
                yield self._finish(decoded, None)

    def _runs(self, units: Units) -> Iterator[tuple[RecordRun, Units]]:
        """Windows over the units' records; files that are gone are skipped if so asked."""
        first = 0
        # One damaged unit that points elsewhere must not take its neighbours along.
        stops = [*(np.flatnonzero(np.diff(units.offsets) < 0) + 1).tolist(), len(units)]
        while first < len(units):
            rest = units.take(slice(first, stops[bisect_right(stops, first)]))
            try:
                for run in self.log.runs(rest.offsets, rest.sizes):
                    yield run, units.take(slice(first, first + len(run.offsets)))
                    first += len(run.offsets)
            except SegmentExpiredError as error:
                if int(units.offsets[first]) >= self.log.end:
                    first += self._drop(_beyond_the_log(error, units, first))
                elif self.policy.skip_expired:
                    first += self._skip(error, self._expired_count(units, first))
                else:
                    raise
            except (CorruptRecordError, TruncatedFileError) as error:
                first += self._drop(error)

    def _expired_count(self, units: Units, first: int) -> int:
        """How many units from ``first`` on point into the file that is gone, or to no file."""
        files = self.log.files.files
        offsets = units.offsets[first:]
        starts = np.array([file.start for file in files], np.int64)
        ends = np.array([*(file.end for file in files), 0], np.int64)
        places = np.searchsorted(starts, offsets, "right") - 1
        places[offsets >= ends[places]] = -1
        elsewhere = np.flatnonzero(places != places[0])
        return int(elsewhere[0]) if len(elsewhere) else len(offsets)

    def _drop(self, error: StoreError) -> int:
        """Leave one unit out, or raise what is wrong with it."""
        if not self.policy.drop_malformed:
            raise error
        self.report.note_malformed(error)
        return 1

    def _skip(self, error: StoreError, count: int) -> int:
        self.report.expired_count += count
        self.report.note(error)
        return count

    def _of_queue(
        self, queue: QueueSpan, path: str, decoded: pa.RecordBatch, units: Units
    ) -> Iterator[pa.RecordBatch]:
        """The messages of records that units of one queue name."""
        foreign = self._foreign(queue.key, decoded)
        if foreign.any():
            decoded, units = self._without_foreign(queue.key, decoded, units, foreign, path)
        if _has_inner_batch(decoded):
            offsets = decoded["commitLogOffset"].to_pylist()
            yield from self._expanded(offsets, path, queue)
        elif decoded.num_rows:
            yield self._finish(decoded, units)

    def _decode(
        self, decoder: RecordDecoder, run: RecordRun, sizes: NDArray[np.int64] | None = None
    ) -> Iterator[tuple[_Rows, pa.RecordBatch]]:
        """The sound records of a run: their rows in it, and their columns.

        In one batch, unless compressed bodies are too much for one.
        """
        done = 0
        try:
            for batch in _decode_rows(decoder, run, sizes, slice(None)):
                yield slice(done, done + batch.num_rows), batch
                done += batch.num_rows
            return
        except CorruptRecordError as error:
            if not self.policy.drop_malformed:
                raise
            self.report.note(error)
        rest = np.arange(done, len(run.offsets))
        bad = decoder.find_malformed(
            run.window.data, run.window.start, run.offsets[rest],
            sizes=None if sizes is None else sizes[rest],
        )
        self.report.malformed_count += int(bad.sum())
        rest, done = rest[~bad], 0
        for batch in _decode_rows(decoder, run, sizes, rest):
            yield rest[done : done + batch.num_rows], batch
            done += batch.num_rows

    def _foreign(self, key: QueueKey, decoded: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which records do not belong to the queue whose units name them."""
        foreign: NDArray[np.bool_] = decoded["queueId"].to_numpy() != key.queue_id
        if not _is_of_topic(decoded, key.topic):
            foreign |= ~pc.equal(decoded["topic"], key.topic).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(foreign).tolist():
            try:
                message = self.log.message(decoded["commitLogOffset"][row].as_py(), check_crc=False)
            except CorruptRecordError:  # whatever it is, it does not belong here
                continue
            foreign[row] = key.topic not in dispatched_names(message)
        return foreign

    def _without_foreign(
        self, key: QueueKey, decoded: pa.RecordBatch, units: Units,
        foreign: NDArray[np.bool_], path: str,
    ) -> tuple[pa.RecordBatch, Units]:
        row = int(np.flatnonzero(foreign)[0])
        error = CorruptRecordError(
            f"the record belongs to another queue than the unit of queue offset "
            f"{units.queue_offsets[row]}", path, int(units.offsets[row]),
            f"{decoded['topic'][row].as_py()!r} queue {decoded['queueId'][row].as_py()}",
            f"{key.topic!r} queue {key.queue_id}",
        )
        if not self.policy.drop_malformed:
            raise error
        self.report.note_malformed(error, int(foreign.sum()))
        return decoded.filter(pa.array(~foreign)), units.take(~foreign)

    def _finish(self, decoded: pa.RecordBatch, units: Units | None) -> pa.RecordBatch:
        """The wanted columns in order; what the queue says beats what the record says."""
        arrays = []
        for name in self.columns:
            if name == "brokerName":
                arrays.append(repeat_string(self.broker_name, decoded.num_rows))
            elif units is not None and name in _UNIT_BEATS_RECORD:
                of_unit = units.queue_offsets if name == "queueOffset" else units.tags_codes
                arrays.append(pa.array(of_unit))
            else:
                arrays.append(decoded[name])
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _from_units(
        self, key: QueueKey, units: Units, start: int | None, stop: int | None
    ) -> pa.RecordBatch:
        """Rows that units alone can give."""
        offsets, queue_offsets = units.offsets, units.queue_offsets
        if units.counts is not None:
            offsets = np.repeat(offsets, units.counts)
            inner = np.arange(len(offsets)) - np.repeat(
                np.cumsum(units.counts) - units.counts, units.counts
            )
            queue_offsets = np.repeat(queue_offsets, units.counts) + inner
            wanted = _between(queue_offsets, start, stop)
            offsets, queue_offsets = offsets[wanted], queue_offsets[wanted]
        count = len(offsets)
        values = {
            "brokerName": lambda: repeat_string(self.broker_name, count),
            "topic": lambda: repeat_string(key.topic, count),
            "queueId": lambda: pa.array(np.full(count, key.queue_id, np.int32)),
            "queueOffset": lambda: pa.array(queue_offsets),
            "commitLogOffset": lambda: pa.array(offsets),
            "storeSize": lambda: pa.array(units.sizes.astype(np.int32)),
            "tagsCode": lambda: pa.array(units.tags_codes),
        }
        arrays = [values[name]() for name in self.columns]
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _expanded(
        self, offsets: Sequence[int], path: str, queue: QueueSpan | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Message by message, inner batches unpacked: such records are rare and small.

        A few bytes can unpack to very many messages: no more are held than a batch has.
        """
        low, high = _bounds(queue.start, queue.stop) if queue else _bounds(None, None)
        messages: list[Message] = []
        size = 0
        for offset in offsets:
            try:
                message = self.log.message(offset, check_crc=self.policy.check_crc)
                inner = expand(message, path=path, limits=self.log.limits)
            except CorruptRecordError as error:
                self._drop(error)
                continue
            messages += [each for each in inner if low <= each.queue_offset < high]
            size += len(message.body)
            if len(messages) >= BATCH_ROW_COUNT or size >= BATCH_SIZE:
                yield messages_to_batch(messages, self.columns, self.broker_name)
                messages, size = [], 0
        if messages:
            yield messages_to_batch(messages, self.columns, self.broker_name)


def _decode_rows(
    decoder: RecordDecoder, run: RecordRun, sizes: NDArray[np.int64] | None, rows: _Rows
) -> Iterator[pa.RecordBatch]:
    window = run.window
    return decoder.decode_batches(
        window.data, window.start, run.offsets[rows], path=window.path,
        sizes=None if sizes is None else sizes[rows],
    )


def _beyond_the_log(error: StoreError, units: Units, row: int) -> CorruptRecordError:
    """Segments expire at the log's start: a unit that points behind its end is damage."""
    return CorruptRecordError(
        f"unit of queue offset {units.queue_offsets[row]} points behind the log",
        error.path, int(units.offsets[row]), error.found,
    )


def dispatched_names(message: Message) -> list[str]:
    """The further queues (light message queues) that a message was dispatched to."""
    names = message.properties.get(layout.PROPERTY_MULTI_DISPATCH, "")
    return names.split(layout.MULTI_DISPATCH_SEPARATOR) if names else []


def messages_to_batch(
    messages: Sequence[Message], columns: Sequence[str], broker_name: str = ""
) -> pa.RecordBatch:
    """Messages as a batch with the wanted columns."""
    arrays = []
    for name in columns:
        values = [broker_name] * len(messages) if name == "brokerName" else [
            _VALUES[name](message) for message in messages
        ]
        arrays.append(pa.array(values, MESSAGE_SCHEMA.field(name).type))
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([MESSAGE_SCHEMA.field(name) for name in columns])
    )


_VALUES: dict[str, Callable[[Message], object]] = {
    "topic": lambda message: message.topic,
    "queueId": lambda message: message.queue_id,
    "queueOffset": lambda message: message.queue_offset,
    "msgId": lambda message: message.msg_id,
    "uniqKey": lambda message: message.uniq_key,
    "tags": lambda message: message.tags,
    "keys": lambda message: message.keys,
    "body": lambda message: message.body,
    "properties": lambda message: list(message.properties.items()),
    "flag": lambda message: message.flag,
    "sysFlag": lambda message: message.sys_flag,
    "bornTimestamp": lambda message: message.born_timestamp_ms * 1000,
    "bornHost": lambda message: message.born_host,
    "storeTimestamp": lambda message: message.store_timestamp_ms * 1000,
    "storeHost": lambda message: message.store_host,
    "reconsumeTimes": lambda message: message.reconsume_times,
    "preparedTransactionOffset": lambda message: message.prepared_transaction_offset,
    "commitLogOffset": lambda message: message.commit_log_offset,
    "storeSize": lambda message: message.store_size,
    "bodyCrc": lambda message: message.body_crc,
    "tagsCode": lambda message: message.tags_code,
}


def _is_of_topic(decoded: pa.RecordBatch, topic: str) -> bool:
    # Of one topic the decoder makes one column and keeps it: to see that is enough.
    return bool(decoded["topic"].equals(repeat_string(topic, decoded.num_rows)))


def _has_inner_batch(decoded: pa.RecordBatch) -> bool:
    flags = decoded["sysFlag"].to_numpy()
    return bool((flags & layout.SysFlag.INNER_BATCH).any())


def _between(
    values: NDArray[np.int64], start: int | None, stop: int | None
) -> NDArray[np.bool_]:
    low, high = _bounds(start, stop)
    return (values >= low) & (values < high)


def _bounds(start: int | None, stop: int | None) -> tuple[int, int]:
    """Two bounds of queue offsets, where there is none one that excludes nothing."""
    return -(2**63) if start is None else start, 2**63 - 1 if stop is None else stop
