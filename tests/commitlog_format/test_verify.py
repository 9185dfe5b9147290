"""``verify``: silent on what brokers wrote, and it names each kind of damage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from built_stores import SEGMENT_SIZE, build_store, numbered_records
from golden_stores import GOLDEN_NAMES, GoldenStore

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.verify import Finding, Severity, Verified, verify_store

Golden = Callable[[str], GoldenStore]


def findings(path: Path) -> list[Finding]:
    """Everything that verify says of a store."""
    folders = [str(folder) for folder in sorted(path.glob("cl_*"))]
    return list(verify_store(Store(str(path), log_directories=folders)))


def damage(path: Path) -> list[str]:
    """What it calls damage."""
    return [finding.what for finding in findings(path) if finding.severity is Severity.DAMAGE]


@pytest.fixture
def store(golden_store: Golden, tmp_path: Path) -> Path:
    """A copy of the clean 5.5 store, to be damaged."""
    return Path(shutil.copytree(golden_store("rmq-5.5.0-clean").path, tmp_path / "store"))


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_what_a_broker_wrote_is_sound_and_was_read_whole(name: str, golden_store: Golden) -> None:
    golden = golden_store(name)
    folders = [str(folder) for folder in sorted(golden.path.glob("cl_*"))]
    counts = Verified()
    found = list(verify_store(Store(str(golden.path), log_directories=folders), counts))

    assert [finding for finding in found if finding.area != "config"] == []
    assert counts.record_count == sum(line["kind"] == "record" for line in golden.log)
    assert counts.unit_count == sum("error" not in unit for unit in golden.units)
    assert counts.index_entry_count == sum(
        line["indexCount"] - 1 for line in golden.index if line["kind"] == "indexFile"
    )


def test_progress_ends_at_the_end_of_the_log(store: Path) -> None:
    seen: list[tuple[int, int]] = []
    list(verify_store(Store(str(store)), progress=lambda done, size: seen.append((done, size))))

    assert seen[-1][0] == seen[-1][1] == 2_400_050
    assert seen == sorted(seen)


def test_a_damaged_record_is_named_and_the_rest_is_still_read(
    store: Path, golden_store: Golden
) -> None:
    records = [line for line in golden_store("rmq-5.5.0-clean").log if line["kind"] == "record"]
    victim = records[700]["commitLogOffset"]
    with (store / "commitlog" / "00000000000000000000").open("r+b") as file:
        file.seek(victim)
        file.write(b"\xff" * 64)
    counts = Verified()
    found = [finding for finding in verify_store(Store(str(store)), counts)
             if finding.severity is Severity.DAMAGE]

    assert (found[0].area, found[0].offset) == ("log", victim)
    assert found[0].path.endswith("commitlog/00000000000000000000")
    assert any("no sound record" in finding.what for finding in found[1:])
    assert counts.record_count == 700 + sum(
        line["commitLogOffset"] >= 1_048_576 for line in records
    )


def change_units(
    path: Path, topic: str, queue_id: int, change: Callable[[np.ndarray], None]
) -> None:
    """Rewrite the first file of a queue."""
    file = min((path / "consumequeue" / topic / str(queue_id)).iterdir())
    units = np.fromfile(file, layout.CONSUME_QUEUE_UNIT)
    change(units)
    units.tofile(file)


def test_a_wrong_tags_code_is_damage(store: Path) -> None:
    def change(units: np.ndarray) -> None:
        units["tags_code"][7] += 1

    change_units(store, "orders", 0, change)
    (what,) = damage(store)
    assert what.startswith("topic 'orders' queue 0: unit of queue offset 7 has another tags code")


def test_a_unit_that_points_elsewhere_is_damage(store: Path) -> None:
    def change(units: np.ndarray) -> None:
        units["commit_log_offset"][7] += 5

    change_units(store, "orders", 0, change)
    found = damage(store)
    assert any("1 records have no unit" in what for what in found)
    assert any("queue offset 7 points at no sound record" in what for what in found)


def test_keys_that_the_index_lacks_are_damage(store: Path) -> None:
    file = sorted((store / "index").iterdir())[1]
    with file.open("r+b") as handle:
        handle.seek(layout.INDEX_HEADER.itemsize + 500 * 4 + 700 * 20)
        handle.write(b"\0\0\0\x05")
    found = damage(store)
    assert any("keys of records in the covered ranges are not in the index" in what
               for what in found)


def test_a_chain_that_leads_forward_is_damage(store: Path) -> None:
    file = sorted((store / "index").iterdir())[1]
    with file.open("r+b") as handle:
        handle.seek(layout.INDEX_HEADER.itemsize + 500 * 4 + 700 * 20 + 16)
        handle.write((1500).to_bytes(4, "big"))
    assert any("entry 700 is chained" in what for what in damage(store))


def test_a_missing_segment_is_damage(store: Path) -> None:
    (store / "commitlog" / "00000000000001048576").unlink()
    assert any("does not begin where the one before it ends" in what for what in damage(store))


def test_config_that_disagrees_is_a_warning(store: Path) -> None:
    topics = store / "config" / "topics.json"
    content = json.loads(topics.read_text())
    del content["topicConfigTable"]["orders"]
    content["topicConfigTable"]["lag"]["readQueueNums"] = 1
    topics.write_text(json.dumps(content))
    (store / "config" / "delayOffset.json").unlink()
    (store / "config" / "delayOffset.json.bak").unlink()
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"orders@g":{0:99999}}}')
    (store / "abort").touch()
    found = findings(store)

    text = " | ".join(finding.what for finding in found)
    assert "topics.json does not know topic 'orders'" in text
    assert "gives topic 'lag' 1 queues" in text
    assert "delayOffset.json is missing" in text
    assert "group 'g' is ahead of 'orders' queue 0" in text
    assert "abort is there" in text
    assert not any(finding.severity is Severity.DAMAGE for finding in found)


def test_nothing_delivered_yet_is_no_finding(store: Path) -> None:
    (store / "config" / "delayOffset.json").write_text('{"offsetTable":{}}')

    assert not any("delayOffset" in finding.what for finding in findings(store))


def test_unreadable_config_is_a_warning(store: Path) -> None:
    for name in ("topics.json", "topics.json.bak"):
        (store / "config" / name).write_text("{")
    assert any(finding.area == "config" and "not JSON" in finding.what
               for finding in findings(store))


def test_a_clock_that_steps_back_is_told(store: Path) -> None:
    log = store / "commitlog" / "00000000000000000000"
    data = bytearray(log.read_bytes())
    second = int.from_bytes(data[:4], "big")
    third = second + int.from_bytes(data[second : second + 4], "big")
    place = slice(third + 56, third + 64)
    earlier = int.from_bytes(data[place], "big") - 5_000_000
    data[place] = earlier.to_bytes(8, "big")
    log.write_bytes(data)

    assert any(finding.area == "time" and "1 records were stored at an earlier time"
               in finding.what for finding in findings(store))


def test_a_unit_with_another_size_is_damage(store: Path) -> None:
    def change(units: np.ndarray) -> None:
        units["size"][7] += 1

    change_units(store, "orders", 0, change)
    assert any("unit of queue offset 7 has another size than its record" in what
               for what in damage(store))


def test_records_behind_the_end_of_a_queue_have_no_unit(store: Path) -> None:
    def change(units: np.ndarray) -> None:
        units[5] = units[4]

    change_units(store, "orders", 0, change)
    assert any("topic 'orders' queue 0: 1 records have no unit" in what for what in damage(store))


def test_a_shifted_queue_is_told_once_and_is_no_damage(tmp_path: Path) -> None:
    path = build_store(numbered_records(40, topics=1, queues=1)).write(tmp_path)
    folder = path / "consumequeue" / "topic-0" / "0"
    files = sorted(folder.iterdir())
    for file in reversed(files):  # the same units, one file later
        file.rename(folder / f"{int(file.name) + file.stat().st_size:020d}")
    found = [finding for finding in findings(path) if finding.area == "queue"]

    assert [finding.severity for finding in found] == [Severity.WARNING]
    assert "records say another queue offset than their place" in found[0].what


def test_light_message_queues_are_read_unit_by_unit(tmp_path: Path) -> None:
    properties = b"INNER_MULTI_DISPATCH\x01%LMQ%light\x02"
    built = build_store(
        replace(record, properties=properties)
        for record in numbered_records(20, topics=1, queues=1)
    )
    path = built.write(tmp_path)
    light = path / "consumequeue" / "%LMQ%light" / "0"
    shutil.copytree(path / "consumequeue" / "topic-0" / "0", light)
    counts = Verified()
    found = list(verify_store(Store(str(path)), counts))
    assert [finding for finding in found if finding.area == "queue"] == []
    assert counts.unit_count == 40

    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(built.records[4].physical_offset)
        file.write(b"\xff" * 8)
    wrong = [finding.what for finding in findings(path) if finding.area == "queue"]
    assert any("not a message" in what or "magic" in what for what in wrong), wrong


def test_names_that_are_no_segments_and_a_torn_tail_are_warnings(tmp_path: Path) -> None:
    built = build_store(numbered_records(20, topics=1, queues=1))
    path = built.write(tmp_path)
    (path / "commitlog" / "notes.txt").write_bytes(b"x")
    last = built.records[-1]
    segment = last.physical_offset // SEGMENT_SIZE * SEGMENT_SIZE
    with (path / "commitlog" / f"{segment:020d}").open("r+b") as file:
        file.seek(last.physical_offset + last.total_size - segment)
        file.write(b"torn")
    found = [finding for finding in findings(path) if finding.area == "log"]

    assert {finding.severity for finding in found} == {Severity.WARNING}
    text = " | ".join(finding.what for finding in found)
    assert "a name that is no segment of the log" in text
    assert "the log ends in bytes that are no record" in text


def test_queues_in_rocksdb_are_told(store: Path) -> None:
    shutil.rmtree(store / "consumequeue")
    (store / "consumequeue").mkdir()
    (store / "consumequeue" / layout.ROCKSDB_MARKER_FILE).write_bytes(b"x")

    assert any("the queues are in RocksDB" in finding.what for finding in findings(store))
