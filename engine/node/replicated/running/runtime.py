"""The replicated tables that are attached on this node, by name and by their replica's path.

A table is in the registry from its attachment to its detachment, whether Keeper can be reached or not: while
it is read-only its replica has no session, and says so to whoever wants to write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import UUID

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.replicated.running.catalog import TableRecord
from engine.node.replicated.running.local_tables import LocalTable
from engine.node.replicated.running.local_writes import LocalWrites
from engine.node.statements.statement import Asked
from engine.replication.commands.create import Created
from engine.replication.part_name import PartName
from engine.replication.part_store import NewPart, PartStore
from engine.replication.replica.context import ReplicaContext


class InsertStage(Protocol):
    """A plain table that rows are inserted into, seen by nobody else."""

    @property
    def table(self) -> TableName: ...

    async def stored_columns(self) -> Sequence[str]:
        """The names of those that rows have on the disk."""
        ...

    def look(self) -> None:
        """Called on any thread when all is inserted: what `collect` gives may be found out then."""
        ...

    async def collect(self) -> Sequence[NewPart]:
        """What was inserted, as parts without names."""
        ...

    def part_in_table(self, new: NewPart) -> str:
        """The value of `_part` in `table` for its rows. There may be rows of other inserts there."""
        ...


class NodePartStore(PartStore, Protocol):
    """What the node needs of a store beside what replication needs."""

    def insert_stage(self) -> AbstractAsyncContextManager[InsertStage]: ...

    def unmerged_stage(self) -> AbstractAsyncContextManager[InsertStage]: ...

    def part_at(self, directory: Path) -> PartName | None:
        """The part that readers read there."""
        ...

    def plain_copy(self) -> AbstractAsyncContextManager[TableName]:
        """A table of chDB's own with the parts that readers see now."""
        ...

    def renaming(self) -> AbstractAsyncContextManager[None]:
        """Held while chDB gives the table another name, and until `renamed`."""
        ...

    def renamed(self, name: TableName) -> None:
        """chDB's table has another name from now on."""
        ...

    def relabelled(self) -> Mapping[str, PartName]:
        """Active parts that chDB makes or made itself, by chDB's name without a mutation: it does not know
        their UUID before it loads them again."""
        ...

    def directories(self) -> Mapping[PartName, str]:
        """What the parts that readers see are called in the table's directory, and by chDB."""
        ...

    async def close(self) -> None:
        """Nothing is asked of it any more."""
        ...

    async def destroy(self) -> None:
        """After DROP TABLE, instead of `close`: remove what the store kept beside chDB's table."""
        ...


class Replica(Protocol):
    """The running part of a table (`engine.replication.replicated_table.ReplicatedTable`)."""

    async def start(self, *, force: bool = False) -> None:
        """Load the parts, then begin in the background; Keeper need not be there. `force` skips the sanity
        checks."""
        ...

    async def stop(self) -> None: ...

    async def restart(self) -> None: ...

    async def restore(self, table_uuid: UUID) -> Created:
        """Make the replica in Keeper anew, and start."""
        ...

    async def wait_until_active(self, *, timeout_s: float | None = None) -> bool:
        """Whether the replica accepts writes, within the time."""
        ...


@dataclass(slots=True, eq=False)
class RunningTable:
    """One attached table."""

    record: TableRecord
    ctx: ReplicaContext
    replica: Replica
    store: NodePartStore
    users: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While a statement writes through the store, which is not to be closed, nor opened by another.

        Raises SqlError 242 when the table ends, which does not wait for those who come meanwhile.
        """
        self.ctx.check_not_ending()
        self.users += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.users -= 1
            if not self.users:
                self.idle.set()

    async def end(self, *, timeout_s: float) -> None:
        """Stop the replica and let statements that write end, which they do with 242; those that wait for a
        quorum are not waited for longer than that."""
        self.ctx.ending.set()
        await self.replica.stop()
        self.ctx.term_began.announce()
        if self.users:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.idle.wait()

    @property
    def name(self) -> TableName:
        return self.ctx.name

    @property
    def uuid(self) -> UUID:
        return self.record.uuid


class TableFactory(Protocol):
    """Makes what runs a table."""

    async def make(self, record: TableRecord, local: LocalTable) -> RunningTable:
        """A table that does nothing yet. Raises SqlError 36 for settings that cannot be used."""
        ...


class ReplicatedTables:
    """The registry. Names are whole: an empty database finds nothing."""

    def __init__(self) -> None:
        self._by_uuid: dict[UUID, RunningTable] = {}
        self._by_name: dict[TableName, RunningTable] = {}
        self._by_replica: dict[str, RunningTable] = {}
        self.plain_sources: dict[TableName, PartStore] = {}
        """Tables that are not replicated and are read as a source of parts right now."""
        self.recorded: Callable[[], Collection[TableName]] = tuple
        """Names of the tables of the catalog, attached or not; set by `TableLifecycle`."""
        self.being_dropped: set[TableName] = set()
        self.local_writes = LocalWrites()

    def __len__(self) -> int:
        return len(self._by_uuid)

    def find(self, name: TableName) -> RunningTable | None:
        return self._by_name.get(name)

    @property
    def has_any(self) -> bool:
        """Whether there is a replicated table, attached or not."""
        return bool(self._by_uuid or self.being_dropped or self.recorded())

    def is_ours(self, name: TableName) -> bool:
        """Whether a table of this name is replicated, also while it is being attached or detached, or gets
        the name."""
        return self.local_writes.is_taken(name) or self._has(name)

    def _has(self, name: TableName) -> bool:
        return name in self._by_name or name in self.being_dropped or name in self.recorded()

    def find_to_write(self, name: TableName) -> RunningTable | None:
        """As `find`; a replicated table that is not attached is no table of chDB's, which may have it
        already, or still: what was written into it there would come to no other replica.

        Raises SqlError 60 UNKNOWN_TABLE.
        """
        table = self.find(name)
        if table is None and self.is_ours(name):
            raise SqlError(
                Code.UNKNOWN_TABLE,
                f"Table {name} does not exist: it is not attached.",
                hint="If it is being created, attached or detached right now, try again.",
            )
        return table

    @contextmanager
    def written_by_chdb(self, name: TableName, *reached: TableName) -> Iterator[None]:
        """In the block chDB writes into a table that is not replicated, and by its views into others that are
        not (`LocalWrites`).

        Raises SqlError 60 UNKNOWN_TABLE where one is by now, or gets one's name; nothing was begun then. Also
        at the end of an INSERT that was not waited for: what it wrote is no replica's.
        """
        names, writes = (name, *reached), self.local_writes
        if (ours := next(filter(self.is_ours, names), None)) is not None:
            raise _has_become_replicated(ours)
        with writes.under_way(*names):
            yield
            for each in names:
                if writes.is_given(each) or (self._has(each) and not writes.is_taken(each)):
                    raise _has_become_replicated(each) if each == name else _view_has_written(name, each)

    def find_for(self, asked: Asked, name: TableName) -> RunningTable | None:
        """The table that `name` means in a statement."""
        return self.find(name.within(asked.current_database))

    def by_uuid(self, uuid: UUID) -> RunningTable | None:
        return self._by_uuid.get(uuid)

    def by_replica_path(self, path: str) -> RunningTable | None:
        """`path` is `<table path>/replicas/<replica>`."""
        return self._by_replica.get(path)

    def all(self) -> Sequence[RunningTable]:
        """In the order of their names."""
        return sorted(self._by_uuid.values(), key=lambda table: table.ctx.name)

    def add(self, table: RunningTable) -> None:
        self._by_uuid[table.record.uuid] = table
        self._by_name[table.ctx.name] = table
        self._by_replica[table.record.me.root] = table

    def rename(self, table: RunningTable, name: TableName) -> None:
        """The table has another name from now on, which may have been another one's until now."""
        self._forget_name(table)
        table.ctx.name = name
        self._by_name[name] = table

    def discard(self, table: RunningTable) -> None:
        if self._by_uuid.pop(table.record.uuid, None) is not None:
            self._forget_name(table)
            self._by_replica.pop(table.record.me.root, None)

    def _forget_name(self, table: RunningTable) -> None:
        if self._by_name.get(table.ctx.name) is table:
            del self._by_name[table.ctx.name]


def _has_become_replicated(name: TableName) -> SqlError:
    return SqlError(
        Code.UNKNOWN_TABLE,
        f"Table {name} was not there when the INSERT began, and is a replicated one now.",
        hint="Nothing was inserted into it: repeat the INSERT.",
    )


def _view_has_written(name: TableName, target: TableName) -> SqlError:
    return SqlError(
        Code.UNKNOWN_TABLE,
        f"A view has written into {target}, which has become a replicated table since the INSERT into {name} "
        "began: it is on this node only.",
        hint=f"{name} has its rows: do not repeat it. Insert into {target} what the view selects of them.",
    )
