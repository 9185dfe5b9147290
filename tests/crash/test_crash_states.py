"""Whatever a power cut leaves of the unsynced changes, nothing acknowledged is lost."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from crash.case_counts import CaseCounts
from crash.oracle import CheckedStores, durable_count
from crash.workloads import EXT_SETTINGS, SETTINGS, WORKLOADS, Workload
from crash_states import RecordingPosix, Trace, crash_states, materialise
from faults import in_two_processes

from rmqlog.writer.settings import FlushDiskType, StoreSettings

pytestmark = pytest.mark.crash

STATES = 5000
EXT_STATES = 300
#: Where failing seeds are kept: ``workload index, seed``, run before the random ones.
SEEDS_FILE = Path(__file__).with_name("seeds.txt")


def record(
    workload: Workload, path: Path, settings: StoreSettings = SETTINGS
) -> Trace:
    """The trace of a workload that runs through, its store made by the same posix."""
    posix = RecordingPosix(str(path))
    before = Workload("before", workload.before)
    path.mkdir()
    before.run(str(path), posix, lambda note: posix.note(note), settings)
    after_before = workload.before_count
    synchronous = settings.with_changes(flushDiskType=FlushDiskType.SYNC_FLUSH)
    workload.run(str(path), posix, lambda note: posix.note(note), synchronous)
    assert durable_count(posix.trace.notes_before(posix.trace.length), 0) >= after_before
    return posix.trace


def check_state(
    workload: Workload, trace: Trace, stores: CheckedStores, path: Path, seed: str
) -> None:
    """Build the state that a seed stands for, and check it."""
    state = next(crash_states(trace, random.Random(seed)))
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    materialise(trace, state, path)
    durable = durable_count(trace.notes_before(state.position), 0)
    stores.check(path, durable, f"{workload.name}, seed {seed!r}: {state}")


@pytest.mark.parametrize("number", range(len(WORKLOADS)), ids=lambda n: WORKLOADS[n].name)
def test_no_crash_state_loses_what_was_flushed(
    number: int, scratch: Path, seed: int, factor: int, case_counts: CaseCounts
) -> None:
    workload = WORKLOADS[number]
    trace = record(workload, scratch / "recorded")
    count = STATES * factor // len(WORKLOADS)

    def work(index: int, processes: int) -> int:
        stores = CheckedStores(workload.messages)
        seeds = [f"{seed}-{case}" for case in range(index, count, processes)]
        for case_seed in kept_seeds(number) + seeds:
            check_state(workload, trace, stores, scratch / str(index), case_seed)
        return len(seeds)

    cases = in_two_processes(work)

    case_counts.add("crash states", cases)
    assert cases == count


@pytest.mark.parametrize("number", [5, len(WORKLOADS) - 1], ids=lambda n: WORKLOADS[n].name)
def test_no_crash_state_leads_a_unit_astray_in_its_ext_files(
    number: int, scratch: Path, seed: int, factor: int, case_counts: CaseCounts
) -> None:
    workload = WORKLOADS[number]
    trace = record(workload, scratch / "recorded", EXT_SETTINGS)
    count = EXT_STATES * factor

    def work(index: int, processes: int) -> int:
        stores = CheckedStores(workload.messages, EXT_SETTINGS)
        seeds = [f"{seed}-{case}" for case in range(index, count, processes)]
        for case_seed in seeds:
            check_state(workload, trace, stores, scratch / str(index), case_seed)
        return len(seeds)

    cases = in_two_processes(work)

    case_counts.add("crash states with ext files", cases)
    assert cases == count


def kept_seeds(number: int) -> list[str]:
    """Seeds of a workload that once failed."""
    lines = [line.split("#")[0].split() for line in SEEDS_FILE.read_text().splitlines()]
    return [words[1] for words in lines if words and int(words[0]) == number]
