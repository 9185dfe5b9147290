"""``StoreWriter`` writes, ``recover`` mends, and a real broker serves: messages, keys, delays,
transactions.

One store a line lives through it all: written by us while a broker tries to start on it, by a
process that is killed, recovered, served by a broker that also takes new messages, opened and
continued by us, served again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from broker.features import Comparisons
from broker.java_driver import JavaDriver
from broker.java_toolchain import Line
from broker.reading_ways import run_command
from broker.real_broker import BrokerStartError, RealBroker
from broker.served_stores import (
    SETTINGS,
    Service,
    StartBroker,
    assert_pulled,
    assert_served,
    look_at,
    serve,
)
from broker.traffic import HOT_COUNT, HOT_KEY, await_until
from broker.written_stores import (
    SOON,
    SOON_COUNT,
    broker_conf,
    crash_and_recover,
    crashed_messages,
    settings_for,
    write_everything,
)

from rmqlog.commitlog_format.errors import StoreLockedError
from rmqlog.commitlog_format.lookup import find_by_key
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.message_columns import NewMessage, batch_of
from rmqlog.writer.store_writer import StoreWriter

PRODUCER_GROUP = "judge-transactions"
CONTESTED = [
    NewMessage("contested", b"%d" % number, queue_id=0, keys=f"contested-{number}")
    for number in range(100)
]
AGAIN = [NewMessage("orders", b"ours again", queue_id=0, keys="again")] * 10


@dataclass
class Life:
    """What was seen in the life of one store."""

    start_error: BrokerStartError | None = None
    java_got_our_lock: bool = True
    contested_found: int = 0
    open_transaction: str = ""
    refusal: Exception | None = None
    checked: list[str] = field(default_factory=list)
    service: Service | None = None
    before_second: Service | None = None
    pulled_again: list[dict[str, Any]] = field(default_factory=list)

    @property
    def first(self) -> Service:
        """The service of the first broker."""
        assert self.service is not None
        return self.service

    @property
    def continued(self) -> Service:
        """What we saw after we had continued what it left."""
        assert self.before_second is not None
        return self.before_second


def write_store(store: Path, line: Line) -> str:
    """A store with all kinds of messages; returns the id of its open transaction."""
    write_everything(store, line)
    crash_and_recover(store, line)
    with StoreWriter(store, settings_for(line)) as writer:
        outcomes = [
            writer.prepare(NewMessage("trans", body, queue_id=0), PRODUCER_GROUP)
            for body in (b"commit", b"rollback", b"open")
        ]
        writer.commit(outcomes[0])
        writer.rollback(outcomes[1])
        writer.append(batch_of([SOON] * SOON_COUNT))
    return outcomes[2].transaction_id


@pytest.fixture(scope="module")
def lives(
    for_both_lines: Callable[[Callable[[Line], Life]], dict[Line, Future[Life]]],
    module_broker: StartBroker,
    java_driver: Callable[[Line], JavaDriver],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[Line, Future[Life]]:
    """The life of one store of each line."""
    return for_both_lines(
        lambda line: live_through(
            *(line, module_broker, java_driver(line)),
            tmp_path_factory.mktemp(f"served-{line.version}") / "store",
        )
    )


@pytest.fixture
def life(lives: dict[Line, Future[Life]], line: Line) -> Life:
    """The life of the store of one line."""
    return lives[line].result()


def live_through(line: Line, start_broker: StartBroker, driver: JavaDriver, store: Path) -> Life:
    """Write a store, let brokers of a line serve it, and look at every stage."""
    seen = Life()
    _contest(line, start_broker, driver, store, seen)
    seen.open_transaction = write_store(store, line)
    seen.service = serve(
        line, start_broker, store, SOON_COUNT, lambda broker: _watch(broker, store, seen)
    )
    with StoreWriter(store, settings_for(line)) as writer:
        writer.append(batch_of(AGAIN))
    seen.before_second = look_at(line, store)
    second = start_broker(line, store, SETTINGS)
    seen.pulled_again = second.pull(seen.continued.bounds)
    second.kill()
    return seen


def _contest(
    line: Line, start_broker: StartBroker, driver: JavaDriver, store: Path, seen: Life
) -> None:
    """Try to start a broker on a store that we are writing."""
    with StoreWriter(store, settings_for(line)) as writer:
        writer.append(batch_of(CONTESTED[:50]))
        with driver.store_lock(store) as java_got_it:
            seen.java_got_our_lock = java_got_it
        try:
            start_broker(line, store, SETTINGS)
        except BrokerStartError as error:
            seen.start_error = error
        writer.append(batch_of(CONTESTED[50:]))
    snapshot = Store(str(store))
    seen.contested_found = sum(
        batch.num_rows
        for message in CONTESTED
        for batch in find_by_key(snapshot, "contested", str(message.keys))
    )
    # Its recovery deleted the index file that we were writing, and made one up to where we were.
    run_command("rebuild", store, "--yes", "--json", "--conf", broker_conf(store, line))


def _watch(broker: RealBroker, store: Path, seen: Life) -> None:
    """Try to write beside a running broker, and wait for its question about a transaction."""
    try:
        StoreWriter(store).close()
    except StoreLockedError as refusal:
        seen.refusal = refusal

    def ask() -> list[str]:
        # The producer that the broker can ask back is made by the first call.
        return list(broker.ask("checked-transactions", topic="trans"))

    await_until(lambda: seen.open_transaction in ask())
    seen.checked = ask()


def test_a_broker_serves_all_that_we_wrote_and_recovered(
    life: Life, comparisons: Comparisons
) -> None:
    assert_served(life.first, comparisons, "StoreWriter and recover")
    assert len(life.first.found[("orders", HOT_KEY)]) == HOT_COUNT


def test_recover_lost_only_the_torn_record(life: Life) -> None:
    bodies = [row["body"] for row in life.first.written[("orders", 0)]]
    expected = [message.body for message in crashed_messages()][:-1]
    assert bodies[-len(expected) :] == expected


def test_only_the_open_transaction_is_checked_back(life: Life) -> None:
    assert life.checked == [life.open_transaction]
    assert [row["body"] for row in life.first.left[("trans", 0)]] == [b"commit"]


def test_we_continue_what_the_broker_left_and_it_boots_again(life: Life) -> None:
    before, after = life.first.left[("orders", 0)], life.continued.written[("orders", 0)]

    assert after[: len(before)] == before
    assert [row["body"] for row in after[len(before) :]] == [message.body for message in AGAIN]
    assert_pulled(life.continued, life.pulled_again)


def test_we_refuse_to_write_while_a_broker_runs(life: Life) -> None:
    assert isinstance(life.refusal, StoreLockedError)
    assert "java" in str(life.refusal)


def test_a_broker_cannot_start_while_we_write(life: Life) -> None:
    assert life.start_error is not None
    assert not life.java_got_our_lock


def test_a_broker_that_could_not_start_has_done_no_harm(life: Life) -> None:
    bodies = [row["body"] for row in life.first.written[("contested", 0)]]
    assert bodies == [message.body for message in CONTESTED]


def test_we_find_every_key_though_its_recovery_took_the_index_away(life: Life) -> None:
    assert life.contested_found == len(CONTESTED)


def test_after_rebuild_a_broker_finds_them_too(life: Life) -> None:
    found = [life.first.found["contested", str(message.keys)] for message in CONTESTED]
    assert [len(ids) for ids in found] == [1] * len(CONTESTED)
