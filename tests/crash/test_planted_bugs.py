"""Writers with a bug put in on purpose: a harness that has never caught one proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from crash.case_counts import CaseCounts
from crash.oracle import CheckedStores
from crash.test_crash_states import check_state, record
from crash.workloads import WORKLOADS

from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.log_walk import LogWalk
from rmqlog.writer import index_rollback, log_recovery, recovery, store_writer
from rmqlog.writer.flush import CheckpointFile
from rmqlog.writer.index_rollback import Slots
from rmqlog.writer.posix import Posix
from rmqlog.writer.store_writer import StoreWriter

pytestmark = pytest.mark.crash

#: A bug has to be caught by so many crash states at most.
STATES = 3000

Patch = Callable[[pytest.MonkeyPatch], None]


def no_sync_of_data(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Posix, "sync", lambda self, mapping, offset, size: None)


def no_sync_of_directories(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Posix, "fsync_directory", lambda self, path: None)


def rename_without_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Posix, "fsync", lambda self, descriptor: None)


def checkpoint_before_data(patch: pytest.MonkeyPatch) -> None:
    flush_log, flush_queues = StoreWriter.flush_log, StoreWriter.flush_queues

    def vouch(self: StoreWriter) -> None:
        timestamp = self._appender.last_timestamp_ms
        checkpoint = store_writer.replace(
            self._checkpoint, physic_msg_timestamp=timestamp, logics_msg_timestamp=timestamp
        )
        CheckpointFile(self._posix, f"{self.path}/checkpoint").write(checkpoint)

    def flush_log_late(self: StoreWriter) -> None:
        vouch(self)
        flush_log(self)

    def flush_queues_late(self: StoreWriter, least_pages: int) -> None:
        vouch(self)
        flush_queues(self, least_pages)

    patch.setattr(StoreWriter, "flush_log", flush_log_late)
    patch.setattr(StoreWriter, "flush_queues", flush_queues_late)


def abort_removed_before_data(patch: pytest.MonkeyPatch) -> None:
    close_files = StoreWriter._close_files

    def close_early(self: StoreWriter) -> None:
        recovery.remove_abort(self._posix, self.path)
        close_files(self)

    patch.setattr(StoreWriter, "_close_files", close_early)


def checksums_left_out(patch: pytest.MonkeyPatch) -> None:
    def walk(log: CommitLog, start: int, stop: int | None = None, **_: bool) -> LogWalk:
        return LogWalk(log, start, stop)

    patch.setattr(log_recovery, "LogWalk", walk)


def half_written_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_recovery, "_first_half_written", lambda log, run: None)


def tail_left_in_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "cut_behind", lambda posix, path, log, end: [])


def index_slots_not_compared(patch: pytest.MonkeyPatch) -> None:
    def slots_before(self: index_rollback._NotedFile, found: Slots) -> Slots:
        followed = self._followed(found)
        return found if followed is None else followed

    patch.setattr(index_rollback._NotedFile, "slots_before", slots_before)


LAST = len(WORKLOADS) - 1
#: Each bug, and the number of a workload that it hurts.
BUGS: dict[Patch, int] = {
    no_sync_of_data: LAST,
    no_sync_of_directories: LAST,
    rename_without_sync: LAST,
    checkpoint_before_data: LAST,
    abort_removed_before_data: LAST,
    checksums_left_out: 3,
    half_written_not_noticed: 5,
    tail_left_in_place: LAST,
    index_slots_not_compared: LAST,
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(
    bug: Patch,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    case_counts: CaseCounts,
) -> None:
    bug(monkeypatch)
    workload = WORKLOADS[BUGS[bug]]
    trace = record(workload, scratch / "recorded")
    stores = CheckedStores(workload.messages)

    def check_states() -> None:
        for case in range(STATES):
            check_state(workload, trace, stores, scratch / "case", f"{seed}-{case}")

    with pytest.raises(AssertionError, match=f"{workload.name}, seed"):
        check_states()
    case_counts.add("planted bugs", 1)
