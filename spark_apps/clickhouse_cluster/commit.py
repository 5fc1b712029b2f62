"""A job's commit: rows of the winning attempts go from staging into the table, once.

Safety argument.
1. Attempts have posted to staging tables of their own. Nobody reads those; a crash leaves them for the sweep.
2. The driver counts the rows in the winners' staging tables, and has the servers evaluate the sharding key on
   them. A number other than the one that the attempt reported, or a row that belongs to another shard, ends
   the job here, with nothing written.
3. The decision is recorded (`decisions`): from here on the job is committed, and every later run of it
   only carries out the recorded plan. Of two drivers one decides; the other carries out the same plan.
4. On each shard a run of the commit gathers the winners' parts in a table of its own, by hard links. Parts
   are the same whoever gathers them. Where parts alone say what was moved (rows added to a Replicated table),
   runs do not disturb one another, and a winner that is alone on its shard has gathered them already. There
   the run that decides gathers beside steps 2 and 3, and records the intents of its first moves beside step
   3: a table that nobody reads if another plan is decided, and intents that name this plan and no other.
   Elsewhere a run first drops the tables of other runs, and waits until no statement uses them: a driver that
   was killed or slept leaves a commit that may go on, and from here on each of its moves fails.
5. For some partitions at a time: the intent is recorded, with what allows to see later whether it was carried
   out; an ALTER moves them one after another (ATTACH or REPLACE … FROM, each atomic for readers); the effects
   are looked at; then they are recorded (see `moves`).
   A table that was altered since 3 takes none of these parts: what is not moved yet is written once more
   (`altered`).
6. When all shards have everything, each is looked at for rows that are too many (`proof`), and the replicas
   of a shard are compared (`replicas`).
7. The job is recorded as done; only then staging goes. An attempt that posts later finds no table, or makes
   one that nobody reads. A job that failed at 6 stays decided: its next run adds nothing, and looks again.

What this never does: read rows (but its own staged ones, for an altered table), write to the table in any
other way, touch a partition that the job has no rows for (REPLACE on one shard empties it on the shards where
the job has no rows of that partition), drop what a run that may still decide has staged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from engine.errors import ReplyLost, Unavailable
from spark_apps.clickhouse_cluster import staging
from spark_apps.clickhouse_cluster.decisions import Decisions, Progress
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.moves import RowsMissing, rows_of
from spark_apps.clickhouse_cluster.records import Mode, Plan
from spark_apps.clickhouse_cluster.replicas import require_equal_replicas
from spark_apps.clickhouse_cluster.shard_commit import Ahead, ShardCommit
from spark_apps.clickhouse_cluster.staging import Seen
from spark_apps.clickhouse_cluster.target import Target

log = logging.getLogger(__name__)


def decide(
    plan: Plan, target: Target, servers: Sequence[Server], decisions: Decisions
) -> tuple[Plan, list[Ahead] | None]:
    """Steps 2 and 3, and beside them what nobody minds if it was for nothing: see step 4.

    Gives the plan that was decided, and if that is this one, how far this run is. Raises RowsMissing,
    RowsOnWrongShard.
    """
    works = [ShardCommit(plan, number, server, target) for number, server in enumerate(servers)]
    with ThreadPoolExecutor(4 * len(works)) as pool:
        strangers = [pool.submit(work.count_strangers) for work in works]
        fitting = [pool.submit(work.require_fitting_parts) for work in works]
        made = [pool.submit(work.make_ahead) for work in works]
        seen = list(pool.map(ShardCommit.look, works))
        _check_staged(plan, servers, seen)
        intending = [pool.submit(work.intend_ahead, one) for work, one in zip(works, seen, strict=True)]
        gathering = [
            pool.submit(work.gather_ahead, one, table)
            for work, one, table in zip(works, seen, made, strict=True)
        ]
        for work, found in zip(works, strangers, strict=True):
            work.require_no_strangers(found.result())
        for fits in fitting:
            fits.result()
        decided = decisions.decide(plan)
        if decided is not plan:
            return decided, None
        return plan, [
            replace(gathered.result(), intents=intended.result())
            for gathered, intended in zip(gathering, intending, strict=True)
        ]


def _check_staged(plan: Plan, servers: Sequence[Server], seen: Sequence[Seen]) -> None:
    """Count the winners' rows. Raises RowsMissing."""
    for number, (shard, server, one) in enumerate(zip(plan.shards, servers, seen, strict=True), start=1):
        for staged in shard.staged:
            there = sum(rows_of(one.attempts.get(staged.table, {})).values())
            if there != staged.rows:
                raise RowsMissing(
                    f"Shard {number} ({server}): {there} rows in {staged.table}, {staged.rows} were sent.",
                    hint="Nothing was written to the table. Run the job again.",
                )


def carry_out(
    plan: Plan,
    target: Target,
    servers: Sequence[Server],
    decisions: Decisions,
    *,
    ahead: Sequence[Ahead] | None = None,
    replicas_wait_s: float = 0,
) -> None:
    """Steps 4 to 7, from wherever an earlier run got to. `servers` are the plan's, by shard.

    `ahead` is how far this very run was when it decided: then nothing was moved by then. `replicas_wait_s` is
    how long replicas that are behind are waited for.
    Raises RowsMissing, RowsTooMany, ReplicasDiffer, EqualRows, UnknownOutcome, NodeUnavailable; the job stays
    committed then, and another run goes on.
    """
    begun: Sequence[Ahead] = ahead or ()
    if ahead is not None or decisions.progress(plan.job)[0] is not Progress.DONE:
        target = target.of_plan(servers)
        works: Sequence[ShardCommit] = [
            ShardCommit(plan, number, server, target) for number, server in enumerate(servers)
        ]
        with ThreadPoolExecutor(2 * len(works)) as pool:
            if ahead is None:
                begun = [Ahead(seen) for seen in pool.map(ShardCommit.look, works)]
                works, begun = zip(*pool.map(ShardCommit.gather_anew, works, begun), strict=True)
            else:
                begun = list(pool.map(ShardCommit.gather, works, begun))
            ids = sorted({*plan.partitions, *(one for shard in begun for one in shard.parts)})

            def move(work: ShardCommit, shard: Ahead) -> Future[None] | None:
                return work.move(shard, ids, is_first=ahead is not None, later=pool)

            recording = list(pool.map(move, works, begun))
            is_replaced = Mode(plan.mode) is Mode.OVERWRITE_PARTITIONS
            touched = [ids if is_replaced else sorted(shard.parts) for shard in begun]
            require_equal_replicas(target, servers, touched, wait_s=replicas_wait_s)
            decisions.record_done(plan.job)
            for recorded in recording:
                if recorded is not None:
                    recorded.result()
        log.info("spark.committed job=%s rows=%s", plan.job, [shard.rows for shard in plan.shards])
    left = {
        server: [*shard.seen.attempts, *([shard.table.table] if shard.table else [])]
        for server, shard in zip(servers, begun, strict=False)
    }
    try:
        staging.sweep(servers, plan.job, known=left, done_of=decisions.done_of)
    except (Unavailable, ReplyLost) as error:  # a later load there drops it
        log.warning("spark.staging_left job=%s error=%s", plan.job, error.message)
