"""What a power cut left of our writer, recovered by RocketMQ's own store and by us.

A sample of the crash tests' states. A broker refuses to start on a file of a wrong size, where we
recover; wherever it does start, it recovers the same messages. And it opens every store that we
recovered, and finds in it what we find.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broker.features import CRASH_STORES, Comparisons
from broker.java_driver import JavaDriver
from broker.java_toolchain import LINE_4, LINE_5, Line
from crash.workloads import SETTINGS, SYNC_SETTINGS, WORKLOADS, Workload, open_writer
from crash_states import RecordingPosix, crash_states, materialise

from rmqlog.commitlog_format.layout import CONSUME_QUEUE_UNIT
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.posix import Posix

FILE_SIZES = {
    "mappedFileSizeCommitLog": SETTINGS.mappedFileSizeCommitLog,
    "mappedFileSizeConsumeQueue": SETTINGS.mappedFileSizeConsumeQueue,
    "maxHashSlotNum": SETTINGS.maxHashSlotNum,
    "maxIndexNum": SETTINGS.maxIndexNum,
}


@dataclass(frozen=True)
class Recovered:
    """The end of the log, and the units of each queue, as we read them."""

    end: int
    queues: dict[tuple[str, int], list[tuple[int, ...]]]

    @classmethod
    def of(cls, store: Store) -> Recovered:
        """What is in a store."""
        columns = ["queueOffset", "commitLogOffset", "storeSize", "tagsCode"]
        return cls(
            store.end,
            {
                (view.topic, view.queue_id): [
                    tuple(row.values())
                    for batch in store.read(view.topic, view.queue_id, columns=columns)
                    for row in batch.to_pylist()
                ]
                for view in store.queues.values()
                if len(view)
            },
        )

    @property
    def last_record_end(self) -> int:
        """The offset behind the last message that is in a queue."""
        return max(unit[1] + unit[2] for units in self.queues.values() for unit in units)


def make_crash_stores(workload: Workload, scratch: Path, count: int) -> list[Path]:
    """Stores as they may look when the machine stops in the middle of a workload."""
    recorded = scratch / "recorded"
    recorded.mkdir(parents=True)
    posix = RecordingPosix(str(recorded))
    Workload("before", workload.before).run(str(recorded), posix, posix.note)
    workload.run(str(recorded), posix, posix.note, SYNC_SETTINGS)
    stores = []
    for seed in range(count):
        store = scratch / f"state-{seed}"
        store.mkdir()
        source = random.Random(f"{workload.name} {seed}")
        materialise(posix.trace, next(crash_states(posix.trace, source)), store)
        stores.append(store)
    return stores


@pytest.mark.parametrize(
    ("line", "count"), [(LINE_5, 7), (LINE_4, 3)], ids=["5.5.0-56 stores", "4.9.5-24 stores"]
)
def test_rocketmq_recovers_a_crashed_store_to_what_our_recovery_gives(
    java_driver: Callable[[Line], JavaDriver],
    comparisons: Comparisons,
    line: Line,
    count: int,
    tmp_path: Path,
) -> None:
    crashed = [
        store
        for number, workload in enumerate(WORKLOADS)
        for store in make_crash_stores(workload, tmp_path / str(number), count)
    ]
    torn_ends = [queues_with_a_torn_last_file(store) for store in crashed]
    recovered = [Path(shutil.copytree(store, f"{store}-ours")) for store in crashed]
    settings = SETTINGS.with_changes(brokerVersion=line.version)
    for store in recovered:
        open_writer(str(store), Posix(), settings).close()
    ours = [Recovered.of(Store(str(store))) for store in recovered]

    opened = java_driver(line).open_stores([*crashed, *recovered], FILE_SIZES)
    from_crashed, from_ours = opened[: len(crashed)], opened[len(crashed) :]

    for store, expected, theirs in zip(recovered, ours, from_ours, strict=True):
        assert_recovered_alike(expected, theirs, store)
    loaded = [number for number, theirs in enumerate(from_crashed) if "error" not in theirs]
    for number in loaded:
        assert_recovered_alike(
            ours[number], from_crashed[number], crashed[number], torn_ends[number]
        )
    assert len(loaded) >= len(crashed) // 4, "too few crashed stores that a broker opens"
    comparisons.count(CRASH_STORES, line, "stores that both recovered", len(loaded))
    comparisons.count(CRASH_STORES, line, "stores that we recovered and it opened", len(recovered))


def queues_with_a_torn_last_file(store: Path) -> set[tuple[str, int]]:
    """The queues whose last file does not begin with a unit: nothing was written yet, or torn."""
    last_files = {path.parent: path for path in sorted(store.glob("consumequeue/*/*/*"))}
    firsts = {
        (folder.parent.name, int(folder.name)): np.fromfile(path, CONSUME_QUEUE_UNIT, count=1)
        for folder, path in last_files.items()
    }
    return {
        queue
        for queue, units in firsts.items()
        if not ((units["commit_log_offset"] >= 0) & (units["size"] > 0)).any()
    }


def assert_recovered_alike(
    ours: Recovered,
    opened: dict[str, Any],
    store: Path,
    torn_ends: Collection[tuple[str, int]] = (),
) -> None:
    """The same units in the same queues, and the same end of the log."""
    assert "error" not in opened, (store, opened)
    queues = {
        (queue["topic"], queue["queueId"]): [tuple(unit) for unit in queue["units"]]
        for queue in opened["queues"]
        if queue["units"]
    }
    for queue in queues.keys() & torn_ends:
        # RocketMQ's truncation looks at the torn file and stops: in the file before it units
        # behind the log's end stay, and the first message may be dispatched once more.
        kept = len(ours.queues.get(queue, ()))
        queues[queue] = queues[queue][:kept]
    assert {queue: units for queue, units in queues.items() if units} == ours.queues, store
    if opened["maxPhyOffset"] != ours.end:
        # A filler with no segment behind it: RocketMQ will write over it, we go on behind it.
        assert ours.end % SETTINGS.mappedFileSizeCommitLog == 0, store
        assert ours.last_record_end == opened["maxPhyOffset"], store
