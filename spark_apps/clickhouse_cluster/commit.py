"""A job's commit: rows of the winning attempts go from staging into the table, once.

Safety argument.
1. Attempts have posted to staging tables of their own. Nobody reads those; a crash leaves them for the sweep.
2. The driver counts the rows in the winners' staging tables. A number other than the one that the attempt
   reported ends the job here, with nothing written.
3. The decision is recorded (`records.decide`): from here on the job is committed, and every later run of it
   only carries out the recorded plan. Of two drivers one decides; the other carries out the same plan.
4. On each shard a run of the commit gathers the winners' parts in a table of its own, by hard links; a
   winner that is alone on its shard has gathered them already. Parts are the same whoever gathers them, so
   runs do not disturb one another.
5. For some partitions at a time: the intent is recorded, with what allows to see later whether it was carried
   out; one ALTER for each moves the partition (ATTACH or REPLACE … FROM, atomic for readers); the effects are
   looked at; then they are recorded (see `moves`).
6. When all shards have everything, the job is recorded as done; only then staging goes. An attempt that posts
   later finds no table, or makes one that nobody reads.

What this never does: read rows, write to the table in any other way, touch a partition that the job has no
rows for (REPLACE on one shard is DROP on the shards where the job has no rows of that partition).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from engine.names import TableName, quote_string
from spark_apps.clickhouse_cluster import records, staging
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.moves import Moves, RowsMissing, rows_of
from spark_apps.clickhouse_cluster.records import Mode, Plan, ShardPlan
from spark_apps.clickhouse_cluster.staging import Parts
from spark_apps.clickhouse_cluster.target import Target

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    """By shard, the rows that are in the table because of the job."""

    rows: tuple[int, ...]


def check_staged(plan: Plan, target: Target, servers: Sequence[Server]) -> None:
    """Count the winners' rows. Raises RowsMissing."""
    with ThreadPoolExecutor(len(servers)) as pool:
        parts_there = list(pool.map(lambda server: _staged_parts(plan, server, target), servers))
    shards = zip(plan.shards, servers, parts_there, strict=True)
    for number, (shard, server, found) in enumerate(shards, start=1):
        for staged in shard.staged:
            there = sum(part.rows for some in found.get(staged.table, {}).values() for part in some)
            if there != staged.rows:
                raise RowsMissing(
                    f"Shard {number} ({server}): {there} rows in {staged.table}, {staged.rows} were sent.",
                    hint="Nothing was written to the table. Run the job again.",
                )


def carry_out(plan: Plan, target: Target, servers: Sequence[Server]) -> Written:
    """Steps 4 to 6, from wherever an earlier run got to. `servers` are the plan's, by shard.

    Raises RowsMissing, EqualRows, UnknownOutcome, NodeUnavailable; the job stays committed then, and another
    run goes on.
    """
    coordinator = servers[0]
    if not records.is_done(coordinator, plan.job):
        with ThreadPoolExecutor(len(servers)) as pool:
            gathered = list(
                pool.map(
                    lambda pair: _gather(plan, pair[0], pair[1], target),
                    zip(plan.shards, servers, strict=True),
                )
            )
            ids = sorted({*plan.partitions, *(one for _, parts in gathered for one in parts)})
            moves = [
                pool.submit(_move_all, plan, number, server, target, table, parts, ids)
                for number, (server, (table, parts)) in enumerate(zip(servers, gathered, strict=True))
            ]
            for move in moves:
                move.result()
        records.record_done(coordinator, plan.job)
        log.info("spark.committed job=%s rows=%s", plan.job, [shard.rows for shard in plan.shards])
    staging.sweep_all(servers, plan.job)
    return Written(tuple(shard.rows for shard in plan.shards))


def _staged_parts(plan: Plan, server: Server, target: Target) -> dict[str, Parts]:
    return staging.attempts_parts(server, target, plan.job, plan.epoch)


def _gather(plan: Plan, shard: ShardPlan, server: Server, target: Target) -> tuple[TableName, Parts]:
    """Step 4: the table, and its parts."""
    there = _staged_parts(plan, server, target)
    sources = {TableName(staging.DATABASE, one.table): there.get(one.table, {}) for one in shard.staged}
    if not sources:
        return staging.commit_table(plan.job, plan.epoch), {}
    equal = _partitions_with_equal_parts(target, sources.values())
    if len(sources) == 1 and not equal:
        ((table, found),) = sources.items()
    else:
        table = staging.commit_table(plan.job, staging.new_epoch())
        staging.create_like(server, table, target, like=next(iter(sources)))
        for source, parts in sources.items():
            for partition_id in sorted(parts):
                attach = f"ATTACH PARTITION ID {quote_string(partition_id)} FROM {source.quoted}"
                server.execute(f"ALTER TABLE {table.quoted} {attach}")
        for partition_id in equal:
            where = f"PARTITION ID {quote_string(partition_id)}"
            server.execute(f"OPTIMIZE TABLE {table.quoted} {where} FINAL")
        found = staging.parts(server, target, table)
    rows = rows_of(found)
    if sum(rows.values()) != shard.rows:
        raise RowsMissing(
            f"{server}: {sum(rows.values())} rows gathered in {table}, {shard.rows} were staged."
        )
    return table, found


def _partitions_with_equal_parts(target: Target, sources: Iterable[Parts]) -> list[str]:
    """Where a replicated table would take one part for a repetition of another. Old servers do not tell."""
    if not target.is_replicated:
        return []
    digests: dict[str, list[str]] = {}
    for parts in sources:
        for partition_id, some in parts.items():
            digests.setdefault(partition_id, []).extend(part.digest for part in some)
    return sorted(
        partition_id
        for partition_id, some in digests.items()
        if len(some) > (1 if target.is_old else len(set(some)))
    )


def _move_all(
    plan: Plan,
    shard: int,
    server: Server,
    target: Target,
    table: TableName,
    parts: Parts,
    ids: Sequence[str],
) -> None:
    """Step 5 for one shard. `parts` are those gathered; `ids` of the partitions of all shards."""
    moves = Moves(plan.job, server, target, target.keeper_paths[shard], table, parts)
    if Mode(plan.mode) is Mode.OVERWRITE_PARTITIONS:
        moves.replace(ids)
    else:
        moves.append(sorted(parts))
