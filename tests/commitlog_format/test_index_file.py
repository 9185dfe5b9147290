"""One index file: golden vectors, chains, many keys at once, and every kind of damage."""

from __future__ import annotations

import pickle
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_files import IndexFileModel

from rmqlog.commitlog_format.errors import CorruptIndexError, StoreError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.hashing import index_hash
from rmqlog.commitlog_format.index_file import IndexFile
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits


def opened(
    model: IndexFileModel,
    directory: Path,
    slot_count: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> IndexFile:
    return IndexFile(LocalFiles(), model.write(directory), slot_count, limits)


def many(file: IndexFile, hashes: list[int], end_offset: int = 2**62) -> list[list[int]]:
    """The answers of lookup_many, as a list for each hash."""
    which, offsets = file.lookup_many(np.array(hashes, np.int64), end_offset)
    assert (np.diff(which) >= 0).all()
    return [offsets[which == index].tolist() for index in range(len(hashes))]


@pytest.fixture
def crowded() -> IndexFileModel:
    """900 entries in 7 slots under 300 keys: long chains with many collisions of slots."""
    model = IndexFileModel(slot_count=7, entry_limit=1000)
    for number in range(900):
        model.put("orders", f"key-{number * number % 300}", 1000 + 10 * number, 1_700_000_000_000)
    return model


def test_the_golden_vector_of_three_puts_is_read(tmp_path: Path) -> None:
    model = IndexFileModel(slot_count=5000, entry_limit=20_000)
    model.put("TopicTest", "order-1", 1000, 1_700_000_001_000)
    model.put("TopicTest", "k1", 1000, 1_700_000_001_000)
    model.put("TopicTest", "order-1", 2000, 1_700_000_003_999)
    content = model.content()
    assert content[:40].hex() == (
        "0000018bcfe56be80000018bcfe5779f00000000000003e800000000000007d00000000200000004"
    )
    assert content[20_060:20_120].hex() == (
        "6d0746d000000000000003e80000000000000000"
        "0029e6a800000000000003e80000000000000000"
        "6d0746d000000000000007d00000000200000001"
    )
    assert content[13_736:13_740].hex() == "00000003"
    assert (len(content), zlib.crc32(content)) == (420_040, 577_523_973)

    file = opened(model, tmp_path)
    assert file.slot_count == 5000
    assert file.header.begin_timestamp == 1_700_000_001_000
    assert file.header.end_timestamp == 1_700_000_003_999
    assert file.header.begin_physical_offset == 1000
    assert file.header.end_physical_offset == 2000
    assert (file.header.hash_slot_count, file.header.index_count) == (2, 4)
    assert file.lookup(index_hash("TopicTest", "order-1")) == [2000, 1000]
    assert file.lookup(index_hash("TopicTest", "k1")) == [1000]
    assert file.lookup(index_hash("TopicTest", "k2")) == []


def test_the_golden_vector_of_a_rolled_file_is_read(tmp_path: Path) -> None:
    previous = IndexFileModel(slot_count=5000, entry_limit=20_000)
    previous.put("TopicTest", "before", 5555, 1_700_000_000_500)
    model = previous.roll()
    model.put("TopicTest", "order-1", 6000, 1_700_000_009_000)
    model.put("TopicTest", "order-1", 7000, 1_700_000_011_000)
    content = model.content()
    assert content[:40].hex() == (
        "0000018bcfe58b280000018bcfe592f800000000000017700000000000001b580000000100000003"
    )
    assert content[20_060:20_100].hex() == (
        "6d0746d0000000000000177000000008000000006d0746d00000000000001b580000000200000001"
    )
    file = opened(model, tmp_path)
    assert file.header.begin_physical_offset == 6000
    assert file.lookup(index_hash("TopicTest", "order-1")) == [7000, 6000]


def test_all_matches_of_every_key_come_newest_first(
    tmp_path: Path, crowded: IndexFileModel
) -> None:
    file = opened(crowded, tmp_path, slot_count=7)
    for key in range(300):
        expected = [1000 + 10 * n for n in reversed(range(900)) if n * n % 300 == key]
        assert file.lookup(index_hash("orders", f"key-{key}")) == expected


@pytest.mark.parametrize("window_size", [64 * 1024 * 1024, 2000, 20, 1])
def test_many_keys_at_once_give_what_each_gives_alone(
    tmp_path: Path, crowded: IndexFileModel, window_size: int
) -> None:
    file = opened(crowded, tmp_path, 7, Limits(window_size=window_size))
    hashes = [index_hash("orders", f"key-{key}") for key in [*range(310), 5, 5, 0]]
    for end_offset in (0, 1000, 5000, 2**62):
        expected = [file.lookup(key_hash, end_offset) for key_hash in hashes]
        assert many(file, hashes, end_offset) == expected
    assert many(file, hashes[:3]) == [file.lookup(key_hash) for key_hash in hashes[:3]]
    assert many(file, []) == []


@pytest.mark.parametrize("window_size", [64 * 1024 * 1024, 2000, 1])
def test_all_entries_are_listed_in_the_order_of_their_puts(
    tmp_path: Path, crowded: IndexFileModel, window_size: int
) -> None:
    file = opened(crowded, tmp_path, 7, Limits(window_size=window_size))
    assert file.entries().tobytes() == crowded.entries[1:901].tobytes()


def test_hits_at_or_beyond_the_end_are_dropped(tmp_path: Path, crowded: IndexFileModel) -> None:
    file = opened(crowded, tmp_path, slot_count=7)
    key_hash = index_hash("orders", "key-0")
    newest = file.lookup(key_hash)[0]
    assert file.lookup(key_hash, newest) == file.lookup(key_hash)[1:]
    assert file.lookup(key_hash, newest + 1) == file.lookup(key_hash)


@pytest.mark.parametrize("index_count", [0, -5, 1])
def test_a_count_of_one_or_less_means_no_entries(tmp_path: Path, index_count: int) -> None:
    model = IndexFileModel()
    model.header["index_count"] = index_count
    file = opened(model, tmp_path)
    assert file.header.index_count == 1
    assert len(file.entries()) == 0
    assert file.lookup(0) == []
    assert many(file, [0] * 50) == [[]] * 50


def test_entries_put_after_opening_are_passed_through_but_not_reported(tmp_path: Path) -> None:
    model = IndexFileModel()
    model.put("t", "k", 100, 1)
    file = opened(model, tmp_path)
    for offset in (200, 300):
        model.put("t", "k", offset, 1)
    model.write(tmp_path)
    key_hash = index_hash("t", "k")
    assert file.lookup(key_hash) == [100]
    assert many(file, [key_hash] * 50) == [[100]] * 50
    assert IndexFile(LocalFiles(), file.path).lookup(key_hash) == [300, 200, 100]


def test_a_copy_whose_header_is_older_than_its_slots_loses_nothing(tmp_path: Path) -> None:
    model = IndexFileModel()
    for offset in (100, 200, 300):
        model.put("t", "k", offset, 1)
    model.header["index_count"] = 3
    file = opened(model, tmp_path)
    assert file.lookup(index_hash("t", "k")) == [200, 100]


def test_it_survives_pickling(tmp_path: Path, crowded: IndexFileModel) -> None:
    file = pickle.loads(pickle.dumps(opened(crowded, tmp_path, slot_count=7)))
    assert len(file.lookup(index_hash("orders", "key-0"))) == 30


def damaged(kind: str) -> tuple[IndexFileModel, int]:
    """A file in which the chain of one hash is damaged; and the hash."""
    model = IndexFileModel()
    for offset in (100, 200, 300):
        model.put("t", "k", offset, 1)
    key_hash = index_hash("t", "k")
    slot = key_hash % model.slot_count
    match kind:
        case "ring of one":
            model.entries["previous"][2] = 2
        case "ring of three":
            model.entries["previous"][1] = 3
        case "link to a newer entry":
            model.entries["previous"][1] = 7
        case "link behind the file":
            model.entries["previous"][2] = 2**31 - 1
        case "negative link":
            model.entries["previous"][2] = -1
        case "slot behind the file":
            model.slots[slot] = model.entry_limit
        case "negative slot":
            model.slots[slot] = -(2**31)
        case "entry of another slot":
            model.entries["key_hash"][2] = key_hash + 1
        case "negative hash":
            model.entries["key_hash"][2] = -model.slot_count + slot
        case "negative physical offset":
            model.entries["physical_offset"][2] = -1
        case "slot to an entry that was never written":
            model.slots[slot] = 9
            assert slot != 0
    return model, key_hash


@pytest.mark.parametrize("key_count", [1, 100])
@pytest.mark.parametrize(
    ("kind", "offset", "found"),
    [
        ("ring of one", 60 + 2 * 20, 2),
        ("ring of three", 60 + 1 * 20, 3),
        ("link to a newer entry", 60 + 1 * 20, 7),
        ("link behind the file", 60 + 2 * 20, 2**31 - 1),
        ("negative link", 60 + 2 * 20, -1),
        ("slot behind the file", None, 20),
        ("negative slot", None, -(2**31)),
        ("entry of another slot", 60 + 2 * 20, None),
        ("negative hash", 60 + 2 * 20, None),
        ("negative physical offset", 60 + 2 * 20, None),
        ("slot to an entry that was never written", 60 + 9 * 20, None),
    ],
)
def test_a_damaged_chain_raises_and_says_where(
    tmp_path: Path, kind: str, offset: int | None, found: int | None, key_count: int
) -> None:
    model, key_hash = damaged(kind)
    file = opened(model, tmp_path)
    with pytest.raises(CorruptIndexError) as caught:
        many(file, [key_hash] * key_count) if key_count > 1 else file.lookup(key_hash)
    error = caught.value
    assert error.path == file.path
    assert error.offset == (40 + 4 * (key_hash % 5) if offset is None else offset)
    assert found is None or error.found == found
    assert error.expected is not None
    assert pickle.loads(pickle.dumps(error)) == error


@pytest.mark.parametrize("size", [1, 39, 40, 41, 123, 125, 40 + 84 * 5 - 1, 40 + 84 * 5 + 20])
def test_a_length_that_no_index_file_has_is_named(tmp_path: Path, size: int) -> None:
    path = tmp_path / "20260101000000000"
    path.write_bytes(bytes(size))
    with pytest.raises(CorruptIndexError, match="length") as caught:
        IndexFile(LocalFiles(), str(path))
    assert caught.value.found == size


def test_a_given_slot_count_must_fit_the_length(tmp_path: Path) -> None:
    path = IndexFileModel(slot_count=7, entry_limit=10).write(tmp_path)
    with pytest.raises(CorruptIndexError, match="slot count must be given"):
        IndexFile(LocalFiles(), path)
    assert IndexFile(LocalFiles(), path, 7).entry_limit == 10
    for slot_count in (-1, 0, 6, 8, 57, 1000):
        with pytest.raises(CorruptIndexError, match=f"{slot_count} slots"):
            IndexFile(LocalFiles(), path, slot_count)


def test_a_header_that_counts_more_than_fits_is_refused(tmp_path: Path) -> None:
    model = IndexFileModel()
    model.header["index_count"] = 20
    opened(model, tmp_path)
    model.header["index_count"] = 21
    with pytest.raises(CorruptIndexError, match="more entries") as caught:
        opened(model, tmp_path)
    assert caught.value.found == 21


def test_a_file_that_shrinks_under_us_raises(tmp_path: Path, crowded: IndexFileModel) -> None:
    file = opened(crowded, tmp_path, slot_count=7)
    content = crowded.content()
    hashes = np.array([index_hash("orders", f"key-{key}") for key in range(300)], np.int64)
    for size in (50, 68, 5000, len(content) - 2100):
        Path(file.path).write_bytes(content[:size])
        with pytest.raises(StoreError, match="too short"):
            file.lookup_many(hashes)
        with pytest.raises(StoreError, match="too short"):
            list(map(file.lookup, hashes.tolist()))


@pytest.mark.fuzz
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 4), st.integers(0, 2**32), st.integers(0, 64))
def test_random_bytes_give_values_or_a_store_error(
    tmp_path: Path, slot_count: int, seed: int, small: int
) -> None:
    source = np.random.default_rng(seed)
    content = source.integers(0, 256, 40 + 84 * slot_count, np.uint8)
    # Small numbers make links that lead somewhere.
    content[40:][source.integers(0, 64, len(content) - 40) >= small] = 0
    content[36:40] = (0, 0, 0, source.integers(0, 4 * slot_count + 1))
    path = tmp_path / "20260101000000000"
    path.write_bytes(content.tobytes())
    hashes = [*range(40), 2**31 - 1]
    file = IndexFile(LocalFiles(), str(path))
    try:
        alone = [file.lookup(key_hash) for key_hash in hashes]
    except CorruptIndexError:
        with pytest.raises(CorruptIndexError):
            many(file, hashes)
    else:
        assert many(file, hashes) == alone
