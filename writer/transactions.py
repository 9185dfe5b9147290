"""Transactional messages: prepared as half messages, then committed or rolled back.

What a broker writes (TransactionalMessageBridge, EndTransactionProcessor): the half message
waits in a topic of its own; a commit appends it to its real topic; both a commit and a rollback
note the half message's queue offset in the op topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.consume_queue import ConsumeQueue
from rmqlog.commitlog_format.errors import MessageNotFoundError, RuleViolationError
from rmqlog.commitlog_format.layout import SysFlag
from rmqlog.commitlog_format.message import Record
from rmqlog.commitlog_format.properties import format_properties, parse_properties
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.commitlog_format.text import decode_text
from rmqlog.writer.appender import AppendResult
from rmqlog.writer.draft import Draft
from rmqlog.writer.record_copy import NewRecord, copy_of, draft_of, record_in
from rmqlog.writer.rules import check_properties_sizes
from rmqlog.writer.settings import StoreSettings

HALF_QUEUE = QueueKey(layout.TRANSACTION_HALF_TOPIC, 0)
OP_QUEUE = QueueKey(layout.TRANSACTION_OP_TOPIC, 0)
_OP_PROPERTIES = format_properties(
    {layout.PROPERTY_WAIT: "true", layout.PROPERTY_TAGS: "d"}
).encode()
_OP_SEPARATOR = ","
#: Since 5.1 the op message is a list, and the half message names its transaction.
_OP_LIST_VERSION = (5, 1)
#: Since 5.5 a committed message no longer carries where it came to.
_FORGETS_REAL_QUEUE_VERSION = (5, 5)
_RULE_NO_DELAY = "a transactional message is not delayed"
#: Units of the half and op queues are read in blocks of this many.
_BLOCK_COUNT = 1_024


@dataclass(frozen=True, slots=True)
class Transaction:
    """A prepared message. ``transaction_id`` (its UNIQ_KEY) finds it again after a restart.

    ``is_committed`` tells that a crash came between the committed message and its note.
    """

    transaction_id: str
    queue_offset: int
    physical_offset: int
    is_committed: bool = False


class Transactions:
    """Prepares and ends transactions of one store.

    ``open_queue`` and ``open_log`` give read access to what is written so far.
    """

    def __init__(
        self,
        settings: StoreSettings,
        store_host: bytes,
        append: Callable[[Draft], AppendResult],
        open_log: Callable[[], CommitLog],
        open_queue: Callable[[QueueKey], ConsumeQueue],
        next_offset: Callable[[QueueKey], int],
        now_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._store_host = store_host
        self._append = append
        self._open_log = open_log
        self._open_queue = open_queue
        self._next_offset = next_offset
        self._now_ms = now_ms

    def prepare(self, draft: Draft, producer_group: str) -> Transaction:
        """Append the half message of a draft of one message. No consumer sees it."""
        message = record_in(draft, 0)
        transaction_id = draft.uniq_keys[0].as_py()
        if message.queue.topic == layout.SCHEDULE_TOPIC:
            raise RuleViolationError(_RULE_NO_DELAY, 0, message.queue.queue_id + 1)
        further = {
            layout.PROPERTY_TRANSACTION: "true",
            layout.PROPERTY_PRODUCER_GROUP: producer_group,
            layout.PROPERTY_REAL_TOPIC: message.queue.topic,
            layout.PROPERTY_REAL_QUEUE_ID: str(message.queue.queue_id),
        }
        if self._settings.version >= _OP_LIST_VERSION:
            further[layout.PROPERTY_TRANSACTION_ID] = transaction_id
        properties = message.properties + format_properties(further).encode()
        half = NewRecord(
            HALF_QUEUE, message.body, properties, message.born_timestamp, message.born_host,
            message.flag, message.sys_flag,
        )
        ready = draft_of([half])
        check_properties_sizes(ready.properties.sizes)
        result = self._append(ready)
        return Transaction(
            transaction_id, int(result.queue_offset[0]), int(result.physical_offset[0])
        )

    def find(self, transaction_id: str) -> Transaction:
        """The open transaction with an id; ``MessageNotFoundError`` when there is none."""
        log, queue = self._open_log(), self._open_queue(HALF_QUEUE)
        stop = self._next_offset(HALF_QUEUE)
        for first in range(stop, queue.first_offset, -_BLOCK_COUNT):
            start = max(first - _BLOCK_COUNT, queue.first_offset)
            units = queue.units(start, first)
            for index in reversed(range(len(units))):
                offset = int(units[index]["commit_log_offset"])
                if offset < log.start:
                    continue
                half = log.record(offset)
                if _properties(half).get(layout.PROPERTY_UNIQ_KEY) == transaction_id:
                    found = Transaction(transaction_id, start + index, offset)
                    self._check_open(log, found)
                    return replace(found, is_committed=self._has_committed(log, half))
        raise MessageNotFoundError("no such transaction", found=transaction_id)

    def commit(self, transaction: Transaction) -> None:
        """Append the message to its real topic, where consumers see it; the transaction ends."""
        log = self._open_log()
        self._check_open(log, transaction)
        records = [self._op(transaction)]
        if not transaction.is_committed:
            records.insert(0, self._committed(log.record(transaction.physical_offset)))
        self._append(draft_of(records))

    def _committed(self, half: Record) -> NewRecord:
        properties = _properties(half)
        queue = _real_queue(properties)
        if self._settings.version >= _FORGETS_REAL_QUEUE_VERSION:
            del properties[layout.PROPERTY_REAL_TOPIC], properties[layout.PROPERTY_REAL_QUEUE_ID]
        copied = copy_of(half, queue)
        return replace(
            copied,
            properties=format_properties(properties).encode(),
            sys_flag=copied.sys_flag | int(SysFlag.TRANSACTION_COMMIT),
            prepared_transaction_offset=half.physical_offset,
        )

    def rollback(self, transaction: Transaction) -> None:
        """End the transaction without its message."""
        self._check_open(self._open_log(), transaction)
        if transaction.is_committed:
            raise MessageNotFoundError(
                "the transaction is committed already", found=transaction.transaction_id
            )
        self._append(draft_of([self._op(transaction)]))

    def _op(self, transaction: Transaction) -> NewRecord:
        body = str(transaction.queue_offset)
        if self._settings.version >= _OP_LIST_VERSION:
            body += _OP_SEPARATOR
        return NewRecord(
            OP_QUEUE, body.encode(), _OP_PROPERTIES, self._now_ms(), self._store_host
        )

    def _has_committed(self, log: CommitLog, half: Record) -> bool:
        """Whether the committed message is there: it lies behind the half message."""
        key = _real_queue(_properties(half))
        stop = self._next_offset(key)
        if stop == 0:
            return False
        queue = self._open_queue(key)
        start = queue.first_at_or_after(half.physical_offset, queue.first_offset, stop)
        for first in range(start, stop, _BLOCK_COUNT):
            units = queue.units(first, min(first + _BLOCK_COUNT, stop))
            for offset in units["commit_log_offset"].tolist():
                if log.record(offset).prepared_transaction_offset == half.physical_offset:
                    return True
        return False

    def _check_open(self, log: CommitLog, transaction: Transaction) -> None:
        """Raise unless the half message is there and no op message names it."""
        record = log.record(transaction.physical_offset)
        if _properties(record).get(layout.PROPERTY_UNIQ_KEY) != transaction.transaction_id:
            raise MessageNotFoundError(
                "the transaction's half message is not there", offset=transaction.physical_offset,
                expected=transaction.transaction_id,
            )
        stop = self._next_offset(OP_QUEUE)
        queue = self._open_queue(OP_QUEUE) if stop else None
        start = queue.first_offset if queue else 0
        wanted = str(transaction.queue_offset)
        while queue is not None and start < stop:
            units = queue.units(start, min(start + _BLOCK_COUNT, stop))
            for offset in units["commit_log_offset"].tolist():
                if offset > transaction.physical_offset and _names(log.record(offset), wanted):
                    raise MessageNotFoundError(
                        "the transaction has ended already", offset=offset,
                        found=transaction.transaction_id,
                    )
            start += len(units)


def _names(op: Record, queue_offset: str) -> bool:
    return queue_offset in op.body.decode("ascii", "replace").split(_OP_SEPARATOR)


def _real_queue(properties: Mapping[str, str]) -> QueueKey:
    return QueueKey(
        properties[layout.PROPERTY_REAL_TOPIC], int(properties[layout.PROPERTY_REAL_QUEUE_ID])
    )


def _properties(record: Record) -> dict[str, str]:
    return parse_properties(decode_text(record.properties))
