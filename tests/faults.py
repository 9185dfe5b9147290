"""Faults at the seam: a Posix that fails, tears or kills at one numbered call, and processes
that die of it.

The counting loop: a run is repeated with the fault one call later, until a run passes without
the fault having fired. So there is no list of fault points to keep, and it grows with the code.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rmqlog.writer.posix import Action, Call, Posix

#: Opening a file that exists changes nothing, so killing there repeats the case before it.
_HARMLESS_CALLS = frozenset({"open"})
SYNC_CALLS = frozenset({"sync", "fsync", "fdatasync", "fsync_directory"})


class Kind(Enum):
    """What happens at the chosen call."""

    KILL_BEFORE = "kill before"
    KILL_DURING = "kill during"
    KILL_AFTER = "kill after"
    ERROR = "error"
    SHORT = "short write"


KILLS = (Kind.KILL_BEFORE, Kind.KILL_DURING, Kind.KILL_AFTER)


@dataclass(frozen=True)
class Plan:
    """A fault at the ``number``-th call (from 1), once or from then on.

    ``only`` restricts which calls are counted (by name); none means all that change something.
    """

    kind: Kind
    number: int
    error: int = errno.EIO
    lasting: bool = False
    only: frozenset[str] = frozenset()

    def __str__(self) -> str:
        name = errno.errorcode[self.error] if self.kind is Kind.ERROR else self.kind.value
        return f"{name} at call {self.number}{' and later' if self.lasting else ''}"

    def counts(self, call: Call) -> bool:
        """Whether a call is one of those that are numbered."""
        if self.only:
            return call.name in self.only
        return self.kind in (Kind.ERROR, Kind.SHORT) or call.name not in _HARMLESS_CALLS


NO_FAULT = Plan(Kind.ERROR, 0)


class FaultyPosix(Posix):
    """Posix that counts its calls and misbehaves at one of them."""

    def __init__(self, plan: Plan = NO_FAULT) -> None:
        super().__init__()
        self.plan = plan
        self.count = 0
        self.fired = False
        #: Name and path of every call, in order.
        self.calls: list[tuple[str, str]] = []
        self._counting = threading.Lock()

    def count_of(self, *names: str) -> int:
        """How many calls had one of these names."""
        return sum(name in names for name, _ in self.calls)

    def _perform(self, call: Call, action: Action) -> int | None:
        if not self._fires(call):
            return action(call.size)
        kind = self.plan.kind
        if kind is Kind.ERROR:
            raise OSError(self.plan.error, os.strerror(self.plan.error))
        if kind is Kind.SHORT:
            return action(max(call.size // 2, 1))
        if kind is Kind.KILL_DURING:
            action(call.size // 2)
        elif kind is Kind.KILL_AFTER:
            action(call.size)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a killed process goes on")

    def _fires(self, call: Call) -> bool:
        with self._counting:
            self.calls.append((call.name, call.path))
            if not self.plan.counts(call):
                return False
            self.count += 1
            hit = self.count == self.plan.number
            hit = hit or (self.plan.lasting and 0 < self.plan.number < self.count)
            self.fired = self.fired or hit
            return hit


@dataclass
class Outcome:
    """What a run in a process of its own left: how it ended and what it had acknowledged."""

    plan: Plan
    was_killed: bool
    fired: bool
    notes: list[Any] = field(default_factory=list)
    error: str = ""


class Ledger:
    """Notes that a process sends while it runs; a killed one cannot take them back."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def note(self, value: Any) -> None:
        """Send one value (JSON), in one write, so that it is there whole or not at all."""
        os.write(self._descriptor, json.dumps(value).encode() + b"\n")


Run = Callable[[FaultyPosix, Ledger], None]


def run_in_fork(run: Run, plan: Plan) -> Outcome:
    """Run in a child process with a fault; an exception there is part of the outcome."""
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        os.close(reader)
        _run_as_child(run, plan, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as source:
        notes = [json.loads(line) for line in source]
    _, status = os.waitpid(child, 0)
    was_killed = os.WIFSIGNALED(status)
    assert not was_killed or os.WTERMSIG(status) == signal.SIGKILL, os.WTERMSIG(status)
    last = {} if was_killed else notes.pop()
    return Outcome(
        plan, was_killed, was_killed or last["fired"], notes, last.get("error", "")
    )


def _run_as_child(run: Run, plan: Plan, descriptor: int) -> None:
    """Run, say how it went, and leave without any of the parent's clean-up."""
    try:
        posix, error = FaultyPosix(plan), ""
        try:
            run(posix, Ledger(descriptor))
        except BaseException:
            error = traceback.format_exc()
        Ledger(descriptor).note({"fired": posix.fired, "error": error})
    finally:  # whatever happens, the parent's test must not go on here
        os._exit(0)


def fork() -> int:
    """``os.fork``; newer Pythons warn of threads, of which a test process has none that matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def each_fault(
    run: Run, plans: Callable[[int], Plan], first: int = 1, step: int = 1
) -> Iterator[Outcome]:
    """Run again and again with the fault one call later, until it no longer fires."""
    for number in itertools.count(first, step):
        outcome = run_in_fork(run, plans(number))
        if not outcome.fired:
            assert not outcome.error, outcome.error
            return
        yield outcome


def in_two_processes(work: Callable[[int, int], int]) -> int:
    """Share work between two processes: ``work(index, 2)`` in each; the sum of what they return.

    A failure of either is raised here with its traceback.
    """
    workers = []
    for index in range(2):
        reader, writer = os.pipe()
        child = fork()
        if child == 0:
            os.close(reader)
            _work_as_child(work, index, writer)
        os.close(writer)
        workers.append((child, reader))
    results = []
    for child, reader in workers:
        with os.fdopen(reader, "rb") as source:
            results.append(source.read().decode())
        os.waitpid(child, 0)
    failures = [text for text in results if not text.isdigit()]
    assert not failures, "\n".join(failures)
    return sum(map(int, results))


def _work_as_child(work: Callable[[int, int], int], index: int, descriptor: int) -> None:
    try:
        try:
            result = str(work(index, 2))
        except BaseException:
            result = traceback.format_exc()
        with os.fdopen(descriptor, "wb") as target:
            target.write(result.encode())
    finally:
        os._exit(0)
