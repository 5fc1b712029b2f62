"""What a job has written, as the servers remember it."""

from __future__ import annotations

from dataclasses import dataclass

from spark_apps.clickhouse_cluster import records, staging
from spark_apps.clickhouse_cluster.options import Options
from spark_apps.clickhouse_cluster.target import Target


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rows by shard. `was_done`: an earlier run had written them."""

    by_shard: tuple[int, ...]
    was_done: bool = True

    @property
    def rows(self) -> int:
        return sum(self.by_shard)


def outcome_of(options: Options, target: Target | None = None) -> Outcome | None:
    """What the job of this id wrote; None when it is not done, or was never started."""
    target = target or Target.find(options)
    key = staging.job_key(options.job_id, target)
    for server in target.shards[0].replicas:
        progress, plan = records.progress(server, key)
        if plan is not None and progress is records.Progress.DONE:
            return Outcome(tuple(shard.rows for shard in plan.shards))
    return None


def forget(target: Target, job_id: str) -> None:
    """Drop the records of a job that is done and that nobody will repeat, if there are any."""
    key = staging.job_key(job_id, target)
    for server in target.shards[0].replicas:
        if records.progress(server, key)[0] is records.Progress.DONE:
            records.forget(server, key)
