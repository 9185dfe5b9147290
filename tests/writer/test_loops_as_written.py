"""The loops of the writer, run by Python as they are written, write what numpy writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from index_files import open_with_wild_slot
from small_stores import SMALL, START_MS, Clock, batch, files_below
from staged_jobs import stage

from rmqlog.commitlog_format import compiled
from rmqlog.commitlog_format.errors import CommitFailedError
from rmqlog.writer.batch_write import commit_job

FOLDERS = ("commitlog", "consumequeue", "index")


def written(path: Path, other_host: str) -> list[bytes]:
    """Commit two partitions with two hosts; what the store's files hold."""
    numbers = range(60)
    rows = batch(
        60,
        uniqKey=[f"{number:032X}" for number in numbers],
        bornTimestamp=pa.array([None if n % 2 else START_MS - n for n in numbers], pa.int64()),
        bornHost=["10.0.0.1:80" if number % 4 else other_host for number in numbers],
    )
    staged = stage(path, [[rows.slice(0, 25), rows.slice(25, 5)], [rows.slice(30)]])
    commit_job(str(path), staged, SMALL, now_ms=Clock())
    return [content for folder in FOLDERS for _, content in files_below(path, folder)]


def indexed(path: Path, key_hashes: list[int], *, in_bulk: bool = False) -> bytes:
    """An index file whose first slot leads nowhere, with entries put in two batches."""
    path.mkdir()
    file = open_with_wild_slot(path, 4, 64)
    if in_bulk:
        file.begin_bulk()
    for part in (key_hashes[:5], key_hashes[5:]):
        offsets = np.arange(len(part), dtype=np.int64) * 2**33
        file.put(np.array(part, np.int32), offsets, np.full(len(part), START_MS, np.int64))
    file.end_bulk()
    return (path / "1").read_bytes()


def use_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "SMALLEST_BATCH", 10**9)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("other_host", ["10.0.0.2:81", "[::1]:80"], ids=["IPv4", "IPv6"])
def test_a_commit_is_what_numpy_makes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_host: str
) -> None:
    found = written(tmp_path / "loops", other_host)
    use_numpy(monkeypatch)

    assert found == written(tmp_path / "numpy", other_host)


@pytest.mark.usefixtures("uncompiled")
def test_values_outside_of_their_columns_are_never_read() -> None:
    loops = compiled.kernels(1)
    assert loops is not None
    data = np.zeros(8, np.uint8)
    for start, size in ((-1, 4), (0, -4), (5, 4), (9, 1)):
        where = np.array([[start], [size]], np.int64)
        assert loops.put_property(np.zeros(64, np.uint8), np.zeros(1, int), data, data, *where) == 0
        for body, text in ((where, np.zeros((2, 1))), (np.zeros((2, 1)), where)):
            total = 88 + 1 + 2 + int(body[1, 0] + text[1, 0])
            longs = np.array([total, 0, 0, 0, 0, *body[:, 0], *text[:, 0]], np.int64)[:, None]
            ints = np.zeros((7, 1), np.int32)
            bounds, one = np.array([0, 1]), np.ones(1, np.uint32)
            target = np.zeros(200, np.uint8)
            found = loops.put_records(
                target, 0, longs, ints, data, bounds, one, np.zeros(2, np.uint64), data, data
            )
            assert found == 0
            assert not target.any()


@pytest.mark.usefixtures("uncompiled")
def test_nothing_is_put_where_there_is_no_room() -> None:
    loops = compiled.kernels(1)
    assert loops is not None
    data, target = np.ones(8, np.uint8), np.zeros(8, np.uint8)

    where = np.array([[0], [4]])
    assert loops.put_property(target, np.array([1]), data[:3], data, *where) == 0
    assert not target.any()


@pytest.mark.usefixtures("uncompiled")
def test_index_entries_are_what_numpy_makes_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_hashes = [4, 8, 1, 2**31 - 1, 5, 9, 4, 1, 1, 0, 3, 2**31 - 2, 7, 7, 2, 6, 13]
    found = indexed(tmp_path / "loops", key_hashes)
    in_bulk = indexed(tmp_path / "bulk", key_hashes, in_bulk=True)
    use_numpy(monkeypatch)

    assert found == in_bulk == indexed(tmp_path / "numpy", key_hashes)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("place", [3, 7], ids=["size", "magic number"])
def test_a_staged_record_that_is_none_is_refused(tmp_path: Path, place: int) -> None:
    staged = stage(tmp_path, [[batch(30)]])
    path = Path(staged.folder) / f"{staged.files[0].name}.0"
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[:4], "big")
    content[size + place] ^= 0x7F
    path.write_bytes(content)

    with pytest.raises(CommitFailedError, match="no record where a staged one begins"):
        commit_job(str(tmp_path), staged, SMALL)
