"""Names that no broker gives, as topics, files and paths; nothing outside a store is opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from bad_input import check_error, value_or_error
from built_stores import build_store, numbered_records, offset_name

from rmqlog.commitlog_format.errors import (
    InvalidNameError,
    SegmentExpiredError,
    StoreError,
    StoreNotFoundError,
    UnsafeFileError,
)
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.lookup import find_by_key
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_set import StoreSet

pytestmark = pytest.mark.fuzz

BUILT = build_store(numbered_records(12))
ROW_COUNT = 12
FIRST_SEGMENT = offset_name(0)

NAMES = (
    "", ".", "..", "...", "/", "//", "a/b", "../store", "../../etc/passwd", "a\\b", "..\\..",
    "%2e%2e", "%2e%2e%2f", "\uff0e\uff0e", "\uff0e\uff0e\uff0f", "\u3002", "a\0b", "\0", "a\nb",
    "\n", "\r\n", "\t", " ",
    " topic-0", "topic-0 ", "topic-0/", "TOPIC-0", "-rf", "--", "~", "~root", "$HOME", "`id`",
    "$(id)", "a;b", "a|b", "*", "?", "[a]", "{a,b}", "a'b", 'a"b', "<a>", "&", "#", "CON", "NUL",
    "%RETRY%", "%RETRY%g/../x", "%DLQ%", "%LMQ%", "t" * 127, "t" * 128, "t" * 255, "t" * 256,
    "t" * 5000, "é", "e\u0301", "\u202e", "\ufeff", "😀", "\ud800", "\udcff", "\x7f", "\x1b[31m",
    "0", "00", "-1", "+1", "1e3", "٣", "topic-0\u200b",
)
SEGMENT_NAMES = (
    f"{FIRST_SEGMENT} ", f" {FIRST_SEGMENT}", f"{FIRST_SEGMENT}\n", FIRST_SEGMENT[1:],
    f"0{FIRST_SEGMENT}", f"{FIRST_SEGMENT}.bak", f"-{FIRST_SEGMENT[1:]}", f"+{FIRST_SEGMENT[1:]}",
    "\uff19" * 20, "9" * 20, "9223372036854775807".zfill(20),
    "0x000000000000000000", "1_000".zfill(20),
)


def store_rows(path: Path) -> int:
    """How many messages all queues of a store give."""
    store = Store(str(path))
    return sum(
        batch.num_rows for topic in store.topics
        for columns in (None, ["topic", "queueId", "queueOffset"])
        for batch in store.read(topic, columns=columns)
    ) // 2


def can_make(make: Callable[[], object]) -> bool:
    """Whether the file system lets a name be."""
    try:
        make()
    except (OSError, ValueError):
        return False
    return True


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """A sound store that a test may add to."""
    return BUILT.write(tmp_path)


def test_there_are_at_least_sixty_names() -> None:
    assert len({*NAMES, *SEGMENT_NAMES}) >= 60


def test_any_name_may_be_asked_for_and_none_but_the_true_one_is_found(store_path: Path) -> None:
    store = Store(str(store_path))
    for name in NAMES:
        for ask in (
            lambda: list(store.read(name)),  # noqa: B023
            lambda: store.queue(name, 0),  # noqa: B023
            lambda: list(find_by_key(store, name, "k1")),  # noqa: B023
            lambda: store.message_by_id(name),  # noqa: B023
        ):
            assert isinstance(value_or_error(ask), StoreError), repr(name)
        for ask_for_value in (
            lambda: list(find_by_key(store, "topic-0", name)),  # noqa: B023
            lambda: list(store.read("topic-0", tags=name, columns=["body"])),  # noqa: B023
            lambda: list(store.scan([name])),  # noqa: B023
            lambda: list(StoreSet.open(f"{store_path}/{name}")),  # noqa: B023
        ):
            value_or_error(ask_for_value)


def test_any_name_may_be_opened(store_path: Path) -> None:
    access = LocalFiles()
    for name in NAMES:
        for path in (name, f"{store_path}/{name}", f"{store_path}/commitlog/{name}"):
            value_or_error(lambda: access.open(path))  # noqa: B023
            value_or_error(lambda: access.list(path))  # noqa: B023
            value_or_error(lambda: Store(path))  # noqa: B023
            value_or_error(lambda: Store(str(store_path), log_directories=[path]))  # noqa: B023


def test_topic_folders_of_any_name_do_not_disturb_the_others(tmp_path: Path) -> None:
    made = 0
    for number, name in enumerate(NAMES):
        path = BUILT.write(tmp_path / str(number))
        folder = f"{path}/consumequeue/{name}"
        if "/" in name or name in ("", ".", "..") or not can_make(lambda: os.mkdir(folder)):  # noqa: B023
            continue
        made += 1
        os.mkdir(f"{folder}/0")
        found = value_or_error(lambda: store_rows(path))  # noqa: B023
        if name == "\udcff":  # a byte that is no UTF-8
            assert isinstance(found, InvalidNameError)
        else:
            assert found == ROW_COUNT, repr(name)
    assert made > 40


@pytest.mark.parametrize(
    "name", ["00", "-1", "+1", " 0", "0 ", "a", "٣", "2147483648", "9999999999", "4294967296"]
)
def test_a_folder_that_is_no_queue_id_is_no_queue(store_path: Path, name: str) -> None:
    os.mkdir(store_path / "consumequeue" / "topic-0" / name)
    (store_path / "consumequeue" / "topic-0" / name / FIRST_SEGMENT).write_bytes(bytes(320))

    assert store_rows(store_path) == ROW_COUNT


def test_the_largest_queue_id_is_one(store_path: Path) -> None:
    os.mkdir(store_path / "consumequeue" / "topic-0" / "2147483647")

    assert len(Store(str(store_path)).queue("topic-0", 2147483647)) == 0


def test_files_of_other_names_in_the_log_are_strays(store_path: Path) -> None:
    made = [
        name for name in SEGMENT_NAMES
        if can_make(lambda: (store_path / "commitlog" / name).write_bytes(b"x" * 100))  # noqa: B023
    ]
    (store_path / "commitlog" / ("9223372036854775807".zfill(20))).unlink()
    store = Store(str(store_path))

    assert store_rows(store_path) == ROW_COUNT
    assert len(store.log.files.strays) == len(made) - 1


def test_a_segment_at_the_end_of_all_offsets_is_a_stray(store_path: Path) -> None:
    (store_path / "commitlog" / "9223372036854775807".zfill(20)).write_bytes(b"x")

    assert store_rows(store_path) == ROW_COUNT


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/topic-0/0"])
@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory", "dangling symlink"])
def test_what_is_no_plain_file_is_refused_by_name_where_a_segment_belongs(
    store_path: Path, tmp_path: Path, folder: str, kind: str
) -> None:
    path = store_path / folder / FIRST_SEGMENT
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    {
        "symlink": lambda: path.symlink_to(elsewhere),
        "dangling symlink": lambda: path.symlink_to(tmp_path / "nowhere"),
        "fifo": lambda: os.mkfifo(path),
        "directory": path.mkdir,
    }[kind]()

    with pytest.raises(UnsafeFileError) as caught:
        store_rows(store_path)
    check_error(caught.value)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("place", ["consumequeue/topic-0", "consumequeue/topic-0/0"])
def test_a_linked_topic_or_queue_folder_is_refused(
    store_path: Path, tmp_path: Path, place: str
) -> None:
    (store_path / place).rename(tmp_path / "elsewhere")
    (store_path / place).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UnsafeFileError, match="neither a plain file nor a folder"):
        Store(str(store_path))


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path), os.mkdir])
@pytest.mark.parametrize("name", ["checkpoint", "config/topics.json", "index/20260101000000000"])
def test_a_pipe_a_device_or_a_folder_in_place_of_a_file_never_blocks(
    store_path: Path, name: str, make: Callable[[str], None]
) -> None:
    (store_path / name).parent.mkdir(exist_ok=True)
    make(str(store_path / name))
    store = Store(str(store_path))

    for read in (lambda: store.checkpoint, lambda: store.config, lambda: store.index):
        value_or_error(read)
    if not name.startswith("index"):  # a stray in the index folder is no index file
        with pytest.raises(UnsafeFileError):
            _ = (store.checkpoint, store.config)


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index", "config"])
def test_a_file_where_a_folder_belongs_is_an_error_or_nothing(store_path: Path, name: str) -> None:
    (store_path / name).rename(store_path / "aside") if (store_path / name).exists() else None
    (store_path / name).write_bytes(b"no folder")
    found = value_or_error(lambda: store_rows(store_path))

    assert isinstance(found, StoreNotFoundError) if name == "commitlog" else found == ROW_COUNT
    if name != "commitlog":
        store = Store(str(store_path))
        assert store.index.files == ()
        assert store.config.topics == {}


def test_a_missing_folder_is_named() -> None:
    with pytest.raises(SegmentExpiredError, match="no-such-folder"):
        LocalFiles().list("no-such-folder")
