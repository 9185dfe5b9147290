"""Several writers want one store: exactly one gets it, the others change nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from crash.case_counts import CaseCounts
from crash.oracle import check_store, tree_digest
from crash.workloads import Message, open_writer, to_arrow
from faults import fork

from rmqlog.commitlog_format.errors import StoreLockedError
from rmqlog.writer.posix import Posix

pytestmark = pytest.mark.crash

ROUNDS = 100


def race(path: Path, racers: int, message: Message) -> list[str]:
    """Let processes open a store at the same moment; what each of them reports.

    The winner keeps the store until every loser has been refused.
    """
    start_reader, start_writer = os.pipe()
    refused_reader, refused_writer = os.pipe()
    result_reader, result_writer = os.pipe()
    children = []
    for _ in range(racers):
        child = fork()
        if child == 0:
            os.close(start_writer)
            os.read(start_reader, 1)  # returns for all of them when the parent closes its end
            try:
                writer = open_writer(str(path), Posix())
            except StoreLockedError:
                os.write(refused_writer, b"x")
                os.write(result_writer, b"refused\n")
                os._exit(0)
            except BaseException as error:
                os.write(result_writer, f"{error!r}\n".encode())
                os._exit(0)
            for _ in range(racers - 1):
                os.read(refused_reader, 1)
            writer.append(to_arrow([message]))
            writer.close()
            os.write(result_writer, b"won\n")
            os._exit(0)
        children.append(child)
    for descriptor in (start_reader, start_writer, refused_reader, refused_writer, result_writer):
        os.close(descriptor)
    for child in children:
        os.waitpid(child, 0)
    with os.fdopen(result_reader, "r") as source:
        return sorted(source.read().split("\n")[:-1])


def test_of_racing_writers_exactly_one_wins(
    scratch: Path, factor: int, case_counts: CaseCounts
) -> None:
    path = scratch / "s"
    rounds = ROUNDS * factor
    for number in range(rounds):
        racers = 2 + number % 3
        results = race(path, racers, Message(number, 60))
        assert results == ["refused"] * (racers - 1) + ["won"], f"round {number}"

    case_counts.add("races of writers", rounds)
    check_store(path, [Message(number, 60) for number in range(rounds)], rounds)


def test_a_refused_writer_changes_nothing(scratch: Path) -> None:
    path = scratch / "s"
    with open_writer(str(path), Posix()) as writer:
        writer.append(to_arrow([Message(0)]))
        before = tree_digest(path)
        for _ in range(10):
            with pytest.raises(StoreLockedError):
                open_writer(str(path), Posix())

        assert tree_digest(path) == before
