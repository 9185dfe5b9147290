"""Dispatch from the log: light queues, where it ends, kills during a rebuild, failures behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import KILLS, Kind, Plan, run_in_fork
from small_stores import SMALL, batch, files_below, open_writer, rows_of

from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.errors import (
    CorruptRecordError,
    StoreNotFoundError,
    UnsupportedFormatError,
    WriteFailedError,
)
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.layout import CONSUME_QUEUE_UNIT
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer.dispatch import Dispatcher
from rmqlog.writer.posix import Posix
from rmqlog.writer.queue_table import QueueTable
from rmqlog.writer.rebuild import rebuild
from rmqlog.writer.record_copy import NewRecord, draft_of
from rmqlog.writer.reput import dispatch_log
from rmqlog.writer.segments import FileSet

LIGHT = SMALL.with_changes(enableLmq=True, enableMultiDispatch=True)
HOST = bytes([127, 0, 0, 1, 0, 0, 0, 1])


def light_record(names: str, offsets: str, topic: str = "parent") -> NewRecord:
    properties = (
        f"INNER_MULTI_DISPATCH\x01{names}\x02INNER_MULTI_QUEUE_OFFSET\x01{offsets}\x02TAGS\x01A\x02"
    )
    return NewRecord(QueueKey(topic, 0), b"x", properties.encode(), 1, HOST)


@pytest.mark.parametrize(("settings", "count"), [(LIGHT, 2), (SMALL, 0)])
def test_light_queues_get_units_of_their_own_where_the_broker_has_them(
    tmp_path: Path, settings: Any, count: int
) -> None:
    with open_writer(tmp_path, settings) as writer:
        writer.append_draft(
            draft_of(
                [
                    light_record("%LMQ%a,%LMQ%b", "0,0"),
                    light_record("%LMQ%a,plain,%LMQ%x/y", "1,5,0"),
                    light_record("%LMQ%a", "9", topic="%RETRY%group"),
                ]
            )
        )

    rebuild(tmp_path, settings)

    store = Store(str(tmp_path))
    light = {key.topic: view.max_offset for key, view in store.queues.items() if "LMQ" in key.topic}
    assert light == ({"%LMQ%a": 2, "%LMQ%b": 1} if count else {})
    if count:
        (file,) = (tmp_path / "consumequeue" / "%LMQ%a" / "0").iterdir()
        units = np.frombuffer(file.read_bytes(), CONSUME_QUEUE_UNIT)
        assert units["tags_code"][:2].tolist() == [65, 65]


def test_a_record_that_is_not_sound_ends_the_dispatch_and_says_why(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        result = writer.append(batch(50))
    damaged = int(result.physical_offset[30])
    segment = tmp_path / "commitlog" / f"{0:020d}"
    content = bytearray(segment.read_bytes())
    content[damaged + 90] ^= 1
    segment.write_bytes(content)

    report = rebuild(tmp_path)

    assert report.message_count == 30
    assert report.log_end.offset == damaged
    assert isinstance(report.log_end.reason, CorruptRecordError)


@pytest.mark.crash
@pytest.mark.parametrize("kind", KILLS)
def test_a_rebuild_that_is_killed_anywhere_is_finished_by_the_next_open(
    tmp_path: Path, kind: Kind
) -> None:
    original = tmp_path / "original" / "store"
    with open_writer(original) as writer:
        writer.append(batch(60))
    queues = dict(files_below(original, "consumequeue"))
    index = [content for _, content in files_below(original, "index")]
    fired, number = True, 0
    while fired:
        # Not every call: a rebuild makes many like ones.
        number += 11
        copy = tmp_path / f"copy{number}" / "store"
        shutil.copytree(original, copy)

        def run(posix: Posix, note: object, copy: Path = copy) -> None:
            rebuild(copy, posix=posix)

        fired = run_in_fork(run, Plan(kind, number)).fired
        with open_writer(copy):
            pass
        assert dict(files_below(copy, "consumequeue")) == queues
        assert rows_of(copy, "orders") == rows_of(original, "orders")
        assert [content for _, content in files_below(copy, "index")] == index
        shutil.rmtree(copy.parent)
    assert number > 50


def test_a_rebuild_needs_a_log(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        rebuild(tmp_path)


def test_a_store_with_rocksdb_queues_is_not_rebuilt(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(5))
    (tmp_path / "consumequeue" / "CURRENT").write_text("MANIFEST-000001")

    with pytest.raises(UnsupportedFormatError):
        rebuild(tmp_path)


def test_memory_does_not_grow_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_writer(tmp_path) as writer:
        for first in range(0, 500, 100):
            writer.append(batch(100, first))
    sizes = []
    monkeypatch.setattr("rmqlog.commitlog_format.log_walk.RUN_RECORD_COUNT", 16)
    log = CommitLog(FileQueue.open(LocalFiles(), [f"{tmp_path}/commitlog"]))

    class Watching(Dispatcher):
        def dispatch(self, found: Any) -> None:
            sizes.append(len(found))
            super().dispatch(found)

    target = tmp_path / "target"
    queues = QueueTable(FileSet(Posix(), str(target)), str(target), SMALL)
    count, _ = dispatch_log(
        log, 0, log.end, Watching(queues, None, index_tags=False), SMALL
    )

    assert count == sum(sizes) == 500
    assert max(sizes) <= 16


def test_a_failure_in_the_background_stops_the_writer_and_the_next_open_catches_up(
    tmp_path: Path,
) -> None:
    class Failing(Posix):
        broken = False

        def _perform(self, call, action):  # type: ignore[no-untyped-def]
            if self.broken and "consumequeue" in call.path and call.name == "store":
                raise OSError(5, "Input/output error")
            return super()._perform(call, action)

    posix = Failing()
    writer = open_writer(tmp_path, posix=posix, dispatch_in_background=True)
    writer.append(batch(10))
    writer.flush()
    posix.broken = True
    writer.append(batch(10, 10))
    with pytest.raises(WriteFailedError):
        writer.flush()
    with pytest.raises(WriteFailedError):
        writer.append(batch(10, 20))
    with pytest.raises(WriteFailedError):
        writer.close()
    assert (tmp_path / "abort").exists()

    with open_writer(tmp_path):
        pass
    assert [row["body"] for row in rows_of(tmp_path, "orders")] == batch(20)["body"].to_pylist()
