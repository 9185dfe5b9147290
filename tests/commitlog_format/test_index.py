"""All index files of a store together: every golden key, and which ranges they cover."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_stores import GOLDEN_NAMES, GoldenStore
from index_files import IndexFileModel

from rmqlog.commitlog_format.errors import CorruptIndexError, InvalidNameError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.index import Index

OpenGolden = Callable[[str], GoldenStore]


def open_index(directory: Path, slot_count: int | None = None) -> Index:
    return Index.open(LocalFiles(), str(directory), slot_count)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_headers_are_those_that_the_broker_wrote(golden_store: OpenGolden, name: str) -> None:
    store = golden_store(name)
    lines = [line for line in store.index if line["kind"] == "indexFile"]
    files = open_index(store.path / "index").files
    assert [Path(file.path).name for file in files] == [line["name"] for line in lines]
    for file, line in zip(files, lines, strict=True):
        assert file.slot_count == int(store.settings["maxHashSlotNum"])
        assert file.entry_limit == int(store.settings["maxIndexNum"])
        assert file.header.begin_timestamp == line["beginTimestamp"]
        assert file.header.end_timestamp == line["endTimestamp"]
        assert file.header.begin_physical_offset == line["beginPhyOffset"]
        assert file.header.end_physical_offset == line["endPhyOffset"]
        assert file.header.hash_slot_count == line["hashSlotCount"]
        assert file.header.index_count == line["indexCount"]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_golden_key_gives_exactly_its_offsets(golden_store: OpenGolden, name: str) -> None:
    store = golden_store(name)
    index = open_index(store.path / "index")
    lines = [line for line in store.index if line["kind"] == "key"]
    assert {(line["topic"], line["key"]) for line in lines} == {key[:2] for key in store.keys}
    by_topic: dict[str, list[tuple[str, list[int]]]] = defaultdict(list)
    for line in lines:
        assert index.lookup(line["topic"], line["key"]) == line["offsets"]
        by_topic[line["topic"]].append((line["key"], line["offsets"]))
    for topic, expected in by_topic.items():
        which, offsets = index.lookup_many(topic, [key for key, _ in expected])
        pairs = [(i, offset) for i, (_, found) in enumerate(expected) for offset in found]
        assert list(zip(which.tolist(), offsets.tolist(), strict=True)) == pairs


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_record_within_the_coverage_is_found_by_all_its_keys(
    golden_store: OpenGolden, name: str
) -> None:
    store = golden_store(name)
    index = open_index(store.path / "index")
    coverage = index.coverage()
    covered = 0
    offsets_by_topic: dict[str, tuple[list[str], list[int]]] = defaultdict(lambda: ([], []))
    for line in store.log:
        if line["kind"] != "record":
            continue
        offset = line["commitLogOffset"]
        is_inner_batch = line["rawSysFlag"] & 0x80
        if is_inner_batch or not any(start <= offset < stop for start, stop in coverage):
            continue
        message = line["msg"]
        texts = [message["uniqKey"] or "", *(message["keys"] or "").split(" ")]
        keys, offsets = offsets_by_topic[message["topic"]]
        for key in filter(None, texts):
            keys.append(key)
            offsets.append(offset)
        covered += 1
    assert covered
    for topic, (keys, offsets) in offsets_by_topic.items():
        which, found = index.lookup_many(topic, keys)
        pairs = set(zip(which.tolist(), found.tolist(), strict=True))
        assert set(enumerate(offsets)) <= pairs


def test_a_mid_message_roll_joins_ranges_and_other_borders_are_left_to_a_scan(
    tmp_path: Path,
) -> None:
    first = IndexFileModel()
    for offset in (100, 100, 200, 300):
        first.put("t", "k", offset, 1)
    second = first.roll()
    for offset in (300, 400, 500):  # the message at 300 goes on here
        second.put("t", "k", offset, 2)
    third = second.roll()
    for offset in (600, 700):
        third.put("t", "k", offset, 3)
    empty = third.roll()
    for name, model in zip("1234", (first, second, third, empty), strict=True):
        model.write(tmp_path, name)
    assert open_index(tmp_path).coverage() == [(101, 500), (601, 700)]


def test_a_file_with_one_message_covers_nothing_for_certain(tmp_path: Path) -> None:
    model = IndexFileModel()
    model.put("t", "a", 100, 1)
    model.put("t", "b", 100, 1)
    model.write(tmp_path, "1")
    index = open_index(tmp_path)
    assert index.coverage() == []
    assert index.lookup("t", "b") == [100]


def test_a_file_just_begun_whose_end_is_not_written_yet_covers_nothing(tmp_path: Path) -> None:
    model = IndexFileModel()
    model.put("t", "a", 500, 1)
    model.header["end_physical_offset"] = 300
    model.write(tmp_path, "1")
    assert open_index(tmp_path).coverage() == []


def test_times_skip_files_and_the_end_is_exclusive(tmp_path: Path) -> None:
    for name, offset, store_ms in (("1", 100, 1000), ("2", 200, 2000), ("3", 300, 3000)):
        model = IndexFileModel()
        model.put("t", "k", offset, store_ms)
        model.write(tmp_path, name)
    index = open_index(tmp_path)
    assert index.lookup("t", "k") == [300, 200, 100]
    assert index.lookup("t", "k", begin_ms=2000) == [300, 200]
    assert index.lookup("t", "k", end_ms=2000) == [100]
    assert index.lookup("t", "k", begin_ms=2000, end_ms=2001) == [200]
    which, offsets = index.lookup_many("t", ["no", "k"], begin_ms=1001)
    assert (which.tolist(), offsets.tolist()) == ([1, 1], [300, 200])
    which, offsets = index.lookup_many("t", ["no", "k"], 300, end_ms=9999)
    assert (which.tolist(), offsets.tolist()) == ([1, 1], [200, 100])


def test_names_that_are_no_numbers_folders_and_empty_files_are_ignored(tmp_path: Path) -> None:
    model = IndexFileModel()
    model.put("t", "k", 100, 1)
    model.write(tmp_path, "20260101000000000")
    for name in ("20260101000000000.tmp", ".hidden", "notes", "\u0661\u0662"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "20260101000000001").touch()
    (tmp_path / "20260101000000002").mkdir()
    assert len(open_index(tmp_path).files) == 1


def test_a_missing_folder_is_an_index_without_files(tmp_path: Path) -> None:
    index = open_index(tmp_path / "index")
    assert index.files == ()
    assert index.coverage() == []
    assert index.lookup("t", "k") == []
    assert [len(found) for found in index.lookup_many("t", ["k"])] == [0, 0]


def test_a_file_of_a_foreign_length_is_named(tmp_path: Path) -> None:
    (tmp_path / "20260101000000000").write_bytes(bytes(1000))
    with pytest.raises(CorruptIndexError, match=r"20260101000000000.*length"):
        open_index(tmp_path)


def test_a_key_that_has_no_utf8_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidNameError, match="UTF-8"):
        open_index(tmp_path).lookup_many("t", ["fine", "\ud800"])


def test_it_survives_pickling(golden_store: OpenGolden) -> None:
    index = open_index(golden_store("rmq-5.5.0-clean").path / "index")
    again = pickle.loads(pickle.dumps(index))
    assert again.coverage() == index.coverage()
    assert again.lookup("orders", "hot") == index.lookup("orders", "hot")
