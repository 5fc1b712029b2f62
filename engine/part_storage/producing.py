"""New parts made of parts that are there: merges, mutations, copies.

Each is made in a scratch table of its own, out of links, so that nothing of it can be seen and a cut leaves
nothing but a table to clear. The same sources give the same bytes on every replica of the same version:
chDB's merges and mutations do not depend on names (measured, see docs/decisions/replicated-table-in-chdb.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.errors import Code, SqlError
from engine.names import quote_identifier, quote_string
from engine.part_storage.mutation_scratch import columns_in, prepare_for
from engine.part_storage.part_files import force_to_disk, link_part, read_part, remove_tree
from engine.part_storage.scratch_tables import Scratch, ScratchTables
from engine.part_storage.table_state import LocalPart, TableState
from engine.part_storage.workers import Connection, Workers
from engine.replication.part_name import PartName
from engine.replication.part_store import MergeOptions, Part


class Producer:
    """Steps of one table; each may run beside others."""

    def __init__(self, state: TableState, scratch: ScratchTables, workers: Workers) -> None:
        self._state = state
        self._scratch = scratch
        self._workers = workers

    def stage_links(self, source: Path, result: PartName) -> Part:
        """Stage a part that has the files of `source`. Raises PartDiffers, OSError."""
        temporary = self._state.temporary("part", self._workers.next_number())
        link_part(source, temporary, name=result)
        try:
            part = read_part(temporary, result)
            force_to_disk(temporary, self._state.durability)
            return self._state.put_in_place(temporary, part)
        finally:
            remove_tree(temporary)

    def merge(
        self,
        connection: Connection,
        sources: Sequence[PartName],
        result: PartName,
        options: MergeOptions,
        comment: str,
    ) -> Part:
        """See `PartStore.merge`."""
        optimize = f"PARTITION ID {quote_string(result.partition_id)} FINAL"
        if options.deduplicate:
            optimize += " DEDUPLICATE"
            if options.deduplicate_by_columns:
                columns = ", ".join(quote_identifier(name) for name in options.deduplicate_by_columns)
                optimize += f" BY {columns}"
        if options.cleanup:
            optimize += " CLEANUP"
        with self._scratch.made(connection, "merge") as scratch:
            # All of them in the form that the table has now: the result is of that form, too.
            directories = [self._local(name).visible for name in sources]
            self._scratch.fill(connection, scratch, [(directory, None) for directory in directories])
            connection.commented(f"OPTIMIZE TABLE {scratch.name.quoted} {optimize}", comment)
            return self._stage_result(connection, scratch, result)

    def mutate(
        self, connection: Connection, source: PartName, result: PartName, commands: str, comment: str
    ) -> Part:
        """See `PartStore.mutate`."""
        directory = self._local(source).directory
        with self._scratch.made(connection, "mutate") as scratch:
            statements = prepare_for(connection, scratch, directory, commands, self._state.renames)
            if not statements:
                return self.stage_links(directory, result)
            self._scratch.fill(connection, scratch, [(directory, None)])
            for statement in statements:
                connection.commented(statement, comment)
            return self._stage_result(connection, scratch, result)

    def renamed_form(self, connection: Connection, directory: Path, name: PartName) -> Path | None:
        """A part of the same name whose columns are renamed as those of the table; None if none has to be."""
        here = columns_in(directory)
        behind = {old: new for old, new in self._state.renames.items() if old in here and new not in here}
        if not behind:
            return None
        commands = ", ".join(
            f"RENAME COLUMN {quote_identifier(old)} TO {quote_identifier(new)}" for old, new in behind.items()
        )
        with self._scratch.made(connection, "rename") as scratch:
            statements = prepare_for(connection, scratch, directory, commands, {})
            self._scratch.fill(connection, scratch, [(directory, None)])
            for statement in statements:
                connection.execute(statement)
            (local_name,) = self._active_local(connection, scratch)
            temporary = self._state.temporary("form", self._workers.next_number())
            link_part(scratch.path / local_name, temporary, name=name)
        force_to_disk(temporary, self._state.durability)
        return temporary

    def stage_empty(self, connection: Connection, result: PartName) -> Part:
        """See `PartStore.stage_empty`. Raises SqlError 48 where the partition's value cannot be told."""
        model = self._any_directory(result.partition_id)
        with self._scratch.made(connection, "empty") as scratch:
            if model is not None:
                self._scratch.fill(connection, scratch, [(model, None)])
            else:
                self._insert_one(connection, scratch, result)
            connection.execute(f"ALTER TABLE {scratch.name.quoted} DELETE WHERE 1")
            return self._stage_result(connection, scratch, result)

    def _insert_one(self, connection: Connection, scratch: Scratch, result: PartName) -> None:
        if result.partition_id == "all":
            connection.execute(
                f"INSERT INTO {scratch.name.quoted} SELECT * FROM generateRandom("
                f"{quote_string(self._structure(connection))}) LIMIT 1 SETTINGS optimize_on_insert = 0"
            )
        if not self._active_local(connection, scratch):
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"No part of partition {result.partition_id} is here to make the empty part {result} of",
                hint="Drop the partition, or insert a row into it.",
            )

    def _structure(self, connection: Connection) -> str:
        table = self._state.table
        return connection.text(
            "SELECT arrayStringConcat(groupArray(concat(backQuote(name), ' ', type)), ', ') "
            "FROM system.columns WHERE"
            f" database = {quote_string(table.database)} AND table = {quote_string(table.table)}"
            " AND default_kind IN ('', 'DEFAULT')"
        )

    def _any_directory(self, partition_id: str) -> Path | None:
        here = self._state.in_partition(partition_id)
        if here:
            return here[0].visible
        names = [name for name in self._state.staged if name.partition_id == partition_id]
        return self._state.staged_directory(min(names)) if names else None

    def _local(self, name: PartName) -> LocalPart:
        local = self._state.active.get(name)
        if local is None:
            raise SqlError(Code.NO_SUCH_DATA_PART, f"Part {name} is not active in {self._state.table}")
        return local

    def _active_local(self, connection: Connection, scratch: Scratch) -> list[str]:
        rows = connection.rows(
            "SELECT name FROM system.parts WHERE active"
            f" AND database = {quote_string(scratch.name.database)}"
            f" AND table = {quote_string(scratch.name.table)}"
        )
        return [name for (name,) in rows]

    def _stage_result(self, connection: Connection, scratch: Scratch, result: PartName) -> Part:
        names = self._active_local(connection, scratch)
        if len(names) != 1:
            raise SqlError(Code.LOGICAL_ERROR, f"{result} should be one part, and chDB has made {len(names)}")
        return self.stage_links(scratch.path / names[0], result)
