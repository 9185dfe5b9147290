"""What Spark asks of the source: the user's options, and what the bridge adds to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmqlog.commitlog_format.errors import InvalidSettingError
from rmqlog.spark_datasource.option_values import BRIDGE_PREFIX
from rmqlog.spark_datasource.options import Options
from rmqlog.spark_datasource.predicates import TRUE, Tree, parse_filters

_BRIDGE_VERSION = "1"
_BRIDGE_KEYS = frozenset(
    {"bridge", "filters", "limit", "aggregate", "metadata", "catalog", "timestampasof", "queryid"}
)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Counts, minima and maxima that Spark would like to have answered: (function, column)."""

    group_by: tuple[str, ...]
    functions: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One question or scan. Without the bridge only ``options`` says anything."""

    options: Options
    has_bridge: bool = False
    filters: Tree = TRUE
    limit: int | None = None
    aggregate: Aggregate | None = None
    #: What ``schema()`` put on the columns of the frame that is read.
    field_metadata: Mapping[str, Mapping[str, Any]] | None = None
    catalog: str | None = None
    timestamp_as_of_us: int | None = None


def parse_request(given: Mapping[str, str]) -> Request:
    """The request in a source's options; a word of the bridge that is not known raises."""
    added = {
        name.lower().removeprefix(BRIDGE_PREFIX): text
        for name, text in given.items() if name.lower().startswith(BRIDGE_PREFIX)
    }
    options = Options(given)
    if not added:
        return Request(options)
    unknown = sorted(added.keys() - _BRIDGE_KEYS)
    if unknown or added.get("bridge") != _BRIDGE_VERSION:
        raise InvalidSettingError(
            "the bridge's jar is of another version than this package",
            found=", ".join(unknown) or f"version {added.get('bridge')}",
            expected=f"the jar of rmqlog.jar_path(), version {_BRIDGE_VERSION}",
        )
    use = options["pushdown"]
    limit = added.get("limit")
    as_of = added.get("timestampasof")
    return Request(
        options,
        has_bridge=True,
        filters=parse_filters(added["filters"]) if use and "filters" in added else TRUE,
        limit=int(limit) if use and limit is not None else None,
        aggregate=_aggregate(added["aggregate"]) if "aggregate" in added else None,
        field_metadata=json.loads(added.get("metadata", "{}")),
        catalog=added.get("catalog"),
        timestamp_as_of_us=None if as_of is None else int(as_of),
    )


def _aggregate(text: str) -> Aggregate:
    wanted = json.loads(text)
    return Aggregate(
        tuple(wanted["groupBy"]),
        tuple((one["func"], one.get("column")) for one in wanted["aggregates"]),
    )
