"""RocketMQ's own classes from Maven Central, and our Java driver compiled against them.

``prepare(line)`` resolves the class path with Maven and compiles ``java/`` with javac, once: both
are kept under ``$XDG_CACHE_HOME/rmqlog`` and made anew when the project file or a source changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

JAVA_SOURCES = Path(__file__).parent / "java"
DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
MAVEN_LIMIT_SECONDS = 540
JAVAC_LIMIT_SECONDS = 120

# The old stores of both lines release their mappings through internals of the JDK.
JVM_OPTIONS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "-XX:+UseSerialGC",
)
# Servers and drivers that answer a few questions start in half the time without the optimiser.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class JavaUnavailableError(Exception):
    """No JDK, no Maven, or no way to Maven Central: nothing can be asked on this machine."""


@dataclass(frozen=True)
class Line:
    """One release line of RocketMQ and the folder with the Java that only it needs."""

    version: str
    source_folder: str


LINE_5 = Line("5.5.0", "line5")
LINE_4 = Line("4.9.5", "line4")


@dataclass(frozen=True)
class Toolchain:
    """What it takes to run RocketMQ's classes of one line and our driver beside them."""

    line: Line
    class_path: str

    def command(self, main_class: str, *options: str) -> list[str]:
        """The start of a command line that runs ``main_class``; append its arguments."""
        logging = f"-Dlogback.configurationFile={JAVA_SOURCES / 'logback.xml'}"
        return ["java", *JVM_OPTIONS, logging, *options, "-cp", self.class_path, main_class]


def prepare(line: Line) -> Toolchain:
    """Class path and compiled driver of a line; ``JavaUnavailableError`` says what is missing."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            raise JavaUnavailableError(f"{program} is not on PATH")
    libraries = _resolve(line)
    classes = _compile(line, libraries)
    return Toolchain(line, f"{classes}{os.pathsep}{libraries}")


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base) / "rmqlog" / "java"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _resolve(line: Line) -> str:
    project = JAVA_SOURCES / "pom.xml"
    name = f"{line.version}-{_digest([project])}.classpath"
    cached = _cache_directory() / name
    if cached.exists() and all(map(os.path.exists, cached.read_text().split(os.pathsep))):
        return cached.read_text()
    with tempfile.TemporaryDirectory(dir=_cache_directory()) as scratch:
        target = Path(scratch) / name
        command = [
            *("mvn", "--batch-mode", "--quiet", "--file", str(project)),
            f"-Drocketmq.version={line.version}",
            f"-Dmdep.outputFile={target}",
            f"{DEPENDENCY_PLUGIN}:build-classpath",
        ]
        try:
            maven = subprocess.run(
                command, capture_output=True, text=True, timeout=MAVEN_LIMIT_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise JavaUnavailableError(f"Maven gave no answer in {error.timeout} s") from error
        if maven.returncode != 0 or not target.exists():
            said = next((row for row in maven.stdout.splitlines() if "ERROR" in row), maven.stderr)
            raise JavaUnavailableError(f"Maven cannot resolve RocketMQ {line.version}: {said}")
        target.replace(cached)
    return cached.read_text()


def _compile(line: Line, libraries: str) -> Path:
    folders = (JAVA_SOURCES / "common", JAVA_SOURCES / line.source_folder)
    sources = sorted(path for folder in folders for path in folder.rglob("*.java"))
    classes = _cache_directory() / f"{line.version}-{_digest(sources)}.classes"
    if classes.exists():
        return classes
    with tempfile.TemporaryDirectory(dir=_cache_directory()) as scratch:
        made = Path(scratch) / "classes"
        command = ["javac", "-nowarn", "-encoding", "UTF-8", "-d", str(made), "-cp", libraries]
        javac = subprocess.run(
            [*command, *map(str, sources)],
            capture_output=True,
            text=True,
            timeout=JAVAC_LIMIT_SECONDS,
        )
        if javac.returncode != 0:
            raise RuntimeError(f"javac refused the driver for {line.version}:\n{javac.stderr}")
        try:
            made.rename(classes)
        except OSError:
            # Another run compiled the same sources meanwhile; any other reason is an error.
            if not classes.exists():
                raise
    return classes


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
