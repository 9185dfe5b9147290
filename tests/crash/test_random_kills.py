"""A writer that appends without pause, all its threads running, and is killed at any moment."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from crash.case_counts import CaseCounts
from crash.oracle import check_store
from crash.workloads import SETTINGS, SYNC_SETTINGS, Message, to_arrow
from faults import Ledger, fork, in_two_processes

from rmqlog.writer.store_writer import StoreWriter

pytestmark = pytest.mark.crash

KILLS = 50
BATCH = 7
SIZE = 700
SETTINGS_OF_VICTIM = SYNC_SETTINGS.with_changes(
    flushIntervalConsumeQueue=5, flushConsumeQueueThoroughInterval=10
)


def message(number: int) -> Message:
    return Message(number, SIZE, queue_id=number % 3)


def append_without_pause(path: Path, ledger: Ledger) -> None:
    """Append, and tell how many messages were acknowledged, until somebody kills us."""
    writer = StoreWriter(path, SETTINGS_OF_VICTIM)
    for first in itertools.count(0, BATCH):
        writer.append(to_arrow([message(first + i) for i in range(BATCH)]))
        ledger.note(first + BATCH)


def kill_once(path: Path, rng: random.Random) -> None:
    """Start a writer, kill it some milliseconds after its first append, check the store."""
    shutil.rmtree(path, ignore_errors=True)
    reader, pipe = os.pipe()
    victim = fork()
    if victim == 0:
        try:
            os.close(reader)
            append_without_pause(path, Ledger(pipe))
        finally:
            os._exit(1)
    os.close(pipe)
    with os.fdopen(reader, "rb") as source:
        notes = [source.readline()]
        time.sleep(rng.uniform(0.001, 0.05))
        os.kill(victim, signal.SIGKILL)
        notes += source.readlines()
    os.waitpid(victim, 0)
    acknowledged = max(int(note) for note in notes)
    # One more batch may be in the log than was acknowledged.
    check_store(path, [message(n) for n in range(acknowledged + BATCH)], acknowledged, SETTINGS)


def test_killed_at_random_a_writer_loses_nothing(
    scratch: Path, seed: int, factor: int, case_counts: CaseCounts
) -> None:
    def work(index: int, count: int) -> int:
        rng = random.Random(f"{seed}-{index}")
        for _ in range(KILLS * factor // count):
            kill_once(scratch / str(index), rng)
        return KILLS * factor // count

    case_counts.add("random kills", in_two_processes(work))
