"""`PartStore` on chDB: a plain MergeTree table and a directory of staged parts beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Self

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.part_storage.altering import Alterer
from engine.part_storage.attaching import AttachingNotes
from engine.part_storage.content_check import ContentChecker
from engine.part_storage.detached import DetachedParts
from engine.part_storage.disk import Durability, force_to_disk
from engine.part_storage.granularity import check_granularity
from engine.part_storage.hidden_settings import missing_settings
from engine.part_storage.insert_stage import InsertStage, InsertStages
from engine.part_storage.merge_stop import MergeStop
from engine.part_storage.merged_parts import MergedParts
from engine.part_storage.part_files import remove_tree
from engine.part_storage.part_sizes import check_files
from engine.part_storage.part_uuid import UUID_FILE, uuid_of
from engine.part_storage.partition_values import partition_ids
from engine.part_storage.plain_copy import plain_copy
from engine.part_storage.prepared_merges import PreparedMerges
from engine.part_storage.producing import Producer
from engine.part_storage.publish_queue import PublishQueue
from engine.part_storage.publishing import Change, Publisher
from engine.part_storage.recovery import load
from engine.part_storage.scratch_tables import Merging, ScratchTables
from engine.part_storage.table_state import FoundTable, TableState, blocks_of
from engine.part_storage.transfer import receiving, receiving_detached, sending
from engine.part_storage.workers import Connection, Length, Workers
from engine.replication.columns import Columns
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.part_store import (
    AlterPlan,
    DetachedPart,
    Fate,
    IncomingPart,
    LoadedParts,
    MergeOptions,
    NewPart,
    OutgoingPart,
    Part,
    PartsBroken,
    PartStore,
    TableSize,
)
from engine.replication.table_definition import TableDefinition
from engine.replication.table_metadata import TableMetadata
from engine.storage import ChdbPool
from engine.storage.errors import told

_UNDERSCORES_OF_A_MUTATED_PART = 4


class ChdbPartStore:
    """Implements `PartStore`. Open it with `open`, then `load`; `close` at the end."""

    def __init__(self, state: TableState, workers: Workers, create_text: str = "") -> None:
        self._state = state
        self._workers = workers
        self._scratch = ScratchTables(state, workers, create_text)
        self._stages = InsertStages(self._scratch, workers, Merging.OF_TABLE)
        self._unmerged_stages = InsertStages(self._scratch, workers, Merging.NONE)
        self._checker = ContentChecker(self._scratch)
        self._merged = MergedParts(self._scratch)
        self._producer = Producer(state, self._scratch, self._merged, workers)
        self._prepared = PreparedMerges(self._scratch, workers, self._producer.fill_for_merge)
        self._publisher = Publisher(state, self._scratch, self._producer, self._merged, workers)
        self._detached = DetachedParts(state)
        self._attaching = AttachingNotes(state)
        self._alterer = Alterer(state, self._scratch, workers)
        self._changing = asyncio.Lock()
        """Held while what readers see changes, which is done by the table's name, and while that changes."""
        self._publishing = PublishQueue(self._publish_at_once, self._changing, name=lambda: str(state.table))
        self.altering: Callable[[], AbstractContextManager[None]] = nullcontext
        """Around what may give the table other columns."""
        self.found_broken: Callable[[PartName], None] = lambda part: None
        """Called for a part that readers see, and that a step has found damaged on the disk."""

    @classmethod
    async def open(
        cls,
        pool: ChdbPool,
        table: TableName,
        uuid: str,
        *,
        found: FoundTable | None = None,
        durability: Durability = Durability.POWER_LOSS,
    ) -> Self:
        """`table` is a MergeTree table of an Atomic database; chDB is asked for it unless it was `found`.
        Raises SqlError 60."""
        workers = Workers.of(pool)

        def look(connection: Connection) -> FoundTable:
            rows = connection.rows(
                "SELECT data_paths[1], engine, create_table_query FROM system.tables"
                f" WHERE database = {quote_string(table.database)} AND name = {quote_string(table.table)}"
            )
            if not rows:
                raise SqlError(Code.UNKNOWN_TABLE, f"Table {table} does not exist.")
            path, engine, create = rows[0]
            return FoundTable(Path(path), engine, told(create, table))

        try:
            known = await workers.run(look) if found is None else found
        except BaseException:  # also a cancellation: the workers have to be given back
            await workers.release()
            raise
        state = TableState(
            table=table,
            uuid=uuid,
            pool_path=pool.path,
            data=known.data,
            durability=durability,
            order_matters=known.engine != "MergeTree",
            has_hidden_settings=not missing_settings(known.create),
        )
        return cls(state, workers, known.create)

    @property
    def state(self) -> TableState:
        """For tests and for those who list what is on the disk."""
        return self._state

    @property
    def table(self) -> TableName:
        return self._state.table

    @asynccontextmanager
    async def renaming(self) -> AsyncIterator[None]:
        """While chDB gives the table another name, until `renamed`: under the old one a statement would
        change the table that has it now."""
        async with self._changing:
            yield

    def renamed(self, table: TableName) -> None:
        """The table has another name now."""
        self._state.table = table
        self._scratch.forget_definition()

    def relabelled(self) -> Mapping[str, PartName]:
        """Active parts that an ALTER of chDB's own makes or has made, by chDB's name without a mutation
        (`blocks_of`). Their `uuid.txt` is written behind chDB's back: `system.parts` shows no UUID for them
        until they are loaded again."""
        altering = dict(self._state.altering)  # before `active`, which is changed first
        made = {
            blocks_of(local.visible.name): name
            for name, local in self._state.active.items()
            if local.visible.name.count("_") == _UNDERSCORES_OF_A_MUTATED_PART
        }
        return altering | made

    def part_at(self, directory: Path) -> PartName | None:
        """The part that readers read there."""
        if directory.parent != self._state.data:
            return None
        active = self._state.active.items()
        return next((name for name, local in active if local.visible.name == directory.name), None)

    def directories(self) -> Mapping[PartName, str]:
        """What the parts that readers see are called in the table's directory, and by chDB."""
        return {name: local.visible.name for name, local in self._state.active.items()}

    def plain_copy(self) -> AbstractAsyncContextManager[TableName]:
        """A table of this table's parts that carries no replicated names; see `plain_copy`."""
        return plain_copy(self._state, self._scratch, self._workers)

    async def close(self) -> None:
        """Give threads and scratch tables back. What runs is to be over."""
        await self._publishing.close()
        self._forget_stages()
        await self._prepared.close()
        await self._workers.run(self._checker.close)
        await self._workers.run(self._merged.close)
        await self._workers.release()

    async def destroy(self) -> None:
        """The table was dropped: remove what was kept beside it, and close."""
        await self.close()
        await asyncio.to_thread(remove_tree, self._state.staged_root)

    # -- what is there -------------------------------------------------------------------------------------

    async def load(self) -> LoadedParts:
        def look(connection: Connection) -> LoadedParts:
            with self._workers.pool.disk_reserve.lent():  # what is left of swaps is dropped
                found = load(connection, self._state, self._scratch, self._publisher, self._alterer)
                self._attaching.load()
            return found

        async with self._changing:
            return await self._workers.run(look)

    @property
    def active(self) -> Mapping[PartName, Part]:
        return self._state.active_parts

    @property
    def staged(self) -> Mapping[PartName, Part]:
        return self._state.staged

    async def size(self) -> TableSize:
        table = self._state.table

        def look(connection: Connection) -> TableSize:
            [row] = connection.rows(
                "SELECT total_rows, total_bytes, total_bytes_uncompressed FROM system.tables"
                f" WHERE database = {quote_string(table.database)} AND name = {quote_string(table.table)}"
            )
            return TableSize(*(int(each or 0) for each in row))

        return await self._workers.run(look)

    async def definition(self) -> TableDefinition:
        known = self._scratch.known_definition
        return known if known is not None else await self._workers.run(self._scratch.definition)

    def _definition(self, connection: Connection) -> TableDefinition:
        return self._scratch.known_definition or self._scratch.definition(connection)

    # -- making parts --------------------------------------------------------------------------------------

    def insert_stage(self) -> AbstractAsyncContextManager[InsertStage]:
        """See `engine.part_storage.insert_stage`."""
        return self._stages.open()

    def unmerged_stage(self) -> AbstractAsyncContextManager[InsertStage]:
        """As `insert_stage`, and rows stay as they are. Its parts are read only: none can be staged."""
        return self._unmerged_stages.open()

    def _forget_stages(self) -> None:
        self._stages.forget_all()
        self._unmerged_stages.forget_all()

    async def stage_inserted(self, new: NewPart, name: PartName) -> Part:
        if name.partition_id != new.partition_id:
            raise ValueError(f"{name} is no name for a part of partition {new.partition_id}")
        source = self._stages.directory_of(new)
        return await self._workers.run(lambda connection: self._producer.stage_links(source, name))

    async def discard_inserted(self, new: NewPart) -> None:
        """Its rows go with the stage."""

    async def rename_staged(self, staged: PartName, name: PartName) -> Part:
        def rename(connection: Connection) -> Part:
            state = self._state
            part = state.staged.get(staged)
            if part is None:
                raise SqlError(Code.NO_SUCH_DATA_PART, f"Part {staged} is not staged")
            # The directory's name counts; `load` makes the file agree with it.
            target = state.staged_directory(name)
            remove_tree(target)
            state.staged_directory(staged).rename(target)
            renamed = replace(part, name=name)
            state.change_staged(remove=[staged], add=[renamed])
            (target / UUID_FILE).write_text(str(uuid_of(name)))
            force_to_disk(target, state.durability, parent=state.staged_root)
            self._attaching.renamed(staged, name)
            return renamed

        return await self._workers.run(rename)

    def preparing_merge(
        self, sources: Sequence[PartName], result: PartName
    ) -> AbstractAsyncContextManager[None]:
        return self._prepared.holding(sources, result)

    async def merge(self, sources: Sequence[PartName], result: PartName, options: MergeOptions) -> Part:
        stop = MergeStop()
        prepared = await self._prepared.take(sources, result)
        return await self._workers.run(
            lambda connection: self._producer.merge(connection, sources, result, options, stop, prepared),
            length=Length.LONG,
            merge=stop,
        )

    async def mutate(self, source: PartName, result: PartName, commands: str) -> Part:
        comment = self._comment("mutate")
        return await self._workers.run(
            lambda connection: self._producer.mutate(connection, source, result, commands, comment),
            length=Length.LONG,
            kill=comment,
        )

    async def stage_copy(self, of: PartStore, source: PartName, result: PartName) -> Part:
        if not isinstance(of, ChdbPartStore):
            raise TypeError("a copy is made of hard links: both stores have to be on chDB")
        other = of._state

        def copy(connection: Connection) -> Part:
            directory = other.directory_of(source)
            if directory is None:
                raise SqlError(Code.NO_SUCH_DATA_PART, f"No part {source} in table {other.table}")
            if other is not self._state:
                check_granularity(directory, self._definition(connection), what=str(source))
            return self._producer.stage_links(directory, result)

        return await self._workers.run(copy)

    async def stage_detached(self, directory: str, result: PartName) -> Part:
        def stage(connection: Connection) -> Part:
            source = self._detached.find(directory)
            if source is None:
                raise SqlError(Code.NO_SUCH_DATA_PART, f"No part {directory!r} in detached/")
            check_files(source, directory)
            check_granularity(source, self._definition(connection), what=directory)
            self._checker.check(connection, source, result)
            self._attaching.note(directory, result)
            try:
                return self._producer.stage_links(source, result)
            except BaseException:
                self._attaching.discarded(result)
                raise

        return await self._workers.run(stage, length=Length.LONG)

    async def stage_empty(self, result: PartName) -> Part:
        return await self._workers.run(
            lambda connection: self._producer.stage_empty(connection, result), length=Length.LONG
        )

    def receive(self, name: PartName) -> AbstractAsyncContextManager[IncomingPart]:
        return receiving(self._state, self._checker, name, self._workers)

    def receive_detached(self, name: PartName) -> AbstractAsyncContextManager[IncomingPart]:
        return receiving_detached(self._state, self._checker, name, self._workers)

    async def discard(self, staged: PartName, *, prefix: str = "") -> None:
        def discard(connection: Connection) -> None:
            self._merged.forget(staged)
            if staged not in self._state.staged:
                return
            directory = self._state.staged_directory(staged)
            aside: Path | None = None
            if prefix:
                self._detached.keep_staged(directory, f"{prefix}_{staged}")
            else:  # first out of sight, then away: a cut leaves a `tmp_…`
                aside = self._state.temporary("discarded", self._workers.next_number())
                directory.rename(aside)
            self._state.change_staged(remove=[staged])
            self._attaching.discarded(staged)
            if aside is not None:
                remove_tree(aside)

        await self._workers.run(discard)

    # -- what readers see ----------------------------------------------------------------------------------

    async def publish(self, add: Sequence[PartName], remove: Sequence[PartName] = ()) -> None:
        """See `PartStore` and `engine.part_storage.publish_queue`."""
        await self._publishing.publish(Change(tuple(add), tuple(remove)))

    async def _publish_at_once(self, changes: Sequence[Change]) -> None:
        try:
            await self._workers.run(lambda connection: self._publisher.publish(connection, changes))
        except PartsBroken as error:
            self._note_broken(error)
            raise

    async def remove(self, names: Sequence[PartName], *, fate: Fate = Fate.DROP, prefix: str = "") -> None:
        if fate is Fate.DROP:
            await self._publishing.publish(Change((), tuple(names)))
            return
        async with self._changing:
            try:
                await self._workers.run(lambda connection: self._publisher.detach(connection, names, prefix))
            except PartsBroken as error:
                self._note_broken(error)
                raise

    def _note_broken(self, error: PartsBroken) -> None:
        for part in error.parts:
            self.found_broken(part)

    async def plan_alter(self, commands: str, *, allowed: Collection[str] = ()) -> AlterPlan:
        return await self._workers.run(lambda connection: self._alterer.plan(connection, commands, allowed))

    async def apply_alter(
        self,
        columns: Columns,
        metadata: TableMetadata,
        renames: Mapping[str, str],
        mutation: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        def apply(connection: Connection) -> None:
            self._alterer.apply(connection, columns, metadata, renames, mutation)
            self._publisher.show_own_bytes(connection)

        with self.altering():
            async with self._changing:
                await self._workers.run(apply, length=Length.LONG)
        self._forget_stages()

    async def apply_settings(self, changes: Mapping[str, str | None]) -> None:
        async with self._changing:
            await self._workers.run(lambda connection: self._alterer.apply_settings(connection, changes))
        self._forget_stages()

    async def apply_comment(self, comment: str) -> None:
        async with self._changing:
            await self._workers.run(lambda connection: self._alterer.apply_comment(connection, comment))

    # -- the rest ------------------------------------------------------------------------------------------

    def send(self, name: PartName) -> AbstractAsyncContextManager[OutgoingPart]:
        return sending(self._state, name, self._workers)

    async def verify(self, name: PartName) -> None:
        def verify(connection: Connection) -> None:
            directory = self._state.directory_of(name)
            if directory is None:
                raise PartDiffers(str(name), "it is not there")
            check_files(directory, str(name))
            self._checker.check(connection, directory, name)

        try:
            await self._workers.run(verify, length=Length.LONG)
        except FileNotFoundError as error:
            async with self._changing:  # a swap may have moved it meanwhile
                directory = self._state.directory_of(name)
            if directory is None or not directory.is_dir():
                raise PartDiffers(str(name), f"{error.filename} is gone") from None
            await self._workers.run(verify, length=Length.LONG)

    async def gone(self, names: Sequence[PartName]) -> Sequence[PartName]:
        async with self._changing:
            active = self._state.active
            return [name for name in names if name in active and not active[name].directory.is_dir()]

    async def detached(self) -> Sequence[DetachedPart]:
        return await self._workers.run(lambda connection: self._detached.list())

    async def detached_with(self, hash_text: str) -> Sequence[DetachedPart]:
        return await self._workers.run(lambda connection: self._detached.with_hash(hash_text))

    async def remove_detached(self, directory: str) -> None:
        def remove(connection: Connection) -> None:
            self._detached.remove(directory)
            self._attaching.forget(directory)

        await self._workers.run(remove)

    async def relabel_detached(self, directory: str, prefix: str) -> None:
        def relabel(connection: Connection) -> None:
            self._attaching.forget(directory)
            self._detached.relabel(directory, prefix)

        await self._workers.run(relabel)

    @property
    def attaching(self) -> Mapping[str, PartName]:
        return self._attaching.parts

    async def forget_attaching(self, directory: str) -> None:
        await self._workers.run(lambda connection: self._attaching.forget(directory))

    async def set_aside(self, directory: str, prefix: str) -> None:
        async with self._changing:
            await self._workers.run(
                lambda connection: self._detached.set_aside(connection, directory, prefix)
            )

    async def partition_ids(self, expression: str) -> Sequence[str]:
        return await self._workers.run(
            lambda connection: partition_ids(
                connection, self._state, self._scratch, expression, self._workers.next_number()
            )
        )

    async def freeze(self, partition_ids: Sequence[str] | None, backup_name: str) -> None:
        number = self._workers.next_number()
        async with self._changing:
            await self._workers.run(
                lambda connection: self._detached.freeze(partition_ids, backup_name, number),
                length=Length.LONG,
            )

    def _comment(self, purpose: str) -> str:
        return f"oncluster-{purpose}-{self._state.uuid}-{self._workers.next_number()}"
