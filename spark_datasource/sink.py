"""The writer that Spark runs: tasks stage their rows, the driver commits them or clears up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from rmqlog.spark_datasource.sink_plan import SinkPlan
from rmqlog.spark_datasource.staging_recipe import staged_by_bridge
from rmqlog.spark_datasource.worker_process import begin_task, show_log
from rmqlog.writer.batch_write import abort_job, commit_job
from rmqlog.writer.commit import StagedJob
from rmqlog.writer.posix import Posix
from rmqlog.writer.staged_files import StagedFile
from rmqlog.writer.staging import StagingWriter


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """What a task tells the driver: the files that it has staged, in the order to be."""

    files: tuple[StagedFile, ...]


class RmqlogWriter(DataSourceArrowWriter):
    """Writes a frame to a store, all of it or nothing.

    Spark runs :meth:`write` in workers and the other two on the driver, each in a process of
    its own: all that they share is the plan.
    """

    def __init__(self, plan: SinkPlan) -> None:
        # The process that plans would else look for garbage while the first tasks want its core.
        begin_task()
        self.plan = plan
        if not plan.is_done:
            plan.staging.make_folder(Posix())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one partition, those that the bridge has not staged in front of them.
        Spark never says whether this attempt counts."""
        if self.plan.is_done:
            for _ in iterator:  # Spark wants its rows to be taken
                pass
            return StagedMessage(())
        begin_task()
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.taskAttemptId()
        # The bridge stages what it can before it hands over a row, or none.
        first = next(iterator, None)
        plain = staged_by_bridge(self.plan.staging, partition, attempt)
        if first is None:
            return StagedMessage((plain.file,))
        with StagingWriter(
            self.plan.staging, partition, attempt,
            first_row=plain.file.row_count, first_turn=plain.dealt_rows,
        ) as staging:
            for batch in chain([first], iterator):
                staging.add(batch)
            return StagedMessage((plain.file, staging.finish()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit what the attempts that count have staged, in the order of the partitions."""
        begin_task()
        show_log()
        staging = self.plan.staging
        commit_job(
            staging.store_path, self.staged_job(messages), staging.settings,
            lock_timeout_s=self.plan.lock_timeout_s,
        )

    def staged_job(self, messages: Sequence[WriterCommitMessage | None]) -> StagedJob:
        """What the tasks have staged, as their messages tell."""
        found = [message.files for message in messages if isinstance(message, StagedMessage)]
        files = [file for file in chain.from_iterable(found) if file.row_count]
        files.sort(key=lambda file: file.partition)
        return StagedJob(self.plan.job, self.plan.staging.folder, files)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Clear away what was staged. The messages do not tell: Spark forgets some of them, and
        gives all of them when a commit has failed, or only its answer was lost."""
        abort_job(self.plan.staging.store_path, self.plan.job)

