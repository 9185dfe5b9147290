"""``config/``, ``checkpoint``: what brokers write, and what is left after a kill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from golden_stores import GoldenStore

from rmqlog.commitlog_format.checkpoint import Checkpoint, decode_checkpoint, read_checkpoint
from rmqlog.commitlog_format.config_files import parse_json, read_config_files
from rmqlog.commitlog_format.errors import CorruptConfigError, LimitExceededError
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.limits import Limits

ACCESS = LocalFiles()


def write_config(store: Path, name: str, text: str) -> None:
    """Put a file into ``config/``."""
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / name).write_text(text, "utf-8")


def test_unquoted_integer_keys_are_read_and_strings_are_left_alone() -> None:
    text = b'{"offsetTable":{"T@g":{0:250,1:249\n\t\t},"a{1:2,3:4}":{ -1 : 5}}}'

    assert parse_json(text) == {
        "offsetTable": {"T@g": {"0": 250, "1": 249}, "a{1:2,3:4}": {"-1": 5}}
    }


def test_what_a_real_broker_wrote_is_read(golden_store: Callable[[str], GoldenStore]) -> None:
    config = read_config_files(ACCESS, str(golden_store("rmq-5.5.0-clean").path))

    assert config.topics["orders"].read_queue_count == 4
    assert config.topics["orders"].perm in (6, 7)
    assert config.consumer_offsets[("flaky", "gen_flaky")] == {0: 20, 1: 20}
    assert config.delay_offsets == {1: 40, 18: 0}
    assert "gen_flaky" in config.subscription_groups


def test_attributes_tell_a_batch_topic(golden_store: Callable[[str], GoldenStore]) -> None:
    config = read_config_files(ACCESS, str(golden_store("rmq-5.5.0-bcq").path))

    assert config.topics["bcq"].attributes["queue.type"] == "BatchCQ"


def test_an_empty_store_has_empty_tables(tmp_path: Path) -> None:
    config = read_config_files(ACCESS, str(tmp_path))

    assert (config.topics, config.consumer_offsets, config.delay_offsets) == ({}, {}, {})


@pytest.mark.parametrize("content", ["", "{ damaged", None])
def test_the_backup_serves_when_the_file_is_missing_empty_or_damaged(
    tmp_path: Path, content: str | None
) -> None:
    write_config(tmp_path, "delayOffset.json.bak", '{"offsetTable":{1:7}}')
    if content is not None:
        write_config(tmp_path, "delayOffset.json", content)

    assert read_config_files(ACCESS, str(tmp_path)).delay_offsets == {1: 7}


def test_damage_in_both_files_names_the_first(tmp_path: Path) -> None:
    write_config(tmp_path, "delayOffset.json", "{ damaged")
    write_config(tmp_path, "delayOffset.json.bak", "[]")

    with pytest.raises(CorruptConfigError, match=r"config/delayOffset\.json: not JSON"):
        read_config_files(ACCESS, str(tmp_path))


def test_light_queues_have_one_offset_each(tmp_path: Path) -> None:
    write_config(tmp_path, "lmqConsumerOffset.json", '{"lmqOffsetTable":{"%LMQ%a@%LMQ%g":12}}')

    offsets = read_config_files(ACCESS, str(tmp_path)).consumer_offsets
    assert offsets == {("%LMQ%a", "%LMQ%g"): {0: 12}}


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("topics.json", '{"topicConfigTable":{"t":1}}', "topic t is not an object"),
        ("topics.json", '{"topicConfigTable":{"t":{"perm":"x"}}}', "not a whole number"),
        ("topics.json", '{"topicConfigTable":{"t":{"perm":true}}}', "not a whole number"),
        ("topics.json", '{"topicConfigTable":{"t":{"attributes":[1]}}}', "attributes of t"),
        ("consumerOffset.json", '{"offsetTable":{"nogroup":{}}}', "not topic@group"),
        ("consumerOffset.json", '{"offsetTable":{"t@g":[]}}', "offset table"),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":{"g":3}}', "group g"),
        ("delayOffset.json", "[]", "not an object"),
        ("delayOffset.json", "[" * 100 + "]" * 100, "nested too deeply"),
        ("delayOffset.json", '{"offsetTable":{"a":1}}', "not a whole number"),
    ],
)
def test_other_shapes_are_refused_by_name(
    tmp_path: Path, name: str, text: str, match: str
) -> None:
    write_config(tmp_path, name, text)

    with pytest.raises(CorruptConfigError, match=match):
        read_config_files(ACCESS, str(tmp_path))


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    write_config(tmp_path, "topics.json", "{" + " " * 100 + "}")

    with pytest.raises(LimitExceededError, match="larger than allowed"):
        read_config_files(ACCESS, str(tmp_path), Limits(config_size=50))


def test_the_checkpoint_has_six_fields(golden_store: Callable[[str], GoldenStore]) -> None:
    found = read_checkpoint(ACCESS, str(golden_store("rmq-5.5.0-clean").path))

    assert found.physic_msg_timestamp == 1794793650659
    assert found.logics_physical_offset == 2388103
    assert decode_checkpoint(found.encode()) == found
    assert found.min_timestamp == found.logics_msg_timestamp - 3000


def test_a_missing_checkpoint_is_all_zero(tmp_path: Path) -> None:
    assert read_checkpoint(ACCESS, str(tmp_path)) == Checkpoint()
    assert Checkpoint().min_timestamp == 0


def test_a_short_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(bytes(47))

    with pytest.raises(CorruptConfigError, match="too short; found 47 bytes"):
        read_checkpoint(ACCESS, str(tmp_path))
