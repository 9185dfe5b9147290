"""Compiles the bridge into ``rmqlog-bridge.jar``, or checks that the jar is what compiles.

Same sources and same JDK give the same bytes: entries are sorted, not compressed (compressed
bytes depend on the zlib at hand) and carry no time.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

BRIDGE = Path(__file__).resolve().parent
JAVA_SOURCES = BRIDGE / "java"
JAR = BRIDGE / "rmqlog-bridge.jar"

# The oldest Java that Spark 4 runs on.
JAVA_RELEASE = "17"
NO_TIME = (1980, 1, 1, 0, 0, 0)
MANIFEST = "META-INF/MANIFEST.MF"
JDK_LINE = "Build-Jdk-Spec: "


def spark_jars() -> Path:
    """The folder of the installed pyspark's jars."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SystemExit("pyspark is not installed: the bridge is compiled against its jars")
    return Path(spec.origin).parent / "jars"


def jdk_version() -> str:
    """The major version of the javac on the path."""
    javac = _tool("javac")
    text = _run([javac, "-version"])
    found = re.match(r"javac (\d+)", text)
    if found is None:
        raise SystemExit(f"cannot tell the version of {javac} from {text!r}")
    return found[1]


def jdk_of_jar(jar: Path = JAR) -> str:
    """The major version of the javac that compiled a jar made by this script."""
    with zipfile.ZipFile(jar) as archive:
        lines = archive.read(MANIFEST).decode().splitlines()
    return next(line.removeprefix(JDK_LINE) for line in lines if line.startswith(JDK_LINE))


def build(jars: Path) -> bytes:
    """The bytes of the jar, compiled against Spark's ``jars``."""
    entries = {MANIFEST: f"Manifest-Version: 1.0\r\n{JDK_LINE}{jdk_version()}\r\n\r\n".encode()}
    services = JAVA_SOURCES / "META-INF" / "services"
    with tempfile.TemporaryDirectory() as folder:
        classes = Path(folder)
        _compile(jars, classes)
        found = ((classes, classes.rglob("*.class")), (JAVA_SOURCES, services.iterdir()))
        for root, files in found:
            entries |= {file.relative_to(root).as_posix(): file.read_bytes() for file in files}
    return _archive(entries)


def differences(expected: bytes, found: bytes) -> list[str]:
    """The names of the entries in which two jars differ."""
    first, second = (zipfile.ZipFile(io.BytesIO(content)) for content in (expected, found))
    names = sorted({*first.namelist(), *second.namelist()})
    return [name for name in names if _entry(first, name) != _entry(second, name)]


def _compile(jars: Path, target: Path) -> None:
    sources = sorted(str(file) for file in JAVA_SOURCES.rglob("*.java"))
    # Warnings are errors, except what javac finds in Spark's own jars and the deprecation of
    # Table.schema(), which is the only way to hand over a schema with its metadata on Spark 4.1.
    lint = "-Xlint:all,-path,-classfile,-processing,-deprecation"
    command = [_tool("javac"), "--release", JAVA_RELEASE, lint, "-Werror", "-encoding", "UTF-8"]
    _run([*command, "-cp", f"{jars}/*", "-d", str(target), *sources])


def _run(command: list[str]) -> str:
    """What a tool of the JDK prints; what it complains about goes to standard error."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - only javac, with our own arguments
    return done.stdout


def _archive(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        # The manifest has to be the first entry.
        for name in sorted(entries, key=lambda name: (name != MANIFEST, name)):
            info = zipfile.ZipInfo(name, NO_TIME)
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, entries[name])
    return buffer.getvalue()


def _entry(archive: zipfile.ZipFile, name: str) -> bytes | None:
    return archive.read(name) if name in archive.namelist() else None


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SystemExit(f"{name} is not on the path: building the bridge needs a JDK")
    return path


def main() -> int:
    """Builds the jar, or with ``--check`` says whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare with the jar, change nothing")
    if not parser.parse_args().check:
        # Replaced as a whole: a running Spark keeps reading the jar that it opened.
        fresh = JAR.with_suffix(".new")
        fresh.write_bytes(build(spark_jars()))
        fresh.replace(JAR)
        return 0
    changed = differences(build(spark_jars()), JAR.read_bytes())
    for name in changed:
        sys.stderr.write(f"{JAR.name} is not what the sources compile to: {name}\n")
    return 1 if changed else 0


if __name__ == "__main__":
    raise SystemExit(main())
