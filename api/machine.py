"""What Spark needs of this machine: Java, pyspark, the bridge, the interpreter of the workers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rmqlog.session import jar_path

_PYTHON_OLDEST = (3, 10)
_PYTHON_NEWEST = (3, 13)
_JAVA_OLDEST = 17
_SPARK_OLDEST = (4, 1)
_SPARK_NEWEST = (4, 3)
_LIBRARIES = ("lz4", "mmh3", "numpy", "pyarrow", "zlib_ng", "zstandard")
_BRIDGE_CLASS = "org/rmqlog/spark/RmqlogDataSource.class"
#: A Java or a Python that does not answer in this time will not answer a worker either.
_TIMEOUT_S = 60
_JAVA_INSTALL = (
    "install one: 'sudo apt install openjdk-17-jdk-headless' (Debian, Ubuntu), "
    "'sudo dnf install java-21-openjdk-headless' (Fedora) or 'brew install openjdk@17' (macOS)"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: what was found, and how to mend it if it is wrong."""

    name: str
    found: str
    fix: str | None = None

    @property
    def is_fine(self) -> bool:
        """Whether nothing has to be mended."""
        return self.fix is None


def check_machine() -> list[Check]:
    """Everything that a Spark job with rmqlog needs on this machine, in the order of need."""
    checks: list[Callable[[], Check]] = [
        _check_python, _check_libraries, check_java, _check_spark, _check_spark_home,
        _check_discovery, _check_bridge, _check_workers,
    ]
    return [check() for check in checks]


def check_java() -> Check:
    """The Java that Spark will start: that of JAVA_HOME, else the first one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        return Check("Java", "none", f"Spark needs Java {_JAVA_OLDEST} or newer; {_JAVA_INSTALL}")
    try:
        answer = subprocess.run(  # noqa: S603 - the program that Spark itself will start
            [java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        which = f"JAVA_HOME leads to {java}" if home else java
        return Check("Java", f"{which}, which cannot be run",
                     "unset JAVA_HOME, or set it to the directory of a JDK" if home
                     else _JAVA_INSTALL)
    match = re.search(r'version "(?:1\.)?(\d+)([^"]*)"', answer.stderr + answer.stdout)
    major = int(match.group(1)) if match else 0
    found = f"{major}{match.group(2) if match else ''} ({java})"
    if major < _JAVA_OLDEST:
        return Check("Java", found, f"Spark needs Java {_JAVA_OLDEST} or newer; {_JAVA_INSTALL}")
    return Check("Java", found)


def _check_python() -> Check:
    version = sys.version_info[:2]
    found = f"{version[0]}.{version[1]} ({sys.executable})"
    if version < _PYTHON_OLDEST:
        return Check("Python", found, "use Python 3.10 to 3.13")
    if version > _PYTHON_NEWEST:
        found += ", newer than what is tested"
    return Check("Python", found)


def _check_libraries() -> Check:
    found: list[str] = []
    missing: list[str] = []
    for name in _LIBRARIES:
        version = _version(name)
        (missing if version is None else found).append(f"{name} {version or ''}".strip())
    if missing:
        return Check("libraries", f"without {', '.join(missing)}",
                     f"pip install {' '.join(missing)}")
    return Check("libraries", ", ".join(found))


def _check_spark() -> Check:
    version = _version("pyspark")
    wanted = "'pyspark>=4.1,<4.4'"
    if version is None:
        return Check("pyspark", "none", f"pip install {wanted}")
    major_minor = tuple(int(part) for part in version.split(".")[:2])
    if not _SPARK_OLDEST <= major_minor <= _SPARK_NEWEST:
        return Check("pyspark", version, f"pip install {wanted}")
    return Check("pyspark", version)


def _check_spark_home() -> Check:
    """A Spark of another version in SPARK_HOME takes the place of pyspark's own."""
    home = os.environ.get("SPARK_HOME")
    if not home:
        return Check("SPARK_HOME", "not set: pyspark's own Spark is used")
    cores = sorted(Path(home, "jars").glob("spark-core_*.jar"))
    if not cores:
        return Check("SPARK_HOME", f"{home}, where no Spark is", "unset SPARK_HOME")
    version = cores[0].stem.rpartition("-")[2]
    if version != _version("pyspark"):
        return Check("SPARK_HOME", f"Spark {version} in {home}",
                     f"unset SPARK_HOME, or pip install pyspark=={version}")
    return Check("SPARK_HOME", f"Spark {version} in {home}")


def _check_discovery() -> Check:
    """Spark finds sources in top-level modules whose names begin with ``pyspark_``."""
    if importlib.util.find_spec("pyspark_rmqlog") is None:
        return Check("discovery", "pyspark_rmqlog cannot be imported",
                     "install rmqlog into this environment: pip install rmqlog")
    return Check("discovery", "Spark finds format rmqlog by the module pyspark_rmqlog")


def _check_bridge() -> Check:
    jar = jar_path()
    try:
        with zipfile.ZipFile(jar) as archive:
            archive.getinfo(_BRIDGE_CLASS)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        return Check("bridge", f"{jar}: {error}", "install rmqlog again: the jar belongs to it")
    return Check("bridge", jar)


def _check_workers() -> Check:
    """The interpreter of the workers must have rmqlog, and the driver's minor version."""
    worker = os.environ.get("PYSPARK_PYTHON") or sys.executable
    code = (
        "import sys, rmqlog.spark_datasource.reader; print('%d.%d' % sys.version_info[:2])"
    )
    try:
        answer = subprocess.run(  # noqa: S603 - the program that Spark itself will start
            [worker, "-c", code], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return Check("workers", f"PYSPARK_PYTHON is {worker}, which cannot be run",
                     f"export PYSPARK_PYTHON={sys.executable}")
    version = answer.stdout.strip()
    here = "{}.{}".format(*sys.version_info[:2])
    if answer.returncode:
        return Check("workers", f"{worker} cannot import rmqlog",
                     f"{worker} -m pip install rmqlog, or "
                     f"export PYSPARK_PYTHON={sys.executable}")
    if version != here:
        return Check("workers", f"{worker} is Python {version}, the driver {here}",
                     f"export PYSPARK_PYTHON={sys.executable}")
    return Check("workers", f"Python {version} ({worker})")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
