"""How far a DLedger group has committed, from sound and from damaged files."""

from __future__ import annotations

import numpy as np
import pytest
from built_stores import offset_name
from memory_files import MemoryFiles

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.dledger import committed_end
from rmqlog.commitlog_format.errors import CorruptConfigError


def ledger(checkpoint: str | None, *units: tuple[int, int, int, int, int]) -> MemoryFiles:
    """The files of a group. A unit is magic, position, size, index and term."""
    index = np.array(list(units), layout.DLEDGER_INDEX_UNIT).tobytes() or b"\0"
    files = {f"n0/index/{offset_name(0)}": index}
    if checkpoint is not None:
        files["n0/checkpoint"] = checkpoint.encode()
    return MemoryFiles(files)


SOUND = (1, 0, 100, 0, 1), (1, 100, 150, 1, 1)


@pytest.mark.parametrize(
    ("checkpoint", "end"),
    [
        ("committedIndex=1\n", 250), ("#\nendIndex=7\ncommittedIndex = 0", 100),
        (None, None), ("", None), ("endIndex=1", None), ("committedIndex=-1", 0),
        ("committedIndex=2", None), ("committedIndex=99999999999999999999", None),
    ],
)
def test_the_end_is_behind_the_committed_entry(checkpoint: str | None, end: int | None) -> None:
    assert committed_end(ledger(checkpoint, *SOUND), "n0") == end


@pytest.mark.parametrize(
    "unit", [(0, 0, 100, 0, 1), (1, 0, 100, 5, 1), (1, -5, 100, 0, 1), (1, 5, -100, 0, 1)]
)
def test_a_unit_that_cannot_be_true_says_nothing(unit: tuple[int, int, int, int, int]) -> None:
    assert committed_end(ledger("committedIndex=0", unit), "n0") is None


@pytest.mark.parametrize("text", ["committedIndex=x", "committedIndex=", "x" * 70_000])
def test_a_damaged_checkpoint_is_an_error(text: str) -> None:
    with pytest.raises(CorruptConfigError) as caught:
        committed_end(ledger(text, *SOUND), "n0")
    assert caught.value.path == "n0/checkpoint"
