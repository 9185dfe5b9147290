"""A batch commit is killed at each of its steps, and RocketMQ's own store opens what is left.

It shows none or all of the job, no queue has a gap, and we go on with whatever it left.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker.features import CRASH_STORES, Comparisons
from broker.java_driver import JavaDriver
from broker.java_toolchain import LINE_4, LINE_5, Line
from broker.test_crash_stores import FILE_SIZES
from crash.jobs import JOBS, Job, commit
from crash.oracle import check_queues, read_log
from faults import FaultyPosix, Kind, Ledger, Plan, Run, run_in_fork

from rmqlog.commitlog_format.store import Store
from rmqlog.writer.commit import StagedJob

#: A job behind others, one that begins with a filler, one over three segments.
CHOSEN = (JOBS[1], JOBS[2], JOBS[3])


def crash_at_every_step(job: Job, folder: Path, every: int) -> list[Path]:
    """The store as it is before each ``every``-th durable call of the commit, and at its end."""
    stores = []
    number = 1
    while True:
        store = folder / f"call-{number}"
        job.prepare(str(store))
        staged = job.stage(str(store))

        outcome = run_in_fork(committer(store, staged), Plan(Kind.KILL_BEFORE, number))
        stores.append(store)
        if not outcome.fired:
            assert not outcome.error, outcome.error
            return stores
        number += every


def committer(store: Path, staged: StagedJob) -> Run:
    """What a driver does that is about to be killed."""

    def run(posix: FaultyPosix, _: Ledger) -> None:
        commit(str(store), staged, posix)

    return run


def shown(opened: dict[str, Any], store: Path) -> int:
    """How many messages a broker shows; each queue begins at 0 and has no gap."""
    assert "error" not in opened, (store, opened)
    count = 0
    for queue in opened["queues"]:
        offsets = [unit[0] for unit in queue["units"]]
        assert offsets == list(range(len(offsets))), (store, queue)
        count += len(offsets)
    return count


@pytest.mark.parametrize(
    ("line", "every"), [(LINE_5, 1), (LINE_4, 3)], ids=["5.5.0-every step", "4.9.5-every third"]
)
def test_a_broker_shows_none_or_all_of_a_job_at_every_step_of_its_commit(
    java_driver: Callable[[Line], JavaDriver],
    comparisons: Comparisons,
    line: Line,
    every: int,
    tmp_path: Path,
) -> None:
    stores = {
        store: job
        for number, job in enumerate(CHOSEN)
        for store in crash_at_every_step(job, tmp_path / str(number), every)
    }
    as_killed = {store: Path(shutil.copytree(store, f"{store}-ours")) for store in stores}

    opened = java_driver(line).open_stores(list(stores), FILE_SIZES)

    found: dict[str, set[bool]] = {job.name: set() for job in CHOSEN}
    for (store, job), theirs in zip(stores.items(), opened, strict=True):
        count = shown(theirs, store)
        assert count in (job.before_count, len(job.messages)), (store, count)
        is_there = count == len(job.messages)
        assert count_seen(as_killed[store]) == count, store
        found[job.name].add(is_there)
        # What the broker left is ours to go on with.
        assert count_seen(store) == count, store
        assert commit(str(store), job.stage(str(store), "job-2")).was_done == is_there, store
        # Not the index: a broker indexes only what it happens to dispatch again.
        messages = read_log(store)
        assert [stored.body for stored in messages] == [each.body for each in job.messages], store
        check_queues(store, messages)
    assert all(ends == {False, True} for ends in found.values()), found
    assert len(stores) >= 60 // every
    comparisons.count(CRASH_STORES, line, "steps of a commit, killed at each", len(stores))


def count_seen(store: Path) -> int:
    """How many messages our reader shows."""
    return sum(len(view) for view in Store(str(store)).queues.values())
