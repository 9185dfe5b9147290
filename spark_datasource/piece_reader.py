"""What a task does: the rows of a plan's pieces as Arrow batches in Spark's schema."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.columns import MESSAGE_COLUMNS
from rmqlog.commitlog_format.commit_log import RecordRun, open_commit_log
from rmqlog.commitlog_format.compiled import expect_rows
from rmqlog.commitlog_format.errors import CorruptRecordError, SegmentExpiredError
from rmqlog.commitlog_format.files import FileAccess, LocalFiles
from rmqlog.commitlog_format.limits import Limits
from rmqlog.commitlog_format.log_walk import LogWalk
from rmqlog.commitlog_format.merged_units import merge_by_offset
from rmqlog.commitlog_format.message_reader import MessageReader, QueueSpan, ReadPolicy
from rmqlog.commitlog_format.queue_view import STEP_COUNT, QueueView
from rmqlog.commitlog_format.resync import next_sound_position
from rmqlog.commitlog_format.snapshot import open_queue_files
from rmqlog.commitlog_format.units import Units
from rmqlog.spark_datasource.estimates import needs_log
from rmqlog.spark_datasource.options import KEY_COLUMN
from rmqlog.spark_datasource.partitions import (
    LogSlice,
    LogSource,
    Piece,
    QueueBundle,
    QueueSlice,
    RowList,
    UnitFilter,
    UnitList,
)
from rmqlog.spark_datasource.predicates import FALSE, bind
from rmqlog.spark_datasource.row_filters import RowFilter, explode_keys

logger = logging.getLogger(__name__)

#: Fewer units at a time are not worth the calls; where most are only passed over, these are more.
_STEP_COUNT_MIN = 65_536
_TAG_STEP_COUNT_MIN = 131_072


class PieceReader:
    """Reads pieces of one plan; it keeps logs open from piece to piece."""

    def __init__(
        self, schema: pa.Schema, row_filter: RowFilter, policy: ReadPolicy, limits: Limits,
        *, explode: bool = False, access: FileAccess | None = None,
    ) -> None:
        self._schema = schema
        self._row_filter = row_filter
        self._policy = policy
        self._limits = limits
        self._explode = explode
        self._access = access or LocalFiles()
        wanted = [name for name in schema.names if name in MESSAGE_COLUMNS]
        needed = [*wanted, *row_filter.columns, *(["keys"] if explode else [])]
        self._columns = tuple(dict.fromkeys(needed))
        self._readers: dict[LogSource, MessageReader] = {}

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """The rows of a piece."""
        if isinstance(piece, RowList):
            yield self._made_rows(piece)
            return
        for batch in self._messages(piece):
            rows = self._row_filter.apply(batch)
            if self._explode:
                rows = explode_keys(rows, KEY_COLUMN)
            if rows.num_rows:
                yield self._conform(rows)

    def announce(self, pieces: Iterable[Piece]) -> None:
        """Tell the decoder how many rows of the log will be asked for, where that is known."""
        if not needs_log(self._columns):
            return
        slices = [
            each for piece in pieces
            for each in (piece.slices if isinstance(piece, QueueBundle) else (piece,))
            if isinstance(each, QueueSlice) and each.unit_filter == UnitFilter()
        ]
        expect_rows(sum(each.row_count for each in slices))

    def log_left_out(self) -> None:
        """Say what was left out by policy; called when all pieces are read."""
        for source, reader in self._readers.items():
            report = reader.report
            if report.malformed_count or report.expired_count:
                logger.warning(
                    "%s: dropped %d malformed and skipped %d expired messages; first reason: %s",
                    source.broker_name, report.malformed_count, report.expired_count,
                    report.reasons[0] if report.reasons else "none given",
                )

    def _messages(
        self, piece: QueueSlice | QueueBundle | UnitList | LogSlice
    ) -> Iterator[pa.RecordBatch]:
        reader = self._reader(piece.source)
        if isinstance(piece, QueueSlice):
            return self._read_queue(reader, piece)
        if isinstance(piece, QueueBundle):
            return self._read_bundle(reader, piece)
        if isinstance(piece, UnitList):
            return reader.read(piece.key, piece.kind, piece.units, piece.start, piece.stop)
        return self._read_log(reader, piece)

    def _reader(self, source: LogSource) -> MessageReader:
        if source not in self._readers:
            log = open_commit_log(self._access, source.folders, self._limits)
            self._readers[source] = MessageReader(
                log, self._columns, broker_name=source.broker_name, policy=self._policy
            )
        return self._readers[source]

    def _read_queue(self, reader: MessageReader, piece: QueueSlice) -> Iterator[pa.RecordBatch]:
        folder = piece.folder
        for units in self._units(reader, piece):
            yield from reader.read(folder.key, folder.kind, units, piece.start, piece.stop)

    def _read_bundle(self, reader: MessageReader, piece: QueueBundle) -> Iterator[pa.RecordBatch]:
        queues = [QueueSpan(each.folder.key, each.start, each.stop) for each in piece.slices]
        streams = [self._units(reader, each, _bundle_step_count(piece)) for each in piece.slices]
        for units in merge_by_offset(streams):
            yield from reader.read_merged(queues, units)

    def _units(
        self, reader: MessageReader, piece: QueueSlice, step_count: int = STEP_COUNT
    ) -> Iterator[Units]:
        """The wanted units of a queue, in steps."""
        folder = piece.folder
        try:
            files = open_queue_files(self._access, folder, self._limits)
            if files.first_index > piece.start_index:
                raise SegmentExpiredError(
                    "a queue file expired since the query was planned", folder.path,
                    found=f"units from {files.first_index} on", expected=piece.start_index,
                )
        except SegmentExpiredError as error:
            self._skip_expired(reader, error, piece.row_count)
            return
        view = QueueView(folder.key, folder.kind, files, piece.start_index, piece.stop_index)
        drop = reader.report.note_malformed if self._policy.drop_malformed else None
        wanted = piece.unit_filter
        for units in view.scan(piece.start, piece.stop, wanted.tags_codes, drop, step_count):
            yield wanted.apply(units)

    def _read_log(self, reader: MessageReader, piece: LogSlice) -> Iterator[pa.RecordBatch]:
        keep = _LogSelection(piece)
        position = piece.walk_start
        while position < piece.stop:
            walk = LogWalk(reader.log, position, piece.stop)
            try:
                for run in walk:
                    inside = run.offsets >= piece.start
                    if not inside.all():
                        run = RecordRun(run.window, run.offsets[inside], run.sizes[inside])
                    if len(run.offsets):
                        yield from reader.read_run(run, keep)
            except SegmentExpiredError as error:
                self._skip_expired(reader, error, 1)
                return
            position = self._behind(reader, walk, piece)

    def _behind(self, reader: MessageReader, walk: LogWalk, piece: LogSlice) -> int:
        """Where to go on: below the snapshot's end a walk that stops early has met damage."""
        if walk.end.offset >= piece.stop:
            return piece.stop
        error = walk.end.reason or CorruptRecordError(
            "unused space in the middle of the log", reader.log.path_of(walk.end.offset),
            walk.end.offset,
        )
        if not (self._policy.drop_malformed and isinstance(error, CorruptRecordError)):
            raise error
        reader.report.note_malformed(error)
        found = next_sound_position(reader.log, walk.end.offset, piece.stop)
        return piece.stop if found is None else found

    def _skip_expired(
        self, reader: MessageReader, error: SegmentExpiredError, count: int
    ) -> None:
        """Count what expired under the query, or raise."""
        if not self._policy.skip_expired:
            raise error
        reader.report.expired_count += count
        reader.report.note(error)

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that Spark asked for, in its order and types."""
        arrays = []
        for field in self._schema:
            array = batch[field.name]
            if array.type != field.type:
                array = _as_text(array)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _made_rows(self, piece: RowList) -> pa.RecordBatch:
        columns = zip(*piece.rows, strict=True)
        arrays = [
            pa.array(values, field.type)
            for values, field in zip(columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _bundle_step_count(piece: QueueBundle) -> int:
    """Units for a step of each queue: all at hand take little more memory than those of one."""
    seeks_tags = any(each.unit_filter.tags_codes is not None for each in piece.slices)
    least = _TAG_STEP_COUNT_MIN if seeks_tags else _STEP_COUNT_MIN
    return max(STEP_COUNT // len(piece.slices), least)


class _LogSelection:
    """Chooses records of the log by flags, topic and queue, as a dispatcher would."""

    def __init__(self, piece: LogSlice) -> None:
        self._piece = piece
        self._wanted: dict[tuple[str, int], bool] = {}

    def __call__(self, decoded: pa.RecordBatch) -> NDArray[np.bool_]:
        transaction = decoded["sysFlag"].to_numpy() & layout.TRANSACTION_MASK
        visible: NDArray[np.bool_] = (transaction == 0) | (
            transaction == layout.SysFlag.TRANSACTION_COMMIT
        )
        topics = decoded["topic"].dictionary_encode()
        names = topics.dictionary.to_pylist()
        queue_ids = decoded["queueId"].to_numpy()
        codes = topics.indices.to_numpy().astype(np.int64) << 32 | queue_ids.astype(np.uint32)
        for code in np.unique(codes[visible]).tolist():
            rows = codes == code
            queue_id = int(queue_ids[np.argmax(rows)])
            if not self._wants(names[code >> 32], queue_id):
                visible &= ~rows
        return visible

    def _wants(self, topic: str, queue_id: int) -> bool:
        key = (topic, queue_id)
        if key not in self._wanted:
            piece = self._piece
            known: dict[str, str | int] = {
                "brokerName": piece.source.broker_name, "topic": topic, "queueId": queue_id,
            }
            self._wanted[key] = (
                topic not in piece.without and piece.topics.includes(topic)
                and bind(piece.filters, known) != FALSE
            )
        return self._wanted[key]


def _as_text(bodies: pa.BinaryArray) -> pa.StringArray:
    """Bodies as text; what is no UTF-8 becomes U+FFFD."""
    try:
        return bodies.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [body.decode("utf-8", errors="replace") for body in bodies.to_pylist()], pa.string()
        )
