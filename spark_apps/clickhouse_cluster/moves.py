"""Partitions of a staging table, moved into the table of one shard: each once, whoever was here before.

Safety argument. For some partitions at a time:
1. The intents are recorded, all or none, with what allows to see later whether they were carried out. They
   name the plan, as all records do: what was recorded of another one counts for nothing. That was proposed
   and not decided, or the job's id has been used before and its decision is forgotten.
2. One ALTER moves them, one after another: each is moved or not, and those before one that fails are moved.
3. The effects are looked at.
4. They are recorded, all or none. What is recorded is never touched again.
A crash between any two of these is settled by the next run:
- a replicated table leaves out parts that it was given before (their hashes stand in Keeper, and in every
  intent: rows that were written once more for an altered table are other parts). Keeper forgets the oldest:
  it is trusted while it knows a block that came before the intent, else the row count tells;
- a replaced partition may be replaced again, since the record keeps a later run from doing so;
- for a plain table, which is moved partition by partition, the partition's row count tells, if nobody else
  wrote there, and that its greatest block number is the same, which merges that remove rows leave as it is;
  otherwise UnknownOutcome. What came while the table was altered is looked at (`altered_meanwhile`).
A run that was left behind fails at its next move: its source was dropped, by the run that came after it or
with the job's staging. So a partition that is to be empty is replaced out of the source, too.

What this never does: move a partition of which nobody can tell whether it was moved.

Source: ClickHouse's StorageReplicatedMergeTree::replacePartitionFrom (`<partition>_replace_from_<hash>`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from engine.errors import Code, OnclusterError, SqlError, UnknownOutcome
from engine.names import TableName, quote_string
from spark_apps.clickhouse_cluster import records, staging
from spark_apps.clickhouse_cluster.altered import HAD_OTHER_COLUMNS
from spark_apps.clickhouse_cluster.altered_meanwhile import End, settle
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.records import Event
from spark_apps.clickhouse_cluster.remembered import is_within
from spark_apps.clickhouse_cluster.staging import Blocks, Parts, last_block
from spark_apps.clickhouse_cluster.target import Column, Target, columns_of

_REFUSED_FROM_NOTHING = Code.BAD_ARGUMENTS
"""What newer servers say of REPLACE PARTITION out of a table that is there and has no such partition."""
_AT_ONCE = 16
"""Partitions whose intents and effects are recorded together."""


Recorded = Mapping[Event, Mapping[str, Mapping[str, object]]]
"""By event and partition id, the facts."""


class RowsMissing(OnclusterError):
    """The checker found other rows on a shard than were sent there."""


class EqualRows(OnclusterError):
    """A server regards the rows as a repetition of ones that another job wrote."""


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves of one job on one shard. `parts` are those of `source`; `epoch` names the plan.

    `before` are the rows of the table's partitions before the first move of this run, and `known` the blocks
    that Keeper had then (for rows added to a Replicated table; old servers show none). `recorded` is what is
    known of earlier runs, and `ahead` are intents that this run has recorded: nothing was moved then.
    """

    job: str
    epoch: str
    server: Server
    target: Target
    keeper_path: str
    source: TableName | None
    parts: Parts
    before: Mapping[str, int]
    known: Blocks
    recorded: Recorded
    ahead: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def rows(self) -> dict[str, int]:
        return rows_of(self.parts)

    def replace(self, ids: Sequence[str]) -> None:
        """Put these partitions in place of the table's, or nothing in place of those that are not in `rows`.

        Raises RowsMissing.
        """
        rows = self.rows
        for some in _some(ids, except_for=self.recorded.get(Event.ATTACHED, {})):
            had = self._columns()
            with_rows = [one for one in some if one in rows]
            self._alter("REPLACE", with_rows)
            for partition_id in some:
                if partition_id not in rows:
                    self._empty(partition_id)
            self._require_whole(with_rows, had)
            there = self._counts()
            for partition_id in some:
                found, expected = there.get(partition_id, 0), rows.get(partition_id, 0)
                if found < expected and self.target.keeps_every_row:
                    raise self._missing(partition_id, f"{found} rows after {expected} replaced it")
            self.record_moved(some)

    def append(self, ids: Sequence[str]) -> Sequence[str]:
        """Add these partitions. Gives those whose effects are seen and not recorded yet (`record_moved`).

        Raises RowsMissing, EqualRows, UnknownOutcome.
        """
        attached, intents = self.recorded.get(Event.ATTACHED, {}), self.recorded.get(Event.INTENT, {})
        if self.target.is_replicated and not self.target.is_old:
            known, moved = self.known, list[str]()
            for some in _some(ids, except_for=attached):
                self.record_moved(moved)
                known = self._append_replicated(some, intents, known)
                moved = some
            return moved
        for partition_id in ids:
            if partition_id not in attached:
                one = self._append_old if self.target.is_replicated else self._append_plain
                one(partition_id, intents.get(partition_id))
                self.record_moved([partition_id])
        return ()

    def intend_ahead(self) -> Mapping[str, Mapping[str, object]]:
        """Record the intents of the first partitions that will be added to a Replicated table; none where one
        will be refused."""
        try:
            facts = self._intents(sorted(self.parts)[:_AT_ONCE], self.known)
        except EqualRows:
            return {}
        records.record(self.server, self.job, Event.INTENT, facts)
        return facts

    def _intents(self, ids: Sequence[str], known: Blocks) -> dict[str, Mapping[str, object]]:
        """Raises EqualRows."""
        found: dict[str, Mapping[str, object]] = {}
        for partition_id in ids:
            hashes = {part.digest for part in self.parts[partition_id]}
            if hashes & known.hashes.get(partition_id, set()):
                raise self._equal(partition_id)
            found[partition_id] = {
                "hashes": sorted(hashes),
                "before": self.before.get(partition_id, 0),
                "after": known.newest,
                "at": int(time.time()),
                "epoch": self.epoch,
            }
        return found

    def _append_replicated(
        self, ids: Sequence[str], intents: Mapping[str, Mapping[str, object]], known: Blocks
    ) -> Blocks:
        """Parts that the table has seen are known by their hashes; gives what it knows afterwards.

        Another run may have moved some since `known` was looked at: then Keeper drops what is moved again.
        """
        hashes = {one: self._hashes(one, intents.get(one, {}), known) for one in ids}
        new = self._intents([one for one in ids if self._is_new(one, hashes[one], intents, known)], known)
        records.record(self.server, self.job, Event.INTENT, new)
        absent = [one for one in ids if not hashes[one] <= known.hashes.get(one, set())]
        for partition_id in absent:
            intent = intents.get(partition_id)
            if intent is not None and not self._is_remembered(intent, known):
                found = self.before.get(partition_id, 0)
                if found != int(str(intent["before"])):
                    raise self._unknown(partition_id, intent, found)
        self._alter("ATTACH", absent)
        known = self._blocks()
        for partition_id in ids:
            missing = hashes[partition_id] - known.hashes.get(partition_id, set())
            if missing:
                all_of = len(hashes[partition_id])
                raise self._missing(partition_id, f"{len(missing)} of {all_of} parts did not arrive")
        return known

    def _is_new(
        self, one: str, hashes: set[str], intents: Mapping[str, Mapping[str, object]], known: Blocks
    ) -> bool:
        """Whether no intent says that these parts of a partition will be moved, and they were not."""
        if one in self.ahead or (one in intents and hashes <= known.hashes.get(one, set())):
            return False
        return hashes not in _hash_sets(intents.get(one, {}))

    def _hashes(self, partition_id: str, intent: Mapping[str, object], known: Blocks) -> set[str]:
        """Of the partition's parts. An earlier run may have moved others of the same rows (`altered`)."""
        own = {part.digest for part in self.parts[partition_id]}
        there = known.hashes.get(partition_id, set())
        return next((some for some in _hash_sets(intent) if some and some <= there), own)

    def _is_remembered(self, intent: Mapping[str, object], known: Blocks) -> bool:
        """Whether Keeper would still know parts that were attached after this intent: it forgets the oldest
        blocks, when they are too old or too many. An intent that saw no block has but numbers to go by."""
        if after := str(intent.get("after", "")):
            return staging.has_block(self.server, self.keeper_path, after)
        return is_within(self.target.window, since_s=int(str(intent["at"])), blocks=known.number)

    def _append_old(self, partition_id: str, intent: Mapping[str, object] | None) -> None:
        """Servers that show no hashes: after the move there are new nodes under `blocks/`, one per part."""
        before = self._blocks().hashes.get(partition_id, set())
        if intent is None:
            self._intend(partition_id, {"blocks": sorted(before)})
        else:
            before = {str(block) for block in intent["blocks"]}  # type: ignore[attr-defined]  # from JSON
        expected = len(self.parts[partition_id])
        self._alter("ATTACH", [partition_id])
        if len(self._blocks().hashes.get(partition_id, set()) - before) < expected:
            raise self._equal(partition_id)

    def _append_plain(self, partition_id: str, intent: Mapping[str, object] | None) -> None:
        """A table without Keeper repeats whatever it is told: its row count says whether it was told."""
        parts = staging.parts(self.server, self.target).get(partition_id, [])
        there, rows, block = sum(part.rows for part in parts), self.rows[partition_id], last_block(parts)
        if intent is None:
            self._intend(partition_id, {"before": there, "block": block})
        elif there == int(str(intent["before"])) + rows:
            return
        elif there != int(str(intent["before"])) or block != intent.get("block", block):
            raise self._unknown(partition_id, intent, there)
        had = self._columns()
        self._alter("ATTACH", [partition_id])
        self._require_whole([partition_id], had, block=block)
        after = self._counts().get(partition_id, 0)
        if after < there + rows and self.target.keeps_every_row:
            raise self._missing(partition_id, f"{after} rows after {rows} were added to {there}")

    def _columns(self) -> tuple[Column, ...]:
        """Of a plain table. Old servers let no ALTER begin before another has ended."""
        is_guarded = self.target.is_replicated or self.target.is_old
        return () if is_guarded else columns_of(self.server, self.target.table)

    def _require_whole(self, ids: Sequence[str], had: tuple[Column, ...], *, block: int = -1) -> None:
        """These partitions came behind `block`, and the table had these columns before. Raises SqlError 122
        when it was altered meanwhile and one of them was taken back, UnknownOutcome."""
        if self._columns() != had:
            for partition_id in ids:
                self._settle(partition_id, block)

    def _settle(self, partition_id: str, block: int) -> None:
        attached = self.parts[partition_id]
        end = settle(self.server, self.target, partition_id, block=block, attached=attached)
        what = f"{self.server}: {self.target.table} was altered while partition {partition_id} was attached"
        if end is End.TAKEN_BACK:
            raise SqlError(Code.INCOMPATIBLE_COLUMNS, f"{what}, and was taken back.", hint=HAD_OTHER_COLUMNS)
        if end is End.UNSURE:
            raise UnknownOutcome(
                f"{what}: columns that were renamed may be empty in {self.rows[partition_id]} rows of job "
                f"{self.job}.",
                hint="The staged rows are kept. Look at the rows; if they are not whole, remove them and run "
                f"the job again, else record there that they are: {self._record_by_hand(partition_id)}.",
            )

    def _alter(self, verb: str, ids: Sequence[str]) -> None:
        if not ids:
            return
        assert self.source is not None
        source = self.source.quoted
        moves = ", ".join(f"{verb} PARTITION ID {quote_string(one)} FROM {source}" for one in ids)
        self.server.execute(f"ALTER TABLE {self.target.table.quoted} {moves}")

    def _empty(self, partition_id: str) -> None:
        """Replace a partition with nothing, while the source is there."""
        try:
            self._alter("REPLACE", [partition_id])
        except SqlError as error:
            if error.code != _REFUSED_FROM_NOTHING:
                raise
        else:
            if not self.target.is_replicated:
                return
        # Other replicas of 18.16 may have left out what was to be replaced with nothing.
        self.server.execute(
            f"ALTER TABLE {self.target.table.quoted} DROP PARTITION ID {quote_string(partition_id)}"
        )

    def _intend(self, partition_id: str, facts: Mapping[str, object]) -> None:
        records.record(self.server, self.job, Event.INTENT, {partition_id: {**facts, "epoch": self.epoch}})

    def record_moved(self, ids: Sequence[str]) -> None:
        """Record the effects."""
        rows = self.rows
        facts = {one: {"rows": rows.get(one, 0), "epoch": self.epoch} for one in ids}
        records.record(self.server, self.job, Event.ATTACHED, facts)

    def _counts(self) -> dict[str, int]:
        """Rows of the table, by partition id."""
        return rows_of(staging.parts(self.server, self.target))

    def _blocks(self) -> Blocks:
        return staging.blocks(self.server, self.target, self.keeper_path)

    def _unknown(self, partition_id: str, intent: Mapping[str, object], there: int) -> UnknownOutcome:
        return UnknownOutcome(
            f"{self.server}: nobody can tell whether the {self.rows[partition_id]} rows of job {self.job} "
            f"are in partition {partition_id} of {self.target.table}: "
            f"it had {intent['before']} rows before, and has {there}.",
            hint="Somebody else wrote there meanwhile. Look, and if they are, record it there: "
            f"{self._record_by_hand(partition_id)}. Then run the job again.",
        )

    def _record_by_hand(self, partition_id: str) -> str:
        """The statement."""
        return records.attached_by_hand(self.job, partition_id, epoch=self.epoch)

    def _missing(self, partition_id: str, what: str) -> RowsMissing:
        return RowsMissing(
            f"{self.server}: partition {partition_id} of {self.target.table}: {what}.",
            hint="The staged rows are kept. Find out what removed rows, then run the job again.",
        )

    def _equal(self, partition_id: str) -> EqualRows:
        return EqualRows(
            f"{self.server}: {self.target.table} was given exactly the rows of partition {partition_id} "
            "before, and takes them for a repetition.",
            hint="The staged rows are kept. If they are to be there twice, insert them by hand with "
            "insert_deduplicate=0.",
        )


def _hash_sets(intent: Mapping[str, object]) -> list[set[str]]:
    return [set(some) for some in cast(Iterable[Iterable[str]], intent.get(records.EITHER, ()))]


def rows_of(parts: Parts) -> dict[str, int]:
    """By partition id."""
    return {partition_id: sum(part.rows for part in some) for partition_id, some in parts.items()}


def _some(ids: Sequence[str], *, except_for: Mapping[str, object]) -> Iterator[list[str]]:
    waiting = [one for one in ids if one not in except_for]
    for at in range(0, len(waiting), _AT_ONCE):
        yield waiting[at : at + _AT_ONCE]
