"""A batch commit that is killed anywhere leaves all of its job or nothing, and a rerun once."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest
from crash.case_counts import CaseCounts
from crash.jobs import JOBS, CheckedJobs, Job, commit
from crash_states import RecordingPosix, crash_states, materialise
from faults import KILLS, FaultyPosix, Kind, Ledger, Outcome, Plan, in_two_processes, run_in_fork

from rmqlog.commitlog_format.errors import CommitFailedError, CommitStateUnknownError
from rmqlog.writer.batch_write import abort_job
from rmqlog.writer.posix import Posix

pytestmark = pytest.mark.crash

STATES = 1000


def run_commit(job: Job, path: Path, plan: Plan) -> Outcome:
    """Commit a job on a fresh store with a fault; notes say how it ended."""
    shutil.rmtree(path, ignore_errors=True)
    job.prepare(str(path))
    staged = job.stage(str(path))

    def victim(posix: FaultyPosix, ledger: Ledger) -> None:
        try:
            commit(str(path), staged, posix)
        except CommitFailedError:
            ledger.note("failed")
        except CommitStateUnknownError:
            ledger.note("unknown")
        else:
            ledger.note("committed")

    return run_in_fork(victim, plan)


def kill_everywhere(job: Job, path: Path, index: int, count: int) -> int:
    """Kill at each call, before, during and after it, then let Spark's abort run."""
    checked = CheckedJobs(job)
    number, cases, found = 1 + index, 0, set()
    while True:
        for kind in KILLS:
            plan = Plan(kind, number)
            outcome = run_commit(job, path, plan)
            assert not outcome.error, outcome.error
            if not outcome.fired:
                # Both ends of the commit must have been met.
                assert found == {0, len(job.messages) - job.before_count}, found
                return cases
            if number % 2:
                abort_job(str(path), job.stage(str(path)).job)
            committed = "committed" in outcome.notes
            found.add(checked.check(path, committed=committed, what=plan))
            cases += 1
        number += count


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_killed_at_any_call_a_commit_leaves_all_or_nothing(
    job: Job, scratch: Path, case_counts: CaseCounts
) -> None:
    def work(index: int, count: int) -> int:
        return kill_everywhere(job, scratch / str(index), index, count)

    cases = in_two_processes(work)

    case_counts.add("kill points of a commit", cases)
    assert cases > 100


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_a_commit_whose_calls_fail_says_what_became_of_the_job(
    error: int, scratch: Path, case_counts: CaseCounts
) -> None:
    job = JOBS[1]
    checked = CheckedJobs(job)

    def work(index: int, count: int) -> int:
        number, cases, ends = 1 + index, 0, set()
        path = scratch / str(index)
        while True:
            plan = Plan(Kind.ERROR, number, error)
            outcome = run_commit(job, path, plan)
            assert not outcome.error, outcome.error
            (end,) = outcome.notes
            if not outcome.fired:
                assert ends == {"failed", "unknown", "committed"}
                return cases
            seen = checked.check(path, committed=end == "committed", what=(plan, end))
            assert end != "failed" or seen == 0, f"{plan}: a failed job is there"
            ends.add(end)
            cases += 1
            number += count

    case_counts.add("injected errors of a commit", in_two_processes(work))


@pytest.mark.parametrize("job", [JOBS[1], JOBS[2], JOBS[4]], ids=lambda job: job.name)
def test_whatever_a_power_cut_leaves_of_a_commit_the_job_is_there_or_not(
    job: Job, scratch: Path, seed: int, factor: int, case_counts: CaseCounts
) -> None:
    recorded = scratch / "recorded"
    recorded.mkdir()
    posix = RecordingPosix(str(recorded))
    job.prepare(str(recorded), posix)
    posix.note("prepared")
    commit(str(recorded), job.stage(str(recorded), posix=posix), posix)
    posix.note("committed")
    checked = CheckedJobs(job)
    count = STATES * factor // 3

    def work(index: int, processes: int) -> int:
        path = scratch / str(index)
        rng = random.Random(f"{seed}-{index}")
        states = (
            state for state in crash_states(posix.trace, rng)
            if "prepared" in posix.trace.notes_before(state.position)
        )
        for _ in range(index, count, processes):
            state = next(states)
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
            materialise(posix.trace, state, path)
            committed = "committed" in posix.trace.notes_before(state.position)
            checked.check(path, committed=committed, what=state)
        return count

    in_two_processes(work)
    case_counts.add("crash states of a commit", count)


def test_killed_while_it_undoes_a_commit_a_store_is_undone_by_the_next(
    scratch: Path, seed: int, case_counts: CaseCounts
) -> None:
    job = JOBS[3]
    checked = CheckedJobs(job)
    rng = random.Random(seed)
    path = scratch / "store"
    cases = 0
    while cases < 60:
        first = Plan(rng.choice(KILLS), rng.randint(20, 90))
        run_commit(job, path, first)

        def victim(posix: FaultyPosix, _: Ledger) -> None:
            commit(str(path), job.stage(str(path), "job-2"), posix)

        second = Plan(rng.choice(KILLS), rng.randint(5, 40))
        run_in_fork(victim, second)
        checked.check(path, committed=False, what=(first, second))
        cases += 1
    case_counts.add("kills of a second commit", cases)


def test_the_harness_notices_half_a_job(scratch: Path) -> None:
    job = JOBS[1]
    path = scratch / "store"
    job.prepare(str(path))
    half = Job(job.name, job.partitions[:1])
    commit(str(path), half.stage(str(path)), Posix())

    with pytest.raises(AssertionError, match="9 are seen"):
        CheckedJobs(job).check(path, committed=False, what="half a job")
