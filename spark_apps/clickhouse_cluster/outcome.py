"""What a job has written, as the servers remember it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from engine.errors import ReplyLost, Unavailable
from spark_apps.clickhouse_cluster import staging
from spark_apps.clickhouse_cluster.decisions import Decisions, OnOneServer, Progress
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.options import Options
from spark_apps.clickhouse_cluster.records import Plan
from spark_apps.clickhouse_cluster.shared_decisions import TOKENS_SINCE, Shared
from spark_apps.clickhouse_cluster.target import Target

_T = TypeVar("_T")


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
    """What earlier runs of a job have left: its plan, if one was decided, and where that stands."""

    progress: Progress = Progress.NOTHING
    plan: Plan | None = None
    decisions: Decisions | None = None


def new_decisions(target: Target, *, alone: Server) -> Decisions:
    """Where a load decides: with all replicas of the first shard, or `alone`."""
    if not _are_shared(target):
        return OnOneServer(alone)
    shared = Shared.of_shard(target, 0)
    shared.make()
    return shared


def ask_all(target: Target, ask: Callable[[Decisions], _T], *, what: str) -> list[tuple[Decisions, _T]]:
    """Where decisions may stand, and what each says: of the first shard all of them, or the replicas
    together. Others are asked, too, if they answer: the cluster may have been written down in another order,
    or its servers have been older.

    Raises Unavailable, naming `what` nobody can tell.
    """
    first, *others = target.shards
    needed: Sequence[Decisions] = [OnOneServer(server) for server in first.replicas]
    beside: list[Decisions] = [OnOneServer(server) for shard in others for server in shard.replicas]
    if _are_shared(target):
        beside += [*needed, *(Shared.of_shard(target, number + 1) for number in range(len(others)))]
        needed = [Shared.of_shard(target, 0)]

    def if_it_answers(one: Decisions) -> list[tuple[Decisions, _T]]:
        try:
            return [(one, ask(one))] if one.is_there() else []
        except (Unavailable, ReplyLost):
            return []

    with ThreadPoolExecutor(len(beside) + 1) as pool:
        answers = pool.map(if_it_answers, beside)
        try:
            found = [(one, ask(one)) for one in needed]
        except (Unavailable, ReplyLost) as error:
            raise Unavailable(
                f"Nobody can tell {what}: {error}",
                hint="Start that replica, or give the load a new job_id if it never ran.",
            ) from error
        return [*found, *(answer for some in answers for answer in some)]


def _are_shared(target: Target) -> bool:
    return target.is_replicated and target.shards[0].version >= TOKENS_SINCE


def earlier(target: Target, key: str) -> Earlier:
    """Raises Unavailable."""
    found = ask_all(target, lambda one: one.progress(key), what="whether this job was committed before")
    return next((Earlier(how, plan, where) for where, (how, plan) in found if plan is not None), Earlier())


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
    found = earlier(target, staging.job_key(job_id, target))
    if found.progress is Progress.DONE and found.decisions is not None:
        found.decisions.forget(staging.job_key(job_id, target))
