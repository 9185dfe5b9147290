"""Files that shrink while mapped windows of them are read, by every kind of reader.

Each outcome is the whole right answer or an error that names the file, and no process dies.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from bad_input import child_process, run_in_child
from small_stores import batch, open_writer

from rmqlog.writer.settings import StoreSettings

pytestmark = pytest.mark.fuzz

#: Enough that windows of the log, of the queue and of the index are all too large to be copied.
ROW_COUNT = 60_000
SETTINGS = StoreSettings(
    mappedFileSizeCommitLog=8 * 1024 * 1024, maxHashSlotNum=150_000, maxIndexNum=600_000,
    defaultTopicQueueNums=1,
)

#: Takes the store, a copy of it, a seed, how many rounds, how files are cut, and whether SIGBUS
#: is handled. Prints how many answers were whole, how many were errors, and what was neither.
ROUNDS = '''
import random, shutil, subprocess, threading, time
import numpy as np
import pyarrow as pa
from bad_input import value_or_error
from rmqlog.commitlog_format import bus_guard, mapped_windows
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.files import LocalFile
from rmqlog.commitlog_format.hashing import index_hash
from rmqlog.commitlog_format.log_walk import LogWalk
from rmqlog.commitlog_format.lookup import find_by_key
from rmqlog.commitlog_format.message_reader import ReadPolicy
from rmqlog.commitlog_format.records import RecordDecoder
from rmqlog.commitlog_format.resync import next_sound_position
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.tail import tail_units
from rmqlog.commitlog_format.verify import Severity, verify_store

path, whole_copy, seed, round_count, cut_by, guarded = sys.argv[1:]
chosen = random.Random(int(seed))
if guarded == "unguarded":
    mapped_windows.bus_guard = lambda: None

store = Store(path)
assert store.end and not store.tail
view, = store.queues_of("orders")
index, = store.index.files
keys = [f"key-{number}" for number in range(0, 60_000, 97)]
hashes = np.array([index_hash("orders", key) for key in keys], np.int64)
units = view.units(view.min_offset, view.max_offset)

def table(batches):
    return pa.Table.from_batches(batches).combine_chunks()

def decode():
    decoder = RecordDecoder(("body", "tags", "bornHost"), check_crc=False)
    runs = store.log.runs(units.offsets, units.sizes)
    return table(
        decoder.decode(run.window.data, run.window.start, run.offsets, path=run.window.path)
        for run in runs
    )

def read_what_is_sound():
    reader = store.reader(("body", "keys"), ReadPolicy(drop_malformed=True))
    rows = [b for part in view.scan() for b in reader.read(view.key, view.kind, part)]
    return "left out" if reader.report.malformed_count else table(rows)

def verify():
    found = [finding for finding in verify_store(store) if finding.severity is Severity.DAMAGE]
    return "damage" if found else "sound"

def undispatched():
    found = tail_units(store.log, 0, store.end, lambda key: 0, lambda key: None)
    return [part.offsets.tolist() for part in found.values()]

def read(**options):
    return lambda: table(store.read("orders", **options))

def some_units():
    return view.units_at(np.arange(0, 60_000, 7)).offsets

actions = {
    "read": read(),
    "read bodies": read(columns=("body",), policy=ReadPolicy(check_crc=False)),
    "read no bodies": read(columns=("tags", "storeTimestamp")),
    "read what is sound": read_what_is_sound,
    "units": read(columns=("queueOffset", "commitLogOffset", "tagsCode")),
    "some units": some_units,
    "tags": read(tags="PAID", columns=("queueOffset",)),
    "tags of units": lambda: view.files.matching_units(0, view.max_offset, [2448076])[0],
    "scan": lambda: table(store.scan(("body", "properties"))),
    "walk": lambda: [run.offsets.tolist() for run in LogWalk(store.log, 0, store.end)],
    "undispatched": undispatched,
    "resync": lambda: next_sound_position(store.log, 1, store.end),
    "find one": lambda: table(find_by_key(store, "orders", "key-41000")),
    "find many": lambda: table(find_by_key(store, "orders", keys)),
    "hashes": lambda: [part.tolist() for part in index.lookup_many(hashes)],
    "entries": lambda: index.entries().tobytes(),
    "decode": decode,
    "verify": verify,
}
#: What else may come of a damaged store, told as such.
told = {"read what is sound": "left out", "verify": "damage"}

def same(name, found):
    right = expected[name]
    if name in told and isinstance(found, str) and found == told[name]:
        return True
    if isinstance(right, np.ndarray):
        return np.array_equal(found, right)
    return found.equals(right) if isinstance(right, pa.Table) else found == right

expected, durations = {}, {}
for name, action in actions.items():
    begin = time.perf_counter()
    expected[name] = action()
    durations[name] = time.perf_counter() - begin
assert expected["verify"] == "sound" and expected["find one"].num_rows == 1
assert expected["tags of units"].size == expected["tags"].num_rows > 10_000

window, read_into = LocalFile.window, LocalFile.read_into
#: How many windows are opened, or ranges copied, before one loses its file.
left = [10**9]
cut_files = []

def somewhere(start, stop):
    """Where to cut: at the front, anywhere, or at the end, where no page may be missing."""
    few = chosen.randrange(1, chosen.choice([60, 9000]))
    return chosen.choice([0, chosen.randrange(start, stop), stop - few])

def cut_when_due(path, start, stop):
    left[0] -= 1
    if left[0] == 0:
        cut_files.append(path)
        os.truncate(path, max(0, somewhere(start, stop)))

def window_of_a_shrinking_file(self, offset, size, *, sequential=False):
    found = window(self, offset, size, sequential=sequential)
    cut_when_due(self.path, offset, offset + size)
    return found

def copy_of_a_shrinking_file(self, offset, target):
    cut_when_due(self.path, offset, offset + len(target))
    read_into(self, offset, target)

LocalFile.window, LocalFile.read_into = window_of_a_shrinking_file, copy_of_a_shrinking_file
# Somebody else, who cannot be stopped by what this process does.
shrinker = subprocess.Popen(
    [sys.executable, "-S", "-c", """
import os, sys, time
for line in sys.stdin:
    delay, size, path = line.rstrip().split(" ", 2)
    time.sleep(float(delay))
    os.truncate(path, int(size))
    print("done", flush=True)
"""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

def several_threads(action):
    """The same in three threads: faults come at once, some in the same window."""
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(value_or_error(action))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads)
    return found

# The part of each file that holds anything.
used = {file.path: min(file.end, store.end) - file.start for file in store.log.files.files}
used[view.files.files.files[0].path] = 60_000 * 20
used[index.path] = index.entries().nbytes + 40 + 150_000 * 4
counts = {"whole": 0, "error": 0, "told": 0}
errors, wrong = dict.fromkeys(actions, 0), []
for number in range(int(round_count)):
    name = sorted(actions)[number % len(actions)]
    cut_files.clear()
    if cut_by == "reader":
        # At first each of them loses its first window.
        left[0] = 1 if number < len(actions) else chosen.randrange(1, 6)
        outcomes = [value_or_error(actions[name])]
    else:
        file = chosen.choice(sorted(used))
        cut_files.append(file)
        cut, delay = somewhere(0, used[file]), chosen.random() * durations[name]
        shrinker.stdin.write(f"{delay} {cut} {file}\\n")
        shrinker.stdin.flush()
        if cut_by == "another process, three readers":
            outcomes = several_threads(actions[name])
        else:
            outcomes = [value_or_error(actions[name])]
        assert shrinker.stdout.readline() == "done\\n"
    for found in outcomes:
        if isinstance(found, StoreError):
            counts["error"] += 1
            errors[name] += 1
            if not found.path.startswith(path + "/"):
                wrong.append([number, name, cut_files, "names no file", str(found)])
        elif not same(name, found):
            wrong.append([number, name, cut_files, "another answer"])
        else:
            counts["told" if isinstance(found, str) and told.get(name) == found else "whole"] += 1
    for file in cut_files:
        shutil.copyfile(os.path.join(whole_copy, os.path.relpath(file, path)), file)
shrinker.stdin.close()
shrinker.wait()
print(json.dumps({**counts, "errors": errors, "wrong": wrong}))
'''


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that is never changed."""
    path = tmp_path_factory.mktemp("whole") / "store"
    with open_writer(path, SETTINGS) as writer:
        for first in range(0, ROW_COUNT, 10_000):
            writer.append(batch(10_000, first))
    return path


@pytest.fixture
def store(whole_store: Path, tmp_path: Path) -> Path:
    """A copy, which shrinks and is made whole again."""
    return Path(shutil.copytree(whole_store, tmp_path / "store"))


@pytest.mark.parametrize(
    ("cut_by", "round_count"),
    [("reader", 300), ("another process", 150), ("another process, three readers", 40)],
)
def test_a_file_that_shrinks_during_a_read_gives_the_whole_answer_or_is_named(
    whole_store: Path, store: Path, seed: int, cut_by: str, round_count: int
) -> None:
    result = run_in_child(ROUNDS, store, whole_store, seed, round_count, cut_by, "guarded")

    assert result["wrong"] == []
    assert result["whole"] > round_count / 20
    assert result["error"] > round_count / 20
    if cut_by == "reader":
        assert min(result["errors"].values()) > 0


def test_without_the_guard_the_same_reads_die_of_the_signal(
    whole_store: Path, store: Path, seed: int
) -> None:
    process = child_process(ROUNDS, store, whole_store, seed, 300, "reader", "unguarded")

    assert process.returncode == -signal.SIGBUS, process.stderr[-4000:]
