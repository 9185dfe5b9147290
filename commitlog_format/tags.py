"""Tag expressions: ``A || B``, compared by hash on queue units and by text on messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.binary_columns import string_array
from rmqlog.commitlog_format.errors import InvalidNameError
from rmqlog.commitlog_format.hashing import java_hash

_ALTERNATIVE = "||"
_ALL = "*"


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Which tags are wanted (``None``: all) and the units' codes that can have them.

    ``codes`` is ``None`` where units cannot tell: in the schedule topic they hold a time.
    """

    tags: frozenset[str] | None
    codes: frozenset[int] | None

    @classmethod
    def parse(cls, expression: str | None, topic: str) -> TagFilter:
        """The filter of a broker's subscription expression."""
        if expression is None or expression.strip() in ("", _ALL):
            return cls(None, None)
        tags = frozenset(tag.strip() for tag in expression.split(_ALTERNATIVE) if tag.strip())
        if not tags:
            raise InvalidNameError("no tag in the expression", found=repr(expression))
        if topic == layout.SCHEDULE_TOPIC:
            return cls(tags, None)
        return cls(tags, frozenset(map(java_hash, tags)))

    def columns_needed(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """The columns to read: hashes collide, so the text is compared as well."""
        if self.tags is None:
            return tuple(wanted)
        return tuple(dict.fromkeys([*wanted, "tags"]))

    def apply(self, batch: pa.RecordBatch, wanted: Iterable[str]) -> pa.RecordBatch:
        """The rows whose tag is wanted, with the wanted columns."""
        if self.tags is not None:
            batch = batch.filter(pc.is_in(batch["tags"], string_array(sorted(self.tags))))
        return batch.select(list(wanted))
