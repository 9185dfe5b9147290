"""Every command on stores that real brokers wrote, against what RocketMQ's decoder found."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from golden_stores import GoldenStore, expected_row

from rmqlog.commitlog_format.store import Store

Run = Callable[..., Any]
#: The damaged place: within the body of a record in the first segment.
DAMAGED_OFFSET = 402_272
READING = {
    "info": (), "topics": (), "queues": (), "groups": (), "pending": (), "verify": (),
    "cat": ("orders",), "find": ("--key", "order-1"), "hexdump": ("0",),
    "recover": ("--dry-run",), "expire": ("--dry-run",), "rebuild": ("--dry-run",),
    "export": ("orders", "--to", "never-made.parquet"), "sql": ("SELECT 1",),
}


def damage(store: Path, offset: int = DAMAGED_OFFSET) -> None:
    """Change one byte of a body."""
    with (store / "commitlog" / "00000000000000000000").open("r+b") as file:
        file.seek(offset + 90)
        file.write(b"\xff")


def messages_of(golden: GoldenStore, topic: str) -> list[dict[str, Any]]:
    rows = [expected_row(unit) for unit in golden.units if "msg" in unit]
    return [row for row in rows if row["topic"] == topic]


# --- directories that are no good store -------------------------------------------------------


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("kind", ["missing", "empty", "foreign", "file"])
def test_what_is_no_store_is_one_sentence(
    run: Run, tmp_path: Path, name: str, kind: str
) -> None:
    place = tmp_path / "place"
    if kind == "file":
        place.write_text("not a store")
    elif kind != "missing":
        place.mkdir()
    if kind == "foreign":
        (place / "notes.txt").write_text("not a store")
        (place / "photos").mkdir()

    answer = run(name, place, *READING[name])

    assert answer.code == 3
    assert answer.out == ""
    assert answer.err.startswith(f"rmqlog: {place}: ")
    assert answer.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == {
        "missing": [], "empty": ["place"], "file": ["place"],
        "foreign": ["notes.txt", "photos", "place"],
    }[kind]


@pytest.mark.parametrize("name", [name for name in READING if name != "sql"])
def test_a_damaged_store_is_told_or_read_around_but_never_a_stack_trace(
    run: Run, copied: Path, tmp_path: Path, name: str
) -> None:
    damage(copied)
    arguments = [str(tmp_path / "x.parquet") if one.endswith("parquet") else one
                 for one in READING[name]]

    answer = run(name, copied, *arguments)

    assert answer.code in (0, 1, 3)
    assert "internal error" not in answer.err
    assert answer.err.count("\n") <= 1


def test_verify_finds_the_damage_and_exits_with_1(run: Run, copied: Path) -> None:
    damage(copied)

    answer = run("verify", copied)
    rows = run("verify", copied, "--json").rows

    assert answer.code == 1
    assert "DAMAGED" in answer.out
    assert any(row.get("severity") == "damage" and row["offset"] == DAMAGED_OFFSET for row in rows)
    assert rows[-1]["verdict"] == "damaged"


def test_cat_of_a_damaged_topic_names_the_record(run: Run, copied: Path) -> None:
    damage(copied)

    answer = run("cat", copied, "SCHEDULE_TOPIC_XXXX")

    assert answer.code == 3
    assert f"offset {DAMAGED_OFFSET}" in answer.err


def test_hexdump_marks_what_is_wrong(run: Run, copied: Path) -> None:
    damage(copied)

    answer = run("hexdump", copied, DAMAGED_OFFSET)

    assert answer.code == 1
    assert [line for line in answer.out.splitlines() if line.startswith("!+88")]


# --- answers ------------------------------------------------------------------------------------


def test_topics_agree_with_the_brokers_queues(run: Run, golden: GoldenStore) -> None:
    rows = run("topics", golden.path, "--json").rows

    expected = Counter(unit["topic"] for unit in golden.units)
    assert {row["topic"]: row["messages"] for row in rows} == expected


def test_cat_gives_every_message_in_the_order_of_the_log(run: Run, golden: GoldenStore) -> None:
    rows = run("cat", golden.path, "orders", "--json", "--body").rows

    expected = sorted(messages_of(golden, "orders"), key=lambda row: row["commitLogOffset"])
    assert [row["commitLogOffset"] for row in rows] == [
        row["commitLogOffset"] for row in expected
    ]
    assert [row["properties"] for row in rows] == [row["properties"] for row in expected]
    assert [row["body"].encode() for row in rows if "body" in row] == [
        one["body"] for one, row in zip(expected, rows, strict=True) if "body" in row
    ]


@pytest.mark.parametrize("tags", ["PAID", "Aa || 已支付"])
def test_cat_filters_tags_by_their_text(run: Run, golden: GoldenStore, tags: str) -> None:
    rows = run("cat", golden.path, "orders", "--tags", tags, "--json").rows

    wanted = tags.split(" || ")
    expected = {row["commitLogOffset"] for row in messages_of(golden, "orders")
                if row["tags"] in wanted}
    assert {row["commitLogOffset"] for row in rows} == expected


def test_cat_bounds_by_time_and_by_offset(run: Run, golden: GoldenStore) -> None:
    since, until = 1_794_793_590_000, 1_794_793_592_000

    timed = run("cat", golden.path, "orders", "--since", "2026-11-16T09:46:30", "--until",
                until, "--tz", "Asia/Shanghai", "--json").rows
    placed = run("cat", golden.path, "orders", "-q", 1, "--offset", 490, "--json").rows

    expected = {row["commitLogOffset"] for row in messages_of(golden, "orders")
                if since <= row["storeTimestamp"] < until}
    assert {row["commitLogOffset"] for row in timed} == expected
    assert [row["queueOffset"] for row in placed] == [490, 491, 492]
    assert timed[0]["storeTimestamp"].endswith("+08:00")


def test_cat_writes_raw_bodies_as_they_are(program: Run, golden: GoldenStore) -> None:
    answer = program("cat", golden.path, "delay", "--format", "raw", "--null")

    expected = sorted(messages_of(golden, "delay"), key=lambda row: row["commitLogOffset"])
    assert answer.out == "".join(row["body"].decode() + "\0" for row in expected)


def test_find_gives_all_400_messages_of_a_hot_key(run: Run, golden: GoldenStore) -> None:
    answer = run("find", golden.path, "--key", "hot", "--json")

    expected = {row["commitLogOffset"] for row in messages_of(golden, "orders")
                if "hot" in (row["keys"] or "").split(" ")}
    assert len(expected) == 400
    assert {row["commitLogOffset"] for row in answer.rows} == expected
    assert "400 messages; the index covers 99.9 % of the log" in answer.err


def test_find_takes_both_kinds_of_message_id(run: Run, golden: GoldenStore) -> None:
    row = messages_of(golden, "orders")[100]

    by_offset = run("find", golden.path, "--id", row["msgId"], "--json")
    by_uniq_key = run("find", golden.path, "--id", row["uniqKey"], "--json")

    for answer in (by_offset, by_uniq_key):
        assert [found["commitLogOffset"] for found in answer.rows] == [row["commitLogOffset"]]
    assert "by offset id" in by_offset.err


def test_find_looks_into_deleted_topics_if_asked(run: Run, golden: GoldenStore) -> None:
    doomed = [line for line in golden.log if line["kind"] == "record"
              and line["msg"]["topic"] == "doomed"]
    key = doomed[0]["msg"]["uniqKey"]

    assert run("find", golden.path, "--id", key).code == 1
    found = run("find", golden.path, "--id", key, "--deleted", "--json").rows
    assert [row["commitLogOffset"] for row in found] == [doomed[0]["commitLogOffset"]]


def test_find_without_a_match_exits_with_1_and_says_what_was_covered(
    run: Run, golden: GoldenStore
) -> None:
    answer = run("find", golden.path, "--key", "no-such-key")

    assert (answer.code, answer.out) == (1, "")
    assert "0 messages; the index covers" in answer.err


def test_a_log_in_two_folders_is_named_by_commit_log(run: Run, golden_store: Run) -> None:
    path = golden_store("rmq-5.5.0-multipath").path

    refused = run("info", path)
    info = run("info", path, "--commit-log", path / "cl_a", "--commit-log", path / "cl_b",
               "--json").rows

    assert refused.code == 3
    assert "cl_a, cl_b" in refused.err
    assert info[0]["messages"] == 300


def test_queues_in_rocksdb_are_told_where_they_are_asked_for(run: Run, copied: Path) -> None:
    shutil.rmtree(copied / "consumequeue")
    (copied / "consumequeue").mkdir()
    (copied / "consumequeue" / "CURRENT").write_text("MANIFEST-000004\n")

    assert run("info", copied, "--json").rows[0]["queuesInRocksDB"] is True
    for name in ("info", "queues"):
        said = " ".join(run(name, copied).out.split())
        assert "in RocksDB, which is not read: the whole log is scanned instead" in said
        assert "not in the queue" not in said


def test_info_says_what_expires_next(run: Run, golden_store: Run) -> None:
    path = golden_store("rmq-5.5.0-retention").path

    facts = run("info", path, "--json").rows[0]

    assert facts["nextExpiry"]["segment"].endswith("/00000000000000280000")
    assert facts["nextExpiry"]["sizeByTopic"] == {"orders": 39_984}


def test_pending_knows_the_state_of_every_transaction(run: Run, golden: GoldenStore) -> None:
    rows = run("pending", golden.path, "--ended", "--json").rows

    states = Counter(row["state"] for row in rows if row["kind"] == "half")
    assert states == {"open": 8, "committed": 11, "rolled back": 11}
    assert all(row["due"] for row in rows if row["kind"] != "half")


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ""])
def test_export_writes_living_and_deleted_topics(
    run: Run, golden: GoldenStore, tmp_path: Path, ending: str
) -> None:
    target = tmp_path / f"out{ending}"

    answer = run("export", golden.path, "orders", "doomed", "--to", target)

    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("2168 messages written")
    if ending == ".parquet":
        assert pq.read_table(target).num_rows == 2168
    elif ending == ".jsonl":
        assert len(target.read_text("utf-8").splitlines()) == 2168
    else:
        new = Store(str(target))
        assert sum(len(view) for view in new.queues_of("doomed")) == 120
        assert run("verify", target).code == 0


def test_an_export_that_fails_leaves_nothing(run: Run, copied: Path, tmp_path: Path) -> None:
    damage(copied)

    answer = run("export", copied, "SCHEDULE_TOPIC_XXXX", "--to", tmp_path / "x.parquet")

    assert answer.code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_export_does_not_overwrite(run: Run, golden: GoldenStore, tmp_path: Path) -> None:
    target = tmp_path / "x.parquet"
    target.write_text("precious")

    assert run("export", golden.path, "orders", "--to", target).code == 2
    assert target.read_text() == "precious"


# --- changing a store ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["recover", "rebuild"])
def test_nothing_is_changed_without_yes_where_nobody_can_be_asked(
    run: Run, copied: Path, name: str
) -> None:
    before = sorted(copied.rglob("*"))

    answer = run(name, copied)

    assert answer.code == 2
    assert "--dry-run" in answer.err
    assert sorted(copied.rglob("*")) == before


def test_recover_says_first_what_it_then_sets_aside(run: Run, copied: Path) -> None:
    (copied / "abort").touch()
    shutil.rmtree(copied / "index")
    (copied / "checkpoint").unlink()
    damage(copied)

    seen = run("recover", copied, "--dry-run", "--json").rows[0]
    before = (copied / "abort").exists()
    done = run("recover", copied, "--yes", "--json").rows[0]

    assert before
    assert seen["logEnd"] == done["logEnd"] == DAMAGED_OFFSET
    places = [(cut["offset"], cut["size"], cut["messages"]) for cut in seen["cuts"]]
    assert sorted(places) == sorted(
        (cut["offset"], cut["size"], cut["messages"]) for cut in done["cuts"]
    )
    assert run("verify", copied).code == 0


def test_rebuild_makes_queues_and_index_anew(run: Run, copied: Path) -> None:
    before = {row["topic"]: row["messages"] for row in run("topics", copied, "--json").rows}
    shutil.rmtree(copied / "consumequeue")

    answer = run("rebuild", copied, "--yes", "--json")

    after = {row["topic"]: row["messages"] for row in run("topics", copied, "--json").rows}
    assert answer.rows[0]["messages"] == 2891
    assert after == {**before, "doomed": 120}


def test_expire_removes_what_its_dry_run_named(run: Run, copied: Path) -> None:
    planned = run("expire", copied, "--hours", "0", "--dry-run", "--json").rows
    for row in planned[:-1]:
        assert Path(row["path"]).exists()

    done = run("expire", copied, "--hours", "0", "--yes", "--json").rows

    assert planned[:-1] == done[:-1]
    assert not any(Path(row["path"]).exists() for row in done[:-1])


# --- usage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("info", "STORE", "--tz", "Nowhere/Land"),
        ("cat", "STORE", "orders", "--since", "yesterday"),
        ("find", "STORE"),
        ("find", "STORE", "--key", "a", "--id", "b"),
        ("hexdump", "STORE", "somewhere"),
        ("groups", "STORE", "no-such-group"),
        ("export", "STORE", "orders", "--to", "no-such-directory/x.parquet"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(
    run: Run, golden: GoldenStore, arguments: tuple[str, ...]
) -> None:
    answer = run(*(golden.path if one == "STORE" else one for one in arguments))

    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("rmqlog: ")
    assert answer.err.count("\n") == 1


def test_a_topic_that_does_not_exist_suggests_the_nearest(run: Run, golden: GoldenStore) -> None:
    answer = run("cat", golden.path, "ordres")

    assert answer.code == 3
    assert "'orders'" in answer.err


@pytest.mark.parametrize("name", [*READING, "demo", "doctor"])
def test_every_help_has_examples(run: Run, name: str) -> None:
    answer = run(name, "--help")

    assert answer.code == 0
    assert f"Examples:\n    rmqlog {name}" in answer.out
