"""Queries that come with a batch before the last one that they wrote, or with another last one.

Spark repeats the last batch of a query, with the same rows, and no other. What else comes is from another
checkpoint: an older copy, one that was made anew, or one that has lost its last file with the power. Its
batches have numbers that were there before, and maybe other rows: to write them may write rows twice, to
leave them out may lose some.

So what each batch wrote is recorded where its job was decided, before the job of the batch
before it is forgotten. A query that is set back is refused, unless its user has named it (`job_id`), which
says that the batches are the same again: then they are left out, as long as they have the rows that they
had (`content`). The last batch is left out on the same condition, whoever repeats it, also when its job's
plan has expired: a query may be stopped for longer than that is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from engine.errors import Refused
from spark_apps.clickhouse_cluster import staging
from spark_apps.clickhouse_cluster.batches import job_of
from spark_apps.clickhouse_cluster.content import Content
from spark_apps.clickhouse_cluster.decisions import Decisions
from spark_apps.clickhouse_cluster.options import Placement
from spark_apps.clickhouse_cluster.outcome import ask_all, earlier
from spark_apps.clickhouse_cluster.records import Plan
from spark_apps.clickhouse_cluster.target import Target

log = logging.getLogger(__name__)


_OTHERS = (
    "One that makes other values each time (a random number, the time at which it runs) is told by "
    'repeated_batch="counted" that as many rows are the same.'
)


class SetBack(Refused):
    """See the module."""


def is_written_again(
    target: Target, query: str, batch: int, *, is_named: bool, look: Callable[[], Content]
) -> bool:
    """Whether this batch is to be left out: it is from before the last one, of a query that was named, or is
    the last one, whose plan nobody has any more, and has the rows (`look`) that it had. Raises SetBack,
    Unavailable."""
    key = staging.job_key(query, target)
    last, where = _last(target, key)
    if batch > last or where is None:
        return False
    if batch == last and earlier(target, staging.job_key(job_of(query, batch), target)).plan is not None:
        return False  # which says itself what was written
    had = where.content_of_batch(key, batch)
    what = f"Batch {batch} of the query {query} comes after batch {last}, which is in {target.name}"
    if not is_named and batch < last:
        raise SetBack(
            f"{what}: the query's checkpoint is older than what it has written.",
            hint="Nothing of it was written. Start the query with the checkpoint that it had, or with a new "
            "one that begins where the written rows end.",
        )
    given = look()
    if had is None or not had.may_be(given):
        then = "no" if had is None else had.rows
        raise SetBack(
            f"{what}: it had {then} rows then, and has {_now(had, given)} now.",
            hint=f"Nothing of it was written. A query that reads other rows needs another job_id. {_OTHERS}",
        )
    log.warning("spark.batch_left_out query=%s batch=%s last=%s", query, batch, last)
    return True


def record_written(decisions: Decisions, target: Target, query: str, batch: int, content: Content) -> None:
    """That a batch is done."""
    decisions.record_batch(staging.job_key(query, target), batch, content)


def content_written(plan: Plan, target: Target) -> Content:
    """Of a batch, as the frame had it."""
    by_shard = [shard.rows for shard in plan.shards]
    rows = max(by_shard) if target.placement is Placement.EVERY_SHARD else sum(by_shard)
    return Content(rows, plan.digest)


def require_same_rows(target: Target, query: str, batch: int, *, had: Content, given: Content) -> None:
    """Of a batch that is done, by this run or by an earlier one. Raises SetBack."""
    if not had.may_be(given):
        raise SetBack(
            f"Batch {batch} of the query {query} is in {target.name} with {had.rows} rows, and has "
            f"{_now(had, given)} now.",
            hint="Nothing of it was written now. The query's checkpoint is older than what it has written, "
            "or the query was changed: start it once as it was. Or it has a second writer to this table, "
            f"which needs a job_id of its own. {_OTHERS}",
        )


def _now(had: Content | None, given: Content) -> str:
    return f"{given.rows} others" if had is not None and had.rows == given.rows else str(given.rows)


def _last(target: Target, key: str) -> tuple[int, Decisions | None]:
    """The last batch that is recorded, and where. Raises Unavailable."""
    found = ask_all(
        target, lambda one: one.last_batch(key), what="which batches of the stream were written before"
    )
    where, last = max(found, key=lambda one: one[1])
    return last, where if last >= 0 else None
