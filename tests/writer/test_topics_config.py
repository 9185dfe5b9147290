"""topics.json and delayOffset.json: what a broker left there stays, and a crash loses neither."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from faults import KILLS, Kind, Plan, run_in_fork
from small_stores import SMALL

from rmqlog.commitlog_format.config_files import read_config_files
from rmqlog.commitlog_format.errors import CorruptConfigError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.writer.posix import Posix
from rmqlog.writer.topics_config import DelayOffsets, TopicTable

#: As a broker writes it: integer keys without quotes.
BROKERS = """{
	"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1},
	"futureMember":{1:2,3:"x"},
	"topicConfigTable":{
		"orders":{"attributes":{"message.type":"FIFO"},"order":true,"perm":4,"readQueueNums":2,
			"topicFilterType":"SINGLE_TAG","topicName":"orders","topicSysFlag":5,"writeQueueNums":2}
	}
}"""


def topics_file(path: Path, content: str | None = None) -> Path:
    (path / "config").mkdir(exist_ok=True)
    file = path / "config" / "topics.json"
    if content is not None:
        file.write_text(content)
    return file


def open_table(path: Path) -> TopicTable:
    return TopicTable(Posix(), str(path), SMALL)


def test_a_topic_grows_to_the_queues_it_needs_and_becomes_writable(tmp_path: Path) -> None:
    file = topics_file(tmp_path, BROKERS)
    table = open_table(tmp_path)

    table.cover([QueueKey("orders", 5), QueueKey("orders", 1), QueueKey("new", 0)])
    table.save()

    content = json.loads(file.read_text())
    orders = content["topicConfigTable"]["orders"]
    assert (orders["readQueueNums"], orders["writeQueueNums"], orders["perm"]) == (6, 6, 6)
    # What we do not know stays as it was.
    assert (orders["order"], orders["topicSysFlag"]) == (True, 5)
    assert orders["attributes"] == {"message.type": "FIFO"}
    assert content["futureMember"] == {"1": 2, "3": "x"}
    assert content["dataVersion"]["counter"] == 8
    assert content["topicConfigTable"]["new"]["writeQueueNums"] == SMALL.defaultTopicQueueNums
    assert file.with_name("topics.json.bak").read_text() == BROKERS


def test_nothing_is_written_when_nothing_changed(tmp_path: Path) -> None:
    file = topics_file(tmp_path, BROKERS.replace('"perm":4', '"perm":6'))
    table = open_table(tmp_path)

    table.cover([QueueKey("orders", 1)])
    table.save()

    assert file.read_text() == BROKERS.replace('"perm":4', '"perm":6')


def test_the_backup_is_read_where_the_file_is_missing_or_damaged(tmp_path: Path) -> None:
    file = topics_file(tmp_path)
    file.with_name("topics.json.bak").write_text(BROKERS)
    assert open_table(tmp_path).queue_count("orders") == 2

    for damaged in ("", "{", "no JSON"):
        file.write_text(damaged)
        assert open_table(tmp_path).queue_count("orders") == 2


def test_damage_without_a_backup_is_an_error_and_not_an_empty_table(tmp_path: Path) -> None:
    topics_file(tmp_path, "{")

    with pytest.raises(CorruptConfigError):
        open_table(tmp_path)


@pytest.mark.crash
@pytest.mark.parametrize("kind", KILLS)
def test_a_kill_at_any_call_leaves_the_old_table_or_the_new_one(
    tmp_path: Path, kind: Kind
) -> None:
    number = 0
    fired = True
    while fired:
        number += 1
        path = tmp_path / str(number)
        path.mkdir()
        topics_file(path, BROKERS)

        def save(posix: Posix, note: object, path: Path = path) -> None:
            table = TopicTable(posix, str(path), SMALL)
            table.create("new", 3)
            table.save()

        outcome = run_in_fork(save, Plan(kind, number))
        fired = outcome.fired
        found = read_config_files(LocalFiles(), str(path)).topics
        assert set(found) in ({"orders"}, {"orders", "new"})
    assert number > 5


def test_delay_offsets_are_kept_by_level(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "delayOffset.json").write_text('{"offsetTable":{1:5,12:7\n\t}\n}')
    offsets = DelayOffsets(Posix(), str(tmp_path))
    assert offsets.offsets == {1: 5, 12: 7}

    offsets.offsets[2] = 9
    offsets.save()

    assert read_config_files(LocalFiles(), str(tmp_path)).delay_offsets == {1: 5, 2: 9, 12: 7}
