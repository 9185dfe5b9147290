"""Without the bridge's jar every answer is right but nothing is pruned: users are told, once.

Spark asks a Python source in many short-lived processes, so none of them knows by itself whether
another one has said it. They share the folder that Spark makes for the files of an application,
which it removes when the application stops.
"""

from __future__ import annotations

import logging
import os

from pyspark import SparkFiles

_MARKER_FILE = ".rmqlog-missing-bridge"

logger = logging.getLogger(__name__)
#: The folders for which this process has seen the marker; "" where there is no folder.
_told: set[str] = set()


def warn_of_missing_bridge() -> None:
    """Say once in a Spark application that the jar is not there, and how to add it."""
    if _is_first():
        logger.warning(
            "the bridge's jar is not there: filters and columns are not pushed down. "
            "Use rmqlog.session(), or set spark.jars to rmqlog.jar_path()"
        )


def _is_first() -> bool:
    folder = _application_folder()
    if folder in _told:
        return False
    _told.add(folder)
    if not folder:
        return True
    try:
        marker = os.open(f"{folder}/{_MARKER_FILE}", os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    except FileExistsError:
        return False
    except OSError:  # told by each process is better than told by none
        return True
    os.close(marker)
    return True


def _application_folder() -> str:
    """Where Spark keeps the files of the application that this worker belongs to, or ""."""
    if SparkFiles._is_running_on_worker and SparkFiles._root_directory:
        return SparkFiles._root_directory
    return ""
