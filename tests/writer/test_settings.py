"""Settings under the broker's names: parsed, checked, and found in a store's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_stores import GOLDEN_DIRECTORY, GoldenStore

from rmqlog.commitlog_format.errors import InvalidSettingError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.layout import DELAY_LEVELS_MS
from rmqlog.writer.settings import FlushDiskType, StoreSettings, file_sizes


def test_the_defaults_are_a_brokers() -> None:
    settings = StoreSettings()

    assert settings.mappedFileSizeCommitLog == 1024**3
    assert settings.mappedFileSizeConsumeQueue == 6_000_000
    assert settings.index_file_size == 420_000_040
    assert settings.delay_levels_ms == DELAY_LEVELS_MS
    assert settings.store_host == "127.0.0.1:10911"


def test_a_file_like_broker_conf_is_read_and_what_only_a_broker_knows_is_ignored(
    tmp_path: Path,
) -> None:
    (tmp_path / "broker.conf").write_text(
        "# sizes\nbrokerClusterName = DefaultCluster\nmappedFileSizeCommitLog=65536\n"
        "flushDiskType = SYNC_FLUSH\nmessageIndexEnable=false\nnamesrvAddr = 10.0.0.1:9876\n"
        "#maxIndexNum=7\n\nbrokerIP1 = ::1\nmessageDelayLevel = 1s 2m 3h 1d\n"
    )

    settings = StoreSettings.from_file(tmp_path / "broker.conf")

    assert settings.mappedFileSizeCommitLog == 65536
    assert settings.flushDiskType is FlushDiskType.SYNC_FLUSH
    assert settings.messageIndexEnable is False
    assert settings.maxIndexNum == 20_000_000
    assert settings.store_host == "[::1]:10911"
    assert settings.delay_levels_ms == (1_000, 120_000, 10_800_000, 86_400_000)


def test_the_size_of_queue_files_is_rounded_up_to_whole_units() -> None:
    assert StoreSettings(mappedFileSizeConsumeQueue=1001).mappedFileSizeConsumeQueue == 1020


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"mappedFileSizeCommitLog": "much"}, "mappedFileSizeCommitLog"),
        ({"mappedFileSizeCommitLog": "10"}, "too small"),
        ({"maxIndexNum": "1"}, "maxIndexNum"),
        ({"messageIndexEnable": "maybe"}, "messageIndexEnable"),
        ({"flushDiskType": "NEVER"}, "flushDiskType"),
        ({"messageDelayLevel": "1s soon"}, "messageDelayLevel"),
        ({"brokerVersion": "newest"}, "brokerVersion"),
    ],
)
def test_a_value_that_cannot_be_right_is_named(values: dict[str, str], word: str) -> None:
    with pytest.raises(InvalidSettingError, match=word):
        StoreSettings.from_mapping(values)


@pytest.mark.parametrize(
    ("version", "indexes_tags"),
    [("4.9.5", False), ("5.3.3", False), ("5.5.0", True), ("6.0", True)],
)
def test_the_brokers_version_says_whether_tags_are_indexed(
    version: str, indexes_tags: bool
) -> None:
    assert StoreSettings(brokerVersion=version).indexes_tags is indexes_tags


def test_the_files_of_a_real_store_tell_its_sizes(
    golden_store: Callable[[str], GoldenStore],
) -> None:
    store = golden_store("rmq-5.5.0-clean")

    found = file_sizes(str(store.path), LocalFiles())

    assert found == {
        "mappedFileSizeCommitLog": 1048576,
        "mappedFileSizeConsumeQueue": 10000,
        "maxHashSlotNum": 500,
        "maxIndexNum": 2000,
    }
    from_file = StoreSettings.from_file(GOLDEN_DIRECTORY / f"{store.name}.properties")
    from_file.check_store(str(store.path))


@pytest.mark.parametrize(
    "chosen", [{"mappedFileSizeCommitLog": 1 << 21}, {"maxHashSlotNum": 400}, {"maxIndexNum": 3000}]
)
def test_chosen_sizes_must_equal_those_of_the_files(
    golden_store: Callable[[str], GoldenStore], chosen: dict[str, Any]
) -> None:
    path = str(golden_store("rmq-5.5.0-clean").path)

    with pytest.raises(InvalidSettingError) as caught:
        StoreSettings.of_store(path, **chosen)

    assert caught.value.path == path


def test_another_ratio_of_slots_and_entries_is_accepted_if_the_files_size_agrees(
    golden_store: Callable[[str], GoldenStore],
) -> None:
    path = str(golden_store("rmq-5.5.0-clean").path)

    chosen = StoreSettings.of_store(path, maxHashSlotNum=5500, maxIndexNum=1000)

    assert chosen.index_file_size == 40 + 4 * 5500 + 20 * 1000
