"""The blocks of code in README and docs are run, and their links lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_stores import GoldenStore

from rmqlog.commitlog_format import errors
from rmqlog.commitlog_format.store import Store
from rmqlog.spark_datasource.options import options_table
from rmqlog.spark_datasource.sink_options import WRITE_OPTIONS
from rmqlog.writer.settings import FlushDiskType, StoreSettings

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
_SPARK = re.compile(r"spark|rmqlog sql|rmqlog demo")
_STORE_ON_PAGES = "/data/store"
#: What sets a machine up or runs for long has tests of its own.
_NOT_RUN = re.compile(r"^(make|pip|git) ", re.MULTILINE)


def scripts(language: str) -> list[object]:
    """For each page all its blocks in a language, one after another, as a reader types them."""
    found = []
    for page in PAGES:
        blocks = [code for name, code in _BLOCK.findall(page.read_text("utf-8"))
                  if name == language and not _NOT_RUN.search(code)]
        if blocks:
            code = "\n".join(blocks)
            marks = [pytest.mark.spark] if _SPARK.search(code) else []
            found.append(pytest.param(code, id=page.name, marks=marks))
    return found


@pytest.fixture
def surroundings(
    golden_store: Callable[[str], GoldenStore], tmp_path: Path
) -> dict[str, str]:
    """What the pages promise: STORE is a store, OUT a place to write, rmqlog on the PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, code in (
        ("rmqlog", '-c "from rmqlog.cli import main; main()" '), ("python", ""),
    ):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {code}"$@"\n')
        program.chmod(0o755)
    store = tmp_path / "store"
    shutil.copytree(golden_store("rmq-5.5.0-clean").path, store,
                    ignore=shutil.ignore_patterns("timerwheel", "timerlog"))
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "STORE": str(store),
            "OUT": str(tmp_path), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": ""}


@pytest.mark.parametrize("code", scripts("bash"))
def test_the_commands_of_a_page_run(code: str, surroundings: dict[str, str]) -> None:
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code], cwd=ROOT, env=surroundings, text=True,
        capture_output=True, timeout=600, check=False,
    )

    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("code", scripts("python"))
def test_the_python_of_a_page_runs(code: str, surroundings: dict[str, str]) -> None:
    code = code.replace(_STORE_ON_PAGES, surroundings["STORE"])
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=surroundings["OUT"], env=surroundings, text=True,
        capture_output=True, timeout=600, check=False,
    )

    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    targets = [link for link in _LINK.findall(page.read_text("utf-8")) if "://" not in link]

    assert [link for link in targets if not (page.parent / link).exists()] == []


def test_the_page_of_writing_shows_the_options_in_the_code() -> None:
    page = (ROOT / "docs" / "writing.md").read_text("utf-8")

    assert options_table(WRITE_OPTIONS) in page


def test_the_page_of_writing_names_errors_that_exist() -> None:
    page = (ROOT / "docs" / "writing.md").read_text("utf-8")
    named = set(re.findall(r"`(\w+Error)`", page))

    assert "CommitStateUnknownError" in named
    assert named <= set(errors.__all__)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_the_brokers_file_gives_the_writer_a_brokers_defaults() -> None:
    settings = StoreSettings.from_file(ROOT / "conf" / "broker.conf")

    assert settings == StoreSettings()


def test_the_properties_make_a_store_that_can_be_written(tmp_path: Path) -> None:
    from rmqlog.writer.message_columns import NewMessage
    from rmqlog.writer.store_writer import StoreWriter

    settings = StoreSettings.from_file(ROOT / "conf" / "rmqlog.properties")
    with StoreWriter(tmp_path / "store", settings) as writer:
        writer.put(NewMessage("orders", b"body"))

    assert settings.flushDiskType is FlushDiskType.SYNC_FLUSH
    assert len(Store(str(tmp_path / "store")).queues_of("orders")) == 1


def test_sparks_defaults_name_the_bridge_and_the_catalog() -> None:
    text = (ROOT / "conf" / "spark-defaults.conf").read_text("utf-8")
    settings = dict(
        line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")
    )

    assert settings["spark.jars"].endswith("rmqlog-bridge.jar")
    assert settings["spark.sql.catalog.rmq"] == "org.rmqlog.spark.RmqlogCatalog"
