"""The rule of every test with bad input: a value, or one typed error that says all it knows."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rmqlog.commitlog_format.errors import StoreError

_T = TypeVar("_T")

TESTS_DIRECTORY = Path(__file__).parent
#: A child that takes longer hangs; a busy machine must not fail a test.
HANG_S = 300


def check_error(error: StoreError) -> None:
    """An error has its five parts, in types that travel, and is the same after a journey."""
    assert error.reason
    assert isinstance(error.path, str)
    assert type(error.offset) is int
    for value in (error.found, error.expected):
        assert isinstance(value, str | int | None), f"{type(value)} does not compare by value"
    again = pickle.loads(pickle.dumps(error))
    assert again == error
    assert str(again) == str(error)
    str(error).encode("utf-8", "backslashreplace")


def value_or_error(call: Callable[[], _T]) -> _T | StoreError:
    """What a call gives; whatever is neither a value nor a sound ``StoreError`` fails the test."""
    try:
        return call()
    except StoreError as error:
        check_error(error)
        return error


def run_in_child(code: str, *arguments: object) -> dict[str, Any]:
    """Run Python in a child and return the JSON that it prints; it must not die of a signal.

    The child may use ``growth_limit(size)``: from then on it may take so many bytes more.
    """
    process = child_process(code, *arguments)
    assert process.returncode == 0, f"exit {process.returncode}: {process.stderr[-4000:]}"
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def child_process(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python in a child, as :func:`run_in_child` does, however it ends."""
    return subprocess.run(
        [sys.executable, "-c", _CHILD_PRELUDE + code, *map(str, arguments)],
        capture_output=True, text=True, timeout=HANG_S, check=False, cwd=TESTS_DIRECTORY,
    )


_CHILD_PRELUDE = '''
import json, os, resource, sys
import numpy, pyarrow, pyarrow.compute

def memory(name):
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    raise KeyError(name)

def growth_limit(size):
    limit = memory("VmSize") + size
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

def reset_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
'''
