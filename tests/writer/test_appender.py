"""Where records land: fillers, batches that stay together, contiguous queues, rising times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from small_stores import SMALL, START_MS, Clock, batch, open_writer, rows_of

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.layout import PREFIX
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.store_writer import NewMessage

SEGMENT_SIZE = 4096
SETTINGS = SMALL.with_changes(mappedFileSizeCommitLog=SEGMENT_SIZE)
#: Of a message without tags and keys, topic ``t``.
OVERHEAD = 91 + 1 + len("UNIQ_KEY\x01\x02") + 32


def message(size: int) -> NewMessage:
    """A message whose record has ``size`` bytes."""
    return NewMessage("t", b"x" * (size - OVERHEAD), queue_id=0)


@pytest.mark.parametrize(
    ("left", "size", "fits"),
    [
        (SEGMENT_SIZE, SEGMENT_SIZE - 8, True),
        (1000, 992, True),
        (1000, 993, False),
        (1000, 1000, False),
        (308, 300, True),
        (307, 300, False),
    ],
)
def test_a_record_goes_to_the_next_segment_if_it_leaves_less_than_8_bytes(
    tmp_path: Path, left: int, size: int, fits: bool
) -> None:
    with open_writer(tmp_path, SETTINGS) as writer:
        if left < SEGMENT_SIZE:
            writer.put(message(SEGMENT_SIZE - left))

        result = writer.put(message(size))

        start = SEGMENT_SIZE - left
        assert result.physical_offset == (start if fits else SEGMENT_SIZE)
    first = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    if not fits:
        assert PREFIX.unpack_from(first, start) == (left, layout.MAGIC_BLANK)
        assert first[start + 8 :].count(0) == left - 8
    assert len(first) == SEGMENT_SIZE
    assert len(rows_of(tmp_path, "t")) == (1 if left == SEGMENT_SIZE else 2)


def test_the_smallest_filler_is_8_bytes(tmp_path: Path) -> None:
    with open_writer(tmp_path, SETTINGS) as writer:
        writer.put(message(SEGMENT_SIZE - 8))
        writer.put(message(200))

    first = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    assert first[-8:] == PREFIX.pack(8, layout.MAGIC_BLANK)
    assert [row["commitLogOffset"] for row in rows_of(tmp_path, "t")] == [0, SEGMENT_SIZE]


def test_a_client_batch_moves_to_the_next_segment_as_a_whole(tmp_path: Path) -> None:
    with open_writer(tmp_path, SETTINGS) as writer:
        writer.put(message(3000))
        together = writer.append(batch(8), client_batch=True)
        apart = writer.append(batch(30))

    assert (together.physical_offset // SEGMENT_SIZE).tolist() == [1] * 8
    assert together.physical_offset[0] == SEGMENT_SIZE
    assert len(set((apart.physical_offset // SEGMENT_SIZE).tolist())) > 1
    first = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    assert PREFIX.unpack_from(first, 3000) == (SEGMENT_SIZE - 3000, layout.MAGIC_BLANK)


def test_a_batch_may_fill_many_segments_and_every_record_is_found(tmp_path: Path) -> None:
    with open_writer(tmp_path, SETTINGS) as writer:
        result = writer.append(batch(500))

    rows = rows_of(tmp_path, "orders")
    assert [row["commitLogOffset"] for row in rows] == result.physical_offset.tolist()
    assert [row["body"] for row in rows] == batch(500)["body"].to_pylist()
    assert [row["msgId"] for row in rows] == result.msg_ids.to_pylist()
    assert [row["queueOffset"] for row in rows] == result.queue_offset.tolist()
    assert len(list((tmp_path / "commitlog").iterdir())) > 10
    segments = [file.stat().st_size for file in (tmp_path / "commitlog").iterdir()]
    assert set(segments) == {SEGMENT_SIZE}


def test_a_batch_larger_than_one_encoding_step_is_the_same_as_many_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"u{number}" for number in range(300)]
    with open_writer(tmp_path / "whole") as writer:
        writer.append(batch(300, uniqKey=keys))
    monkeypatch.setattr("rmqlog.writer.placement.CHUNK_ROWS", 7)
    monkeypatch.setattr("rmqlog.writer.placement.CHUNK_SIZE", 1500)
    with open_writer(tmp_path / "steps") as writer:
        writer.append(batch(300, uniqKey=keys))

    for folder in ("commitlog", "consumequeue"):
        whole = sorted((tmp_path / "whole" / folder).rglob("0*"))
        steps = sorted((tmp_path / "steps" / folder).rglob("0*"))
        assert [file.name for file in whole] == [file.name for file in steps]
        for one, other in zip(whole, steps, strict=True):
            assert one.is_dir() or one.read_bytes() == other.read_bytes()


def test_queue_offsets_are_contiguous_in_every_queue_across_batches_and_restarts(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(3)
    for first in range(0, 400, 100):
        with open_writer(tmp_path, SETTINGS) as writer:
            for start in range(first, first + 100, 25):
                topics = [f"t{number}" for number in rng.integers(0, 3, 25)]
                queues = rng.integers(0, 5, 25).tolist()
                writer.append(batch(25, start, topics, queueId=queues))

    store = Store(str(tmp_path))
    count = 0
    for key, view in store.queues.items():
        offsets = [
            row["queueOffset"]
            for read in store.read(key.topic, key.queue_id)
            for row in read.to_pylist()
        ]
        assert offsets == list(range(view.max_offset))
        count += len(offsets)
    assert count == 400


def test_store_times_never_go_back_although_the_clock_does(tmp_path: Path) -> None:
    clock = Clock()
    times = []
    for step in (0, 50, -5_000, 7):
        clock.now_ms += step
        with open_writer(tmp_path, now_ms=clock) as writer:
            times.append(writer.append(batch(2)).store_timestamp_ms)
            clock.now_ms -= 1
            times.append(writer.append(batch(2)).store_timestamp_ms)

    assert times == sorted(times)
    assert times[0] == START_MS
    stored = [row["storeTimestamp"] for row in rows_of(tmp_path, "orders")]
    assert stored == sorted(stored)


def test_store_times_go_on_behind_the_last_message_even_without_a_checkpoint(
    tmp_path: Path,
) -> None:
    with open_writer(tmp_path, now_ms=Clock(START_MS + 60_000)) as writer:
        writer.append(batch(3))
    (tmp_path / "checkpoint").unlink()

    with open_writer(tmp_path, now_ms=Clock(START_MS)) as writer:
        assert writer.append(batch(1)).store_timestamp_ms == START_MS + 60_000


def test_an_empty_batch_writes_nothing(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        result = writer.append(batch(3)[0:0])

        assert len(result) == 0
        assert writer.end == 0
    assert result.msg_ids.to_pylist() == []


def test_results_are_columns_too(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        result = writer.append(pa.Table.from_batches([batch(2), batch(2, 2)]))

    assert result.to_arrow().schema.names == [
        "msgId", "topic", "queueId", "queueOffset", "commitLogOffset",
    ]
    assert result.to_arrow()["topic"].to_pylist() == ["orders"] * 4


def test_ipv6_hosts_widen_the_records_that_have_them(tmp_path: Path) -> None:
    hosts = ["10.0.0.1:80", "[2001:db8::1]:81", None]
    with open_writer(tmp_path, SMALL.with_changes(brokerIP1="::1")) as writer:
        result = writer.append(batch(3, bornHost=hosts))

    rows = rows_of(tmp_path, "orders")
    assert [row["bornHost"] for row in rows] == ["10.0.0.1:80", "[2001:db8::1]:81", "[::1]:10911"]
    assert {row["storeHost"] for row in rows} == {"[::1]:10911"}
    assert [row["sysFlag"] for row in rows] == [0x20, 0x30, 0x30]
    assert [len(text) for text in result.msg_ids.to_pylist()] == [56] * 3
