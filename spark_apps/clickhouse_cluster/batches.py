"""Micro-batches of a stream as jobs: by the query's id and the batch's number, both from the checkpoint."""

from __future__ import annotations

from spark_apps.clickhouse_cluster.outcome import forget
from spark_apps.clickhouse_cluster.target import Target

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties under which Spark tells them."""


def job_of(query: str, batch: int | str) -> str:
    """The job's id."""
    return f"{query}/{batch}"


def forget_what_is_not_repeated(target: Target, query: str, batch: int) -> None:
    """When a batch is done, drop the records of the one before: Spark repeats the last one, and no other."""
    if batch > 0:
        forget(target, job_of(query, batch - 1))
