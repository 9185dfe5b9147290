"""The filters of a query, as the bridge hands them over, and what can be asked of them.

A filter keeps the rows for which it is *true*. NOT is pushed down to the leaves when a tree is
parsed (SQL's three-valued logic allows it), and above the leaves there are only AND and OR:
there null and false are the same, "not kept", and a leaf answers with a plain boolean.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rmqlog.commitlog_format.errors import InvalidSettingError

#: A literal; timestamps are microseconds since the epoch.
Value: TypeAlias = str | int | float | bool | bytes | None


@dataclass(frozen=True, slots=True)
class Leaf:
    """A condition on one column: ``column op values``, or its negation."""

    op: str
    column: str
    values: tuple[Value, ...] = ()
    negated: bool = False

    def keeps(self, value: Value) -> bool:
        """Whether the condition is true of a value of its column."""
        if self.op == "isNull":
            return (value is None) != self.negated
        if self.op == "eqNullSafe":
            return (value == self.values[0]) != self.negated
        if value is None:
            return False
        if self.op == "in":
            if value in self.values:
                return not self.negated
            return self.negated and None not in self.values
        wanted = self.values[0]
        return wanted is not None and _COMPARE[self.op](value, wanted) != self.negated

    def possible_values(self) -> frozenset[Value] | None:
        """All values that it keeps, if they are few enough to be named."""
        if self.negated:
            return None
        if self.op == "isNull":
            return frozenset({None})
        if self.op == "eqNullSafe":
            return frozenset(self.values)
        if self.op in ("eq", "in"):
            return frozenset(value for value in self.values if value is not None)
        return None


@dataclass(frozen=True, slots=True)
class Constant:
    """A condition that does not depend on the row; null is false here."""

    value: bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """A condition that only Spark can evaluate."""


@dataclass(frozen=True, slots=True)
class And:
    """All of them."""

    args: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one of them."""

    args: tuple[Tree, ...]


Tree: TypeAlias = And | Or | Leaf | Constant | Unknown

TRUE = Constant(True)
FALSE = Constant(False)

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda value, wanted: value == wanted,
    "lt": lambda value, wanted: value < wanted,
    "le": lambda value, wanted: value <= wanted,
    "gt": lambda value, wanted: value > wanted,
    "ge": lambda value, wanted: value >= wanted,
    "startsWith": lambda value, wanted: value.startswith(wanted),
    "endsWith": lambda value, wanted: value.endswith(wanted),
    "contains": lambda value, wanted: wanted in value,
}


def parse_filters(text: str) -> Tree:
    """The tree of the bridge's option ``filters``; a form that is not known raises."""
    try:
        return simplify(_parse(json.loads(text), negated=False))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise InvalidSettingError(
            "filters that the bridge's contract does not know", found=text[:200]
        ) from error


def bind(tree: Tree, known: Mapping[str, Value]) -> Tree:
    """What is left of a tree for rows that have these values in these columns."""
    if isinstance(tree, Leaf) and tree.column in known:
        return TRUE if tree.keeps(known[tree.column]) else FALSE
    if isinstance(tree, And):
        return _all([bind(arg, known) for arg in tree.args])
    if isinstance(tree, Or):
        return _any([bind(arg, known) for arg in tree.args])
    return tree


def simplify(tree: Tree) -> Tree:
    """The same tree without constants inside."""
    return bind(tree, {})


def conjunction(trees: Sequence[Tree]) -> Tree:
    """All of the trees together."""
    return _all(list(trees))


def columns_of(tree: Tree) -> frozenset[str]:
    """The columns that a tree names."""
    if isinstance(tree, Leaf):
        return frozenset({tree.column})
    if isinstance(tree, And | Or):
        return frozenset().union(*(columns_of(arg) for arg in tree.args))
    return frozenset()


def describe(tree: Tree) -> str:
    """The tree in SQL's words, for people; long lists are shortened."""
    if isinstance(tree, And | Or):
        word = " AND " if isinstance(tree, And) else " OR "
        return "(" + word.join(describe(arg) for arg in tree.args) + ")"
    if isinstance(tree, Leaf):
        shown = ", ".join(repr(value) for value in tree.values[:5])
        more = f", … {len(tree.values)} values" if len(tree.values) > 5 else ""
        text = f"{tree.column} {tree.op} {shown}{more}".rstrip()
        return f"NOT {text}" if tree.negated else text
    return "?" if isinstance(tree, Unknown) else str(tree.value).lower()


def _all(trees: list[Tree]) -> Tree:
    if FALSE in trees:
        return FALSE
    left = [tree for tree in trees if tree != TRUE]
    if len(left) <= 1:
        return left[0] if left else TRUE
    return And(tuple(left))


def _any(trees: list[Tree]) -> Tree:
    if TRUE in trees:
        return TRUE
    left = [tree for tree in trees if tree != FALSE]
    if len(left) <= 1:
        return left[0] if left else FALSE
    return Or(tuple(left))


def _parse(node: dict[str, Any], negated: bool) -> Tree:
    op = node["op"]
    if op == "not":
        (inner,) = node["args"]
        return _parse(inner, not negated)
    if op in ("and", "or"):
        args = tuple(_parse(arg, negated) for arg in node["args"])
        # De Morgan's laws hold in three-valued logic too.
        return And(args) if (op == "and") != negated else Or(args)
    if op in ("true", "false"):
        return TRUE if (op == "true") != negated else FALSE
    if op == "unknown":
        return Unknown()
    if op in ("isNull", "isNotNull"):
        return Leaf("isNull", node["column"], (), (op == "isNotNull") != negated)
    kind = node["type"]
    if op == "in":
        values = tuple(_literal(kind, value) for value in node["values"])
        return Leaf(op, node["column"], values, negated)
    if op not in _COMPARE and op != "eqNullSafe":
        raise ValueError(op)
    return Leaf(op, node["column"], (_literal(kind, node["value"]),), negated)


def _literal(kind: str, value: object) -> Value:
    if value is None:
        return None
    if not isinstance(value, str | int | float) or type(value) not in _TYPES[kind]:
        raise TypeError(kind)
    return base64.b64decode(str(value), validate=True) if kind == "binary" else value


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "long": (int,),
    "double": (int, float),
    "boolean": (bool,),
    "timestamp": (int,),
    "binary": (str,),
    "null": (),
}
