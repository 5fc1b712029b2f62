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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from engine.names import TableName, quote_string
from spark_apps.clickhouse_cluster import records, staging
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.moves import Moves, RowsMissing
from spark_apps.clickhouse_cluster.records import Mode, Plan, ShardPlan
from spark_apps.clickhouse_cluster.target import Target

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    """By shard, the rows that are in the table because of the job."""

    rows: tuple[int, ...]


def check_staged(plan: Plan, servers: Sequence[Server]) -> None:
    """Count the winners' rows. Raises RowsMissing."""
    for number, (shard, server) in enumerate(zip(plan.shards, servers, strict=True), start=1):
        for staged in shard.staged:
            there = int(
                server.text(f"SELECT count() FROM {TableName(staging.DATABASE, staged.table).quoted}")
            )
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
            ids = sorted({*plan.partitions, *(partition_id for _, rows in gathered for partition_id in rows)})
            moves = [
                pool.submit(_move_all, plan, number, server, target, table, rows, ids)
                for number, (server, (table, rows)) in enumerate(zip(servers, gathered, strict=True))
            ]
            for move in moves:
                move.result()
        records.record_done(coordinator, plan.job)
        log.info("spark.committed job=%s rows=%s", plan.job, [shard.rows for shard in plan.shards])
    for server in dict.fromkeys(servers):
        staging.sweep(server, plan.job)
    return Written(tuple(shard.rows for shard in plan.shards))


def _gather(plan: Plan, shard: ShardPlan, server: Server, target: Target) -> tuple[TableName, dict[str, int]]:
    """Step 4: the table, and by partition id the rows in it."""
    sources = {
        source: staging.parts(server, target, source)
        for source in (TableName(staging.DATABASE, staged.table) for staged in shard.staged)
    }
    if len(sources) == 1 and not _partitions_with_equal_parts(server, target, *sources):
        ((table, found),) = sources.items()
    else:
        table = staging.commit_table(plan.job, staging.new_epoch())
        staging.create(server, table, target, job=plan.job)
        for source, parts in sources.items():
            for partition_id in sorted(parts):
                attach = f"ATTACH PARTITION ID {quote_string(partition_id)} FROM {source.quoted}"
                server.execute(f"ALTER TABLE {table.quoted} {attach}")
        for partition_id in _partitions_with_equal_parts(server, target, table):
            where = f"PARTITION ID {quote_string(partition_id)}"
            server.execute(f"OPTIMIZE TABLE {table.quoted} {where} FINAL")
        found = staging.parts(server, target, table)
    rows = {partition_id: sum(part.rows for part in parts) for partition_id, parts in found.items()}
    if sum(rows.values()) != shard.rows:
        raise RowsMissing(
            f"{server}: {sum(rows.values())} rows gathered in {table}, {shard.rows} were staged."
        )
    return table, rows


def _partitions_with_equal_parts(server: Server, target: Target, table: TableName) -> list[str]:
    """Where a replicated table would take one part for a repetition of another. Old servers do not tell."""
    if not target.is_replicated:
        return []
    return sorted(
        partition_id
        for partition_id, parts in staging.parts(server, target, table).items()
        if len(parts) > (1 if target.is_old else len({part.digest for part in parts}))
    )


def _move_all(
    plan: Plan,
    shard: int,
    server: Server,
    target: Target,
    table: TableName,
    rows: Mapping[str, int],
    ids: Sequence[str],
) -> None:
    """Step 5 for one shard. `rows` of the gathered partitions; `ids` of those of all shards."""
    moves = Moves(plan.job, server, target, target.keeper_paths[shard], table, rows)
    if Mode(plan.mode) is Mode.OVERWRITE_PARTITIONS:
        moves.replace(ids)
    else:
        moves.append(sorted(rows))
