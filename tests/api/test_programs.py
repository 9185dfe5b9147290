"""Commands as users run them: a process each, on a store that a broker wrote."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_stores import GoldenStore
from rich.cells import cell_len

Run = Callable[..., Any]
#: What each command says of the golden store; the store's path is STORE there.
EXPECTED = Path(__file__).parent / "expected"
COMMANDS: dict[str, tuple[str, ...]] = {
    "info": (),
    "topics": (),
    "queues": ("orders",),
    "groups": (),
    "cat": ("orders", "--tags", "PAID || 已支付", "--limit", "20"),
    "find": ("--key", "order-3"),
    "hexdump": ("402272",),
    "pending": (),
    "verify": (),
    "recover": ("--dry-run",),
    "expire": ("--hours", "0", "--dry-run"),
    "rebuild": ("--dry-run",),
    "export": ("orders", "doomed", "--tags", "PAID", "--to", "OUT/paid.parquet"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_says_what_is_expected(
    program: Run, golden: GoldenStore, tmp_path: Path, name: str
) -> None:
    arguments = [one.replace("OUT", str(tmp_path)) for one in COMMANDS[name]]

    answer = program(name, golden.path, *arguments)

    said = answer.out.replace(str(golden.path), "STORE").replace(str(tmp_path), "OUT")
    said = re.sub(r"not changed for \d+ h", "not changed for N h", said)
    assert said == (EXPECTED / f"{name}.txt").read_text("utf-8")
    assert answer.code == 0
    assert answer.err == "" or name == "find"


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"cat"}))  # which never cuts keys
def test_the_expected_lines_fit_into_80_columns(name: str) -> None:
    lines = (EXPECTED / f"{name}.txt").read_text("utf-8").splitlines()

    assert [line for line in lines if cell_len(line) > 80] == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("recover", ()), ("rebuild", ()), ("expire", ("--hours", "0"))],
)
def test_commands_that_change_a_store_do_it_with_yes(
    program: Run, golden: GoldenStore, tmp_path: Path, name: str, arguments: tuple[str, ...]
) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden.path, store, ignore=shutil.ignore_patterns("timerwheel", "timerlog"))

    changed = program(name, store, *arguments, "--yes")
    verified = program("verify", store)

    assert (changed.code, changed.err) == (0, "")
    assert "would" not in changed.out
    assert verified.code == 0, verified.out


@pytest.mark.parametrize(
    "command",
    ["cat STORE orders --json", "find STORE --key hot --body", "cat STORE big --format raw"],
)
def test_a_reader_that_goes_away_is_no_error(golden: GoldenStore, command: str) -> None:
    arguments = command.replace("STORE", f"'{golden.path}'")
    code = "from rmqlog.cli import main; main()"
    line = f"'{sys.executable}' -c '{code}' {arguments} | head -c 200"

    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, check=False
    )

    assert (result.returncode, result.stderr) == (0, b"")
    assert len(result.stdout) == 200


def test_reading_commands_need_neither_spark_nor_java(golden: GoldenStore) -> None:
    code = (
        "import sys; from rmqlog.cli import app\n"
        "try: app(sys.argv[1:])\n"
        "finally: assert 'pyspark' not in sys.modules"
    )

    result = subprocess.run(
        [sys.executable, "-c", code, "info", str(golden.path)],
        capture_output=True, text=True, check=False, env={"PATH": ""},
    )

    assert (result.returncode, result.stderr) == (0, "")


def test_a_pipe_gets_no_colours_even_where_they_are_forced(
    program: Run, golden: GoldenStore
) -> None:
    answer = program("groups", golden.path, FORCE_COLOR="1", CLICOLOR_FORCE="1")

    assert answer.code == 0
    assert "\x1b" not in answer.out
