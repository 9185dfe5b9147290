"""Options that choose rows, applied exactly to every batch; and rows made of keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.tags import TagFilter
from rmqlog.spark_datasource.constraints import Constraints
from rmqlog.spark_datasource.intervals import HIGHEST, LOWEST, Intervals
from rmqlog.spark_datasource.request import Request

_MICROSECONDS = 1000


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows the options mean; ``None`` where they say nothing. Times are ``[start, stop)``."""

    tags: frozenset[str] | None
    key: str | None
    start_us: int | None
    stop_us: int | None

    @classmethod
    def of(cls, request: Request) -> RowFilter:
        """The filter in the options of a request."""
        options = request.options
        start, stop = options["startingTimestamp"], options["endingTimestamp"]
        start_us = None if start is None else start * _MICROSECONDS
        stop_us = None if stop is None else stop * _MICROSECONDS
        if request.timestamp_as_of_us is not None:
            as_of = request.timestamp_as_of_us + 1
            stop_us = as_of if stop_us is None else min(stop_us, as_of)
        return cls(TagFilter.parse(options["tags"], "").tags, options["key"], start_us, stop_us)

    @property
    def is_everything(self) -> bool:
        """Whether no row is left out."""
        return self == RowFilter(None, None, None, None)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it looks at."""
        wanted = {
            "tags": self.tags, "keys": self.key,
            "storeTimestamp": self.start_us if self.stop_us is None else self.stop_us,
        }
        return tuple(name for name, value in wanted.items() if value is not None)

    def constraints(self) -> Constraints:
        """What it says to the planner."""
        start = LOWEST if self.start_us is None else self.start_us
        stop = HIGHEST if self.stop_us is None else self.stop_us - 1
        return Constraints(
            tags=None if self.tags is None else frozenset(self.tags),
            tokens=None if self.key is None else frozenset({self.key}),
            store_times_us=Intervals.of([(start, stop)]),
        )

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that are meant."""
        if self.tags is not None:
            batch = batch.filter(pc.is_in(batch["tags"], pa.array(sorted(self.tags))))
        if self.key is not None:
            batch = batch.filter(_has_token(batch["keys"], self.key))
        if self.start_us is not None or self.stop_us is not None:
            times = batch["storeTimestamp"].view(pa.int64()).to_numpy()
            kept = np.ones(len(times), np.bool_)
            if self.start_us is not None:
                kept &= times >= self.start_us
            if self.stop_us is not None:
                kept &= times < self.stop_us
            batch = batch.filter(pa.array(kept))
        return batch


def _has_token(keys: pa.StringArray, token: str) -> pa.BooleanArray:
    """Which KEYS have a token; only those that contain its text are taken apart."""
    matches = pc.match_substring(keys, token).fill_null(False).to_numpy(zero_copy_only=False)
    found = np.zeros(len(keys), np.bool_)
    for row in np.flatnonzero(matches).tolist():
        found[row] = token in keys[row].as_py().split(layout.KEY_SEPARATOR)
    return pa.array(found)


def explode_keys(batch: pa.RecordBatch, key_column: str) -> pa.RecordBatch:
    """One row for each distinct token of KEYS, in their order; null for a row without."""
    tokens = pc.split_pattern(batch["keys"], layout.KEY_SEPARATOR)
    rows = pc.list_parent_indices(tokens).to_numpy().astype(np.int64)
    texts = pc.list_flatten(tokens)
    is_token = pc.greater(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    rows, texts = rows[is_token], texts.filter(pa.array(is_token))
    encoded = texts.dictionary_encode()
    pairs = rows * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy()
    _, first_places = np.unique(pairs, return_index=True)
    places = np.sort(first_places)
    bare = np.setdiff1d(np.arange(batch.num_rows), rows)
    all_rows = np.concatenate([rows[places], bare])
    keys = pa.concat_arrays([texts.take(pa.array(places)), pa.nulls(len(bare), pa.string())])
    order = pa.array(np.argsort(all_rows, kind="stable"))
    exploded = batch.take(pa.array(all_rows).take(order))
    return exploded.append_column(pa.field(key_column, pa.string()), keys.take(order))
