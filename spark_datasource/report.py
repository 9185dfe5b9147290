"""What the planner decided, for the scan's line in ``explain()`` and for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmqlog.spark_datasource.access_paths import LOOKUP_PATH, Findings
from rmqlog.spark_datasource.bridge_text import text_for_bridge
from rmqlog.spark_datasource.constraints import used_part
from rmqlog.spark_datasource.predicates import TRUE, describe
from rmqlog.spark_datasource.request import Request

_MARKER = "rmqlog-report"
_FILTER_LENGTH_MAX = 300


@dataclass(frozen=True, slots=True)
class ScanReport:
    """One scan: a line, details by name, counts by name, and the size of the answer."""

    description: str
    details: dict[str, str]
    metrics: dict[str, int]
    rows: int
    size: int

    @classmethod
    def of(
        cls, request: Request, findings: Findings, partition_count: int, stores: Sequence[str]
    ) -> ScanReport:
        """The report on a plan."""
        path = " + ".join(findings.paths) or "nothing to read"
        used = used_part(request.filters, has_lookup=LOOKUP_PATH in findings.paths)
        filters = "none" if used == TRUE else describe(used)
        if len(filters) > _FILTER_LENGTH_MAX:
            filters = filters[:_FILTER_LENGTH_MAX] + "…"
        metrics = {
            "partitions": partition_count,
            "queues": findings.queues_read,
            "queue files": findings.queue_file_count,
            "index files": findings.index_file_count,
            "units to read": findings.unit_count,
            "index entries": findings.index_hit_count,
            "log bytes to read": findings.log_size,
        }
        details = {
            "Path": ", ".join(f"{name} ({count})" for name, count in findings.paths.items()),
            "Stores": ", ".join(stores),
            "Queues": f"{findings.queues_read} of {findings.queue_count}",
            "Filters": filters,
            "Options": _shown_options(request),
        }
        if findings.expired_size:
            details["Expired"] = (
                f"{findings.expired_size} bytes of the log since the frame was loaded; at most "
                f"{findings.expired_count} messages of this query are skipped"
            )
        description = (
            f"path={path}, partitions={partition_count}, "
            f"queues={findings.queues_read} of {findings.queue_count}, "
            f"files={findings.queue_file_count + findings.index_file_count}, filters={filters}"
        )
        rows, size = round(findings.rows), max(round(findings.size), 1)
        return cls(description, details, metrics, rows, size)

    def to_text(self) -> str:
        """The text that the bridge looks for in the pickled bytes of a partition."""
        report = {
            "description": self.description, "details": self.details, "metrics": self.metrics,
            "rows": self.rows, "bytes": self.size,
        }
        return text_for_bridge(_MARKER, report)


def _shown_options(request: Request) -> str:
    given = request.options.given
    shown = [f"{name}={text}" for name, text in given.items() if name not in ("path", "paths")]
    return ", ".join(shown) or "none"
