"""Small jobs whose commit is about to be killed, and what must be true of the store after it."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crash.oracle import check_store, read_log, tree_digest
from crash.workloads import (
    CLOCK_START_MS,
    CLOCK_STEP_MS,
    SETTINGS,
    Batch,
    Message,
    Workload,
    filling_segment,
    numbered,
    to_arrow,
)

from rmqlog.commitlog_format.store import Store
from rmqlog.writer.batch_write import commit_job
from rmqlog.writer.commit import CommitResult, StagedJob
from rmqlog.writer.commit_records import JobId, Transaction
from rmqlog.writer.posix import Posix
from rmqlog.writer.staging import StagingPlan, StagingWriter

TRANSACTION = Transaction("crash tests", 1)


@dataclass(frozen=True)
class Job:
    """``before`` is in the store; the job has a few partitions of messages."""

    name: str
    partitions: tuple[Batch, ...]
    before: tuple[Batch, ...] = ()

    @property
    def before_count(self) -> int:
        """Messages that are in the store without the job."""
        return sum(map(len, self.before))

    @property
    def messages(self) -> list[Message]:
        """Everything in the order of the log."""
        return [message for batch in (*self.before, *self.partitions) for message in batch]

    def prepare(self, path: str, posix: Posix | None = None) -> None:
        """Make the store that the commit finds."""
        if self.before:
            Workload(self.name, self.before).run(path, posix or Posix(), lambda _: None)

    def stage(self, path: str, job_id: str = "job-1", posix: Posix | None = None) -> StagedJob:
        """Do what the tasks do."""
        plan = StagingPlan(path, job_id, SETTINGS)
        plan.make_folder(posix or Posix())
        files = []
        for partition, batch in enumerate(self.partitions):
            with StagingWriter(plan, partition, 0, posix=posix) as staging:
                # In two batches, so that one follows another within a file.
                for part in (batch[:2], batch[2:]):
                    if part:
                        staging.add(to_arrow(part))
                files.append(staging.finish())
        return StagedJob(JobId(job_id, TRANSACTION), plan.folder, files)


def commit(path: str, staged: StagedJob, posix: Posix | None = None) -> CommitResult:
    """Commit with a clock that ticks at each look, so that every run does just the same."""
    clock = itertools.count(CLOCK_START_MS + 10**9, CLOCK_STEP_MS)
    return commit_job(path, staged, SETTINGS, posix=posix, now_ms=lambda: next(clock))


def jobs() -> Iterator[Job]:
    """The ways in which a job can meet the end of a log."""
    base = (numbered([200] * 5),)
    yield Job("into a new store", (numbered([150] * 5), numbered([100] * 3, 5)))
    yield Job("behind others", (numbered([150] * 4, 5), [], numbered([99] * 3, 9)), base)
    yield Job(
        "begins with a filler", (numbered([300] * 3, 8),), (filling_segment(0, count=8)[:-1],
        [Message(7, 4000)]),
    )
    yield Job("rolls over two segments", (numbered([9000] * 9, 5), numbered([9000] * 7, 14)), base)
    yield Job(
        "new topic and new queue",
        (numbered([150] * 6, 5, topic="orders2"), numbered([150] * 8, 11, queue_id=1)), base,
    )


JOBS = tuple(jobs())


class CheckedJobs:
    """What must hold after a crash in a commit of a job: none or all of it, once.

    Each content of a store is checked only once: many crashes leave the same bytes.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._seen: dict[str, int] = {}

    def check(self, path: Path, *, committed: bool, what: object) -> int:
        """How many messages of the job are there; ``committed`` tells that all must be.

        A reader sees none or all before anybody recovers, recovery gives the same, and a rerun
        of the job under the same transaction leaves it there once.
        """
        digest = tree_digest(path)
        try:
            if digest not in self._seen:
                self._seen[digest] = self._check(path)
            is_there = self._seen[digest] == len(self._job.messages)
            assert is_there or not committed, "an acknowledged job is not seen"
        except Exception as error:
            raise AssertionError(f"{self._job.name}: {what}: {error!r}") from error
        return self._seen[digest] - self._job.before_count

    def _check(self, path: Path) -> int:
        job = self._job
        seen = self._count_seen(path)
        recovered = path.with_name(f"{path.name}-recovered")
        shutil.rmtree(recovered, ignore_errors=True)
        shutil.copytree(path, recovered)
        check_store(recovered, job.messages, seen)
        assert len(read_log(recovered)) - 1 == seen, "recovery changed what a reader saw"
        # A job id is never used again: what an undone job of the same id staged is swept.
        result = commit(str(path), job.stage(str(path), "job-3"))
        assert result.was_done == (seen == len(job.messages))
        assert not list((path / "rmqlog" / "staging").glob("job-3")), "staging is left"
        check_store(path, job.messages, len(job.messages))
        return seen

    def _count_seen(self, path: Path) -> int:
        if not (path / "commitlog").is_dir():
            assert not self._job.before
            return 0
        store = Store(str(path))
        seen = sum(
            batch.num_rows for view in store.queues.values()
            for batch in store.read(view.topic, view.queue_id)
        )
        assert seen in (self._job.before_count, len(self._job.messages)), f"{seen} are seen"
        return seen
