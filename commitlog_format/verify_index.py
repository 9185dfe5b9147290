"""Compares the index files with the log: each key of a covered record is in them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import CorruptIndexError, StoreError
from rmqlog.commitlog_format.hashing import index_hashes
from rmqlog.commitlog_format.index_file import IndexFile
from rmqlog.commitlog_format.store import Store

#: An index entry without its links: which hash, which record.
_PAIR = np.dtype([("physical_offset", np.int64), ("key_hash", np.int64)])


class IndexCheck:
    """Collects what the index must hold for covered records, then looks whether it does."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.entry_count = 0
        self._covered = store.index.coverage()
        self._expected: list[NDArray[np.void]] = []

    def collect(self, batch: pa.RecordBatch) -> None:
        """Note the keys of a run of records."""
        offsets = batch["commitLogOffset"].to_numpy()
        covered = np.zeros(len(offsets), np.bool_)
        for start, stop in self._covered:
            covered |= (offsets >= start) & (offsets < stop)
        flags = batch["sysFlag"].to_numpy()
        covered &= flags & layout.TRANSACTION_MASK != layout.SysFlag.TRANSACTION_ROLLBACK
        if not covered.any():
            return
        rows = batch.filter(pa.array(covered))
        tokens = pc.split_pattern(pc.fill_null(rows["keys"], ""), layout.KEY_SEPARATOR)
        owners = pc.list_parent_indices(tokens)
        for keys, owner in ((rows["uniqKey"], None), (pc.list_flatten(tokens), owners)):
            self._expected.append(_pairs(rows, keys, owner))

    def finish(self) -> Iterator[tuple[bool, StoreError]]:
        """Keys that are missing, chains that are broken, entries that point nowhere."""
        found = [np.empty(0, _PAIR)]
        for file in self.store.index.files:
            entries = file.entries()
            self.entry_count += len(entries)
            found.append(_as_pairs(entries["physical_offset"], entries["key_hash"]))
            yield from _broken_chains(file, entries)
            beyond = np.flatnonzero(entries["physical_offset"] >= self.store.end)
            if len(beyond):
                yield False, CorruptIndexError(
                    f"{len(beyond)} entries point behind the end of the log", file.path,
                    int(entries["physical_offset"][beyond[0]]), expected=f"< {self.store.end}",
                )
        expected = np.unique(np.concatenate([np.empty(0, _PAIR), *self._expected]))
        missing = np.setdiff1d(expected, np.concatenate(found))
        if len(missing):
            yield True, CorruptIndexError(
                f"{len(missing)} keys of records in the covered ranges are not in the index: "
                f"lookups need useIndex=false, or a rebuild",
                offset=int(missing["physical_offset"][0]),
            )


def _pairs(rows: pa.RecordBatch, keys: pa.Array, owners: pa.Array | None) -> NDArray[np.void]:
    topics, offsets = rows["topic"], rows["commitLogOffset"]
    if owners is not None:
        topics, offsets = topics.take(owners), offsets.take(owners)
    present = pc.and_(pc.is_valid(keys), pc.not_equal(pc.fill_null(keys, ""), ""))
    topics, offsets, keys = (array.filter(present) for array in (topics, offsets, keys))
    return _as_pairs(offsets.to_numpy(), index_hashes(topics, keys))


def _as_pairs(
    offsets: NDArray[np.int64], hashes: NDArray[np.integer]
) -> NDArray[np.void]:
    pairs = np.empty(len(offsets), _PAIR)
    pairs["physical_offset"] = offsets
    pairs["key_hash"] = hashes
    return pairs


def _broken_chains(
    file: IndexFile, entries: NDArray[np.void]
) -> Iterator[tuple[bool, StoreError]]:
    """Each entry's chain leads to an older entry of the same slot, or ends."""
    numbers = np.arange(1, len(entries) + 1)
    previous = entries["previous"].astype(np.int64)
    slots = entries["key_hash"].astype(np.int64) % file.slot_count
    linked = previous > 0
    forward = linked & (previous >= numbers)
    elsewhere = np.zeros(len(entries), np.bool_)
    sound = linked & ~forward
    elsewhere[sound] = slots[previous[sound] - 1] != slots[sound]
    bad = np.flatnonzero(forward | elsewhere | (previous < 0))
    if len(bad):
        yield True, CorruptIndexError(
            f"entry {bad[0] + 1} is chained to an entry that cannot precede it "
            f"({len(bad)} of them)", file.path,
            found=int(previous[bad[0]]), expected="an older entry of the same slot",
        )
