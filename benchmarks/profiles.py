"""``python -m benchmarks.profiles``: where the time goes in the main cases, by Python's profiler.

Time in libraries counts for the function of rmqlog that called them. The profiler makes calls
dearer than they are, so work in few calls looks a little too cheap.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks import format_cases
from benchmarks.messages import BATCH_COUNT, TOPIC, message_batch, write_store
from benchmarks.spark_write_cases import stage
from benchmarks.workspace import Workspace
from rmqlog import commitlog_format
from rmqlog.commitlog_format.lookup import TopicKeys
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.batch_write import commit_job
from rmqlog.writer.rebuild import rebuild
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.store_writer import StoreWriter

_COUNT = 200_000
_SHOWN_COUNT = 10
#: The folder of the package, below which its modules are.
_PACKAGE = Path(str(commitlog_format.__file__)).parent.parent

_FOLDERS = ("commitlog_format", "writer")
_DEPTH_MAX = 8

Work = Callable[[], object]
Function = tuple[str, int, str]


def decode(workspace: Workspace) -> Work:
    """Decode at full width, CRC checked"""
    path = workspace.make("decode", lambda path: write_store(path, _COUNT, properties=3))
    runs = format_cases.record_runs(path)
    return lambda: format_cases.decode_runs(runs, format_cases.ALL_COLUMNS, check_crc=True)


def tag_filter(workspace: Workspace) -> Work:
    """Read the messages of one tag in ten"""
    path = str(_store(workspace))
    return lambda: sum(batch.num_rows for batch in Store(path).read(TOPIC, tags="Tag3"))


def key_lookup(workspace: Workspace) -> Work:
    """Look keys up one by one, records verified"""
    topic_keys = TopicKeys(Store(str(_store(workspace))), TOPIC)
    return lambda: [topic_keys.offsets(f"order-{n}") for n in range(1, _COUNT - 1, 40)]


def append(workspace: Workspace) -> Work:
    """Append in batches of 10,000, queues and index built, closed"""
    batches = [message_batch(first, BATCH_COUNT) for first in range(0, _COUNT, BATCH_COUNT)]
    numbers = count()

    def write() -> None:
        with StoreWriter(workspace.folder / f"append-{next(numbers)}") as writer:
            for batch in batches:
                writer.append(batch)

    return write


def rebuild_store(workspace: Workspace) -> Work:
    """Rebuild queues and index from the log"""
    path = workspace.fresh("rebuild")
    write_store(path, _COUNT)
    return lambda: rebuild(path)


def commit(workspace: Workspace) -> Work:
    """Commit what tasks of Spark have staged (the thread that writes; another one reads)"""
    paths = [workspace.fresh(f"commit-{number}") for number in range(2)]
    staged = [(str(path), stage(workspace, path, _COUNT)) for path in paths]
    return lambda: commit_job(*staged.pop(), StoreSettings())


CASES = (decode, tag_filter, key_lookup, append, rebuild_store, commit)


def _store(workspace: Workspace) -> Path:
    return workspace.make("store", lambda path: write_store(path, _COUNT))


def shares(work: Work) -> Counter[str]:
    """The share of the whole that each function takes, not counting its calls of others."""
    work()  # once unmeasured: imports, and files into the page cache
    profile = cProfile.Profile()
    profile.runcall(work)
    stats: Any = pstats.Stats(profile)
    found: Counter[str] = Counter()
    for function, (_, _, own, _, _) in stats.stats.items():
        for owner, share in _owners(stats.stats, function, frozenset()):
            found[owner] += share * own / stats.total_tt
    return found


def _owners(
    stats: dict[Any, Any], function: Function, below: frozenset[Function]
) -> Iterator[tuple[str, float]]:
    """Which functions of rmqlog a function works for, itself or by its callers' shares."""
    file, _, name = function
    if Path(file).is_relative_to(_PACKAGE) and Path(file).parent.name in _FOLDERS:
        yield f"{Path(file).stem}.{name}", 1.0
        return
    callers = {
        caller: edge[3] for caller, edge in stats[function][4].items() if caller not in below
    }
    total = sum(callers.values())
    for caller, taken in callers.items():
        if total and len(below) < _DEPTH_MAX:
            for owner, share in _owners(stats, caller, below | {function}):
                yield owner, share * taken / total


def main() -> int:
    """Print a list for each case."""
    workspace = Workspace(quick=True)
    try:
        for case in CASES:
            print(f"{case.__doc__}:")
            for name, share in shares(case(workspace)).most_common(_SHOWN_COUNT):
                print(f"  {share:5.1%}  {name}")
    finally:
        workspace.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
