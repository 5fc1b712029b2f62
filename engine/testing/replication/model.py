"""What a replicated table has to hold, read off its log: the order of the log is the order of what happened.

A *block* is what one insert put under one block number. A part holds the blocks of its range, each changed by
the mutations that are newer than the block and not newer than the part. Blocks of a dropped range are gone.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.replication.log_actions import AttachPart, DropRange, GetPart, ReplaceRange
from engine.replication.mutation_entry import MutationEntry
from engine.replication.part_name import PartName
from engine.testing.replication.history import History, Logged, SeenStaged
from engine.testing.replication.rows import Row, Rows, mutated
from engine.testing.replication.store_events import Origin

_FIRST_CONTENTS = (Origin.INSERTED, Origin.ATTACHED, Origin.COPIED)

Staged = dict[tuple[str, PartName], list[SeenStaged]]
"""What was staged under a name, by replica."""


@dataclass(frozen=True, slots=True)
class Block:
    """`at` is when the log got its entry; `origin` None if nobody ever staged its rows; `columns` are those
    that they were staged with."""

    at: int
    part: PartName
    rows: Rows
    origin: Origin | None
    columns: bytes = b""


@dataclass(frozen=True, slots=True)
class Drop:
    """A range of blocks, or one part, that the log says to drop."""

    at: int
    range: PartName

    def covers(self, part: PartName) -> bool:
        """By blocks: a dropped part takes along whatever is inside it."""
        return (
            self.range.partition_id == part.partition_id
            and self.range.min_block <= part.min_block
            and part.max_block <= self.range.max_block
        )


@dataclass(slots=True)
class TableModel:
    """`of` reads a history. `repeated` are blocks under a number that was used before."""

    log: list[Logged] = field(default_factory=list)
    blocks: dict[tuple[str, int], Block] = field(default_factory=dict)
    repeated: list[Block] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    mutations: list[MutationEntry] = field(default_factory=list)
    killed: list[MutationEntry] = field(default_factory=list)
    failed: frozenset[PartName] = frozenset()
    given_up: list[PartName] = field(default_factory=list)
    """Parts that were replaced by empty ones, because no replica had them any more."""

    @classmethod
    def of(cls, history: History) -> TableModel:
        model = cls(log=history.log(), failed=history.failed_parts())
        staged: Staged = {}
        for seen in history.staged:
            if seen.origin in _FIRST_CONTENTS:
                staged.setdefault((seen.replica, seen.name), []).append(seen)
            elif seen.origin is Origin.EMPTY:
                model.given_up.append(seen.name)
        for logged in model.log:
            match logged.entry.action:
                case GetPart(part) | AttachPart(part, _):
                    model._add(logged, part, staged)
                case ReplaceRange(results=results) as replace:
                    if replace.drops:
                        model.drops.append(Drop(logged.at, replace.range))
                    for part in results:
                        model._add(logged, part, staged)
                case DropRange(dropped, _):
                    model.drops.append(Drop(logged.at, dropped))
                case _:
                    pass
        removed = {name for _, name in history.removed_below(history.paths.mutations)}
        for _, number, entry in sorted(history.mutations(), key=lambda each: each[1]):
            (model.killed if f"{number:010}" in removed else model.mutations).append(entry)
        return model

    def _add(
        self,
        logged: Logged,
        part: PartName,
        staged: Staged,
    ) -> None:
        candidates = staged.get((logged.entry.source_replica, part), [])
        before = [seen for seen in candidates if seen.at < logged.at]
        # Read here and not when it was staged: a copy of a damaged part is damaged, and nobody committed it.
        rows = before[-1].content.rows(str(part)) if before else ()
        origin = before[-1].origin if before else None
        if before and isinstance(logged.entry.action, AttachPart):
            origin = Origin.ATTACHED  # also where a number was taken away and the part got another name
        block = Block(logged.at, part, rows, origin, before[-1].content.columns if before else b"")
        if (part.partition_id, part.min_block) in self.blocks:
            self.repeated.append(block)
        else:
            self.blocks[part.partition_id, part.min_block] = block

    def inside(self, part: PartName) -> Iterator[Block]:
        for (partition_id, number), block in self.blocks.items():
            if partition_id == part.partition_id and part.min_block <= number <= part.max_block:
                yield block

    def drops_of(self, block: Block) -> list[Drop]:
        return [drop for drop in self.drops if drop.at > block.at and drop.covers(block.part)]

    def is_failed(self, block: Block) -> bool:
        return block.part in self.failed

    def may_be_given_up(self, block: Block) -> bool:
        return any(Drop(0, part).covers(block.part) for part in self.given_up)

    def expected_rows(self) -> Counter[Row]:
        """Of the whole table when everything in the log is done, but for blocks that were given up."""
        found: Counter[Row] = Counter()
        for block in self.blocks.values():
            if not self._may_be_gone(block):
                found.update(self.rows_at(block, None, ()))
        return found

    def rows_at(self, block: Block, version: int | None, killed: tuple[MutationEntry, ...]) -> Rows:
        """A block's rows in a part of this data version; None: after all mutations."""
        rows = block.rows
        applying: list[tuple[int, MutationEntry]] = []
        for mutation in (*self.mutations, *killed):
            number = mutation.number_in(block.part.partition_id)
            if (
                number is not None
                and block.part.min_block < number
                and (version is None or number <= version)
            ):
                applying.append((number, mutation))
        for _, mutation in sorted(applying, key=lambda each: each[0]):
            rows = mutated(rows, mutation.commands).rows
        return rows

    def explains(self, part: PartName, rows: Counter[Row]) -> bool:
        """Whether `part` may hold exactly these rows.

        Of a block that is gone it may hold none, and each block may have met a killed mutation or not. Blocks
        may have rows in common (FETCH and ATTACH): then only some choice for all of them fits.
        """
        ways = sorted((self._ways(block, part.mutation) for block in self.inside(part)), key=len)
        tried: set[tuple[int, frozenset[tuple[Row, int]]]] = set()

        def fits(at: int, left: Counter[Row]) -> bool:
            if at == len(ways):
                return not left
            state = (at, frozenset(left.items()))
            if state in tried:
                return False
            tried.add(state)
            return any(fits(at + 1, left - way) for way in ways[at] if way <= left)

        return fits(0, rows)

    def _may_be_gone(self, block: Block) -> bool:
        return bool(self.drops_of(block)) or self.is_failed(block) or self.may_be_given_up(block)

    def _ways(self, block: Block, version: int) -> list[Counter[Row]]:
        ways: list[Counter[Row]] = []
        if self._may_be_gone(block):
            ways.append(Counter())
        for count in range(len(self.killed) + 1):
            for killed in itertools.combinations(self.killed, count):
                way = Counter(self.rows_at(block, version, killed))
                if way not in ways:
                    ways.append(way)
        return ways
