"""What a job has written, as the servers remember it."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from engine.errors import NodeUnavailable, ReplyLost, Unavailable
from spark_apps.clickhouse_cluster import records, staging
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.options import Options
from spark_apps.clickhouse_cluster.records import Plan, Progress
from spark_apps.clickhouse_cluster.target import Target


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rows by shard. `was_done`: an earlier run had written them."""

    by_shard: tuple[int, ...]
    was_done: bool = True

    @property
    def rows(self) -> int:
        return sum(self.by_shard)


@dataclass(frozen=True, slots=True)
class Earlier:
    """What earlier runs of a job have left: its plan, if one was decided, and the server that has it."""

    progress: Progress = Progress.NOTHING
    plan: Plan | None = None
    coordinator: Server | None = None


def earlier(target: Target, key: str) -> Earlier:
    """Ask every replica of the first shard: one of them was the coordinator, if there was one. Those of the
    other shards are asked, too, if they answer: the cluster may have been written down in another order.

    Raises Unavailable.
    """
    first, *others = target.shards
    with ThreadPoolExecutor(len(target.shards)) as pool:
        beside = [pool.submit(_found_on, shard.replicas, key, may_be_away=True) for shard in others]
        try:
            found = _found_on(first.replicas, key, may_be_away=False)
        except (NodeUnavailable, ReplyLost) as error:
            raise Unavailable(
                f"Nobody can tell whether this job was committed before: {error}",
                hint="Start that replica, or give the load a new job_id if it never ran.",
            ) from error
        return next((one for one in (found, *(work.result() for work in beside)) if one.plan), Earlier())


def _found_on(servers: Iterable[Server], key: str, *, may_be_away: bool) -> Earlier:
    for server in servers:
        try:
            progress, plan = records.progress(server, key)
        except (NodeUnavailable, ReplyLost):
            if not may_be_away:
                raise
        else:
            if plan is not None:
                return Earlier(progress, plan, server)
    return Earlier()


def outcome_of(options: Options, target: Target | None = None) -> Outcome | None:
    """What the job of this id wrote; None when it is not done, or was never started."""
    target = target or Target.find(options)
    key = staging.job_key(options.job_id, target)
    found = earlier(target, key)
    if found.plan is not None and found.progress is Progress.DONE:
        return Outcome(tuple(shard.rows for shard in found.plan.shards))
    return None


def forget(target: Target, job_id: str) -> None:
    """Drop the records of a job that is done and that nobody will repeat, if there are any."""
    key = staging.job_key(job_id, target)
    for server in target.shards[0].replicas:
        if records.progress(server, key)[0] is Progress.DONE:
            records.forget(server, key)
