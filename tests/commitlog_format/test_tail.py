"""Records that were not dispatched yet: the units that a broker would make of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from built_stores import ROOT, build_store, numbered_records, offset_name
from memory_files import MemoryFiles
from random_records import PLAIN_RECORD, build_log
from twelve_records import inner_batch, inner_message

from rmqlog.commitlog_format.errors import MessageNotFoundError
from rmqlog.commitlog_format.layout import SysFlag
from rmqlog.commitlog_format.message import Record
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import QueueKey


def store_of(*records: Record) -> Store:
    """A log without queues."""
    data = build_log(records).window.tobytes().ljust(8192, b"\0")
    return Store(ROOT, access=MemoryFiles({f"{ROOT}/commitlog/{offset_name(0)}": data}))


def dispatched(names: str, offsets: str, **changes: object) -> Record:
    """A record for light message queues."""
    properties = f"INNER_MULTI_DISPATCH\x01{names}\x02INNER_MULTI_QUEUE_OFFSET\x01{offsets}\x02"
    return replace(PLAIN_RECORD, properties=properties.encode(), **changes)  # type: ignore[arg-type]


def places(store: Store) -> dict[QueueKey, list[int]]:
    """The queue offsets of every queue's tail."""
    return {key: units.queue_offsets.tolist() for key, units in store.tail.items()}


def test_light_message_queues_get_units_of_their_own() -> None:
    own = QueueKey("TopicTest", 1)
    store = store_of(dispatched("%LMQ%a,other,%LMQ%b", "7,8,x"))

    assert places(store) == {
        own: [5], QueueKey("%LMQ%a", 0): [7], QueueKey("other", 1): [8], QueueKey("%LMQ%b", 0): [0],
    }
    rows = [row for batch in store.read("%LMQ%a") for row in batch.to_pylist()]
    assert [(row["topic"], row["queueOffset"]) for row in rows] == [("TopicTest", 7)]


@pytest.mark.parametrize(
    "record",
    [
        dispatched("", "7"), dispatched("%LMQ%a", ""), dispatched("../a", "7"),
        dispatched("%LMQ%a", "7", topic=b"%RETRY%g"),
        dispatched("%LMQ%a", "7", sys_flag=int(SysFlag.TRANSACTION_PREPARED)),
    ],
)
def test_what_a_broker_does_not_dispatch_further_has_no_further_unit(record: Record) -> None:
    assert set(places(store_of(record))) <= {
        QueueKey("TopicTest", 1), QueueKey("%RETRY%g", 1),
    }


def test_prepared_and_rolled_back_messages_enter_no_queue() -> None:
    kinds = (
        SysFlag(0), SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_COMMIT,
        SysFlag.TRANSACTION_ROLLBACK,
    )
    records = [
        replace(PLAIN_RECORD, sys_flag=int(kind), queue_offset=number)
        for number, kind in enumerate(kinds)
    ]
    (units,) = store_of(*records).tail.values()

    assert len(units) == 2


def test_repeated_records_are_taken_once_and_gaps_are_closed() -> None:
    offsets = [5, 6, 5, 9, 7]
    records = [replace(PLAIN_RECORD, queue_offset=offset) for offset in offsets]

    assert places(store_of(*records)) == {QueueKey("TopicTest", 1): [5, 6, 7]}


def test_a_hole_between_inner_batches_is_not_found_by_time() -> None:
    messages = [inner_message(b"x", b""), inner_message(b"y", b"")]
    store = store_of(inner_batch(*messages, base=0), inner_batch(*messages, base=10))
    view = store.queue("TopicTest", 1)

    assert (view.min_offset, view.max_offset) == (0, 12)
    with pytest.raises(MessageNotFoundError):
        store.offset_by_time("TopicTest", 1, 2**40)


def test_a_part_of_the_log_may_be_dispatched() -> None:
    built = build_store(numbered_records(10, topics=1, queues=1), dispatched_count=4)
    store = Store(ROOT, access=MemoryFiles(dict(built.files)))

    assert places(store) == {QueueKey("topic-0", 0): [4, 5, 6, 7, 8, 9]}
    assert len(store.queue("topic-0", 0)) == 10
    assert store.queue("topic-0", 0).log_range(0, built.records[7].physical_offset) == (0, 7)
