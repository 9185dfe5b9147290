"""Progress on a terminal, for what takes longer than a second; nothing where there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

#: What is faster than this shows no bar.
_DELAY_S = 1.0

#: Called with how much is done and how much there is.
Report = Callable[[int, int], None]


@contextmanager
def progress_bar(title: str) -> Iterator[Report]:
    """A bar on stderr, if that is a terminal, from the second second on; it vanishes at the end.

    Yields the function to report to. Until it is called the bar only says that work goes on.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
        # Lines go above the bar where both share a terminal, else untouched to where they belong.
        redirect_stdout=sys.stdout.isatty(), redirect_stderr=False,
    )
    task = bar.add_task(title, total=None)
    start = Timer(_DELAY_S, bar.start)
    start.daemon = True
    start.start()
    try:
        yield lambda done, total: bar.update(task, completed=done, total=total)
    finally:
        start.cancel()
        start.join()
        bar.stop()
