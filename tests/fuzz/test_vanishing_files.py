"""Files that change under a reader: a named error or the whole answer, never a signal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bad_input import run_in_child
from built_stores import build_store, numbered_records

pytestmark = pytest.mark.fuzz

ROW_COUNT = 3_000
BUILT = build_store(numbered_records(ROW_COUNT, queues=1), 1 << 16)

#: Takes a store, what befalls which file, when, and whether windows are mapped; prints what came.
READ_WHILE_IT_CHANGES = '''
from bad_input import value_or_error
from rmqlog.commitlog_format import files, message_reader
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.store import Store

path, event, folder, moment, mapped = sys.argv[1:]
message_reader.BATCH_ROW_COUNT = 100
files.COPIED_SIZE = 0  # else windows of small files would be copied either way

def change():
    files = sorted(os.path.join(path, folder, name) for name in os.listdir(f"{path}/{folder}"))
    for file in files[1:] if folder == "commitlog" else files:
        if event == "truncate":
            os.truncate(file, 100)
        elif event == "empty":
            os.truncate(file, 0)
        elif event == "replace":
            with open(file + ".new", "wb") as new:
                new.write(bytes(100))
            os.rename(file + ".new", file)
        elif event == "unlink":
            os.unlink(file)
        elif event == "chmod":
            os.chmod(file, 0)

store = Store(path, access=LocalFiles(map_windows=mapped == "mapped"))
if moment == "before":
    change()

def read():
    count = 0
    for topic in ("topic-0", "topic-1"):
        for batch in store.read(topic):
            if not count and moment == "between batches":
                change()
            count += batch.num_rows
    return count

def scan():
    return sum(batch.num_rows for batch in store.scan())

outcomes = []
for action in (read, scan):
    found = value_or_error(action)
    is_error = isinstance(found, StoreError)
    outcomes.append([type(found).__name__, found.path] if is_error else found)
print(json.dumps({"outcomes": outcomes}))
'''


@pytest.mark.parametrize("mapped", ["mapped", "copied"])
@pytest.mark.parametrize("moment", ["before", "between batches"])
@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/topic-1/0"])
@pytest.mark.parametrize("event", ["truncate", "empty", "replace", "unlink", "chmod"])
def test_a_file_that_changes_is_a_named_error_or_is_still_read_whole(
    tmp_path: Path, event: str, folder: str, moment: str, mapped: str
) -> None:
    if event == "chmod" and os.geteuid() == 0:
        pytest.skip("root may read every file")
    path = BUILT.write(tmp_path)
    result = run_in_child(READ_WHILE_IT_CHANGES, path, event, folder, moment, mapped)

    for outcome in result["outcomes"]:
        # A file that was open before it was unlinked or replaced is still the old one.
        if outcome != ROW_COUNT:
            error, named = outcome
            assert error in {
                "TruncatedFileError", "SegmentExpiredError", "FileUnavailableError",
                "CorruptRecordError", "TruncatedRecordError", "CorruptQueueError",
            }
            assert named.startswith(str(path))


#: A copy is read at last: whatever happens in between, no page of the file is touched.
SHRINK_WHILE_A_WINDOW_IS_HELD = '''
from rmqlog.commitlog_format.files import LocalFiles

path = sys.argv[1]
window = LocalFiles(map_windows=False).open(path).window(0, 65536)
before = int(window.sum())
os.truncate(path, 0)
print(json.dumps({"same": int(window.sum()) == before}))
'''


def test_a_copied_window_outlives_its_file(tmp_path: Path) -> None:
    path = BUILT.write(tmp_path) / "commitlog" / "00000000000000000000"

    assert run_in_child(SHRINK_WHILE_A_WINDOW_IS_HELD, path) == {"same": True}


#: The file shrinks when a window of it is there but not yet decoded.
SHRINK_BEFORE_DECODING = '''
from bad_input import value_or_error
from rmqlog.commitlog_format import files
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.files import LocalFile, LocalFiles
from rmqlog.commitlog_format.lookup import find_by_key
from rmqlog.commitlog_format.store import Store

path, verb, folder, mapped = sys.argv[1:]
if mapped == "mapped":
    files.COPIED_SIZE = 0
store = Store(path, access=LocalFiles())
store.end, store.queues
window, read_into = LocalFile.window, LocalFile.read_into
shrunk = []

def shrink(path):
    if f"/{folder}/" in path:
        os.truncate(path, 0)
        shrunk.append(path)

def window_of_a_shrinking_file(self, offset, size, *, sequential=False):
    found = window(self, offset, size, sequential=sequential)
    shrink(self.path)
    return found

def copy_of_a_shrinking_file(self, offset, target):
    read_into(self, offset, target)
    shrink(self.path)

LocalFile.window, LocalFile.read_into = window_of_a_shrinking_file, copy_of_a_shrinking_file
actions = {
    "read": lambda: sum(b.num_rows for b in store.read("topic-1")),
    "scan": lambda: sum(b.num_rows for b in store.scan()),
    "find": lambda: sum(b.num_rows for b in find_by_key(store, "topic-1", "no-such-key")),
}
found = value_or_error(actions[verb])
is_error = isinstance(found, StoreError)
outcome = [type(found).__name__, found.path] if is_error else found
print(json.dumps({"shrunk": len(shrunk), "outcome": outcome}))
'''


@pytest.mark.parametrize("mapped", ["mapped", "copied"])
@pytest.mark.parametrize("folder", ["commitlog", "consumequeue"])
@pytest.mark.parametrize("verb", ["read", "scan", "find"])
def test_a_file_that_shrinks_before_its_window_is_decoded_kills_nobody(
    tmp_path: Path, verb: str, folder: str, mapped: str
) -> None:
    path = BUILT.write(tmp_path)
    result = run_in_child(SHRINK_BEFORE_DECODING, path, verb, folder, mapped)

    assert result["shrunk"] or (verb, folder) == ("scan", "consumequeue")
    if isinstance(result["outcome"], list):
        error, named = result["outcome"]
        assert error in {"TruncatedFileError", "TruncatedRecordError", "CorruptQueueError"}
        assert named.startswith(str(path))


READ_WITH_FEW_DESCRIPTORS = '''
from rmqlog.commitlog_format.store import Store

path, limit = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
store = Store(path)
count = sum(batch.num_rows for topic in store.topics for batch in store.read(topic))
scanned = sum(batch.num_rows for batch in store.scan())
print(json.dumps({"read": count, "scanned": scanned}))
'''


@pytest.mark.parametrize("limit", [20, 64])
def test_a_thousand_topics_are_read_with_few_descriptors(tmp_path: Path, limit: int) -> None:
    built = build_store(numbered_records(1_000, topics=1_000, queues=1), 1 << 16)
    path = built.write(tmp_path)

    assert run_in_child(READ_WITH_FEW_DESCRIPTORS, path, limit) == {"read": 1_000, "scanned": 1_000}
