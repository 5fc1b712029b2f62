"""Structured streaming: `writeStream.format("clickhouse_cluster")`, each micro-batch as a job of its own.

The job's id is the query's id and the batch's number; both come from the checkpoint, so a batch that is
repeated after a crash has the same. Spark keeps them from the writer and tells them to its tasks only: a task
puts its job into its message, and the commit takes it from there.

Safety argument. As for a job (`commit`), and:
1. An attempt looks whether its batch was decided before. Then it only looks at its rows (`content`).
2. The commit looks again. A batch that was decided, by whomever, is carried out as it was decided. One that
   had other rows then ends the query: to leave it out would lose some (`set_back`).
3. Spark repeats no batch but the last, so records of the one before it are forgotten. A crash before that
   leaves them for three months. A batch from before the last is not written (`set_back`).
An attempt that fails drops what it has staged, and a batch that fails what its tasks have, unless it was
decided. What a killed attempt or driver has staged is dropped when the batch is repeated and done, or by the
first load after a week.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from engine.errors import ConfigError, NodeUnavailable, ReplyLost
from spark_apps.clickhouse_cluster.batches import BATCH_ID, QUERY_ID, forget_what_is_not_repeated, job_of
from spark_apps.clickhouse_cluster.content import Content, Counted
from spark_apps.clickhouse_cluster.options import Delivery, Options, RepeatedBatch
from spark_apps.clickhouse_cluster.records import Mode
from spark_apps.clickhouse_cluster.set_back import (
    content_written,
    is_written_again,
    record_written,
    require_same_rows,
)
from spark_apps.clickhouse_cluster.writer import Job, TaskStaged, finish, give_up, stage

log = logging.getLogger(__name__)


@dataclass
class BatchStaged(TaskStaged):
    """What a task staged, of what it was given, and for which query and job."""

    query: str = field(kw_only=True)
    job: Job = field(kw_only=True)
    given: Content = field(kw_only=True)


class StreamWriter(DataSourceStreamArrowWriter):
    """See the module. Only new rows can be written: output mode append. Spark itself refuses update."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError(
                "A stream's whole result cannot be written anew with each batch.",
                hint='Use outputMode("append"), or foreachBatch with mode("overwrite").',
            )
        if options.delivery is not Delivery.STAGED:
            raise ConfigError("A stream is written by way of staging.", hint="Leave out the option delivery.")
        self._job = Job.begin(options, schema, Mode.APPEND)
        self._names = schema.fieldNames()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query = self._job.options.job_id or context.getLocalProperty(QUERY_ID)
        batch = context.getLocalProperty(BATCH_ID)
        if not query or batch is None:
            raise ConfigError("Only micro-batches can be written: this task belongs to none.")
        job = self._job.named(job_of(query, batch))
        rows = Counted(iterator, self._names, self._job.options.repeated_batch or RepeatedBatch.COMPARED)
        done = stage(job, self._names, rows, task=context.partitionId(), attempt=context.taskAttemptId())
        for _ in rows:
            """Of a batch that was decided before."""
        given = rows.content
        return BatchStaged(
            done.task, done.attempt, done.staged, given.digest, query=query, job=job, given=given
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if None in messages:  # of a task that was never asked to write
            raise ConfigError(
                "Spark gives a source in Python no rows in continuous processing.",
                hint="Use trigger(processingTime=…) or trigger(availableNow=True), and a new checkpoint.",
            )
        staged = [message for message in messages if isinstance(message, BatchStaged)]
        if not staged:
            return
        query, job = staged[0].query, staged[0].job
        given = sum((message.given for message in staged), Content())
        is_named = bool(self._job.options.job_id)
        if is_written_again(job.target, query, batchId, is_named=is_named, look=lambda: given):
            self.abort(messages, batchId)
            return
        job = job.looked_at_again()
        plan = finish(job, staged)
        had = content_written(plan, job.target)
        record_written(job.decisions, job.target, query, batchId, had)
        forget_what_is_not_repeated(job.target, query, batchId)
        require_same_rows(job.target, query, batchId, had=had, given=given)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Tasks failed, or the commit did. The job is known to tasks, and this writer is another one than
        theirs: if none has said it, nobody has decided, and attempts that failed have left nothing."""
        staged = [message for message in messages if isinstance(message, BatchStaged)]
        if not staged:
            return
        try:
            give_up(staged[0].job)
        except (NodeUnavailable, ReplyLost) as error:  # the first load after a week drops it
            log.warning("spark.staging_left batch=%s error=%s", batchId, error.message)
