"""Queues and index come out byte for byte as real brokers made them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from golden_stores import GOLDEN_DIRECTORY, GoldenStore
from small_stores import SMALL, batch, files_below, open_writer

from rmqlog.commitlog_format.hashing import index_hash
from rmqlog.commitlog_format.layout import CONSUME_QUEUE_UNIT
from rmqlog.commitlog_format.properties import split_keys
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer.dispatch import DispatchBatch, Dispatcher, index_entries
from rmqlog.writer.index_writer import IndexWriter
from rmqlog.writer.posix import Posix
from rmqlog.writer.queue_table import QueueTable
from rmqlog.writer.rebuild import rebuild
from rmqlog.writer.reput import dispatch_log
from rmqlog.writer.segments import FileSet
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.topics_config import TopicTable

QUEUE_FOLDERS = ("consumequeue", "batchconsumequeue")


def settings_of(store: GoldenStore) -> StoreSettings:
    """The settings of the broker that wrote a golden store."""
    found = StoreSettings.from_file(GOLDEN_DIRECTORY / f"{store.name}.properties")
    return found.with_changes(brokerVersion=store.name.split("-")[1])


def dispatch_anew(store: GoldenStore, target: Path, log_directories: tuple[str, ...] = ()) -> int:
    """Dispatch the log of a store into empty folders below ``target``; the record count."""
    source = Store(str(store.path), log_directories=log_directories)
    settings = settings_of(store)
    files = FileSet(Posix(), str(target))
    topics = TopicTable(Posix(), str(store.path), settings)
    queues = QueueTable(files, str(target), settings, topics.is_batch)
    index = IndexWriter(files, f"{target}/index", settings)
    dispatcher = Dispatcher(queues, index, index_tags=settings.indexes_tags)
    count, end = dispatch_log(source.log, source.start, source.end, dispatcher, settings)
    queues.flush()
    index.flush()
    assert end.reason is None
    return count


@pytest.mark.parametrize(
    ("name", "record_count", "queue_files", "index_files"),
    [
        ("rmq-5.5.0-clean", 2891, 39, 5),
        ("rmq-4.9.5-clean", 2804, 34, 4),
        ("rmq-5.5.0-bcq", 350, 7, 3),
        ("rmq-5.5.0-multipath", 300, 4, 3),
    ],
)
def test_a_brokers_log_gives_the_brokers_queues_and_index(
    golden_store: Callable[[str], GoldenStore],
    tmp_path: Path,
    name: str,
    record_count: int,
    queue_files: int,
    index_files: int,
) -> None:
    store = golden_store(name)
    multipath = (f"{store.path}/cl_a", f"{store.path}/cl_b") if "multipath" in name else ()

    assert dispatch_anew(store, tmp_path, multipath) == record_count

    theirs = dict(files_below(store.path, *QUEUE_FOLDERS))
    ours = dict(files_below(tmp_path, *QUEUE_FOLDERS))
    assert len(theirs) == queue_files
    assert {path: ours.get(path) for path in theirs} == theirs
    # Of a topic that was deleted a broker keeps the records, and makes its queues anew too.
    assert {path.split("/")[1] for path in set(ours) - set(theirs)} <= {"doomed"}
    # Index files are named by the time at which they were made.
    their_index = [content for _, content in files_below(store.path, "index")]
    assert [content for _, content in files_below(tmp_path, "index")] == their_index
    assert len(their_index) == index_files


def test_a_queue_whose_start_expired_is_pre_filled_with_blank_units(
    golden_store: Callable[[str], GoldenStore], tmp_path: Path
) -> None:
    store = golden_store("rmq-5.5.0-retention")

    dispatch_anew(store, tmp_path)

    theirs = dict(files_below(store.path, "consumequeue"))
    for path, content in files_below(tmp_path, "consumequeue"):
        ours = np.frombuffer(content, CONSUME_QUEUE_UNIT)
        broker = np.frombuffer(theirs[path], CONSUME_QUEUE_UNIT)
        blank = ours["size"] == 0x7FFFFFFF
        assert (ours[~blank] == broker[~blank]).all()
        # What was blanked points to records that are gone.
        assert (broker["commit_log_offset"][blank] < 280_000).all()


@pytest.mark.parametrize("name", ["rmq-5.5.0-clean", "rmq-5.5.0-bcq"])
def test_rebuild_makes_the_brokers_files_again(
    golden_store: Callable[[str], GoldenStore], tmp_path: Path, name: str
) -> None:
    store = golden_store(name)
    copy = tmp_path / "copy"
    shutil.copytree(store.path, copy)

    report = rebuild(copy, settings_of(store))

    rebuilt = dict(files_below(copy, *QUEUE_FOLDERS))
    theirs = dict(files_below(store.path, *QUEUE_FOLDERS))
    assert {path: rebuilt[path] for path in theirs} == theirs
    assert [content for _, content in files_below(copy, "index")] == [
        content for _, content in files_below(store.path, "index")
    ]
    assert not (copy / "abort").exists()
    assert report.message_count == sum(line["kind"] == "record" for line in store.log)


def test_appends_and_a_rebuild_of_their_log_give_the_same_files(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        for first in range(0, 300, 60):
            writer.append(batch(60, first))
            writer.append(batch(10, first, "other", delayLevel=[first % 3] * 10))
    appended = dict(files_below(tmp_path, "consumequeue"))
    index = [content for _, content in files_below(tmp_path, "index")]

    report = rebuild(tmp_path)

    assert report.message_count == 350
    assert dict(files_below(tmp_path, "consumequeue")) == appended
    assert [content for _, content in files_below(tmp_path, "index")] == index


def test_a_rebuild_follows_the_delay_levels_of_the_settings(tmp_path: Path) -> None:
    settings = SMALL.with_changes(messageDelayLevel="2s 1d")
    with open_writer(tmp_path, settings) as writer:
        writer.append(batch(6, delayLevel=[1, 2, 0] * 2))
    appended = dict(files_below(tmp_path, "consumequeue"))

    rebuild(tmp_path, settings)

    assert dict(files_below(tmp_path, "consumequeue")) == appended


def dispatch_batch(
    uniq_keys: list[str | None], keys: list[str | None], tags: list[str | None], topics: list[str]
) -> DispatchBatch:
    count = len(keys)
    queues = [QueueKey(topic, 0) for topic in dict.fromkeys(topics)]
    codes = [next(i for i, queue in enumerate(queues) if queue.topic == t) for t in topics]
    return DispatchBatch(
        queues=queues,
        queue_codes=np.array(codes, np.int32),
        queue_offset=np.arange(count),
        physical_offset=np.arange(count) * 100,
        size=np.full(count, 100),
        sys_flag=np.zeros(count, np.int32),
        store_timestamp=np.full(count, 1),
        tags_code=np.zeros(count, np.int64),
        uniq_keys=pa.array(uniq_keys, pa.string()),
        keys=pa.array(keys, pa.string()),
        tags=pa.array(tags, pa.string()),
    )


@pytest.mark.parametrize("index_tags", [False, True])
@pytest.mark.parametrize(
    "topics", [["a"] * 6, ["a", "b", "a", "b", "b", "a"]], ids=["one topic", "two topics"]
)
def test_index_entries_are_uniq_key_then_tokens_then_tag_of_each_record(
    index_tags: bool, topics: list[str]
) -> None:
    uniq_keys = ["u0", None, "u2", "u3", None, "u5"]
    keys = ["k", "a b", None, "  x   y x ", "", "中文 😀"]
    tags = ["T", None, "", "t2", "t3", None]
    expected = []
    for row in range(6):
        if uniq_keys[row]:
            expected.append((row, index_hash(topics[row], uniq_keys[row])))
        expected += [(row, index_hash(topics[row], token)) for token in split_keys(keys[row])]
        if index_tags and tags[row]:
            expected.append((row, index_hash(topics[row], f"T#{tags[row]}")))

    rows, hashes = index_entries(
        dispatch_batch(uniq_keys, keys, tags, topics), index_tags=index_tags
    )

    assert list(zip(rows.tolist(), hashes.tolist(), strict=True)) == expected


def test_prepared_and_rolled_back_records_have_no_unit_and_rolled_back_ones_no_entry(
    tmp_path: Path,
) -> None:
    files = FileSet(Posix(), str(tmp_path))
    queues = QueueTable(files, str(tmp_path), SMALL)
    index = IndexWriter(files, f"{tmp_path}/index", SMALL)
    found = dispatch_batch(["u"] * 4, [None] * 4, [None] * 4, ["t"] * 4)
    flags = np.array([0x0, 0x4, 0x8, 0xC], np.int32)
    dispatched = DispatchBatch(
        **{
            name: getattr(found, name)
            for name in DispatchBatch.__dataclass_fields__
            if name not in ("sys_flag", "queue_offset")
        },
        sys_flag=flags,
        queue_offset=np.array([0, 0, 1, 0]),
    )

    Dispatcher(queues, index, index_tags=True).dispatch(dispatched)

    assert queues.queue(QueueKey("t", 0)).next_offset == 2
    assert index.entry_count_of_last == 3


def test_what_was_dispatched_before_is_skipped_but_the_last_record_is_indexed_again(
    tmp_path: Path,
) -> None:
    files = FileSet(Posix(), str(tmp_path))
    queues = QueueTable(files, str(tmp_path), SMALL)
    index = IndexWriter(files, f"{tmp_path}/index", SMALL)
    dispatcher = Dispatcher(queues, index, index_tags=False)
    found = dispatch_batch(["u"] * 5, [None] * 5, [None] * 5, ["t"] * 5)

    dispatcher.dispatch(found)
    dispatcher.dispatch(found)

    assert queues.queue(QueueKey("t", 0)).next_offset == 5
    assert index.entry_count_of_last == 6
