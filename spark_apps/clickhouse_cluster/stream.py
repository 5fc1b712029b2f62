"""Structured streaming with `foreachBatch`, for queries that do more with a batch than to write it.

A batch is a job of its own, by the query's id and the batch's number. Both come from the checkpoint: a batch
that is repeated after a crash has the same, and so is written once. For other ones see `set_back`.

    query = stream.writeStream.foreachBatch(batch_writer("flights.flights_all", url="http://node01:8123"))
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame

from engine.errors import ConfigError
from spark_apps.clickhouse_cluster import staging
from spark_apps.clickhouse_cluster.batches import QUERY_ID, forget_what_is_not_repeated, job_of
from spark_apps.clickhouse_cluster.content import content_of
from spark_apps.clickhouse_cluster.options import FORMAT, Options, RepeatedBatch
from spark_apps.clickhouse_cluster.outcome import earlier
from spark_apps.clickhouse_cluster.set_back import (
    content_written,
    is_written_again,
    record_written,
    require_same_rows,
)
from spark_apps.clickhouse_cluster.target import Target


def batch_writer(table: str, **options: str) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`. Appends each batch once; raises SetBack, and as `save` does: the query stops then.

    `job_id` among the options takes the place of the query's id: for a query whose checkpoint is made anew
    over the same batches, and for each of several writers of one query to the same table.
    """
    parsed = Options.parse({**options, "table": table})
    how = parsed.repeated_batch or RepeatedBatch.COMPARED

    def write(batch: DataFrame, batch_id: int) -> None:
        query_id = options.get("job_id") or _query_of(batch)
        is_named, target = bool(options.get("job_id")), Target.find(parsed)
        if is_written_again(
            target, query_id, batch_id, is_named=is_named, look=lambda: content_of(batch, how)
        ):
            return
        job = {**options, "job_id": job_of(query_id, batch_id), "repeated_batch": how.value}
        key = staging.job_key(job["job_id"], target)
        is_repeated = earlier(target, key).plan is not None
        batch.write.format(FORMAT).options(**job).mode("append").save(table)
        found = earlier(target, key)
        if found.plan is not None and found.decisions is not None:
            had = content_written(found.plan, target)
            record_written(found.decisions, target, query_id, batch_id, had)
            forget_what_is_not_repeated(target, query_id, batch_id)
            if is_repeated:
                require_same_rows(target, query_id, batch_id, had=had, given=content_of(batch, how))

    return write


def _query_of(batch: DataFrame) -> str:
    """The query's id. Raises ConfigError."""
    try:
        found = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    except PySparkAttributeError:
        raise ConfigError(
            "Spark Connect does not say to which query a batch belongs.",
            hint=f'Give the option job_id, or use writeStream.format("{FORMAT}").',
        ) from None
    if not found:
        raise ConfigError("This is no streaming query: it has no id.", hint="Give the option job_id.")
    return found
