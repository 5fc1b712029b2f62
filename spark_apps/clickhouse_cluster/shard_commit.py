"""One shard's part of a job's commit: see the steps in `commit`, which says what is done when."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from spark_apps.clickhouse_cluster import altered, proof, records, staging
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.moves import Moves, Recorded, RowsMissing, rows_of
from spark_apps.clickhouse_cluster.records import Mode, Plan
from spark_apps.clickhouse_cluster.staging import Parts, Seen
from spark_apps.clickhouse_cluster.target import Target

log = logging.getLogger(__name__)

_ALTERED = (
    "Nothing was written. If the table was altered while the load ran, run it again; else it has what "
    "staging tables have not: see its CREATE TABLE."
)
_ATTACHED_AT_ONCE = 100
"""Partitions in one statement: a server reads 256 KiB of it, unless it is told to read more."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """How far a run of the commit is on one shard: what it saw, what it has gathered, and the intents that it
    recorded, by partition id."""

    seen: Seen
    table: TableName | None = None
    parts: Parts = field(default_factory=dict)
    intents: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShardCommit:
    """A commit's work on one shard (counted from 0)."""

    plan: Plan
    shard: int
    server: Server
    target: Target

    @property
    def is_told_by_parts(self) -> bool:
        """Whether Keeper knows which parts were moved."""
        return self.target.is_replicated and Mode(self.plan.mode) is Mode.APPEND

    @property
    def has_hashes(self) -> bool:
        """Keeper knows the parts by the hashes that the server shows of them."""
        return self.is_told_by_parts and not self.target.is_old

    def look(self) -> Seen:
        """Of whoever decides, before that: hashes that Keeper knows then are of other jobs' parts."""
        path = self.target.keeper_paths[self.shard] if self.has_hashes else ""
        return staging.look(self.server, self.target, self.plan.job, self.plan.epoch, keeper_path=path)

    def count_strangers(self) -> int:
        tables = [TableName(staging.DATABASE, one.table) for one in self.plan.shards[self.shard].staged]
        try:
            return proof.count_strangers(self.server, self.target, self.shard, tables)
        except SqlError as error:
            if error.code != Code.UNKNOWN_TABLE:
                raise
            raise RowsMissing(f"{self.server}: {error.message}") from error

    def require_fitting_parts(self) -> None:
        """That staging tables have the table's structure, also where it was altered while tasks ran: a server
        refuses the parts of one that has not, and then the job would be decided. Raises SqlError,
        RowsMissing."""
        names = [one.table for one in self.plan.shards[self.shard].staged]
        if not names or self.target.is_old:
            return
        try:
            refusal = altered.refusal_of(self.server, self.target, TableName(staging.DATABASE, names[0]))
        except SqlError as error:
            raise RowsMissing(f"{self.server}: {error.message}") from error
        if refusal is not None:
            refusal.hint = _ALTERED
            raise refusal
        others = staging.of_other_columns(self.server, names)
        if others:
            raise SqlError(
                Code.INCOMPATIBLE_COLUMNS,
                f"{self.server}: {', '.join(others[:5])} have other columns than {names[0]}.",
                hint=_ALTERED,
            )

    def require_no_strangers(self, rows: int) -> None:
        if rows:
            raise proof.wrong_shard(
                self.server, self.target, self.shard, rows, hint="Nothing was written to the table."
            )

    def make_ahead(self) -> TableName | None:
        """The table to gather in, if it is known to be needed."""
        if not self.is_told_by_parts or len(self.plan.shards[self.shard].staged) < 2:
            return None
        like = self.plan.shards[self.shard].staged[0].table
        # With the epoch in its name, so that a run that gives up drops it.
        table = staging.commit_table(self.plan.job, f"{self.plan.epoch}x{staging.new_nonce()}")
        self._make(table, like=TableName(staging.DATABASE, like))
        return table

    def intend_ahead(self, seen: Seen) -> Mapping[str, Mapping[str, object]]:
        """The intents of the first moves, recorded; none where a move will be refused."""
        sources = self._sources(seen).values()
        if not self.has_hashes or _partitions_with_equal_parts(self.target, sources):
            return {}
        return self._moves(Ahead(seen, parts=_together(sources)), {}).intend_ahead()

    def gather_ahead(self, seen: Seen, made: Future[TableName | None]) -> Ahead:
        return self.gather(Ahead(seen), made.result()) if self.is_told_by_parts else Ahead(seen)

    def gather(self, begun: Ahead, made: TableName | None = None) -> Ahead:
        """Step 4, unless it was done; `made` is a table for it."""
        if begun.table is not None:
            return begun
        sources = self._sources(begun.seen)
        self._require_all(_together(sources.values()), "are staged")
        equal = _partitions_with_equal_parts(self.target, sources.values())
        if self.is_told_by_parts and len(sources) == 1 and not equal:
            ((table, found),) = sources.items()
        elif self.is_told_by_parts and not sources:
            return begun
        else:
            table = made or staging.commit_table(self.plan.job, staging.new_epoch())
            if made is None:
                self._make(table, like=next(iter(sources), None))
            found = self._gather_in(table, sources, equal)
        self._require_all(found, f"gathered in {table}")
        return replace(begun, table=table, parts=found)

    def gather_anew(self, begun: Ahead) -> tuple[ShardCommit, Ahead]:
        """Step 4 of a run that has not decided itself: the table may have been altered since."""
        first = next(iter(self._sources(begun.seen)), None)
        if first is None or self.target.is_old or begun.seen.attempts.get(first.table) is None:
            return self, self.gather(begun)
        if altered.refusal_of(self.server, self.target, first) is None:
            return self, self.gather(begun)
        return self._gather_altered(begun)

    def _gather_altered(self, begun: Ahead) -> tuple[ShardCommit, Ahead]:
        """Step 4, for a table of another structure than the staged rows have. Raises SqlError."""
        target = self.target.altered_on(self.server)
        work = replace(self, target=target)
        sources = work._sources(begun.seen)
        work._require_all(_together(sources.values()), "are staged")
        table = staging.commit_table(self.plan.job, staging.new_epoch())
        work._make(table, like=None)
        work._drop_others(table)
        altered.write_again(self.server, target, table, sources)
        parts = staging.parts(self.server, target, table)
        if equal := _partitions_with_equal_parts(target, [parts]):
            work._merge(table, equal)
            parts = staging.parts(self.server, target, table)
        work._require_all(parts, f"gathered in {table}")
        refusal = altered.refusal_of(self.server, target, table)
        if refusal is not None:
            refusal.hint = altered.HAD_OTHER_COLUMNS
            raise refusal
        log.warning("spark.table_altered job=%s table=%s server=%s", self.plan.job, target.table, self.server)
        return work, replace(begun, table=table, parts=parts)

    def _require_all(self, parts: Parts, where: str) -> None:
        """Raises RowsMissing."""
        rows, wanted = sum(rows_of(parts).values()), self.plan.shards[self.shard].rows
        if rows != wanted:
            raise RowsMissing(
                f"{self.server}: {rows} rows {where}, and job {self.plan.job} has decided to write {wanted}.",
                hint="Servers drop what a job left a week ago; such rows are gone. "
                f"{staging.DATABASE}.ledger on each shard says which partitions have theirs: load the others "
                "under another job_id.",
            )

    def _sources(self, seen: Seen) -> dict[TableName, Parts]:
        staged = self.plan.shards[self.shard].staged
        return {TableName(staging.DATABASE, one.table): seen.attempts.get(one.table, {}) for one in staged}

    def _make(self, table: TableName, *, like: TableName | None) -> None:
        staging.create(self.server, table, self.target, job=self.plan.job, like=like)

    def _gather_in(self, table: TableName, sources: Mapping[TableName, Parts], equal: Sequence[str]) -> Parts:
        server, target = self.server, self.target
        if not self.is_told_by_parts:
            self._drop_others(table)
        attaches = [
            f"ATTACH PARTITION ID {quote_string(partition_id)} FROM {source.quoted}"
            for source, parts in sources.items()
            for partition_id in sorted(parts)
        ]
        for at in range(0, len(attaches), _ATTACHED_AT_ONCE):
            some = ", ".join(attaches[at : at + _ATTACHED_AT_ONCE])
            server.execute(f"ALTER TABLE {table.quoted} {some}")
        self._merge(table, equal)
        return staging.parts(server, target, table) if equal else _together(sources.values())

    def _drop_others(self, mine: TableName) -> None:
        for other in staging.gathered_by_others(self.server, self.plan.job, mine):
            staging.drop_and_wait(self.server, other, version=self.target.shards[self.shard].version)

    def _merge(self, table: TableName, ids: Sequence[str]) -> None:
        for partition_id in ids:
            where = f"PARTITION ID {quote_string(partition_id)}"
            self.server.execute(f"OPTIMIZE TABLE {table.quoted} {where} FINAL")

    def move(
        self, begun: Ahead, ids: Sequence[str], *, is_first: bool, later: ThreadPoolExecutor
    ) -> Future[None] | None:
        """Step 5. `ids` are those of the partitions of all shards. What is in the table is there whether that
        is recorded or not, so the last record need not be waited for.

        Where the table was altered meanwhile, the moves go on with rows that were written once more."""
        try:
            return self._move(begun, ids, is_first=is_first, later=later)
        except SqlError as error:
            if begun.table is None or not altered.is_refusal(error):
                raise
            if self.target.is_old:
                error.hint = altered.HAD_OTHER_COLUMNS
                raise
            if altered.refusal_of(self.server, self.target, begun.table) is None:
                raise
        # What was moved meanwhile is known by a new look.
        work, again = self._gather_altered(Ahead(self.look()))
        return work.move(again, ids, is_first=False, later=later)

    def _move(
        self, begun: Ahead, ids: Sequence[str], *, is_first: bool, later: ThreadPoolExecutor
    ) -> Future[None] | None:
        # Another run may have moved something since this one decided; Keeper will say so where it knows.
        recorded: Recorded = {}
        if not is_first or not self.is_told_by_parts:
            recorded = records.recorded(self.server, self.plan.job, epoch=self.plan.epoch)
        moves = self._moves(begun, recorded)
        if Mode(self.plan.mode) is Mode.OVERWRITE_PARTITIONS:
            moves.replace(ids)
            self._require_no_surplus(begun, ids, is_first=is_first)
            return None
        moved = moves.append(sorted(begun.parts))
        recording = later.submit(moves.record_moved, moved) if moved else None
        self._require_no_surplus(begun, (), is_first=is_first)
        return recording

    def _require_no_surplus(self, begun: Ahead, replaced: Sequence[str], *, is_first: bool) -> None:
        """Step 6, for this shard. What was seen before the moves counts if nothing had been moved then."""
        if begun.table is None:
            return
        seen = begun.seen.target if is_first else {}
        names = {one: [part.name for part in some] for one, some in seen.items()}
        rows = {one: sum(part.rows for part in seen.get(one, ())) for one in begun.parts} if is_first else {}
        proof.require_no_surplus(
            self.server, self.target, begun.table, replaced=replaced, before=names, rows_before=rows
        )

    def _moves(self, begun: Ahead, recorded: Recorded) -> Moves:
        return Moves(
            self.plan.job, self.plan.epoch, self.server, self.target, self.target.keeper_paths[self.shard],
            begun.table, begun.parts, rows_of(begun.seen.target), begun.seen.blocks, recorded, begun.intents,
        )  # fmt: skip


def _together(sources: Iterable[Parts]) -> Parts:
    found: Parts = {}
    for parts in sources:
        for partition_id, some in parts.items():
            found.setdefault(partition_id, []).extend(some)
    return found


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
