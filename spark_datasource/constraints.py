"""What a filter says about the columns that an access path can use: always a superset.

A row for which the filter is true satisfies every constraint; the reverse need not hold, since
Spark evaluates the filter again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rmqlog.commitlog_format.address import decode_message_id
from rmqlog.commitlog_format.errors import InvalidNameError
from rmqlog.commitlog_format.hashing import java_hash
from rmqlog.commitlog_format.properties import split_keys
from rmqlog.spark_datasource.intervals import (
    EVERYTHING,
    HIGHEST,
    LOWEST,
    NOTHING,
    Intervals,
)
from rmqlog.spark_datasource.options import KEY_COLUMN
from rmqlog.spark_datasource.predicates import (
    TRUE,
    And,
    Constant,
    Leaf,
    Or,
    Tree,
    Value,
    columns_of,
    simplify,
)
from rmqlog.spark_datasource.schema import QUEUE_COLUMNS

#: Malformed bytes decode to this character, whose hash is not that of the bytes' Java text.
_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class Constraints:
    """What rows can be: ``None`` and ``EVERYTHING`` where nothing is known.

    ``tags`` are the possible tags, ``None`` in it for messages without; ``tokens`` are keys, of
    which a row has at least one, in KEYS or as its uniq key.
    """

    tags: frozenset[Value] | None = None
    tokens: frozenset[str] | None = None
    queue_offsets: Intervals = EVERYTHING
    log_offsets: Intervals = EVERYTHING
    store_times_us: Intervals = EVERYTHING
    sizes: Intervals = EVERYTHING

    @property
    def is_never(self) -> bool:
        """Whether no row can satisfy them."""
        return (
            self.tags == frozenset() or self.tokens == frozenset() or not self.queue_offsets
            or not self.log_offsets or not self.store_times_us or not self.sizes
        )

    def __and__(self, other: Constraints) -> Constraints:
        return Constraints(
            _intersection(self.tags, other.tags),
            _fewer(self.tokens, other.tokens),
            self.queue_offsets & other.queue_offsets,
            self.log_offsets & other.log_offsets,
            self.store_times_us & other.store_times_us,
            self.sizes & other.sizes,
        )

    def __or__(self, other: Constraints) -> Constraints:
        if self.is_never:
            return other
        if other.is_never:
            return self
        return Constraints(
            None if self.tags is None or other.tags is None else self.tags | other.tags,
            None if self.tokens is None or other.tokens is None else self.tokens | other.tokens,
            self.queue_offsets | other.queue_offsets,
            self.log_offsets | other.log_offsets,
            self.store_times_us | other.store_times_us,
            self.sizes | other.sizes,
        )

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """The hashes that units of matching messages can have; a missing tag's is 0."""
        if self.tags is None or any(_REPLACEMENT in str(tag) for tag in self.tags):
            return None
        return frozenset(java_hash(tag) if isinstance(tag, str) else 0 for tag in self.tags)


ANYTHING = Constraints()
NEVER = Constraints(queue_offsets=NOTHING)

_INTERVAL_COLUMNS: dict[str, Callable[[Intervals], Constraints]] = {
    "queueOffset": lambda found: Constraints(queue_offsets=found),
    "commitLogOffset": lambda found: Constraints(log_offsets=found),
    "storeTimestamp": lambda found: Constraints(store_times_us=found),
    "storeSize": lambda found: Constraints(sizes=found),
}


def constraints_of(tree: Tree) -> Constraints:
    """What a filter tree says."""
    if isinstance(tree, Constant):
        return ANYTHING if tree.value else NEVER
    if isinstance(tree, And):
        found = ANYTHING
        for arg in tree.args:
            found &= constraints_of(arg)
        return found
    if isinstance(tree, Or):
        found = NEVER
        for arg in tree.args:
            found |= constraints_of(arg)
        return found
    return _of_leaf(tree) if isinstance(tree, Leaf) else ANYTHING


def used_part(tree: Tree, *, has_lookup: bool) -> Tree:
    """What a plan uses of a tree, for the report; the rest of it is left to Spark."""
    if isinstance(tree, And | Or):
        args = tuple(used_part(arg, has_lookup=has_lookup) for arg in tree.args)
        tree = simplify(And(args) if isinstance(tree, And) else Or(args))
    if isinstance(tree, And | Constant):
        return tree
    known = constraints_of(tree)
    if not has_lookup:
        known = replace(known, tokens=None)
    is_used = known != ANYTHING or not columns_of(tree).isdisjoint(QUEUE_COLUMNS)
    return tree if is_used else TRUE


def _of_leaf(leaf: Leaf) -> Constraints:
    if leaf.column in _INTERVAL_COLUMNS:
        return _INTERVAL_COLUMNS[leaf.column](_intervals(leaf))
    values = leaf.possible_values()
    if values is None:
        return ANYTHING
    if leaf.column == "tags":
        return Constraints(tags=values)
    if leaf.column == "msgId":
        places = (_place(value) for value in values)
        return Constraints(log_offsets=Intervals.values(
            place for place in places if place is not None
        ))
    if leaf.column in ("keys", "uniqKey", KEY_COLUMN) and None not in values:
        return Constraints(tokens=_tokens(leaf.column, values))
    return ANYTHING


def _tokens(column: str, values: frozenset[Value]) -> frozenset[str] | None:
    """Tokens of which a row has one if it has one of the values."""
    tokens: set[str] = set()
    for value in values:
        text = str(value)
        if column == "keys":
            # Any token of the whole string will do; the longest is the rarest.
            found = max(split_keys(text), key=len, default=None)
            if found is None:
                return None
            tokens.add(found)
        elif text and (column == "uniqKey" or " " not in text):
            tokens.add(text)
    return frozenset(tokens)


def _place(value: Value) -> int | None:
    """The physical offset in a message id; ``None`` for a text that is no row's id."""
    try:
        return decode_message_id(value)[1] if isinstance(value, str) else None
    except InvalidNameError:
        return None


def _intervals(leaf: Leaf) -> Intervals:
    """The whole numbers that a leaf keeps; ``EVERYTHING`` where that is not known."""
    numbers = [value for value in leaf.values if value is not None]
    if not all(isinstance(value, int) for value in numbers):
        return EVERYTHING
    whole = [value for value in numbers if isinstance(value, int)]
    if leaf.op == "isNull" or (leaf.op == "eqNullSafe" and not whole):
        return EVERYTHING
    if leaf.op in ("eq", "eqNullSafe", "in"):
        kept = Intervals.values(whole)
        if not leaf.negated:
            return kept
        if len(whole) < len(leaf.values):
            return NOTHING  # NOT IN (…, NULL) is never true
        return kept.complement()
    if not whole:
        return NOTHING  # a comparison with null is never true
    ranges = {
        "lt": (LOWEST, whole[0] - 1),
        "le": (LOWEST, whole[0]),
        "gt": (whole[0] + 1, HIGHEST),
        "ge": (whole[0], HIGHEST),
    }
    if leaf.op not in ranges:
        return EVERYTHING
    kept = Intervals.of([ranges[leaf.op]])
    return kept.complement() if leaf.negated else kept


def _intersection(
    one: frozenset[Value] | None, two: frozenset[Value] | None
) -> frozenset[Value] | None:
    if one is None or two is None:
        return two if one is None else one
    return one & two


def _fewer(one: frozenset[str] | None, two: frozenset[str] | None) -> frozenset[str] | None:
    """A row that has one of both sets has one of the smaller."""
    if one is None or two is None:
        return two if one is None else one
    return min(one, two, key=len)
