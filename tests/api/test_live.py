"""What happens while a command runs: a writer appends, somebody presses Ctrl-C, a bar is shown."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from golden_stores import GoldenStore

from rmqlog.commands import messages
from rmqlog.writer import NewMessage, StoreSettings, StoreWriter

Run = Callable[..., Any]
#: Where nobody can press Ctrl-C, tests may have been started with SIGINT ignored.
MAIN = """\
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from rmqlog.cli import main
main()
"""
TIMEOUT_S = 120
#: Lets an export take its time, so that there is a moment to interrupt it.
SLOW_EXPORT = """\
import time
from rmqlog.commands import export_messages
read = export_messages._between
def slowly(*arguments):
    for batch in read(*arguments):
        time.sleep(5)
        yield batch
export_messages._between = slowly
"""
EAGER_BAR = "from rmqlog.commands import progress\nprogress._DELAY_S = 0\n"
SMALL = StoreSettings(
    mappedFileSizeCommitLog=1 << 20, mappedFileSizeConsumeQueue=20 * 1000, maxHashSlotNum=100,
    maxIndexNum=400,
)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[StoreWriter]:
    """A store with two messages, and the writer that has it open."""
    with StoreWriter(tmp_path / "live", SMALL) as writer:
        for number in range(2):
            writer.put(NewMessage("orders", b"%d" % number, tags="PAID", queue_id=number))
        yield writer


@contextlib.contextmanager
def started(code: str, *arguments: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A command that runs while the block does; it is not left behind."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_follow_shows_what_a_writer_appends_until_ctrl_c(live: StoreWriter) -> None:
    with started(
        MAIN, "cat", live.path, "orders", "--offset", 0, "--follow", "--format", "raw"
    ) as process:
        assert process.stdout is not None
        before = [process.stdout.readline() for _ in range(2)]
        for number in range(2, 5):
            live.put(NewMessage("orders", b"%d" % number, queue_id=number % 3))
        after = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)

    assert before == ["0\n", "1\n"]
    assert sorted(after) == ["2\n", "3\n", "4\n"]
    assert (process.returncode, errors) == (130, "")


def test_follow_without_a_start_shows_only_what_comes(
    run: Run, live: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = iter([b"skipped", b"first", b"second"])
    tags = iter(["CREATED", "PAID", "PAID"])

    def sleep(_: float) -> None:
        live.put(NewMessage("orders", next(bodies), tags=next(tags)))

    # Not in the module of everybody: threads that Spark's gateway left behind sleep too.
    monkeypatch.setattr(messages, "time", SimpleNamespace(sleep=sleep))

    answer = run("cat", live.path, "orders", "-f", "-n", 2, "--tags", "PAID", "--format", "raw")

    assert (answer.code, answer.out) == (0, "first\nsecond\n")


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl", "new-store"])
def test_ctrl_c_leaves_nothing_of_an_export(
    golden: GoldenStore, tmp_path: Path, name: str
) -> None:
    with started(
        SLOW_EXPORT + MAIN, "export", golden.path, "orders", "--to", tmp_path / name
    ) as process:
        while not list(tmp_path.iterdir()):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=TIMEOUT_S)

    assert (process.returncode, output, errors) == (130, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "title"),
    [("verify STORE", "verifying"), ("find STORE --key hot --deleted", "searching"),
     ("export STORE doomed --to OUT", "exporting"), ("rebuild STORE --yes", "rebuilding"),
     ("recover STORE --yes", "recovering"), ("info STORE", "reading the queues")],
    ids=lambda value: value.split()[0],
)
def test_progress_is_shown_on_a_terminal_and_the_answer_stays_in_the_pipe(
    copied: Path, tmp_path: Path, command: str, title: str
) -> None:
    arguments = [one.replace("STORE", str(copied)).replace("OUT", str(tmp_path / "x.jsonl"))
                 for one in command.split()]
    terminal, end = pty.openpty()
    with (
        (tmp_path / "output").open("w") as target,
        started(EAGER_BAR + MAIN, *arguments, stdout=target, stderr=end,
                env={**os.environ, "TERM": "xterm"}) as process,
    ):
        os.close(end)
        shown = read_terminal(terminal)
        process.wait()

    output = (tmp_path / "output").read_text("utf-8")
    assert process.returncode == 0
    assert title in shown
    assert output
    assert title not in output
    assert "\x1b" not in output


def read_terminal(terminal: int) -> str:
    """All that is written to a terminal until its writer has gone; Linux ends it by an error."""
    pieces = []
    with contextlib.suppress(OSError):
        while piece := os.read(terminal, 65536):
            pieces.append(piece)
    os.close(terminal)
    return b"".join(pieces).decode("utf-8", "replace")
