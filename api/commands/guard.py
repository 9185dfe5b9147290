"""What every command does about errors: one sentence, a documented exit code, no stack trace."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import ParamSpec, TypeVar

import typer

from rmqlog.commitlog_format.errors import StoreError

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Set to anything, it shows the stack trace of an error that nobody foresaw.
DEBUG_VARIABLE = "RMQLOG_DEBUG"


class ExitCode(IntEnum):
    """What a command's exit code means; docs/command-line.md has the same table."""

    FINE = 0
    FINDINGS = 1
    USAGE = 2
    STORE = 3
    MACHINE = 4
    INTERNAL = 70
    INTERRUPTED = 130


class UsageError(Exception):
    """Raised when arguments cannot be meant so."""


class MachineError(Exception):
    """Raised when this machine lacks what a command needs, such as Java; says how to get it."""


def guarded(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A command whose errors end in one sentence on stderr."""

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            result = function(*args, **kwargs)
            sys.stdout.flush()  # a reader that went away is noticed here, not at exit
        except StoreError as error:
            raise _fail(str(error), ExitCode.STORE) from None
        except UsageError as error:
            raise _fail(str(error), ExitCode.USAGE) from None
        except MachineError as error:
            raise _fail(str(error), ExitCode.MACHINE) from None
        except BrokenPipeError:
            _forget_output()
            raise typer.Exit(ExitCode.FINE) from None
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except OSError as error:
            raise _fail(_describe(error), ExitCode.STORE) from None
        except typer.Exit:
            raise
        except Exception as error:
            if os.environ.get(DEBUG_VARIABLE):
                raise
            raise _fail(
                f"internal error, {type(error).__name__}: {_first_line(error)}; please report it "
                f"({DEBUG_VARIABLE}=1 shows where)", ExitCode.INTERNAL,
            ) from None
        return result

    return run


def findings() -> typer.Exit:
    """What a command raises when its answer is bad news: damage, or nothing found."""
    return typer.Exit(ExitCode.FINDINGS)


def _fail(sentence: str, code: ExitCode) -> typer.Exit:
    line = " ".join(sentence.split())
    typer.echo(f"rmqlog: {line}", err=True)
    return typer.Exit(code)


def _first_line(error: Exception) -> str:
    """The start of a message: errors of Java bring their whole stack."""
    return str(error).strip().split("\n")[0][:200]


def _describe(error: OSError) -> str:
    name = f"{error.filename}: " if error.filename else ""
    return f"{name}{error.strerror or error}"


def _forget_output() -> None:
    """Let nothing more be written: whoever read our output, such as ``head``, has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
