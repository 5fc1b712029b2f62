"""Micro-batches of a stream as jobs: by the query's id and the batch's number, both from the checkpoint."""

from __future__ import annotations

from spark_apps.clickhouse_cluster.outcome import forget
from spark_apps.clickhouse_cluster.target import Target

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties under which Spark tells them."""
_REPEATED = 2
"""Spark may repeat the last batch; when that is done, the one before it is not repeated any more."""


def job_of(query: str, batch: int | str) -> str:
    """The job's id."""
    return f"{query}/{batch}"


def forget_what_is_not_repeated(target: Target, query: str, batch: int) -> None:
    """Drop the records of the last batch that Spark does not repeat now that this one is done."""
    if batch >= _REPEATED:
        forget(target, job_of(query, batch - _REPEATED))
