"""The commands that need Spark: ``sql``, ``demo`` and ``doctor``."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_stores import GoldenStore
from rich.cells import cell_len

from rmqlog.commitlog_format.store import Store

Run = Callable[..., Any]
DEMO_STORE = "shop-store"
DEMO_MARKER = "made-by-rmqlog-demo"


@pytest.mark.spark
def test_sql_counts_as_rocketmqs_decoder_does(program: Run, golden: GoldenStore) -> None:
    query = "SELECT tags, count(*) AS n FROM orders GROUP BY tags"

    answer = program("sql", golden.path, query, "--json", "--explain")

    expected = Counter(
        unit["msg"]["tags"] for unit in golden.units if unit["topic"] == "orders"
    )
    assert answer.code == 0, answer.err
    assert {row["tags"]: row["n"] for row in answer.rows} == expected
    assert "queue scan" in answer.err


@pytest.mark.spark
def test_sql_shows_a_table_and_says_when_there_is_more(
    program: Run, golden: GoldenStore
) -> None:
    query = "SELECT queueOffset, tags, storeTimestamp FROM orders WHERE queueId = 1 ORDER BY 1"

    answer = program("sql", golden.path, query, "--rows", "1", "--tz", "Asia/Shanghai")

    assert answer.code == 0, answer.err
    assert answer.out.splitlines() == [
        "queueOffset  tags  storeTimestamp",
        "          0  a b   2026-11-16 09:46:28.829+08:00",
        "… and more rows: --rows N shows N, --json all (here are 1)",
    ]


@pytest.mark.spark
def test_doctor_finds_this_machine_fit_and_starts_spark(program: Run) -> None:
    answer = program("doctor", "--start")

    lines = answer.out.splitlines()
    assert answer.code == 0, answer
    assert [line[:5].strip() for line in lines] == ["ok"] * 9
    assert "Spark ran Python on 10 rows" in lines[-1]


def test_doctor_names_the_java_that_cannot_be_run(program: Run) -> None:
    answer = program("doctor", "--json", JAVA_HOME="/nowhere")

    java = next(row for row in answer.rows if row["check"] == "Java")
    assert answer.code == 1
    assert not java["fine"]
    assert "JAVA_HOME" in java["fix"]


@pytest.mark.parametrize("arguments", [("sql", "STORE", "SELECT 1"), ("demo", "--to", "OUT")])
def test_without_java_it_is_one_sentence(
    program: Run, golden: GoldenStore, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    places = {"STORE": golden.path, "OUT": tmp_path}

    answer = program(*(places.get(one, one) for one in arguments), JAVA_HOME="/nowhere")

    assert answer.code == 4
    assert answer.out == ""
    assert answer.err.startswith("rmqlog: ")
    assert answer.err.count("\n") == 1


@pytest.mark.spark
def test_a_wrong_query_is_one_sentence(program: Run, golden: GoldenStore) -> None:
    answer = program("sql", golden.path, "SELECT nothing FROM orders")

    assert (answer.code, answer.out) == (2, "")
    assert "nothing" in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.spark
def test_damage_is_one_sentence_with_its_place(
    program: Run, golden: GoldenStore, tmp_path: Path
) -> None:
    path = tmp_path / "damaged"
    shutil.copytree(golden.path, path)
    store = Store(str(path))
    offset = next(store.read("orders", columns=["commitLogOffset"]))["commitLogOffset"][0].as_py()
    segment = store.log.files.file_of(offset)
    with open(segment.path, "r+b") as file:
        file.seek(offset - segment.start + 4)
        file.write(bytes(4))

    answer = program("sql", path, "SELECT count(body) FROM orders")

    assert (answer.code, answer.out) == (3, "")
    assert answer.err.startswith(f"rmqlog: {segment.path} at offset {offset}: not a message")
    assert answer.err.count("\n") == 1


@pytest.mark.spark
def test_the_demo_runs_to_its_end_where_an_earlier_one_has_been(
    program: Run, tmp_path: Path
) -> None:
    earlier = tmp_path / DEMO_STORE
    earlier.mkdir()
    (earlier / DEMO_MARKER).touch()
    (earlier / "left").touch()

    answer = program("demo", "--messages", "20000", "--to", tmp_path)

    assert (answer.code, answer.err) == (0, "")
    said = answer.out.replace(str(tmp_path), "OUT")
    assert [line for line in said.splitlines() if cell_len(line) > 80] == []
    for text in ("tag scan", "index lookup", "search by store time", "without pushdown",
                 '.write.format("rmqlog")', "and read again", "What to try next"):
        assert text in said
    assert not (earlier / "left").exists()
    assert {path.name for path in tmp_path.iterdir()} == {
        DEMO_STORE, "traffic.png", "pushdown.png"
    }
    assert_the_shop_has_everything(Store(str(earlier)))


def assert_the_shop_has_everything(store: Store) -> None:
    counts = {topic: sum(map(len, store.queues_of(topic))) for topic in store.topics}
    vip = [keys for batch in store.read("vip_orders", columns=["keys"])
           for keys in batch["keys"].to_pylist()]
    offsets = json.loads(Path(store.path, "config", "consumerOffset.json").read_text("utf-8"))
    assert sum(counts.values()) == 20_000 + len(vip)
    assert {keys.split()[1] for keys in vip} == {"customer-7"}
    assert counts["SCHEDULE_TOPIC_XXXX"] == 200
    assert counts["RMQ_SYS_TRANS_HALF_TOPIC"] == 1
    assert set(offsets["offsetTable"]) == {"orders@warehouse", "orders@billing"}


def test_the_demo_leaves_a_store_alone_that_it_did_not_make(run: Run, tmp_path: Path) -> None:
    precious = tmp_path / DEMO_STORE / "commitlog"
    precious.mkdir(parents=True)

    answer = run("demo", "--to", tmp_path)

    assert (answer.code, answer.out) == (2, "")
    assert "--to" in answer.err
    assert precious.exists()
