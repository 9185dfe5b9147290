"""The notebooks run, and what they show is what was committed with them."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

DIRECTORY = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = [
    pytest.param(path, id=path.stem,
                 marks=[pytest.mark.spark] if "rmqlog.session" in path.read_text("utf-8") else [])
    for path in sorted(DIRECTORY.glob("*.ipynb"))
]
_SIZE_MAX = 300 * 1024
#: Places of one machine: outputs must not show them.
_MACHINE_PATH = re.compile(r"/(home|tmp|root|Users|var|work|opt)/")


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    """``notebooks/execute.py``, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("notebook_runner", DIRECTORY / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rmqlog_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line of this interpreter, as an installed package has it."""
    program = tmp_path / "rmqlog"
    program.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "from rmqlog.cli import main; main()" "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_there_are_three_notebooks() -> None:
    assert len(NOTEBOOKS) == 3


@pytest.mark.usefixtures("rmqlog_on_path")
@pytest.mark.parametrize("path", NOTEBOOKS)
def test_a_run_shows_the_text_that_was_committed(path: Path, runner: ModuleType) -> None:
    committed = runner.texts(nbformat.read(path, as_version=4))

    shown = runner.texts(runner.execute(path))

    assert shown == committed, f"renew it: python notebooks/execute.py {path.name}"


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_it_is_committed_with_output_and_pictures(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]

    assert any("image/png" in one.get("data", {}) for one in outputs)
    assert any(one.output_type == "stream" for one in outputs)
    assert not any(one.output_type == "error" for one in outputs)
    assert path.stat().st_size < _SIZE_MAX


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_its_output_names_no_place_of_a_machine(path: Path, runner: ModuleType) -> None:
    shown = "\n".join(runner.texts(nbformat.read(path, as_version=4)))

    assert _MACHINE_PATH.findall(shown) == []
