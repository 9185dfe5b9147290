"""Further queues of a record: which ones a broker takes from its properties, and in which order."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from faults import KILLS, Kind, Plan, run_in_fork
from small_stores import SMALL, files_below, open_writer

from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.errors import InvalidSettingError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.layout import CONSUME_QUEUE_UNIT, SysFlag
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer.multi_dispatch import further_queues
from rmqlog.writer.posix import Posix
from rmqlog.writer.rebuild import rebuild
from rmqlog.writer.record_copy import NewRecord, draft_of
from rmqlog.writer.settings import StoreSettings

LIGHT = SMALL.with_changes(enableLmq=True, enableMultiDispatch=True)
HOST = bytes([127, 0, 0, 1, 0, 0, 0, 1])


def record(
    names: str, offsets: str, topic: str = "parent", queue_id: int = 3, sys_flag: int = 0
) -> NewRecord:
    properties = (
        f"INNER_MULTI_DISPATCH\x01{names}\x02INNER_MULTI_QUEUE_OFFSET\x01{offsets}\x02TAGS\x01A\x02"
    )
    key = QueueKey(topic, queue_id)
    return NewRecord(key, b"x", properties.encode(), 1, HOST, sys_flag=sys_flag)


def plain(topic: str, queue_id: int) -> NewRecord:
    return NewRecord(QueueKey(topic, queue_id), b"x", b"TAGS\x01B\x02", 1, HOST)


def write(path: Path, *records: NewRecord, settings: StoreSettings = LIGHT) -> list[int]:
    """Write a log and dispatch it; where its records are."""
    with open_writer(path, SMALL) as writer:
        result = writer.append_draft(draft_of(list(records)))
    rebuild(path, settings)
    return result.physical_offset.tolist()


def offsets_of(path: Path, topic: str, queue_id: int = 0) -> list[int]:
    """The physical offsets in a queue; none where there is no such queue."""
    folder = path / "consumequeue" / topic / str(queue_id)
    if not folder.is_dir():
        return []
    content = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
    units = np.frombuffer(content, CONSUME_QUEUE_UNIT)
    return units["commit_log_offset"][units["size"] > 0].tolist()


@pytest.mark.parametrize(
    ("names", "offsets", "wanted"),
    [
        ("%LMQ%a,%LMQ%b", "3,4", [("%LMQ%a", 0, 3), ("%LMQ%b", 0, 4)]),
        ("%LMQ%a,plain", "3,4", [("%LMQ%a", 0, 3), ("plain", 3, 4)]),
        ("%LMQ%a,,", "3", [("%LMQ%a", 0, 3)]),
        (",%LMQ%a", ",3", []),
        ("%LMQ%a,%LMQ%b/c,%LMQ%d", "3,,5", [("%LMQ%a", 0, 3), ("%LMQ%d", 0, 5)]),
        ("%LMQ%a,%LMQ%b,%LMQ%c", "3,x,5", [("%LMQ%a", 0, 3)]),
        ("%LMQ%a,%LMQ%b", "3", []),
        ("..,.,%LMQ%a", "1,2,3", [("%LMQ%a", 0, 3)]),
        ("%LMQ%a," + "q" * 256, "3,4", [("%LMQ%a", 0, 3)]),
    ],
)
def test_names_and_offsets_are_taken_as_a_broker_takes_them(
    tmp_path: Path, names: str, offsets: str, wanted: list[tuple[str, int, int]]
) -> None:
    with open_writer(tmp_path) as writer:
        writer.append_draft(draft_of([record(names, offsets)]))
    log = CommitLog(FileQueue.open(LocalFiles(), [str(tmp_path / "commitlog")]))
    message = log.message(0)

    found = further_queues(message, LIGHT)

    assert [(key.topic, key.queue_id, at) for key, at in found] == wanted
    assert further_queues(message, SMALL) == []
    without_light = [key.queue_id for key, _ in further_queues(
        message, SMALL.with_changes(enableMultiDispatch=True)
    )]
    assert without_light == [3] * len(found)


@pytest.mark.parametrize(
    ("topic", "version", "count"),
    [
        ("parent", "5.5.0", 1), ("parent", "4.9.5", 1),
        ("%RETRY%g", "5.5.0", 0), ("rmq_sys_x", "5.5.0", 0), ("SCHEDULE_TOPIC_XXXX", "5.5.0", 0),
        ("%RETRY%g", "4.9.5", 1),
    ],
)
def test_newer_brokers_leave_some_topics_out(
    tmp_path: Path, topic: str, version: str, count: int
) -> None:
    settings = LIGHT.with_changes(brokerVersion=version)

    write(tmp_path, record("%LMQ%a", "0", topic), settings=settings)

    assert len(offsets_of(tmp_path, "%LMQ%a")) == count


def test_records_that_are_in_no_queue_are_in_no_further_one(tmp_path: Path) -> None:
    prepared = int(SysFlag.TRANSACTION_PREPARED)

    places = write(
        tmp_path, record("%LMQ%a", "0", sys_flag=prepared), record("%LMQ%a", "0")
    )

    assert offsets_of(tmp_path, "%LMQ%a") == places[1:]


def test_a_queue_of_own_and_further_records_has_them_in_log_order(tmp_path: Path) -> None:
    places = write(
        tmp_path,
        plain("other", 3),
        record("other", "1"),
        plain("other", 3),
        record("other,other", "3,4"),
    )

    # The third is at queue offset 1 by the log, so a broker takes it for repeated.
    assert offsets_of(tmp_path, "other", 3) == [places[0], places[1], places[3]]


@pytest.mark.parametrize("use", [rebuild, open_writer])
def test_a_store_with_light_queues_is_not_written_without_them(
    tmp_path: Path, use: Callable[[Path, StoreSettings], object]
) -> None:
    write(tmp_path, record("%LMQ%a", "0"))
    before = dict(files_below(tmp_path, "consumequeue"))

    with pytest.raises(InvalidSettingError, match="enableLmq"):
        use(tmp_path, SMALL)
    with pytest.raises(InvalidSettingError, match="enableMultiDispatch"):
        use(tmp_path, SMALL.with_changes(enableLmq=True))
    rebuild(tmp_path)

    assert dict(files_below(tmp_path, "consumequeue")) == before


def test_light_queues_are_made_anew_after_a_crash(tmp_path: Path) -> None:
    write(
        tmp_path / "store", *(record("%LMQ%a,plain", f"{n},{n}") for n in range(15))
    )
    before = dict(files_below(tmp_path / "store", "consumequeue"))
    for name in ("%LMQ%a/0", "plain/3"):
        file = min((tmp_path / "store/consumequeue" / name).iterdir())
        file.write_bytes(file.read_bytes()[:100].ljust(200, b"\0"))
    (tmp_path / "store/abort").touch()
    (tmp_path / "store/checkpoint").unlink()

    with open_writer(tmp_path / "store", LIGHT):
        pass

    assert dict(files_below(tmp_path / "store", "consumequeue")) == before


@pytest.mark.crash
@pytest.mark.parametrize("kind", KILLS)
def test_a_rebuild_that_is_killed_anywhere_is_finished_by_the_next_open(
    tmp_path: Path, kind: Kind
) -> None:
    original = tmp_path / "original"
    write(original, *(record("%LMQ%a,%LMQ%b", f"{n},{n}") for n in range(12)))
    wanted = dict(files_below(original, "consumequeue"))
    fired, number = True, 0
    while fired:
        number += 9
        copy = tmp_path / f"copy{number}"
        shutil.copytree(original, copy)

        def run(posix: Posix, note: object, copy: Path = copy) -> None:
            rebuild(copy, posix=posix)

        fired = run_in_fork(run, Plan(kind, number)).fired
        assert StoreSettings.of_store(str(copy)).enableLmq
        with open_writer(copy, LIGHT):
            pass
        assert dict(files_below(copy, "consumequeue")) == wanted
