"""What a newcomer's machine is told, and what setup.cfg, constraints.txt and Makefile promise."""

from __future__ import annotations

import configparser
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
FOLDERS = ("api", "commitlog_format", "spark_datasource", "writer")
PYTHON_VERSIONS = ("3.10", "3.11", "3.12", "3.13")
#: One installer of each family that a message must name a command for.
INSTALLERS = ("sudo apt install ", "sudo dnf install ", "brew install ")


class Machine:
    """A simulated machine: a PATH that holds the named programs and nothing else."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.environment = {"PATH": str(self.bin)}
        for tool in ("dirname", "head", "make", "sed", "sh"):
            found = shutil.which(tool)
            assert found, f"{tool} is needed to simulate a machine"
            (self.bin / tool).symlink_to(found)

    def add(self, name: str, script: str) -> Path:
        """Put a shell script on the machine; a name with slashes is put beside ``bin``."""
        path = self.bin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def add_python(self, name: str, minor: int, *, major: int = 3, has_venv: bool = True) -> None:
        """A Python that takes itself for another version, or lacks ``ensurepip``."""
        pretend = f"import sys; sys.version_info = ({major}, {minor}, 0)"
        if not has_venv:
            pretend += "; sys.modules['ensurepip'] = None"
        self.add(name, f"""exec '{sys.executable}' -c "{pretend}; exec(sys.argv[1])" "$2" """)

    def add_java(self, version: str, name: str = "java") -> Path:
        """A java that reports a version in the words of OpenJDK, on standard error."""
        return self.add(name, f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")

    def check(self, what: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the check script here."""
        return self.run(str(ROOT / "scripts" / "check_machine.sh"), what, **environment)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command here."""
        return subprocess.run(
            command, cwd=ROOT, env=self.environment | environment, capture_output=True, text=True
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine without Python and without Java."""
    return Machine(tmp_path)


def assert_one_helpful_sentence(outcome: subprocess.CompletedProcess[str], *words: str) -> None:
    """It failed with a single line that names the words and a command for each system."""
    assert outcome.returncode == 1
    assert outcome.stdout == ""
    assert outcome.stderr.count("\n") == 1, outcome.stderr
    assert [word for word in (*words, *INSTALLERS) if word not in outcome.stderr] == []


def test_python3_is_used_where_it_is_new_enough(machine: Machine) -> None:
    machine.add_python("python3", 11)
    machine.add_python("python3.13", 13)

    outcome = machine.check("python")

    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "python3\n", "")


def test_the_newest_tested_python_is_used_where_python3_is_too_old(machine: Machine) -> None:
    machine.add_python("python3", 8)
    machine.add_python("python3.10", 10)
    machine.add_python("python3.12", 12)

    assert machine.check("python").stdout == "python3.12\n"


def test_a_python_newer_than_the_tested_ones_is_used_with_a_note(machine: Machine) -> None:
    machine.add_python("python3", 15)

    outcome = machine.check("python")

    assert (outcome.returncode, outcome.stdout) == (0, "python3\n")
    assert "tested with Python 3.10 to 3.13; this is 3.15" in outcome.stderr


def test_the_users_choice_of_python_wins(machine: Machine) -> None:
    machine.add_python("python3", 11)
    machine.add_python("mine", 12)

    assert machine.check("python", PYTHON="mine").stdout == "mine\n"


def test_an_old_python_is_one_sentence(machine: Machine) -> None:
    machine.add_python("python3", 9)

    assert_one_helpful_sentence(machine.check("python"), "Python 3.10 or newer", "is 3.9")


def test_python_2_is_one_sentence(machine: Machine) -> None:
    machine.add_python("old", 7, major=2)

    assert_one_helpful_sentence(machine.check("python", PYTHON="old"), "'old' is 2.7")


def test_no_python_is_one_sentence(machine: Machine) -> None:
    assert_one_helpful_sentence(machine.check("python"), "'python3' cannot be run")


def test_a_chosen_python_that_is_missing_is_one_sentence(machine: Machine) -> None:
    machine.add_python("python3", 11)

    outcome = machine.check("python", PYTHON="python3.99")

    assert_one_helpful_sentence(outcome, "'python3.99' cannot be run")


def test_a_python_without_venv_is_one_sentence_with_its_package(machine: Machine) -> None:
    machine.add_python("python3", 11, has_venv=False)

    assert_one_helpful_sentence(machine.check("python"), "apt install python3.11-venv")


@pytest.mark.parametrize("version", ["17.0.15", "21", "21-ea", "25.0.1"])
def test_a_new_enough_java_is_accepted(machine: Machine, version: str) -> None:
    machine.add_java(version)

    outcome = machine.check("java")

    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "java\n", "")


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", "8"), ("11.0.2", "11"), ("16", "16")])
def test_an_old_java_is_one_sentence(machine: Machine, version: str, major: str) -> None:
    machine.add_java(version)

    assert_one_helpful_sentence(machine.check("java"), "17 or newer", f"is version {major}:")


def test_no_java_is_one_sentence(machine: Machine) -> None:
    assert_one_helpful_sentence(machine.check("java"), "'java' cannot be run")


def test_the_java_of_macos_that_only_asks_for_one_is_no_java(machine: Machine) -> None:
    machine.add("java", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")

    assert_one_helpful_sentence(machine.check("java"), "'java' cannot be run")


def test_java_home_is_what_counts_because_spark_follows_it(machine: Machine) -> None:
    machine.add_java("11.0.2")
    home = machine.add_java("17.0.15", "jdk/bin/java").parent.parent

    outcome = machine.check("java", JAVA_HOME=str(home))

    assert (outcome.returncode, outcome.stdout) == (0, f"{home}/bin/java\n")


def test_a_java_home_that_leads_nowhere_is_one_sentence_that_names_it(machine: Machine) -> None:
    machine.add_java("17.0.15")

    outcome = machine.check("java", JAVA_HOME="/nowhere")

    assert_one_helpful_sentence(outcome, "'/nowhere/bin/java' cannot be run", "JAVA_HOME")


def test_make_stops_with_the_same_sentence(machine: Machine) -> None:
    outcome = machine.run("make", "java")

    assert outcome.returncode != 0
    assert "Spark needs a JDK, 17 or newer" in outcome.stderr


def test_make_help_lists_every_command() -> None:
    shown = subprocess.run(
        # Else make says, when another make called these tests, which directory it enters.
        ["make", "--no-print-directory", "help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )
    listed = {line.split()[1] for line in shown.stdout.splitlines()}

    assert listed == {
        "help", "setup", "demo", "test", "lint", "types", "bench", "crash", "faults",
        "fuzz", "broker",
        "test-matrix", "clean",
    }


def test_make_crash_takes_how_many_times_the_usual_cases_to_run() -> None:
    planned = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "crash", "COUNT=7"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )

    assert planned.stdout.splitlines()[-1].endswith("-m pytest -m crash --crash-count=7")


def test_the_ci_entry_runs_make_test_and_passes_its_exit_code_on(machine: Machine) -> None:
    (machine.bin / "make").unlink()
    machine.add("make", 'echo "make $*"; exit 7')

    bash = shutil.which("bash")
    assert bash
    outcome = machine.run(bash, str(ROOT / ".ci" / "run"))

    assert (outcome.returncode, outcome.stdout) == (7, "make test\n")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_each_corner_of_the_matrix_starts_spark_workers_with_its_own_python(
    machine: Machine, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    (project / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "test_matrix.sh", project / "scripts")
    shutil.copy(ROOT / "constraints.txt", project)
    for tool in ("cat", "chmod", "cp", "mkdir", "rm"):
        (machine.bin / tool).symlink_to(str(shutil.which(tool)))
    machine.add("../project/scripts/check_machine.sh", "exit 0")
    program = machine.add("program", 'case $* in *pytest*) echo "tested by $PYSPARK_PYTHON";; esac')
    for name in ("python3.10", "python3.13"):
        # Called as: -m venv --clear FOLDER
        machine.add(name, f"mkdir -p $4/bin; cp {program} $4/bin/python; cp {program} $4/bin/pip")

    outcome = machine.run(
        str(project / "scripts" / "test_matrix.sh"), PYSPARK_PYTHON="/of/another/python"
    )

    assert outcome.returncode == 0, outcome.stderr
    corners = [f"{name}-spark{spark}" for name in ("python3.10", "python3.13")
               for spark in ("4.1", "newest")]
    assert [line for line in outcome.stdout.splitlines() if line.startswith("tested by")] == [
        f"tested by {project}/.venv-matrix/{corner}/bin/python" for corner in corners
    ]


@pytest.fixture(scope="module")
def setup_cfg() -> configparser.ConfigParser:
    """The parsed setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", "utf-8")
    return parser


def requirements(lines: str) -> list[Requirement]:
    """The requirements of a file or a setting, one a line, without comments."""
    return [Requirement(line) for line in lines.splitlines() if line and not line.startswith("#")]


def all_requirements(setup_cfg: configparser.ConfigParser) -> list[Requirement]:
    """What rmqlog and its extras ask for."""
    extras = setup_cfg["options.extras_require"].values()
    return requirements("\n".join([setup_cfg["options"]["install_requires"], *extras]))


@pytest.fixture(scope="module")
def pins() -> Callable[[str], dict[str, Requirement]]:
    """A function from a Python version to what constraints.txt pins there."""
    constraints = requirements((ROOT / "constraints.txt").read_text("utf-8"))

    def of(version: str) -> dict[str, Requirement]:
        return {
            pin.name: pin
            for pin in constraints
            if pin.marker is None or pin.marker.evaluate({"python_version": version})
        }

    return of


@pytest.mark.parametrize("version", PYTHON_VERSIONS)
def test_every_requirement_is_pinned_to_one_allowed_version(
    setup_cfg: configparser.ConfigParser,
    pins: Callable[[str], dict[str, Requirement]],
    version: str,
) -> None:
    pinned = pins(version)

    for wanted in all_requirements(setup_cfg):
        (pin,) = pinned[wanted.name].specifier
        assert pin.operator == "=="
        assert wanted.specifier.contains(pin.version), f"{wanted} is pinned to {pin}"


def test_pandas_is_not_needed(setup_cfg: configparser.ConfigParser) -> None:
    assert "pandas" not in {wanted.name for wanted in all_requirements(setup_cfg)}
    assert "pandas" not in (ROOT / "constraints.txt").read_text("utf-8")


def test_setup_cfg_lists_every_package(setup_cfg: configparser.ConfigParser) -> None:
    found = {
        ".".join(init.parent.relative_to(ROOT).parts)
        for folder in FOLDERS
        for init in (ROOT / folder).rglob("__init__.py")
    }
    # api is rmqlog itself, the other folders are below it.
    expected = {f"rmqlog.{name}".replace("rmqlog.api", "rmqlog", 1) for name in found}

    assert set(setup_cfg["options"]["packages"].split()) == expected


def test_every_folder_with_python_files_is_a_package() -> None:
    folders = {path.parent for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    # The bridge's folder holds what builds its jar; only the jar is installed.
    folders.discard(ROOT / "spark_datasource" / "bridge")

    assert [str(path) for path in sorted(folders) if not (path / "__init__.py").exists()] == []


def test_the_command_line_is_installed_as_soon_as_it_exists(
    setup_cfg: configparser.ConfigParser,
) -> None:
    scripts = setup_cfg.get("options.entry_points", "console_scripts", fallback="").split("\n")
    declared = dict(script.split(" = ") for script in scripts if script)
    has_command_line = any((ROOT / "api").glob("cli.py")) or any((ROOT / "api").glob("cli/*.py"))

    assert set(declared) == ({"rmqlog"} if has_command_line else set())
    for target in declared.values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_sparks_discovery_module_is_installed_as_soon_as_it_exists(
    setup_cfg: configparser.ConfigParser,
) -> None:
    listed = setup_cfg["options"].get("py_modules", "").split()

    assert listed == (["pyspark_rmqlog"] if (ROOT / "pyspark_rmqlog.py").exists() else [])


def test_the_packages_ship_their_annotations() -> None:
    assert (ROOT / "api" / "py.typed").exists()
