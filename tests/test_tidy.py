"""The project keeps its own house rules, and each rule is able to fail."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import tidy_rules as rules
from tidy_rules import SourceFile, Violations

ROOT = Path(__file__).parent.parent
PACKAGES = ("api", "commitlog_format", "spark_datasource", "writer")
OPTIONS_FILE = "spark_datasource/options.py"
STORE_PACKAGES = ("commitlog_format", "spark_datasource", "writer")

#: Each rule, the folders that it holds for, and examples that it must catch: (path, source).
RULES: list[tuple[Callable[[SourceFile], Violations], tuple[str, ...], list[tuple[str, str]]]] = [
    (
        rules.imports_point_down,
        PACKAGES,
        [
            ("commitlog_format/x.py", "import pyspark.sql"),
            ("commitlog_format/x.py", "import time"),
            ("commitlog_format/x.py", "from rmqlog.writer import posix"),
            ("commitlog_format/x.py", "from rmqlog import writer"),
            ("commitlog_format/x.py", "from ..writer.posix import Posix"),
            ("commitlog_format/x.py", "from .. import open_store"),
            ("writer/x.py", "def f():\n    from pyspark import TaskContext"),
            ("writer/x.py", "import rmqlog.spark_datasource.options"),
            ("writer/x.py", "from commitlog_format import layout"),
            ("spark_datasource/x.py", "import rmqlog"),
            ("spark_datasource/x.py", "from rmqlog.cli import main"),
        ],
    ),
    (
        rules.runs_nothing_it_reads,
        STORE_PACKAGES,
        [
            ("writer/x.py", "import pickle"),
            ("writer/x.py", "from pickle import loads"),
            ("spark_datasource/x.py", "from pyspark import cloudpickle"),
            ("writer/x.py", "eval('1')"),
            ("writer/x.py", "def f():\n    exec('1')"),
            ("writer/x.py", "yaml.load(text)"),
            ("writer/x.py", "np.load(path, allow_pickle=True)"),
        ],
    ),
    (
        rules.does_without_pandas,
        PACKAGES,
        [
            ("api/x.py", "import pandas as pd"),
            ("writer/x.py", "np.iinfo(kind.to_pandas_dtype())"),
            ("spark_datasource/x.py", "table.to_pandas()"),
        ],
    ),
    (
        rules.maps_memory_in_one_file,
        PACKAGES,
        [
            ("commitlog_format/segment.py", "import mmap"),
            ("writer/appender.py", "from mmap import mmap"),
            ("spark_datasource/x.py", "np.memmap(path)"),
            ("spark_datasource/x.py", "pa.memory_map(path)"),
        ],
    ),
    (
        rules.reads_windows_intact,
        PACKAGES,
        [
            ("writer/x.py", "total = run.window.data.sum()"),
            ("writer/x.py", "with other(window.data):\n    total = window.data.sum()"),
            ("writer/x.py", "with intact(window.data):\n    pass\nfound = window.data[0]"),
            ("commitlog_format/x.py", "def f(file):\n    return file.window(0, 10).sum()"),
            ("commitlog_format/x.py", "def f(log):\n    return log.files.window(0, 9).data.sum()"),
        ],
    ),
    (
        rules.declares_no_layout,
        PACKAGES,
        [
            ("writer/x.py", "import struct"),
            ("writer/x.py", "np.dtype('>i8')"),
            ("api/x.py", "UNIT = np.dtype([('offset', '>i8'), ('size', '>i4')])"),
            ("writer/posix.py", "HEADER = struct.Struct('>iIq')"),
            ("writer/x.py", f"if magic == {max(rules.MAGIC_NUMBERS)}: pass"),
        ],
    ),
    (
        rules.makes_durable_calls_in_one_file,
        STORE_PACKAGES,
        [
            ("writer/commit.py", "os.fsync(descriptor)"),
            ("writer/commit.py", "os.rename(a, b)"),
            ("writer/commit.py", "os.pwrite(descriptor, data, 0)"),
            ("writer/commit.py", "from os import replace"),
            ("writer/commit.py", "shutil.rmtree(path)"),
            ("writer/commit.py", "from shutil import move"),
            ("spark_datasource/sink.py", "Path(p).write_text('x')"),
            ("spark_datasource/sink.py", "open(p, 'ab')"),
            ("commitlog_format/x.py", "open(p, mode='r+b')"),
        ],
    ),
    (
        rules.is_small,
        (*PACKAGES, "benchmarks"),
        [
            ("api/x.py", "\n" * 501),
            ("api/x.py", "def f():\n" + "    pass\n" * 70),
        ],
    ),
    (
        rules.documents_public_names,
        (*PACKAGES, "benchmarks"),
        [
            ("api/x.py", "VALUE = 1"),
            ("api/x.py", "'''Module.'''\ndef f():\n    pass"),
            ("api/x.py", "'''Module.'''\nclass A:\n    pass"),
            ("api/x.py", "'''Module.'''\nclass A:\n    '''A.'''\n    def f(self):\n        pass"),
        ],
    ),
]

#: What no rule may refuse.
INNOCENT = SourceFile(
    "writer/x.py",
    '''"""A module."""
import os
import shutil
from rmqlog.commitlog_format import layout
from rmqlog.writer.posix import Posix

class Commit:
    """A commit."""

    def __reduce__(self):
        return (Commit, ())

    def publish(self, posix: Posix, text: str) -> str:
        """Rename through the seam."""
        posix.rename("a", "b")
        shutil.disk_usage(os.path.join("a", "b"))
        with open("a", "rb") as file:
            file.read()
        return text.replace(">", "> i")
''',
)


def source_files(folders: Iterable[str]) -> Iterator[SourceFile]:
    """Every Python file below the folders, ours alone."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield SourceFile(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Path and content of every text file that is under version control."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        content = path.read_bytes() if path.is_file() else b""
        if b"\0" not in content[:8192]:
            yield name, content.decode("utf-8", "replace")


def listing(path: str, violations: Iterable[tuple[int, str]]) -> list[str]:
    """One line for each violation, in the form that editors can jump to."""
    return [f"{path}:{line}: {message}" for line, message in violations]


def fail_on(violations: list[str]) -> None:
    """Fail with the whole list, one violation a line."""
    if violations:
        pytest.fail(f"{len(violations)} violations\n" + "\n".join(violations), pytrace=False)


@pytest.mark.parametrize(
    ("rule", "folders"), [(rule, where) for rule, where, _ in RULES], ids=lambda x: _name(x)
)
def test_every_file_of_the_packages_keeps_the_rule(
    rule: Callable[[SourceFile], Violations], folders: tuple[str, ...]
) -> None:
    found: list[str] = []
    for file in source_files(folders):
        found += listing(file.path, rule(file))

    fail_on(found)


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [(rule, path, text) for rule, _, examples in RULES for path, text in examples],
    ids=lambda x: _name(x),
)
def test_the_rule_catches_a_planted_violation(
    rule: Callable[[SourceFile], Violations], path: str, text: str
) -> None:
    assert list(rule(SourceFile(path, text)))


@pytest.mark.parametrize("rule", [rule for rule, _, _ in RULES], ids=lambda x: _name(x))
def test_the_rule_lets_innocent_code_pass(rule: Callable[[SourceFile], Violations]) -> None:
    assert not list(rule(INNOCENT))


def _name(value: object) -> str:
    """A short test id."""
    return getattr(value, "__name__", "") or str(value)[:40].replace("\n", " ").strip() or "blank"


def test_every_package_has_files_to_check() -> None:
    assert {file.package for file in source_files(PACKAGES)} == set(PACKAGES)


def test_no_folder_at_the_root_shadows_the_package() -> None:
    assert not (ROOT / "rmqlog").exists()


def test_no_tracked_file_names_a_machine_or_a_package_index() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so nothing says which files are the project's")
    found: list[str] = []
    for path, text in tracked_texts():
        found += listing(path, rules.names_no_machine(text))

    fail_on(found)


@pytest.mark.parametrize(
    "text",
    [
        "see /" + "home/alice/store",
        "cd /" + "tmp/x",
        "path = '/" + "root/store'",
        "'C:" + "\\Users\\alice'",
        "pip install --index" + "-url=x",
        "files.python" + "hosted.org",
    ],
)
def test_a_planted_machine_name_is_caught(text: str) -> None:
    assert list(rules.names_no_machine(text))


@pytest.mark.parametrize("text", ["/data/store", "${HOME}/store", "home/store", "/usr/bin/env"])
def test_a_general_path_is_not_a_machine_name(text: str) -> None:
    assert not list(rules.names_no_machine(text))


def test_every_option_of_the_source_is_in_the_readme() -> None:
    path = ROOT / OPTIONS_FILE
    if not path.exists():
        pytest.skip("there is no options.py yet")
    names = rules.option_names(SourceFile(OPTIONS_FILE, path.read_text("utf-8")))
    readme = (ROOT / "README.md").read_text("utf-8")

    assert names, "options.py declares no option that option_names() understands"
    missing = sorted(name for name in names if f"`{name}`" not in readme)
    fail_on([f"README.md: option `{name}` is missing" for name in missing])


def test_options_are_found_in_calls_and_in_dictionaries() -> None:
    source = "A = Option('topic', None)\nREAD_OPTIONS: dict = {'mode': 1}\nOTHER = {'x': 1}"

    assert rules.option_names(SourceFile(OPTIONS_FILE, source)) == {"topic", "mode"}
