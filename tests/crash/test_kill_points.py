"""A writer that is killed before, during or after any of its durable calls loses nothing."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from crash.case_counts import CaseCounts
from crash.oracle import CheckedStores, durable_count
from crash.workloads import (
    EXT_SETTINGS,
    POOL_SETTINGS,
    SETTINGS,
    SYNC_SETTINGS,
    WORKLOADS,
    Workload,
    open_writer,
)
from faults import (
    KILLS,
    FaultyPosix,
    Kind,
    Ledger,
    Outcome,
    Plan,
    in_two_processes,
    run_in_fork,
)

from rmqlog.writer.settings import StoreSettings

pytestmark = pytest.mark.crash

#: Crashed stores whose recovery is killed, and kills for each of them.
RECOVERY_STORES = 50
RECOVERY_KILLS = 9


def kill_at(
    workload: Workload, path: Path, settings: StoreSettings, plan: Plan
) -> Outcome:
    """Run a workload on a fresh store and kill it there."""
    shutil.rmtree(path, ignore_errors=True)
    workload.prepare(str(path), settings)

    def victim(posix: FaultyPosix, ledger: Ledger) -> None:
        workload.run(str(path), posix, ledger.note, settings)

    return run_in_fork(victim, plan)


def kill_everywhere(
    workload: Workload, path: Path, settings: StoreSettings, index: int, count: int
) -> int:
    """Kill at each call, before, during and after it; returns the number of cases."""
    stores = CheckedStores(workload.messages, settings)
    cases = 0
    number = 1 + index
    while True:
        for kind in KILLS:
            plan = Plan(kind, number)
            outcome = kill_at(workload, path, settings, plan)
            if not outcome.fired:
                assert not outcome.error, outcome.error
                return cases
            durable = durable_count(outcome.notes, workload.before_count)
            stores.check(path, durable, f"{workload.name}: {plan}")
            cases += 1
        number += count


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_killed_at_any_call_a_writer_loses_nothing(
    workload: Workload, scratch: Path, case_counts: CaseCounts
) -> None:
    def work(index: int, count: int) -> int:
        return kill_everywhere(workload, scratch / str(index), SETTINGS, index, count)

    cases = in_two_processes(work)

    case_counts.add("kill points", cases)
    assert cases > 30


@pytest.mark.parametrize(
    "settings",
    [SYNC_SETTINGS, POOL_SETTINGS, EXT_SETTINGS],
    ids=["synchronous", "transient store pool", "ext files"],
)
def test_killed_with_other_settings_a_writer_loses_nothing(
    settings: StoreSettings, scratch: Path, case_counts: CaseCounts
) -> None:
    workload = WORKLOADS[-1]

    def work(index: int, count: int) -> int:
        return kill_everywhere(workload, scratch / str(index), settings, index, count)

    cases = in_two_processes(work)

    case_counts.add("kill points", cases)
    assert cases > 100


def test_killed_during_recovery_a_store_is_recovered_by_the_next(
    scratch: Path, seed: int, factor: int, case_counts: CaseCounts
) -> None:
    def work(index: int, count: int) -> int:
        rng = random.Random(f"{seed}-{index}")
        return sum(
            kill_recovery(rng, scratch / f"{index}")
            for _ in range(RECOVERY_STORES * factor // count)
        )

    cases = in_two_processes(work)

    case_counts.add("kills during recovery", cases)
    assert cases == RECOVERY_STORES * RECOVERY_KILLS * factor


def kill_recovery(rng: random.Random, path: Path) -> int:
    """Crash a store somewhere, then kill its recovery in several places."""
    workload = rng.choice(WORKLOADS)
    crashed = path.with_name(f"{path.name}-crashed")
    first = kill_at(
        workload, crashed, SETTINGS, Plan(rng.choice(KILLS), rng.randint(8, 70))
    )
    durable = durable_count(first.notes, workload.before_count)
    (crashed / "abort").touch()
    tear_tail(rng, crashed)
    stores = CheckedStores(workload.messages)
    for case in range(RECOVERY_KILLS):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(crashed, path)
        plan = Plan(KILLS[case % 3], rng.randint(1, 45))

        def victim(posix: FaultyPosix, _: Ledger) -> None:
            open_writer(str(path), posix).close()

        run_in_fork(victim, plan)
        stores.check(path, durable, f"{workload.name}: {first.plan}, then recovery: {plan}")
    return RECOVERY_KILLS


def tear_tail(rng: random.Random, path: Path) -> None:
    """Half of the times, leave bytes behind the log, so that recovery has something to cut."""
    segments = sorted((path / "commitlog").iterdir()) if (path / "commitlog").is_dir() else []
    if segments and rng.random() < 0.5:
        with segments[-1].open("r+b") as file:
            file.seek(-rng.randint(8, 400), 2)
            file.write(rng.randbytes(8))


def test_the_harness_notices_a_message_that_is_missing(scratch: Path) -> None:
    workload = WORKLOADS[0]
    outcome = kill_at(workload, scratch / "s", SETTINGS, Plan(Kind.KILL_AFTER, 50))
    stores = CheckedStores(workload.messages)

    with pytest.raises(AssertionError, match="1000 were flushed"):
        stores.check(scratch / "s", 1000, outcome.plan)
