"""A job's commit: rows of the winning attempts go from staging into the table, once.

Safety argument.
1. Attempts have posted to staging tables of their own. Nobody reads those; a crash leaves them for the sweep.
2. The driver counts the rows in the winners' staging tables. A number other than the one that the attempt
   reported ends the job here, with nothing written.
3. The decision is recorded (`records.decide`): from here on the job is committed, and every later run of it
   only carries out the recorded plan. Of two drivers one decides; the other carries out the same plan.
4. On each shard a run of the commit gathers the winners' parts in a table of its own, by hard links. Parts
   are the same whoever gathers them. Where parts alone say what was moved (rows added to a Replicated table),
   runs do not disturb one another, and a winner that is alone on its shard has gathered them already.
   Elsewhere a run first drops the tables of other runs, and waits until no statement uses them: a driver that
   was killed or slept leaves a commit that may go on, and from here on each of its moves fails.
5. For some partitions at a time: the intent is recorded, with what allows to see later whether it was carried
   out; one ALTER for each moves the partition (ATTACH or REPLACE … FROM, atomic for readers); the effects are
   looked at; then they are recorded (see `moves`).
6. When all shards have everything, the job is recorded as done; only then staging goes. An attempt that posts
   later finds no table, or makes one that nobody reads.

What this never does: read rows, write to the table in any other way, touch a partition that the job has no
rows for (REPLACE on one shard empties it on the shards where the job has no rows of that partition), drop
what a run that may still decide has staged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from engine.names import TableName, quote_string
from spark_apps.clickhouse_cluster import records, staging
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.moves import Moves, RowsMissing, rows_of
from spark_apps.clickhouse_cluster.records import Mode, Plan
from spark_apps.clickhouse_cluster.staging import Parts, Seen
from spark_apps.clickhouse_cluster.target import Target

log = logging.getLogger(__name__)

_ATTACHED_AT_ONCE = 100
"""Partitions in one statement: a server reads 256 KiB of it, unless it is told to read more."""


def check_staged(plan: Plan, target: Target, servers: Sequence[Server]) -> list[Seen]:
    """Count the winners' rows; gives what is on each shard. Raises RowsMissing."""
    seen = _look(plan, target, servers)
    for number, (shard, server, one) in enumerate(zip(plan.shards, servers, seen, strict=True), start=1):
        for staged in shard.staged:
            there = sum(rows_of(one.attempts.get(staged.table, {})).values())
            if there != staged.rows:
                raise RowsMissing(
                    f"Shard {number} ({server}): {there} rows in {staged.table}, {staged.rows} were sent.",
                    hint="Nothing was written to the table. Run the job again.",
                )
    return seen


def carry_out(
    plan: Plan, target: Target, servers: Sequence[Server], *, decided_at: Sequence[Seen] | None = None
) -> None:
    """Steps 4 to 6, from wherever an earlier run got to. `servers` are the plan's, by shard.

    `decided_at` is what was on each shard when this very run decided: then nothing was moved by then.
    Raises RowsMissing, EqualRows, UnknownOutcome, NodeUnavailable; the job stays committed then, and another
    run goes on.
    """
    coordinator = servers[0]
    if decided_at is not None or not records.is_done(coordinator, plan.job):
        seen = decided_at or _look(plan, target, servers)
        works = [
            _Work(plan, number, server, target, one)
            for number, (server, one) in enumerate(zip(servers, seen, strict=True))
        ]
        with ThreadPoolExecutor(len(works)) as pool:
            gathered = list(pool.map(_Work.gather, works))
            ids = sorted({*plan.partitions, *(one for _, parts in gathered for one in parts)})
            moves = [
                pool.submit(work.move, table, parts, ids, is_first=decided_at is not None)
                for work, (table, parts) in zip(works, gathered, strict=True)
            ]
            for move in moves:
                move.result()
        records.record_done(coordinator, plan.job)
        log.info("spark.committed job=%s rows=%s", plan.job, [shard.rows for shard in plan.shards])
    staging.sweep(servers, plan.job)


def _look(plan: Plan, target: Target, servers: Sequence[Server]) -> list[Seen]:
    """Before the decision, for whoever decides: hashes that Keeper knows then are of other jobs' parts."""
    are_hashes_used = _is_told_by_parts(plan, target) and not target.is_old
    paths = target.keeper_paths if are_hashes_used else [""] * len(servers)

    def on_one(server: Server, path: str) -> Seen:
        return staging.look(server, target, plan.job, plan.epoch, keeper_path=path)

    with ThreadPoolExecutor(len(servers)) as pool:
        return list(pool.map(on_one, servers, paths))


def _is_told_by_parts(plan: Plan, target: Target) -> bool:
    """Whether Keeper knows which parts were moved."""
    return target.is_replicated and Mode(plan.mode) is Mode.APPEND


@dataclass(frozen=True, slots=True)
class _Work:
    """A commit's work on one shard (counted from 0). `seen` is what was there before."""

    plan: Plan
    shard: int
    server: Server
    target: Target
    seen: Seen

    @property
    def is_told_by_parts(self) -> bool:
        return _is_told_by_parts(self.plan, self.target)

    def gather(self) -> tuple[TableName, Parts]:
        """Step 4: the table, and its parts."""
        wanted = self.plan.shards[self.shard]
        sources = {
            TableName(staging.DATABASE, one.table): self.seen.attempts.get(one.table, {})
            for one in wanted.staged
        }
        equal = _partitions_with_equal_parts(self.target, sources.values())
        if self.is_told_by_parts and len(sources) == 1 and not equal:
            ((table, found),) = sources.items()
        else:
            table = staging.commit_table(self.plan.job, staging.new_epoch())
            if not sources and self.is_told_by_parts:
                return table, {}
            found = self._gather_in(table, sources, equal)
        rows = sum(rows_of(found).values())
        if rows != wanted.rows:
            raise RowsMissing(f"{self.server}: {rows} rows gathered in {table}, {wanted.rows} were staged.")
        return table, found

    def _gather_in(self, table: TableName, sources: Mapping[TableName, Parts], equal: Sequence[str]) -> Parts:
        server, target = self.server, self.target
        like = next(iter(sources), None)
        staging.create(server, table, target, job=self.plan.job, like=like)
        if not self.is_told_by_parts:
            for other in staging.gathered_by_others(server, self.plan.job, table):
                staging.drop_and_wait(server, other, version=target.shards[self.shard].version)
        attaches = [
            f"ATTACH PARTITION ID {quote_string(partition_id)} FROM {source.quoted}"
            for source, parts in sources.items()
            for partition_id in sorted(parts)
        ]
        for at in range(0, len(attaches), _ATTACHED_AT_ONCE):
            some = ", ".join(attaches[at : at + _ATTACHED_AT_ONCE])
            server.execute(f"ALTER TABLE {table.quoted} {some}")
        for partition_id in equal:
            where = f"PARTITION ID {quote_string(partition_id)}"
            server.execute(f"OPTIMIZE TABLE {table.quoted} {where} FINAL")
        if equal:
            return staging.parts(server, target, table)
        found: Parts = {}
        for parts in sources.values():
            for partition_id, some_parts in parts.items():
                found.setdefault(partition_id, []).extend(some_parts)
        return found

    def move(self, table: TableName, parts: Parts, ids: Sequence[str], *, is_first: bool) -> None:
        """Step 5. `parts` are those gathered in `table`; `ids` of the partitions of all shards."""
        # Another run may have moved something since this one decided; Keeper will say so where it knows.
        recorded = {} if is_first and self.is_told_by_parts else records.recorded(self.server, self.plan.job)
        moves = Moves(
            self.plan.job, self.server, self.target, self.target.keeper_paths[self.shard], table, parts,
            rows_of(self.seen.target), self.seen.hashes, recorded,
        )  # fmt: skip
        if Mode(self.plan.mode) is Mode.OVERWRITE_PARTITIONS:
            moves.replace(ids)
        else:
            moves.append(sorted(parts))


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
