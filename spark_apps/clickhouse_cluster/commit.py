"""A job's commit: rows of the winning attempts go from staging into the table, once.

Safety argument.
1. Attempts have posted to staging tables of their own. Nobody reads those; a crash leaves them for the sweep.
2. The driver counts the rows in the winners' staging tables. A number other than the one that the attempt
   reported ends the job here, with nothing written.
3. The decision is recorded (`records.decide`): from here on the job is committed, and every later run of it
   only carries out the recorded plan. Of two drivers one decides; the other carries out the same plan.
4. On each shard a run of the commit gathers the winners' parts in a table of its own, by hard links. Parts
   are the same whoever gathers them, so runs do not disturb one another.
5. For each partition: the intent is recorded, with what allows to see later whether it was carried out; one
   ALTER moves the partition (ATTACH or REPLACE … FROM, atomic for readers); the effect is looked at; then it
   is recorded. A crash between any two of these is settled by the next run:
   - a replicated table leaves out parts that it was given before (their hashes stand in Keeper);
   - a replaced partition may be replaced again, since the record keeps a later run from doing so;
   - for a plain table the partition's row count tells, if nobody else wrote there; otherwise UnknownOutcome.
6. When all shards have everything, the job is recorded as done; only then staging goes. An attempt that posts
   later finds no table, or makes one that nobody reads.

What this never does: read rows, write to the table in any other way, touch a partition that the job has no
rows for (REPLACE on one shard is DROP on the shards where the job has no rows of that partition).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from engine.errors import OnclusterError, SqlError, UnknownOutcome
from engine.names import TableName, quote_string
from spark_apps.clickhouse_cluster import records, staging
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.records import Event, Mode, Plan, ShardPlan
from spark_apps.clickhouse_cluster.target import Target

log = logging.getLogger(__name__)

_REMEMBERED_S = 1800
"""So long at least Keeper remembers attached parts: half of the shortest default window of all versions."""


class RowsMissing(OnclusterError):
    """The checker found other rows on a shard than were sent there."""


class EqualRows(OnclusterError):
    """A server regards the rows as a repetition of ones that another job wrote."""


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
    """Step 4: the table, and by partition id its rows, of all partitions that are still to be moved."""
    table = staging.commit_table(plan.job, staging.new_epoch())
    attached = records.recorded(server, plan.job, Event.ATTACHED)
    staging.create(server, table, target, job=plan.job)
    for staged in shard.staged:
        source = TableName(staging.DATABASE, staged.table)
        for partition_id in sorted(_partitions(server, source)):
            attach = f"ATTACH PARTITION ID {quote_string(partition_id)} FROM {source.quoted}"
            server.execute(f"ALTER TABLE {table.quoted} {attach}")
    found = _partitions(server, table)
    if sum(found.values()) != shard.rows:
        raise RowsMissing(
            f"{server}: {sum(found.values())} rows gathered in {table}, {shard.rows} were staged."
        )
    if target.is_replicated:
        for partition_id in sorted(set(found) - set(attached)):
            if _has_equal_parts(server, table, partition_id, target):
                where = f"PARTITION ID {quote_string(partition_id)}"
                server.execute(f"OPTIMIZE TABLE {table.quoted} {where} FINAL")
    return table, found


def _partitions(server: Server, table: TableName) -> dict[str, int]:
    rows = server.rows(
        "SELECT partition_id, toString(sum(rows)) AS n FROM system.parts WHERE active "
        f"AND database = {quote_string(table.database)} AND table = {quote_string(table.table)} "
        "GROUP BY partition_id"
    )
    return {row["partition_id"]: int(row["n"]) for row in rows if int(row["n"])}


def _hashes(server: Server, table: TableName, partition_id: str) -> list[str]:
    return server.text(
        "SELECT upper(hash_of_all_files) FROM system.parts WHERE active AND rows > 0 "
        f"AND database = {quote_string(table.database)} AND table = {quote_string(table.table)} "
        f"AND partition_id = {quote_string(partition_id)}"
    ).split()


def _part_count(server: Server, table: TableName, partition_id: str) -> int:
    return int(
        server.text(
            "SELECT count() FROM system.parts WHERE active AND rows > 0 "
            f"AND database = {quote_string(table.database)} AND table = {quote_string(table.table)} "
            f"AND partition_id = {quote_string(partition_id)}"
        )
    )


def _has_equal_parts(server: Server, table: TableName, partition_id: str, target: Target) -> bool:
    """Whether the table would take one of the parts for a repetition of another. Old servers do not tell."""
    if target.is_old:
        return _part_count(server, table, partition_id) > 1
    hashes = _hashes(server, table, partition_id)
    return len(set(hashes)) < len(hashes)


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
    attached = records.recorded(server, plan.job, Event.ATTACHED)
    intents = records.recorded(server, plan.job, Event.INTENT)
    mode = Mode(plan.mode)
    for partition_id in ids if mode is Mode.OVERWRITE_PARTITIONS else sorted(rows):
        if partition_id in attached:
            continue
        move = _Move(
            plan.job,
            server,
            target,
            target.keeper_paths[shard],
            table,
            partition_id,
            rows.get(partition_id, 0),
        )
        if mode is Mode.OVERWRITE_PARTITIONS:
            move.replace()
        elif not target.is_replicated:
            move.append_plain(intents.get(partition_id))
        elif target.is_old:
            move.append_old(intents.get(partition_id))
        else:
            move.append_replicated(intents.get(partition_id))
        records.record(server, plan.job, Event.ATTACHED, partition_id, {"rows": rows.get(partition_id, 0)})


@dataclass(frozen=True, slots=True)
class _Move:
    """One partition of one shard."""

    job: str
    server: Server
    target: Target
    keeper_path: str
    source: TableName
    partition_id: str
    rows: int

    def replace(self) -> None:
        """May be repeated as long as nobody recorded that it was done."""
        self._alter("REPLACE" if self.rows else "DROP")
        there = self._count()
        if there < self.rows and self._keeps_every_row:
            raise self._missing(f"{there} rows after {self.rows} replaced it")

    def append_replicated(self, intent: Mapping[str, object] | None) -> None:
        """Parts that the table has seen are known by their hashes under `blocks/`."""
        hashes = set(_hashes(self.server, self.source, self.partition_id))
        if intent is None:
            known = hashes & self._blocks()
            if known:
                raise self._equal()
            before = self._count()
            self._intend({"hashes": sorted(hashes), "before": before, "at": int(time.time())})
        elif hashes <= self._blocks():
            return
        elif int(time.time()) - int(str(intent["at"])) > _REMEMBERED_S:
            there = self._count()
            if there != int(str(intent["before"])):
                raise self._unknown(intent, there)
        self._alter("ATTACH")
        absent = hashes - self._blocks()
        if absent:
            raise self._missing(f"{len(absent)} of {len(hashes)} parts did not arrive")

    def append_old(self, intent: Mapping[str, object] | None) -> None:
        """Servers that show no hashes: after the move there are new nodes under `blocks/`, one per part."""
        if intent is None:
            self._intend({"blocks": sorted(self._blocks())})
            before = self._blocks()
        else:
            before = {str(block) for block in intent["blocks"]}  # type: ignore[attr-defined]
        expected = _part_count(self.server, self.source, self.partition_id)
        self._alter("ATTACH")
        if len(self._blocks() - before) < expected:
            raise self._equal()

    def append_plain(self, intent: Mapping[str, object] | None) -> None:
        """A table without Keeper repeats whatever it is told: its row count says whether it was told."""
        there = self._count()
        if intent is None:
            self._intend({"before": there})
        elif there == int(str(intent["before"])) + self.rows:
            return
        elif there != int(str(intent["before"])):
            raise self._unknown(intent, there)
        before = there
        self._alter("ATTACH")
        there = self._count()
        if there < before + self.rows and self._keeps_every_row:
            raise self._missing(f"{there} rows after {self.rows} were added to {before}")

    def _alter(self, verb: str) -> None:
        origin = f" FROM {self.source.quoted}" if verb != "DROP" else ""
        partition = f"PARTITION ID {quote_string(self.partition_id)}"
        self.server.execute(f"ALTER TABLE {self.target.table.quoted} {verb} {partition}{origin}")

    def _intend(self, facts: Mapping[str, object]) -> None:
        records.record(self.server, self.job, Event.INTENT, self.partition_id, facts)

    @property
    def _keeps_every_row(self) -> bool:
        return self.target.engine in ("MergeTree", "ReplicatedMergeTree")

    def _count(self) -> int:
        return _partitions(self.server, self.target.table).get(self.partition_id, 0)

    def _blocks(self) -> set[str]:
        """Hashes of parts that were attached to the partition lately."""
        prefix = f"{self.partition_id}_replace_from_"
        path = quote_string(f"{self.keeper_path}/blocks")
        try:
            names = self.server.text(
                f"SELECT name FROM system.zookeeper WHERE path = {path} "
                f"AND startsWith(name, {quote_string(prefix)})"
            ).split()
        except SqlError as error:
            raise type(error)(
                error.code, f"Cannot read the blocks of {self.target.table}: {error.message}"
            ) from error
        return {name.removeprefix(prefix) for name in names}

    def _unknown(self, intent: Mapping[str, object], there: int) -> UnknownOutcome:
        return UnknownOutcome(
            f"{self.server}: nobody can tell whether the {self.rows} rows of job {self.job} are in "
            f"partition {self.partition_id} of {self.target.table}: "
            f"it had {intent['before']} rows before, and has {there}.",
            hint="Somebody else wrote there meanwhile. Look, and record the partition in "
            f"{staging.DATABASE}.ledger as attached if they are.",
        )

    def _missing(self, what: str) -> RowsMissing:
        return RowsMissing(
            f"{self.server}: partition {self.partition_id} of {self.target.table}: {what}.",
            hint="The staged rows are kept. Find out what removed rows, then run the job again.",
        )

    def _equal(self) -> EqualRows:
        return EqualRows(
            f"{self.server}: {self.target.table} was given exactly the rows of partition {self.partition_id} "
            "before, and takes them for a repetition.",
            hint="The staged rows are kept. If they are to be there twice, insert them by hand with "
            "insert_deduplicate=0.",
        )
