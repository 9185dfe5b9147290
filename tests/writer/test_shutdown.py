"""SIGTERM is ours only while a writer is open."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import FaultyPosix, Kind, Plan
from small_stores import batch, open_writer

from rmqlog.commitlog_format.errors import CommitStateUnknownError


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """SIGTERM as a new process has it, whatever other tests did to it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_is_as_it_was_when_the_last_writer_is_closed(tmp_path: Path) -> None:
    first = open_writer(tmp_path / "first")
    second = open_writer(tmp_path / "second")
    first.close()
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL

    second.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_signal_is_ours_again_for_a_writer_that_is_opened_later(tmp_path: Path) -> None:
    open_writer(tmp_path).close()
    with open_writer(tmp_path):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_program_that_handles_sigterm_itself_keeps_its_handler(tmp_path: Path) -> None:
    def handler(_number: int, _frame: object) -> None:
        raise AssertionError("nobody sends a signal here")

    signal.signal(signal.SIGTERM, handler)
    with open_writer(tmp_path):
        assert signal.getsignal(signal.SIGTERM) is handler

    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_handler_that_was_set_while_a_writer_was_open_stays(tmp_path: Path) -> None:
    with open_writer(tmp_path):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_writer_that_fails_while_it_closes_gives_the_signal_back(tmp_path: Path) -> None:
    posix = FaultyPosix(Plan(Kind.ERROR, 1, only=frozenset({"sync"})))
    writer = open_writer(tmp_path, posix=posix)
    writer.append(batch(1))
    with pytest.raises(CommitStateUnknownError):
        writer.close()

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_writer_of_another_thread_leaves_the_signal_alone(tmp_path: Path) -> None:
    opened = []
    thread = threading.Thread(target=lambda: opened.append(open_writer(tmp_path)))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    opened[0].close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
