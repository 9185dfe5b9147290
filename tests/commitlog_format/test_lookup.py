"""Lookups of keys: one by one or in columns, around damage and stale entries."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from built_stores import BuiltStore, build_store
from golden_stores import GoldenStore
from index_files import IndexFileModel
from random_records import PLAIN_RECORD, with_body

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import CorruptRecordError
from rmqlog.commitlog_format.lookup import TopicKeys, look_up_keys
from rmqlog.commitlog_format.message import Record
from rmqlog.commitlog_format.store import Store

Golden = Callable[[str], GoldenStore]

#: So many that they are verified in columns, and so few that they are not.
HIT_COUNTS = (60, 6)


def keyed_records(count: int) -> list[Record]:
    """Records of one queue which all have the key ``hot``."""
    return [
        replace(
            with_body(PLAIN_RECORD, f"body {number}".encode()),
            topic=b"t", queue_id=0, sys_flag=0,
            store_timestamp=PLAIN_RECORD.store_timestamp + number,
            properties=f"KEYS\x01hot k{number}\x02UNIQ_KEY\x01u{number}\x02".encode(),
        )
        for number in range(count)
    ]


def write_indexed(
    built: BuiltStore, directory: Path, further_offsets: tuple[int, ...] = ()
) -> Path:
    """A store whose index has every record under ``hot``; further entries in front of the last."""
    path = built.write(directory)
    model = IndexFileModel(slot_count=50, entry_limit=200)
    offsets = [record.physical_offset for record in built.records]
    for offset in [*offsets[:-1], *further_offsets, offsets[-1]]:
        model.put("t", "hot", offset, PLAIN_RECORD.store_timestamp)
    (path / "index").mkdir()
    model.write(path / "index")
    return path


def damage(path: Path, offset: int, data: bytes, segment_size: int = 4096) -> None:
    name = f"{offset // segment_size * segment_size:020d}"
    with (path / "commitlog" / name).open("r+b") as file:
        file.seek(offset % segment_size)
        file.write(data)


def found_offsets(path: Path, key: str = "hot") -> list[int]:
    """Where the messages with a key lie, by ``find``."""
    batches = TopicKeys(Store(str(path)), "t").find(key, ["commitLogOffset"])
    return sorted(offset for batch in batches for offset in batch["commitLogOffset"].to_pylist())


@pytest.mark.parametrize("count", HIT_COUNTS)
def test_every_hit_is_verified_and_found_once(tmp_path: Path, count: int) -> None:
    built = build_store(keyed_records(count))
    path = write_indexed(built, tmp_path)

    assert found_offsets(path) == [record.physical_offset for record in built.records]


@pytest.mark.parametrize("count", HIT_COUNTS)
def test_entries_that_lead_into_the_middle_of_records_are_ignored(
    tmp_path: Path, count: int
) -> None:
    built = build_store(keyed_records(count))
    stale = tuple(record.physical_offset + 7 for record in built.records[1:4])
    path = write_indexed(built, tmp_path, stale)

    assert found_offsets(path) == [record.physical_offset for record in built.records]


@pytest.mark.parametrize("count", HIT_COUNTS)
@pytest.mark.parametrize("data", [b"\xff" * 8, b"\0\0\0\x01"], ids=["magic", "size"])
def test_a_hit_that_a_queue_names_too_and_that_is_damaged_is_an_error(
    tmp_path: Path, count: int, data: bytes
) -> None:
    built = build_store(keyed_records(count))
    path = write_indexed(built, tmp_path)
    victim = built.records[3]
    store = Store(str(path))
    assert store.end  # a snapshot: the damage comes later
    damage(path, victim.physical_offset, data)

    with pytest.raises(CorruptRecordError, match="queue offset 3 of 't' queue 0") as caught:
        TopicKeys(store, "t").look_up(["hot"])
    assert caught.value.offset == victim.physical_offset
    assert caught.value.path.startswith(str(path))


def test_a_hit_whose_header_is_sound_but_whose_lengths_are_not_is_an_error(tmp_path: Path) -> None:
    built = build_store(keyed_records(60))
    path = write_indexed(built, tmp_path)
    victim = built.records[5]
    store = Store(str(path))
    assert store.end
    damage(path, victim.physical_offset + layout.MIN_RECORD_SIZE - 7, b"\x7f")  # BODYLEN

    with pytest.raises(CorruptRecordError, match="is damaged") as caught:
        TopicKeys(store, "t").look_up(["hot"])
    assert caught.value.offset == victim.physical_offset


def test_a_stale_entry_at_a_record_that_looks_sound_until_it_is_decoded_is_ignored(
    tmp_path: Path,
) -> None:
    # A body that holds a record header with wild lengths, at which an old entry points.
    fake = layout.PREFIX.pack(120, layout.MAGIC_V1) + b"\x7f" * 112
    records = keyed_records(60)
    records[8] = replace(with_body(records[8], b"...." + fake), sys_flag=0)
    built = build_store(records)
    host = built.records[8]
    inside = host.physical_offset + layout.MIN_RECORD_SIZE - 7 + 4 + 4
    path = write_indexed(built, tmp_path, (inside,))
    data = b"".join(file.read_bytes() for file in sorted((path / "commitlog").iterdir()))
    assert data[inside : inside + 8] == fake[:8]

    assert found_offsets(path) == [record.physical_offset for record in built.records]


@pytest.mark.parametrize("count", HIT_COUNTS)
def test_prepared_messages_and_other_topics_are_no_hits(tmp_path: Path, count: int) -> None:
    records = keyed_records(count)
    prepared = int(layout.SysFlag.TRANSACTION_PREPARED)
    committed = int(layout.SysFlag.TRANSACTION_COMMIT)
    records[1] = replace(records[1], sys_flag=prepared)
    records[2] = replace(records[2], sys_flag=committed)
    records[3] = replace(records[3], topic=b"u")
    records[4] = replace(records[4], properties=b"KEYS\x01hotter\x02")
    built = build_store(records)
    path = write_indexed(built, tmp_path)

    assert found_offsets(path) == [
        record.physical_offset for n, record in enumerate(built.records) if n not in (1, 3, 4)
    ]


def test_a_record_whose_queue_offset_is_not_its_place_is_found_at_its_place(
    tmp_path: Path,
) -> None:
    built = build_store(keyed_records(6))
    path = write_indexed(built, tmp_path)
    victim = built.records[2]
    damage(path, victim.physical_offset + 20, (4).to_bytes(8, "big"))  # QUEUEOFFSET
    batches = TopicKeys(Store(str(path)), "t").find("hot", ["queueOffset", "commitLogOffset"])
    places = {
        row["commitLogOffset"]: row["queueOffset"] for batch in batches for row in batch.to_pylist()
    }

    assert sorted(places.values()) == [0, 1, 2, 3, 4, 5]
    assert places[victim.physical_offset] == 2


def test_more_hits_than_are_wanted_give_none(tmp_path: Path) -> None:
    store = Store(str(write_indexed(build_store(keyed_records(6)), tmp_path)))

    assert look_up_keys(store, "t", ["hot"], hit_count_max=3) is None
    found = look_up_keys(store, "t", ["hot"], hit_count_max=100)
    assert found is not None
    assert found.hit_count == 6
    # The first and the last message of an index file may go on in another one.
    assert found.uncovered_count == 2


def test_offsets_of_one_key_are_verified_and_only_what_is_covered(tmp_path: Path) -> None:
    built = build_store(keyed_records(6))
    stale = built.records[2].physical_offset + 7
    keys = TopicKeys(Store(str(write_indexed(built, tmp_path, (stale,)))), "t")

    assert keys.offsets("hot") == [record.physical_offset for record in built.records[1:-1]]
    assert keys.offsets("cold") == []


def test_a_stale_entry_behind_the_start_of_the_log_is_not_followed(
    golden_store: Golden, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(golden_store("rmq-5.5.0-clean").path, tmp_path / "store"))
    before = TopicKeys(Store(str(path)), "orders").offsets("hot")
    (path / "commitlog" / f"{0:020d}").unlink()
    after = TopicKeys(Store(str(path)), "orders").offsets("hot")

    assert after == [offset for offset in before if offset >= 1_048_576]
    assert 0 < len(after) < len(before)
