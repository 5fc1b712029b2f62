"""Where an INSERT goes first: a table of equal structure, seen by nobody who does not know its name.

    async with store.insert_stage() as stage:
        …INSERT INTO {stage.table.quoted}…
        for new in await stage.collect():
            await store.stage_inserted(new, name)

Where the table's engine would merge rows of equal key, `merging` says whether the stage does, too.

Its parts stay readable there (see `part_in_table`) until the block ends; staged parts are links of them.
A table is used for several inserts, one after the other, before it is dropped: that is cheaper than emptying
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from engine.errors import Code, OnclusterError, SqlError
from engine.names import TableName, quote_string
from engine.part_storage.part_files import (
    COUNT_FILE,
    data_hash_of,
    files_of,
    first_block,
    level_of,
    partition_of,
)
from engine.part_storage.part_sizes import check_written
from engine.part_storage.scratch_tables import Merging, Scratch, ScratchTables, local_parts
from engine.part_storage.workers import Connection, Workers
from engine.replication.part_store import NewPart

_MAX_USES = 50
_MAX_KEPT_BYTES = 64 << 20
_MAX_IDLE = 4


@dataclass(slots=True)
class _Kept:
    """A stage table between inserts. Parts up to `last_block` are of inserts that are over."""

    scratch: Scratch
    epoch: int
    last_block: int = 0
    uses: int = 0
    kept_bytes: int = 0
    columns: Sequence[str] = ()


@dataclass(slots=True)
class InsertStage:
    """One insert's view of its table."""

    _kept: _Kept
    _workers: Workers
    _is_open: bool = True
    _collected: dict[str, int] = field(default_factory=dict)
    """Bytes of parts, by chDB's names."""
    _was_collected: bool = False
    _seen: Sequence[NewPart] | None = None
    """Collected by `look`."""

    @property
    def table(self) -> TableName:
        """INSERT into it."""
        return self._kept.scratch.name

    def part_in_table(self, new: NewPart) -> str:
        """The value of `_part` in `table` for the rows of `new`."""
        return _local_name(new)

    async def stored_columns(self) -> Sequence[str]:
        """The names of those that rows have on the disk."""
        kept = self._kept
        if not kept.columns:
            query = stored_columns_query(kept.scratch.name)
            kept.columns = [row[0] for row in await self._workers.run(lambda c: c.rows(query))]
        return kept.columns

    def look(self) -> None:
        """Called on whatever thread has inserted, for `collect` right behind it: that spares a change of
        thread. What goes wrong here goes wrong again there."""
        with contextlib.suppress(OnclusterError, OSError, ValueError):
            self._seen = self._collect()

    async def collect(self) -> Sequence[NewPart]:
        """The parts that were inserted since the last call, in the order in which they were written."""
        seen, self._seen = self._seen, None
        if seen is not None:
            return seen
        return await self._workers.run(lambda connection: self._collect())

    def _collect(self) -> Sequence[NewPart]:
        if not self._is_open:
            raise SqlError(Code.LOGICAL_ERROR, "The stage of this insert is closed")
        self._was_collected = True
        fresh: list[NewPart] = []
        for local_name in local_parts(self._kept.scratch.path):
            if local_name in self._collected or first_block(local_name) <= self._kept.last_block:
                continue
            directory = self._kept.scratch.path / local_name
            files = files_of(directory)
            new = NewPart(
                handle=f"{self._kept.scratch.name.table}/{local_name}",
                partition_id=partition_of(local_name),
                data_hash=data_hash_of(check_written(directory, files)),
                rows=int((directory / COUNT_FILE).read_bytes()),
                size_bytes=sum(size for _, size in files),
                level=level_of(local_name),
            )
            fresh.append(new)
        self._collected |= {_local_name(new): new.size_bytes for new in fresh}
        return fresh


class InsertStages:
    """The stage tables of one table."""

    def __init__(self, scratch: ScratchTables, workers: Workers, merging: Merging) -> None:
        self._scratch = scratch
        self._workers = workers
        self._merging = merging
        self._idle: list[_Kept] = []
        self._open: dict[str, Scratch] = {}

    def directory_of(self, new: NewPart) -> Path:
        """Raises SqlError 232 when the part's stage is closed."""
        table, _, local_name = new.handle.partition("/")
        scratch = self._open.get(table)
        if scratch is None:
            raise SqlError(Code.NO_SUCH_DATA_PART, f"The insert that made {new.handle} is over")
        return scratch.path / local_name

    @asynccontextmanager
    async def open(self) -> AsyncIterator[InsertStage]:
        while (kept := self._idle.pop() if self._idle else None) and kept.epoch != self._scratch.epoch:
            self._drop_later(kept)
        if kept is None:
            epoch = self._scratch.epoch
            kept = _Kept(await self._workers.run(self._make), epoch)
        stage = InsertStage(kept, self._workers)
        self._open[kept.scratch.name.table] = kept.scratch
        is_clean = False
        try:
            yield stage
            is_clean = True
        finally:
            stage._is_open = False
            del self._open[kept.scratch.name.table]
            if is_clean and stage._was_collected:
                self._give_back(kept, stage._collected)
            else:
                # What is in it is not known, and a statement that was cancelled may still be writing: nobody
                # else may get this table.
                self._drop_later(kept)

    def _make(self, connection: Connection) -> Scratch:
        return self._scratch.make(connection, "stage", merging=self._merging)

    def forget_all(self) -> None:
        """After an ALTER: tables of the old structure are not used again."""
        idle, self._idle = self._idle, []
        for kept in idle:
            self._drop_later(kept)

    def _give_back(self, kept: _Kept, collected: Mapping[str, int]) -> None:
        """All that the insert has written was collected."""
        kept.uses += 1
        kept.last_block = max(map(first_block, collected), default=kept.last_block)
        kept.kept_bytes += sum(collected.values())
        is_worn = kept.uses >= _MAX_USES or kept.kept_bytes > _MAX_KEPT_BYTES
        if is_worn or kept.epoch != self._scratch.epoch or len(self._idle) >= _MAX_IDLE:
            self._drop_later(kept)
        else:
            self._idle.append(kept)

    def _drop_later(self, kept: _Kept) -> None:
        def drop(connection: Connection) -> None:
            self._scratch.drop(connection, kept.scratch)

        self._workers.in_background(drop)


def stored_columns_query(table: TableName) -> str:
    """For the names of a table's columns that rows have on the disk."""
    return (
        "SELECT name FROM system.columns "
        f"WHERE database = {quote_string(table.database)} AND table = {quote_string(table.table)} "
        "AND default_kind NOT IN ('ALIAS', 'EPHEMERAL') ORDER BY position"
    )


def _local_name(new: NewPart) -> str:
    return new.handle.rpartition("/")[2]
