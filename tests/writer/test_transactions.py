"""Transactions leave the records that a broker's transactions leave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_stores import GoldenStore
from small_stores import SMALL, open_writer, rows_of

from rmqlog.commitlog_format.errors import (
    MessageNotFoundError,
    RuleViolationError,
    TopicNotFoundError,
)
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer.draft import Draft
from rmqlog.writer.record_copy import copy_of, draft_of, record_in
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.store_writer import NewMessage

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
OLD = SMALL.with_changes(brokerVersion="4.9.5")


def message(number: int = 0) -> NewMessage:
    return NewMessage(
        "trans", f"transaction {number}".encode(), tags="TX", keys=f"tx-{number}", queue_id=1
    )


def test_a_prepared_message_is_seen_by_nobody_until_it_is_committed(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        transaction = writer.prepare(message(), "group")
        writer.flush()
        with pytest.raises(TopicNotFoundError):
            rows_of(tmp_path, "trans")

        writer.commit(transaction)

    (half,), (row,) = rows_of(tmp_path, HALF), rows_of(tmp_path, "trans")
    assert row["preparedTransactionOffset"] == half["commitLogOffset"]
    assert row["body"] == half["body"] == b"transaction 0"
    assert (row["queueId"], row["queueOffset"], row["sysFlag"]) == (1, 0, 0x8)
    assert (half["queueId"], half["sysFlag"]) == (0, 0)
    assert row["uniqKey"] == half["uniqKey"] == transaction.transaction_id


def test_a_rollback_leaves_only_its_note(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.rollback(writer.prepare(message(0), "group"))
        writer.rollback(writer.prepare(message(1), "group"))

    with pytest.raises(TopicNotFoundError):
        rows_of(tmp_path, "trans")
    assert [row["body"] for row in rows_of(tmp_path, OP)] == [b"0,", b"1,"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_ends_once(tmp_path: Path, end: str) -> None:
    with open_writer(tmp_path) as writer:
        transaction = writer.prepare(message(), "group")
        getattr(writer, end)(transaction)

        for again in (writer.commit, writer.rollback):
            with pytest.raises(MessageNotFoundError, match="ended already"):
                again(transaction)
        with pytest.raises(MessageNotFoundError, match="ended already"):
            writer.find_transaction(transaction.transaction_id)


def test_an_open_transaction_is_found_again_after_a_restart(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        prepared = [writer.prepare(message(number), "group") for number in range(5)]
        writer.commit(prepared[0])
    with open_writer(tmp_path) as writer:
        found = writer.find_transaction(prepared[3].transaction_id)
        assert found == prepared[3]
        writer.commit(found)
        with pytest.raises(MessageNotFoundError, match="no such transaction"):
            writer.find_transaction("unknown")

    assert [row["body"] for row in rows_of(tmp_path, "trans")] == [
        b"transaction 0", b"transaction 3",
    ]


def test_a_crash_between_the_committed_message_and_its_note_commits_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_note(records: list[Any]) -> Draft:
        return draft_of(records[:1])

    with open_writer(tmp_path) as writer:
        transaction = writer.prepare(message(), "group")
        with monkeypatch.context() as patched:
            patched.setattr("rmqlog.writer.transactions.draft_of", without_note)
            writer.commit(transaction)
    with open_writer(tmp_path) as writer:
        found = writer.find_transaction(transaction.transaction_id)
        assert found.is_committed
        with pytest.raises(MessageNotFoundError, match="committed already"):
            writer.rollback(found)
        writer.commit(found)

    assert len(rows_of(tmp_path, "trans")) == 1
    assert len(rows_of(tmp_path, OP)) == 1


def test_a_transactional_message_is_not_delayed(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer, pytest.raises(RuleViolationError, match="not delayed"):
        writer.prepare(NewMessage("trans", b"x", delay_level=3), "group")


@pytest.mark.parametrize(
    ("name", "settings", "op_body"),
    [("rmq-5.5.0-clean", SMALL, b"0,"), ("rmq-4.9.5-clean", OLD, b"0")],
)
def test_our_records_are_a_brokers(
    golden_store: Callable[[str], GoldenStore],
    tmp_path: Path,
    name: str,
    settings: StoreSettings,
    op_body: bytes,
) -> None:
    theirs = Store(str(golden_store(name).path))
    with open_writer(tmp_path, settings) as writer:
        # What a broker adds to every message it is sent.
        sent = {"WAIT": "true", "CLUSTER": "lab-cluster", "amount": "0"}
        if settings is SMALL:
            sent |= {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        transaction = writer.prepare(
            NewMessage("trans", b"transaction 0", tags="TX", keys="tx-0", properties=sent),
            "gen_tx",
        )
        writer.commit(transaction)

    for topic in (HALF, "trans", OP):
        ours = rows_of(tmp_path, topic)[0]
        (read,) = theirs.read(topic, 0, 0, 1)
        (expected,) = read.to_pylist()
        properties, wanted = dict(ours["properties"]), dict(expected["properties"])
        assert properties.keys() == wanted.keys()
        for own in ("UNIQ_KEY", "__transactionId__"):
            wanted[own] = properties.get(own)
            properties[own] = properties.get(own)
        assert properties == wanted
        same = ("queueId", "queueOffset", "sysFlag", "flag", "reconsumeTimes", "tagsCode")
        assert [ours[column] for column in same] == [expected[column] for column in same]
    assert rows_of(tmp_path, OP)[0]["body"] == op_body


def test_a_record_of_a_draft_makes_the_same_draft_again(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        transaction = writer.prepare(message(), "group")
    record = Store(str(tmp_path)).log.record(transaction.physical_offset)
    (half,) = rows_of(tmp_path, HALF)

    copied = copy_of(record, QueueKey(HALF, 0))
    draft = draft_of([copied])

    assert record_in(draft, 0) == copied
    assert draft.keys.to_pylist() == [half["keys"]]
    assert int(draft.body_crc[0]) == half["bodyCrc"]
