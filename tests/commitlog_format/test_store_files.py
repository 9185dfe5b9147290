"""Which folders of a store are its log and its queues, and names that cannot be right."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_input import check_error

from rmqlog.commitlog_format.errors import StoreNotFoundError, UnsafeFileError
from rmqlog.commitlog_format.files import DirectoryEntry, LocalFiles
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import QueueKey, list_store


class UnreadableFolder(LocalFiles):
    """Lists everything but one folder."""

    def list(self, directory: str) -> list[DirectoryEntry]:
        if directory.endswith("/private"):
            raise UnsafeFileError("may not be looked into", directory)
        return super().list(directory)


def test_a_file_among_the_topics_and_folders_without_a_queue_id_are_no_queues(
    tmp_path: Path,
) -> None:
    (tmp_path / "commitlog").mkdir()
    for name in ("0", "7", "01", "-1", "x", "99999999999"):
        (tmp_path / "consumequeue" / "orders" / name).mkdir(parents=True)
    (tmp_path / "consumequeue" / "note.txt").write_text("not a topic")
    (tmp_path / "consumequeue" / "orders" / "3").write_text("not a queue")

    found = list_store(LocalFiles(), str(tmp_path))

    assert sorted(found.queues) == [QueueKey("orders", 0), QueueKey("orders", 7)]


def test_two_dledger_logs_in_one_store_are_refused(tmp_path: Path) -> None:
    for member in ("dledger-n0", "dledger-n1"):
        (tmp_path / member / "data").mkdir(parents=True)

    with pytest.raises(StoreNotFoundError, match="several DLedger logs") as caught:
        Store(str(tmp_path))

    check_error(caught.value)


def test_a_hint_does_not_fail_on_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    for name in ("private", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{0:020d}").write_bytes(b"\0")

    with pytest.raises(StoreNotFoundError, match=r"perhaps elsewhere\)"):
        list_store(UnreadableFolder(), str(tmp_path))
