"""Filters of every kind, as the bridge hands them over, and as SQL."""

from __future__ import annotations

from typing import Any

from query_reference import all_of, any_of, leaf, negated

Row = dict[str, Any]
Tree = dict[str, Any]


def query_filters(rows: list[Row]) -> dict[str, Tree]:
    """One filter of each kind; literals are taken from the middle of the store."""
    orders = [row for row in rows if row["topic"] == "orders"]
    some = orders[len(orders) // 2]
    keyed = next(row for row in orders[len(orders) // 4:] if row["keys"] and " " in row["keys"])
    times = sorted(row["storeTimestamp"] for row in orders)
    early, late = times[len(times) // 3], times[2 * len(times) // 3]
    return {
        "tag": leaf("eq", "tags", "PAID"),
        "tag that collides": leaf("eq", "tags", "Aa"),
        "tags in": leaf("in", "tags", ["BB", "已支付", "😀tag", None]),
        "tag null safe": leaf("eqNullSafe", "tags", "a b"),
        "tag null safe null": leaf("eqNullSafe", "tags", None),
        "tag is null": leaf("isNull", "tags"),
        "tag is not null": leaf("isNotNull", "tags"),
        "tag not": negated(leaf("eq", "tags", "PAID")),
        "tag not in": negated(leaf("in", "tags", ["PAID", "CREATED"])),
        "tag not in null": negated(leaf("in", "tags", ["PAID", None])),
        "tag or null": any_of(leaf("eq", "tags", "Aa"), leaf("isNull", "tags")),
        "tag starts": leaf("startsWith", "tags", "C"),
        "tag unheard of": leaf("eq", "tags", "nobody"),
        "tag equals null": leaf("eq", "tags", None),
        "tag thousand": leaf("in", "tags", [f"tag-{n}" for n in range(999)] + ["CREATED"]),
        "keys whole": leaf("eq", "keys", keyed["keys"]),
        "keys one token": leaf("eq", "keys", "hot"),
        "keys in": leaf("in", "keys", ["hot", "order-Aa", "nothing"]),
        "keys thousand": leaf("in", "keys", [f"order-{n}" for n in range(1000)]),
        "keys unheard of": leaf("eq", "keys", "nobody has this key"),
        "keys blank": leaf("eq", "keys", " "),
        "keys null": leaf("isNull", "keys"),
        "keys not": negated(leaf("eq", "keys", "hot")),
        "keys contains": leaf("contains", "keys", "order-7"),
        "uniq key": leaf("eq", "uniqKey", some["uniqKey"]),
        "uniq key or key": any_of(
            leaf("eq", "uniqKey", some["uniqKey"]), leaf("eq", "keys", "order-BB")),
        "key and tag": all_of(leaf("eq", "keys", "hot"), leaf("eq", "tags", "CANCELLED")),
        "key or tag": any_of(leaf("eq", "keys", "hot"), leaf("eq", "tags", "CANCELLED")),
        "message id": leaf("eq", "msgId", some["msgId"]),
        "message ids": leaf("in", "msgId", [some["msgId"], keyed["msgId"], "no id at all"]),
        "message id lower": leaf("eq", "msgId", some["msgId"].lower()),
        "message id of nothing": leaf("eq", "msgId", some["msgId"][:-2] + "01"),
        "physical offset": leaf("eq", "commitLogOffset", some["commitLogOffset"]),
        "physical offsets": all_of(
            leaf("ge", "commitLogOffset", some["commitLogOffset"]),
            leaf("lt", "commitLogOffset", some["commitLogOffset"] + 10_000)),
        "physical offset or id": any_of(
            leaf("eq", "commitLogOffset", some["commitLogOffset"]),
            leaf("eq", "msgId", keyed["msgId"])),
        "physical offset negative": leaf("lt", "commitLogOffset", 0),
        "physical offset not": negated(leaf("ge", "commitLogOffset", some["commitLogOffset"])),
        "queue offsets": all_of(leaf("ge", "queueOffset", 10), leaf("le", "queueOffset", 20)),
        "queue offsets in": leaf("in", "queueOffset", [0, 1, 5, 30, 10**12, -1]),
        "queue offset not": negated(leaf("gt", "queueOffset", 3)),
        "queue offset gap": negated(
            all_of(leaf("ge", "queueOffset", 3), leaf("lt", "queueOffset", 35))),
        "time from": leaf("ge", "storeTimestamp", early),
        "time behind": leaf("gt", "storeTimestamp", late),
        "time between": all_of(
            leaf("ge", "storeTimestamp", early), leaf("lt", "storeTimestamp", late)),
        "time equal": leaf("eq", "storeTimestamp", early),
        "times in": leaf("in", "storeTimestamp", times[:: max(1, len(times) // 30)]),
        "time long ago": leaf("lt", "storeTimestamp", 1),
        "time or tag": any_of(leaf("gt", "storeTimestamp", late), leaf("eq", "tags", "Z")),
        "size": leaf("gt", "storeSize", 300),
        "size between": all_of(leaf("ge", "storeSize", 230), leaf("le", "storeSize", 260)),
        "size not": negated(leaf("eq", "storeSize", some["storeSize"])),
        "size null": leaf("isNull", "storeSize"),
        "topic": leaf("eq", "topic", "orders"),
        "topics": leaf("in", "topic", ["batch", "orderly", "nothing"]),
        "topic not": negated(leaf("eq", "topic", "orders")),
        "topic starts": leaf("startsWith", "topic", "o"),
        "topic below": leaf("lt", "topic", "delay"),
        "queue": leaf("eq", "queueId", 1),
        "queues": leaf("in", "queueId", [0, 3, None]),
        "queue not null safe": negated(leaf("eqNullSafe", "queueId", 0)),
        "topic and queue": all_of(leaf("eq", "topic", "orders"), leaf("ge", "queueId", 2)),
        "topic with its queue": any_of(
            all_of(leaf("eq", "topic", "orders"), leaf("eq", "queueId", 2),
                   leaf("eq", "tags", "PAID")),
            all_of(leaf("eq", "topic", "batch"), leaf("eq", "queueId", 0))),
        "broker": leaf("eq", "brokerName", "store-b"),
        "broker null safe": leaf("eqNullSafe", "brokerName", None),
        "contradiction": all_of(leaf("eq", "tags", "PAID"), leaf("eq", "tags", "CREATED")),
        "contradiction of places": all_of(
            leaf("lt", "queueOffset", 5), leaf("gt", "queueOffset", 5)),
        "always": {"op": "true"},
        "never": {"op": "false"},
        "not never": negated({"op": "false"}),
        "deep": negated(any_of(
            negated(leaf("isNotNull", "keys")),
            all_of(leaf("eq", "tags", "PAID"), negated(leaf("gt", "queueOffset", 20))))),
    }


FILTER_NAMES = list(query_filters([
    {"topic": "orders", "keys": "a b", "uniqKey": "U", "msgId": "0" * 32, "storeTimestamp": n,
     "commitLogOffset": n, "storeSize": n, "tags": None} for n in range(1000)
]))


def columns_in(tree: Tree) -> set[str]:
    """The columns that a tree names."""
    if "column" in tree:
        return {tree["column"]}
    return set().union(*(columns_in(arg) for arg in tree.get("args", [])))


_OPERATORS = {"eq": "=", "eqNullSafe": "<=>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_PATTERNS = {"startsWith": "{}%", "endsWith": "%{}", "contains": "%{}%"}


def to_sql(tree: Tree) -> str:
    """A tree as an SQL condition that Spark hands to the bridge in the same form."""
    op = tree["op"]
    if op in ("and", "or"):
        return "(" + f" {op.upper()} ".join(map(to_sql, tree["args"])) + ")"
    if op == "not":
        return f"(NOT {to_sql(tree['args'][0])})"
    if op in ("true", "false"):
        return op
    column = tree["column"]
    if op in ("isNull", "isNotNull"):
        return f"{column} IS {'NOT ' if op == 'isNotNull' else ''}NULL"
    kind = tree["type"]
    if op == "in":
        return f"{column} IN ({', '.join(_literal(kind, value) for value in tree['values'])})"
    if op in _PATTERNS:
        return f"{column} LIKE {_literal(kind, _PATTERNS[op].format(tree['value']))}"
    return f"{column} {_OPERATORS[op]} {_literal(kind, tree['value'])}"


def _literal(kind: str, value: Any) -> str:
    if value is None:
        return "NULL"
    if kind == "string":
        return "'" + value.replace("'", "\\'") + "'"
    return f"timestamp_micros({value})" if kind == "timestamp" else str(value)
