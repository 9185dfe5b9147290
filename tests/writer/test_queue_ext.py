"""Ext files: as a broker fills them, after a crash, and when they expire."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from faults import KILLS, Kind, Plan, run_in_fork
from golden_stores import GoldenStore
from hypothesis import given, settings
from hypothesis import strategies as st
from small_stores import SMALL, START_MS, Clock, batch, files_below, open_writer, rows_of

from rmqlog.commitlog_format.consume_queue_ext import ConsumeQueueExt
from rmqlog.commitlog_format.errors import InvalidSettingError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.layout import CONSUME_QUEUE_UNIT, EXT_ADDRESS_BASE, EXT_ADDRESS_MAX
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.posix import Posix
from rmqlog.writer.queue_ext_writer import ExtWriter
from rmqlog.writer.rebuild import rebuild
from rmqlog.writer.retention import DiskUsage, expire
from rmqlog.writer.segments import FileSet
from rmqlog.writer.settings import StoreSettings

#: Seven units to a file: there must be 4 bytes left.
EXT = SMALL.with_changes(enableConsumeQueueExt=True, mappedFileSizeConsumeQueueExt=163)
FOLDERS = ("consumequeue", "consumequeue_ext")


def units_of(path: Path) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    content = b"".join(file.read_bytes() for file in sorted(path.iterdir()))
    units = np.frombuffer(content, CONSUME_QUEUE_UNIT)
    return units[units["size"] > 0]


class SequentialExt:
    """ConsumeQueueExt.put as the broker does it, one unit at a time."""

    def __init__(self, file_size: int) -> None:
        self.file_size = file_size
        self.files: list[bytearray] = []
        self.position = file_size

    def put(self, tags_code: int, timestamp: int) -> int:
        while True:
            if self.position == self.file_size:
                self.files.append(bytearray(self.file_size))
                self.position = 0
            if self.file_size - self.position - 4 >= 20:
                break
            self.files[-1][self.position : self.position + 2] = b"\xff\xff"
            self.position = self.file_size
        unit = b"\x00\x14" + tags_code.to_bytes(8, "big", signed=True)
        unit += timestamp.to_bytes(8, "big") + b"\x00\x00"
        self.files[-1][self.position : self.position + 20] = unit
        at = (len(self.files) - 1) * self.file_size + self.position
        self.position += 20
        return at - 2**63


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**43)), max_size=60
    ),
    st.lists(st.integers(1, 20), min_size=1, max_size=10),
    st.integers(24, 130),
)
def test_units_put_in_any_batches_equal_those_put_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    messages: list[tuple[int, int]],
    sizes: list[int],
    file_size: int,
) -> None:
    path = tmp_path_factory.mktemp("ext")
    writer = ExtWriter(FileSet(Posix(), str(path)), f"{path}/ext", file_size, 0)
    expected = SequentialExt(file_size)
    addresses: list[int] = []
    done = 0
    for size in sizes * 60:
        part = messages[done : done + size]
        if not part:
            break
        codes, times = np.array(part, np.int64).T
        addresses += writer.append(codes, times).tolist()
        done += size

    assert addresses == [expected.put(*message) for message in messages]
    found = [file.read_bytes() for file in sorted((path / "ext").glob("*"))]
    assert found == [bytes(content) for content in expected.files]


def test_every_message_has_a_unit_of_tags_code_and_time(tmp_path: Path) -> None:
    with open_writer(tmp_path, EXT) as writer:
        writer.append(batch(60))

    plain = tmp_path.with_name("plain")
    with open_writer(plain) as writer:
        writer.append(batch(60))
    for folder in (plain / "consumequeue").glob("*/*"):
        name = folder.relative_to(plain / "consumequeue")
        units = units_of(tmp_path / "consumequeue" / name)
        ext_files = FileQueue.open(LocalFiles(), [str(tmp_path / "consumequeue_ext" / name)])
        assert (units["tags_code"] <= EXT_ADDRESS_MAX).all()
        codes, times = ConsumeQueueExt(ext_files).resolve(units["tags_code"].astype(np.int64))
        assert codes.tolist() == units_of(folder)["tags_code"].tolist()
        assert set(times.tolist()) == {START_MS}
    tags = [row["tags"] for row in rows_of(tmp_path, "orders")]
    assert tags == batch(60)["tags"].to_pylist()


def test_a_rebuild_gives_the_same_bytes_and_knows_the_setting_by_the_files(tmp_path: Path) -> None:
    with open_writer(tmp_path, EXT) as writer:
        writer.append(batch(60))
    before = dict(files_below(tmp_path, *FOLDERS))

    rebuild(tmp_path)

    assert dict(files_below(tmp_path, *FOLDERS)) == before


def test_the_golden_log_gives_the_brokers_units_but_for_their_bitmaps(
    golden_store: Callable[[str], GoldenStore], tmp_path: Path
) -> None:
    golden = golden_store("rmq-5.5.0-cqext")
    path = tmp_path / "store"
    shutil.copytree(golden.path, path)

    rebuild(path)

    theirs, ours = Store(str(golden.path)), Store(str(path))
    assert [view.key for view in ours.queues.values()] == [
        view.key for view in theirs.queues.values()
    ]
    for name in ("0", "1"):
        codes = []
        for store in (golden.path, path):
            units = units_of(store / "consumequeue/orders" / name)
            folder = store / "consumequeue_ext/orders" / name
            ext = ConsumeQueueExt(FileQueue.open(LocalFiles(), [str(folder)]))
            resolved = ext.resolve(units["tags_code"].astype(np.int64))
            codes.append([column.tolist() for column in resolved])
        assert codes[0] == codes[1]
        assert len(codes[0][0]) == 150


@pytest.mark.parametrize("use", [rebuild, open_writer])
def test_a_store_with_ext_files_is_not_written_without_them(
    tmp_path: Path, use: Callable[[Path, StoreSettings], object]
) -> None:
    with open_writer(tmp_path, EXT) as writer:
        writer.append(batch(20))
    before = dict(files_below(tmp_path, *FOLDERS))

    with pytest.raises(InvalidSettingError, match="enableConsumeQueueExt"):
        use(tmp_path, SMALL)
    with pytest.raises(InvalidSettingError, match="mappedFileSizeConsumeQueueExt"):
        use(tmp_path, EXT.with_changes(mappedFileSizeConsumeQueueExt=200))

    assert dict(files_below(tmp_path, *FOLDERS)) == before


def test_ext_files_can_be_enabled_for_a_store_that_had_none(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(batch(30))
    with open_writer(tmp_path, EXT) as writer:
        writer.append(batch(30, first=30))
    with open_writer(tmp_path, EXT) as writer:
        writer.append(batch(30, first=60))

    codes = units_of(tmp_path / "consumequeue/orders/0")["tags_code"].astype(np.int64)
    addressed = codes[codes <= EXT_ADDRESS_MAX] - EXT_ADDRESS_BASE
    assert 0 < len(addressed) < len(codes)
    assert addressed[:7].tolist() == [20 * number for number in range(7)]
    assert addressed[7] == 163
    assert len(rows_of(tmp_path, "orders")) == 90


def test_delayed_messages_are_delivered_by_the_times_in_the_ext_files(tmp_path: Path) -> None:
    clock = Clock()
    with open_writer(tmp_path, EXT, now_ms=clock) as writer:
        writer.append(batch(10, delayLevel=[1] * 10))
        assert writer.deliver_due() == 0
    clock.now_ms += 1_000
    with open_writer(tmp_path, EXT, now_ms=clock) as writer:
        assert writer.deliver_due() == 10


def crash_with_lost_ext(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    """Crash a store of 40 messages, lose something of an ext file, open it, and compare."""
    whole, path = tmp_path / "whole", tmp_path / "store"
    with open_writer(whole, EXT) as writer:
        writer.append(batch(40))
    shutil.copytree(whole, path)
    (path / "abort").touch()
    (path / "checkpoint").unlink()
    lose(path / "consumequeue_ext/orders/0")

    with open_writer(path, EXT):
        pass

    assert dict(files_below(path, *FOLDERS)) == dict(files_below(whole, *FOLDERS))


def last_file(folder: Path) -> Path:
    return max(folder.iterdir())


def test_lost_ext_units_are_made_anew_with_the_units_that_lead_to_them(tmp_path: Path) -> None:
    crash_with_lost_ext(tmp_path, lambda folder: last_file(folder).write_bytes(bytes(163)))


def test_a_lost_ext_file_is_made_anew(tmp_path: Path) -> None:
    crash_with_lost_ext(tmp_path, lambda folder: min(folder.iterdir()).unlink())


def test_a_lost_folder_of_ext_files_is_made_anew(tmp_path: Path) -> None:
    crash_with_lost_ext(tmp_path, lambda folder: shutil.rmtree(folder.parents[1]))


def test_what_lies_behind_the_last_ext_unit_goes(tmp_path: Path) -> None:
    def add(folder: Path) -> None:
        content = bytearray(last_file(folder).read_bytes())
        content[100:120] = b"\x00\x14" + b"\x01" * 18
        last_file(folder).write_bytes(content)
        (folder / f"{163 * 9:020d}").write_bytes(b"\x01" * 163)
        (folder / f"{163 * 10:020d}").touch()

    crash_with_lost_ext(tmp_path, add)


def test_stale_ext_units_of_a_clean_store_go_when_the_next_one_comes(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    for path in (whole, tmp_path / "store"):
        with open_writer(path, EXT) as writer:
            writer.append(batch(40))
        if path != whole:  # as a broker leaves them that has cut its queues
            folder = path / "consumequeue_ext/orders/0"
            content = bytearray(last_file(folder).read_bytes())
            end = max(i for i, byte in enumerate(content) if byte) // 20 * 20 + 20
            content[end : end + 30] = b"\x01" * 30
            last_file(folder).write_bytes(content)
        with open_writer(path, EXT) as writer:
            writer.append(batch(40, first=40))

    found = dict(files_below(tmp_path / "store", *FOLDERS))
    assert found == dict(files_below(whole, *FOLDERS))


@pytest.mark.crash
@pytest.mark.parametrize("kind", KILLS)
def test_a_rebuild_that_is_killed_anywhere_is_finished_by_the_next_open(
    tmp_path: Path, kind: Kind
) -> None:
    original = tmp_path / "original"
    with open_writer(original, EXT) as writer:
        writer.append(batch(30))
    wanted = dict(files_below(original, *FOLDERS))
    fired, number = True, 0
    while fired:
        number += 13
        copy = tmp_path / f"copy{number}"
        shutil.copytree(original, copy)

        def run(posix: Posix, note: object, copy: Path = copy) -> None:
            rebuild(copy, posix=posix)

        fired = run_in_fork(run, Plan(kind, number)).fired
        rebuilt = StoreSettings.of_store(str(copy), maxHashSlotNum=20, maxIndexNum=80)
        assert rebuilt.enableConsumeQueueExt
        with open_writer(copy, EXT):
            pass
        assert dict(files_below(copy, *FOLDERS)) == wanted


def test_ext_files_expire_with_the_queue_files_that_lead_to_them(tmp_path: Path) -> None:
    with open_writer(tmp_path, EXT) as writer:
        writer.append(batch(400, queueId=np.zeros(400, np.int32)))
    segments = sorted((tmp_path / "commitlog").iterdir())
    assert len(segments) > 2
    os.utime(segments[0], (1, 1))
    before = rows_of(tmp_path, "orders")

    report = expire(Posix(), str(tmp_path), EXT, START_MS, disk=DiskUsage(10**9, 0))

    gone = [Path(file.path) for file in report.files if "consumequeue_ext" in file.path]
    live = [row for row in before if row["commitLogOffset"] >= report.log_start]
    first = int(live[0]["queueOffset"])
    assert len(gone) == first // 7 or len(gone) == first // 7 - 1
    assert not any(path.exists() for path in gone)
    assert rows_of(tmp_path, "orders") == live
    with open_writer(tmp_path, EXT) as writer:
        writer.append(batch(5, first=400, queueId=np.zeros(5, np.int32)))
    assert len(rows_of(tmp_path, "orders")) == len(live) + 5
