"""Jobs that are staged without Spark, for tests of the commit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from small_stores import SMALL

from rmqlog.writer.commit import StagedJob
from rmqlog.writer.commit_records import JobId, Transaction
from rmqlog.writer.posix import Posix
from rmqlog.writer.staging import StagingPlan, StagingWriter


def stage(
    path: Path,
    partitions: Sequence[Sequence[pa.RecordBatch]],
    job_id: str = "job",
    transaction: Transaction | None = None,
    **plan: Any,
) -> StagedJob:
    """Do what the tasks of a job do: each partition is a list of batches."""
    plan = {"settings": SMALL, **plan}
    wanted = StagingPlan(str(path), job_id, **plan)
    wanted.make_folder(Posix())
    files = []
    for partition, batches in enumerate(partitions):
        with StagingWriter(wanted, partition, attempt=0) as staging:
            for batch in batches:
                staging.add(batch)
            files.append(staging.finish())
    return StagedJob(JobId(job_id, transaction), wanted.folder, files)
