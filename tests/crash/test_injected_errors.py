"""System calls that fail: the writer says so, and what it had acknowledged is there."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import resource
import shutil
from itertools import product
from pathlib import Path

import pytest
from crash.case_counts import CaseCounts
from crash.oracle import CheckedStores, check_store, durable_count
from crash.workloads import (
    POOL_SETTINGS,
    SETTINGS,
    SYNC_SETTINGS,
    WORKLOADS,
    Message,
    Workload,
    open_writer,
    to_arrow,
)
from faults import (
    SYNC_CALLS,
    FaultyPosix,
    Kind,
    Ledger,
    Plan,
    in_two_processes,
    run_in_fork,
)

from rmqlog.commitlog_format.errors import (
    CommitStateUnknownError,
    StoreError,
    StoreLockedError,
    WriteFailedError,
)
from rmqlog.writer.posix import Posix
from rmqlog.writer.settings import FlushDiskType, StoreSettings
from rmqlog.writer.store_lock import StoreLock

pytestmark = pytest.mark.crash

ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR, errno.EROFS)
#: New files and folders; a segment's last bytes; commits of a pool, the writes that can be
#: short; and several segments, with what recovery and later flushes do.
CASES = {
    "new topic": (WORKLOADS[4], POOL_SETTINGS),
    "synchronous": (WORKLOADS[2], SYNC_SETTINGS),
    "transient store pool": (WORKLOADS[0], POOL_SETTINGS),
    "several segments": (WORKLOADS[7], SETTINGS),
}


def run_with_fault(
    workload: Workload, path: Path, settings: StoreSettings, plan: Plan
) -> tuple[bool, list[object]]:
    """Run a workload whose calls fail; it must fail with our errors only and leave nothing.

    Returns whether the fault came, and what was acknowledged.
    """
    posix = FaultyPosix(plan)
    notes: list[object] = []
    before = open_descriptors()
    failed_path = ""
    try:
        workload.run(str(path), posix, notes.append, settings)
    except StoreError as error:
        failed_path = error.path
    if not failed_path:
        assert not posix.fired or plan.error == errno.EINTR or plan.kind is Kind.SHORT
    else:
        named = Path(failed_path)
        assert path in (named, *named.parents) or named == path.parent, named
    gc.collect()  # errors refer to each other in rings
    assert open_descriptors() == before, "descriptors are left open"
    StoreLock(Posix(), str(path)).release()
    return posix.fired, notes


def open_descriptors() -> set[str]:
    return {
        os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{name}")
    }


def fail_everywhere(
    workload: Workload, settings: StoreSettings, scratch: Path, index: int, count: int
) -> int:
    """Fail each call with each error, once and from then on; returns the number of cases."""
    gc.freeze()  # only what the cases leave is looked at by each collection
    prepared, path = scratch / f"prepared-{index}", scratch / str(index)
    workload.prepare(str(prepared))
    stores = CheckedStores(workload.messages)
    faults = [(Kind.ERROR, error) for error in ERRORS] + [(Kind.SHORT, 0)]
    cases = 0
    for (kind, error), lasting in product(faults, (False, True)):
        only = frozenset({"pwrite"}) if kind is Kind.SHORT else frozenset[str]()
        for number in itertools.count(1 + index, count):
            shutil.rmtree(path, ignore_errors=True)
            if workload.before:
                shutil.copytree(prepared, path)
            plan = Plan(kind, number, error, lasting, only)
            what = f"{workload.name}: {plan}"
            try:
                fired, notes = run_with_fault(workload, path, settings, plan)
            except Exception as failure:
                raise AssertionError(what) from failure
            if not fired:
                break
            stores.check(path, durable_count(notes, workload.before_count), what)
            cases += 1
    return cases


@pytest.mark.parametrize("name", CASES)
def test_any_call_may_fail_and_nothing_acknowledged_is_lost(
    name: str, scratch: Path, case_counts: CaseCounts
) -> None:
    workload, settings = CASES[name]

    def work(index: int, count: int) -> int:
        return fail_everywhere(workload, settings, scratch, index, count)

    cases = in_two_processes(work)

    case_counts.add("injected errors", cases)
    assert cases > 400


def test_a_failed_sync_is_never_repeated_and_the_state_is_called_unknown(
    scratch: Path, case_counts: CaseCounts
) -> None:
    workload = WORKLOADS[-1]
    stores = CheckedStores(workload.messages)
    number = 0
    while True:
        number += 1
        path = scratch / str(number)
        workload.prepare(str(path))

        def victim(posix: FaultyPosix, ledger: Ledger, path: Path = path) -> None:
            try:
                workload.run(str(path), posix, ledger.note, SETTINGS)
            except CommitStateUnknownError as error:
                ledger.note(["unknown", str(error)])
            if posix.fired:
                # Nothing was written or synced behind the one that failed.
                assert posix.count == posix.plan.number
                assert posix.calls[-1][0] in SYNC_CALLS

        outcome = run_in_fork(victim, Plan(Kind.ERROR, number, only=SYNC_CALLS))
        assert not outcome.error, outcome.error
        if not outcome.fired:
            break
        assert outcome.notes[-1][0] == "unknown"
        stores.check(path, durable_count(outcome.notes, workload.before_count), outcome.plan)

    case_counts.add("failed syncs", number - 1)
    assert number > 20


def test_a_full_disk_refuses_the_batch_and_the_writer_goes_on(scratch: Path) -> None:
    messages = [Message(number, 3000) for number in range(30)]
    plan = Plan(Kind.ERROR, 1, errno.ENOSPC, only=frozenset({"allocate"}))
    posix = FaultyPosix(plan)
    with open_writer(str(scratch / "s"), posix) as writer:
        with pytest.raises(WriteFailedError, match="ENOSPC"):
            writer.append(to_arrow(messages))
        writer.append(to_arrow(messages[:10]))

    check_store(scratch / "s", messages[:10], 10)


def test_a_limit_on_file_sizes_moved_over_a_record_loses_nothing(
    scratch: Path, case_counts: CaseCounts
) -> None:
    messages = [Message(0, 300), Message(1, 300)]
    prepared = scratch / "prepared"
    with open_writer(str(prepared), Posix()) as writer:
        writer.append(to_arrow(messages[:1]))
        begin = writer.end
    # Byte by byte over what no checksum protects, topic and properties, the rest in steps.
    limits = [*range(begin - 5, begin + 300, 2), *range(begin + 300, begin + 470)]

    def work(index: int, count: int) -> int:
        path = scratch / str(index)
        stores = CheckedStores(messages)
        seen = set()
        for limit in limits[index::count]:
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(prepared, path)

            def victim(posix: FaultyPosix, ledger: Ledger, limit: int = limit) -> None:
                append_within(limit, path, messages, posix, ledger)

            outcome = run_in_fork(victim, Plan(Kind.ERROR, 0))
            assert not outcome.error, outcome.error
            seen.add(outcome.notes[0][0])
            stores.check(path, durable_count(outcome.notes, 1), f"limit {limit}")
        assert seen == {"refused", "flushed"}
        return len(limits[index::count])

    case_counts.add("file size limits", in_two_processes(work))


def append_within(
    limit: int, path: Path, messages: list[Message], posix: Posix, ledger: Ledger
) -> None:
    """Append the second message where no file may be written beyond a limit.

    Queue files are shorter, so the commit to the log meets it first (and later the checkpoint).
    """
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    settings = POOL_SETTINGS.with_changes(
        messageIndexEnable=False, flushDiskType=FlushDiskType.SYNC_FLUSH
    )
    try:
        with open_writer(str(path), posix, settings) as writer:
            writer.append(to_arrow(messages[1:]))
            ledger.note(["flushed", len(messages)])
    except StoreError as error:
        ledger.note(["refused", str(error)])


@pytest.mark.parametrize("limit", [20, 24, 32, 48, 64])
def test_with_few_descriptors_many_queues_are_written_or_refused_by_name(
    scratch: Path, limit: int
) -> None:
    messages = [Message(number, 20, f"topic-{number % 100}", number % 3) for number in range(300)]
    path = scratch / "s"

    def victim(posix: FaultyPosix, ledger: Ledger) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        try:
            with open_writer(str(path), posix) as writer:
                writer.append(to_arrow(messages))
                writer.flush()
                ledger.note(["flushed", len(messages)])
        except StoreError as error:
            ledger.note(["refused", str(error)])

    outcome = run_in_fork(victim, Plan(Kind.ERROR, 0))

    assert not outcome.error, outcome.error
    assert outcome.notes
    check_store(path, messages, durable_count(outcome.notes, 0))


def test_a_failed_writer_frees_the_store(scratch: Path) -> None:
    posix = FaultyPosix(Plan(Kind.ERROR, 1, only=frozenset({"sync"})))
    writer = open_writer(str(scratch / "s"), posix)
    writer.append(to_arrow([Message(0)]))
    with pytest.raises(CommitStateUnknownError):
        writer.flush()
    with pytest.raises(StoreLockedError):
        StoreLock(Posix(), str(scratch / "s"))

    with pytest.raises(CommitStateUnknownError):
        writer.close()

    assert (scratch / "s" / "abort").exists()
    check_store(scratch / "s", [Message(0)], 0)
