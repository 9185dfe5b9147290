"""A Spark session for a command: quiet, and with one sentence when it cannot start."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rmqlog.commands.guard import MachineError
from rmqlog.machine import check_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}


def require_java() -> None:
    """Raise unless there is a Java that Spark can use."""
    java = check_java()
    if not java.is_fine:
        raise MachineError(f"{java.fix} (found: {java.found})")


@contextmanager
def spark_session(
    path: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session whose catalog has the store's topics as tables; it is stopped at the end.

    What Java says on stderr while it starts is kept from the user unless it does not start.
    """
    from pyspark.errors import PySparkException

    from rmqlog.session import session

    require_java()
    # It would log, as JSON, what the exception says too.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    try:
        with _silenced_java() as said:
            spark = session(path, settings={**_SETTINGS, **(settings or {})})
    except PySparkException as error:
        raise MachineError(
            f"Spark does not start: {_last_line(said()) or error}; 'rmqlog doctor' may know why"
        ) from error
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _silenced_java() -> Iterator[Callable[[], str]]:
    """Let a Java that is started now write its stderr into a file that vanishes.

    Yields a function that tells what it wrote so far.
    """
    sys.stderr.flush()
    own = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)

        def said() -> str:
            size = os.fstat(sink.fileno()).st_size
            return os.pread(sink.fileno(), size, 0).decode("utf-8", "replace")

        try:
            yield said
        finally:
            os.dup2(own, 2)
            os.close(own)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
