"""The committed jar is what its sources compile to, and fits the installed Spark."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

BRIDGE = Path(__file__).resolve().parents[3] / "spark_datasource" / "bridge"

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """The build script: it lies beside the Java sources, in no package."""
    spec = importlib.util.spec_from_file_location("bridge_build", BRIDGE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(jar: bytes) -> list[zipfile.ZipInfo]:
    with zipfile.ZipFile(io.BytesIO(jar)) as archive:
        return archive.infolist()


def test_the_committed_jar_is_what_the_sources_compile_to(build: ModuleType) -> None:
    compiled = build.build(build.spark_jars())
    committed = build.JAR.read_bytes()

    if build.jdk_of_jar() == build.jdk_version():
        assert build.differences(compiled, committed) == []
        assert compiled == committed
    else:
        # Another compiler writes other bytes, but never other classes.
        names = [[entry.filename for entry in entries(jar)] for jar in (compiled, committed)]
        assert names[0] == names[1]


def test_a_changed_class_is_found(build: ModuleType, tmp_path: Path) -> None:
    committed = build.JAR.read_bytes()
    changed = tmp_path / "changed.jar"
    changed.write_bytes(committed)
    with zipfile.ZipFile(changed, "a") as archive:
        archive.writestr("org/rmqlog/spark/Extra.class", b"")

    assert build.differences(committed, changed.read_bytes()) == ["org/rmqlog/spark/Extra.class"]


def test_the_jar_holds_nothing_that_depends_on_the_time_or_the_machine(build: ModuleType) -> None:
    found = entries(build.JAR.read_bytes())

    names = [entry.filename for entry in found]
    assert names == ["META-INF/MANIFEST.MF", *sorted(names[1:])]
    assert {entry.date_time for entry in found} == {(1980, 1, 1, 0, 0, 0)}
    assert {entry.compress_type for entry in found} == {zipfile.ZIP_STORED}


def test_the_jar_registers_the_source(build: ModuleType) -> None:
    with zipfile.ZipFile(build.JAR) as archive:
        service = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
        name = archive.read(service).decode().strip()
        assert name.replace(".", "/") + ".class" in archive.namelist()


def test_every_class_that_the_jar_uses_is_in_the_installed_spark(build: ModuleType) -> None:
    command = ["jdeps", "--multi-release", "base", "--missing-deps", "-cp"]
    jars = f"{build.spark_jars()}/*"

    done = subprocess.run([*command, jars, str(build.JAR)], capture_output=True, text=True)

    # It also warns of packages that several of Spark's own jars share.
    missing = [line for line in done.stdout.splitlines() if not line.startswith("Warning:")]
    assert (done.returncode, missing, done.stderr) == (0, [], "")
