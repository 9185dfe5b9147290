"""Ways to run the command line, and stores to run it on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from golden_stores import GoldenStore
from typer.testing import CliRunner

from rmqlog.cli import app

Find = Callable[[str], GoldenStore]


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The JSON lines of stdout."""
        return [json.loads(line) for line in self.out.splitlines()]


def run_in_process(*arguments: object) -> Answer:
    """Run a command in this process: fast."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return Answer(result.exit_code, result.stdout, result.stderr)


def run_as_program(*arguments: object, **variables: str) -> Answer:
    """Run a command as users do, in a process of its own, without a terminal."""
    result = subprocess.run(
        [sys.executable, "-c", "from rmqlog.cli import main; main()", *map(str, arguments)],
        capture_output=True, text=True, timeout=580, stdin=subprocess.DEVNULL,
        env={**os.environ, "TZ": "UTC", "COLUMNS": "80", **variables}, check=False,
    )
    return Answer(result.returncode, result.stdout, result.stderr)


@pytest.fixture(scope="session")
def run() -> Callable[..., Answer]:
    """The fast way."""
    return run_in_process


@pytest.fixture(scope="session")
def program() -> Callable[..., Answer]:
    """The users' way."""
    return run_as_program


@pytest.fixture(scope="session")
def golden(golden_store: Find) -> GoldenStore:
    """The richest store that a 5.5.0 broker wrote."""
    return golden_store("rmq-5.5.0-clean")


@pytest.fixture
def copied(golden: GoldenStore, tmp_path: Path) -> Path:
    """A copy of it that may be changed."""
    target = tmp_path / "store"
    shutil.copytree(golden.path, target, ignore=shutil.ignore_patterns("timerwheel", "timerlog"))
    return target
