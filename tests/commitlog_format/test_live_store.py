"""A broker that dispatches while we look, or while a copy is made: no snapshot lacks a message."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqlog.commitlog_format import store as store_module
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.message_columns import NewMessage, batch_of
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.store_writer import StoreWriter

SETTINGS = StoreSettings(
    mappedFileSizeCommitLog=65_536,
    mappedFileSizeConsumeQueue=2_000,
    maxHashSlotNum=50,
    maxIndexNum=200,
)
QUEUE_COUNT = 3


def write_turns(path: Path, first: int, count: int) -> None:
    """Messages to the queues in turn."""
    messages = [
        NewMessage("orders", b"%d" % number, queue_id=number % QUEUE_COUNT)
        for number in range(first, first + count)
    ]
    with StoreWriter(path, SETTINGS, background=False) as writer:
        writer.append(batch_of(messages))


@pytest.mark.parametrize("earlier", [0, 3, 30])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("looks", range(1, 2 * QUEUE_COUNT + 1))
def test_messages_dispatched_between_two_looks_are_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int, moment: str, earlier: int
) -> None:
    path, later = tmp_path / "store", tmp_path / "later"
    write_turns(path, 0, earlier + QUEUE_COUNT)
    shutil.copytree(path, later)
    write_turns(later, earlier + QUEUE_COUNT, 30)
    # The log has the new messages; the queues get them after a number of looks.
    shutil.copytree(later / "commitlog", path / "commitlog", dirs_exist_ok=True)
    (path / "abort").touch()
    opened = 0
    really_open = store_module.open_queue_files

    def open_and_dispatch(*arguments: Any) -> Any:
        nonlocal opened
        opened += 1
        if opened == looks and moment == "before":
            dispatch()
        found = really_open(*arguments)
        if opened == looks and moment == "after":
            dispatch()
        return found

    def dispatch() -> None:
        shutil.copytree(later / "consumequeue", path / "consumequeue", dirs_exist_ok=True)

    monkeypatch.setattr(store_module, "open_queue_files", open_and_dispatch)
    snapshot = Store(str(path))

    assert_complete(snapshot, earlier + QUEUE_COUNT + 30)
    assert opened == 2 * QUEUE_COUNT


@pytest.mark.parametrize("is_killed", [True, False])
def test_messages_dispatched_behind_a_snapshot_stay_in_it_wherever_it_is_opened(
    tmp_path: Path, is_killed: bool
) -> None:
    path, later = tmp_path / "store", tmp_path / "later"
    write_turns(path, 0, 30)
    shutil.copytree(path, later)
    write_turns(later, 30, 30)
    shutil.copytree(later / "commitlog", path / "commitlog", dirs_exist_ok=True)
    if is_killed:
        (path / "abort").touch()
    elsewhere = pickle.dumps(Store(str(path)))
    write_turns(later, 60, 30)
    shutil.copytree(later, path, dirs_exist_ok=True)

    assert_complete(pickle.loads(elsewhere), 60)
    assert_complete(Store(str(path)), 90)


def test_queues_that_were_copied_one_after_another_are_complete(tmp_path: Path) -> None:
    path, later = tmp_path / "store", tmp_path / "later"
    write_turns(path, 0, 30)
    shutil.copytree(path, later)
    for queue_id in (1, 2):
        write_turns(later, 30 * queue_id, 30)
        queue = f"consumequeue/orders/{queue_id}"
        shutil.copytree(later / queue, path / queue, dirs_exist_ok=True)
    write_turns(later, 90, 30)
    shutil.copytree(later / "commitlog", path / "commitlog", dirs_exist_ok=True)
    (path / "abort").touch()

    assert_complete(Store(str(path)), 120)


def assert_complete(snapshot: Store, count: int) -> None:
    """Each queue has its messages of the first ``count``, in their places."""
    for queue_id in range(QUEUE_COUNT):
        rows = [
            (row["queueOffset"], row["body"])
            for batch in snapshot.read("orders", queue_id, columns=["queueOffset", "body"])
            for row in batch.to_pylist()
        ]
        numbers = range(queue_id, count, QUEUE_COUNT)
        assert rows == [(place, b"%d" % number) for place, number in enumerate(numbers)]
