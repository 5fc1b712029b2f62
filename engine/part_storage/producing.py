"""New parts made of parts that are there: merges, mutations, copies.

Each is made in a scratch table of its own, out of links, so that nothing of it can be seen and a cut leaves
nothing but a table to clear. The same sources give the same bytes on every replica of the same version:
chDB's merges and mutations do not depend on names (measured, see docs/decisions/replicated-table-in-chdb.md).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from engine.errors import Code, SqlError
from engine.names import quote_identifier, quote_string
from engine.part_storage.column_notes import may_be_behind, needs_other_form, stale_columns
from engine.part_storage.disk import force_to_disk
from engine.part_storage.empty_parts import EmptyParts
from engine.part_storage.local_refusals import where_mutated
from engine.part_storage.merge_stop import MergeStop
from engine.part_storage.merged_parts import MergedParts
from engine.part_storage.mutation_scratch import columns_in, columns_of, prepare_for
from engine.part_storage.part_columns import depends_on_name, refuse_untellable
from engine.part_storage.part_files import files_of, link_part, read_part, remove_tree
from engine.part_storage.part_sizes import check_written
from engine.part_storage.prepared_merges import Filled
from engine.part_storage.scratch_tables import Merging, Scratch, ScratchTables, merged_part
from engine.part_storage.table_state import LocalPart, TableState
from engine.part_storage.workers import Connection, Workers
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.part_store import MergeOptions, Part
from engine.replication.table_definition import TableDefinition
from engine.sql.user_functions import with_bodies
from engine.storage.errors import mutation_error

_MAX_TRIES = 5
_ROOM_OF_MERGE = 2
"""By how much chDB may overestimate the room that a merge takes."""
_ALLOWS_CLEANUP = "allow_experimental_replacing_merge_with_cleanup"


class Producer:
    """Steps of one table; each may run beside others."""

    def __init__(
        self, state: TableState, scratch: ScratchTables, merged: MergedParts, workers: Workers
    ) -> None:
        self._state = state
        self._scratch = scratch
        self._merged = merged
        self._workers = workers
        self._empty = EmptyParts(state, scratch, workers)

    def stage_links(self, source: Path, result: PartName) -> Part:
        """Stage a part that has the files of `source`. Raises PartDiffers, OSError."""
        temporary = self._state.temporary("part", self._workers.next_number())
        link_part(source, temporary, name=result)
        try:
            part = read_part(temporary, result)
            return self._state.put_in_place(temporary, part)
        finally:
            remove_tree(temporary)

    def merge(
        self,
        connection: Connection,
        sources: Sequence[PartName],
        result: PartName,
        options: MergeOptions,
        stop: MergeStop,
        prepared: Filled | None,
    ) -> Part:
        """See `PartStore.merge`. `prepared` is a table with the sources, which goes with the merge."""
        optimize = f"PARTITION ID {quote_string(result.partition_id)} FINAL"
        if options.deduplicate:
            optimize += " DEDUPLICATE"
            if options.deduplicate_by_columns:
                columns = ", ".join(quote_identifier(name) for name in options.deduplicate_by_columns)
                optimize += f" BY {columns}"
        if options.cleanup:
            optimize += " CLEANUP"
        if prepared is not None and prepared.epoch != self._scratch.epoch:
            self._scratch.drop_later(prepared.scratch)
            prepared = None
        filled = prepared or self.fill_for_merge(connection, sources, result)
        scratch = filled.scratch
        try:
            if options.keep_expired:
                connection.execute(f"SYSTEM STOP TTL MERGES {scratch.name.quoted}")
            if options.cleanup:  # whoever wrote it into the log may have the setting, and this replica not
                connection.execute(f"ALTER TABLE {scratch.name.quoted} MODIFY SETTING {_ALLOWS_CLEANUP} = 1")
            is_alike = not options.deduplicate or not self._drop_projections(connection, scratch)
            stop.begins_in(scratch.name)
            connection.execute(f"OPTIMIZE TABLE {scratch.name.quoted} {optimize}")
            made = merged_part(scratch, result.partition_id, len(sources)) if is_alike else None
            part = self._stage_result(connection, scratch, result, made)
        except BaseException:  # whatever it is: the scratch table goes
            self._scratch.drop_later(scratch)
            raise
        if made is None:
            self._scratch.drop_later(scratch)
        else:
            self._merged.keep(result, scratch, made, epoch=filled.epoch)
        return part

    def fill_for_merge(self, connection: Connection, sources: Sequence[PartName], result: PartName) -> Filled:
        """A table to merge `sources` in; all of them in the form that the table has now, which is the
        result's, too. Raises as `ScratchTables.filled`."""
        epoch = self._scratch.epoch
        scratch = self._filled(
            connection,
            "merge",
            result.partition_id,
            lambda: [self._readable(name) for name in sources],
            local_names=[*map(str, sources)] if self._goes_by_names(connection) else (),
        )
        return Filled(scratch, epoch)

    def _drop_projections(self, connection: Connection, scratch: Scratch) -> int:
        """chDB deduplicates no table with projections. Nobody may ask for that, but one may have been added
        since; a part may be without. How many there were."""
        names = connection.rows(
            f"SELECT name FROM system.projections WHERE database = {quote_string(scratch.name.database)}"
            f" AND table = {quote_string(scratch.name.table)}"
        )
        if names:
            dropped = ", ".join(f"DROP PROJECTION {quote_identifier(name)}" for (name,) in names)
            connection.execute(f"ALTER TABLE {scratch.name.quoted} {dropped} SETTINGS mutations_sync = 2")
        return len(names)

    def mutate(
        self, connection: Connection, source: PartName, result: PartName, commands: str, comment: str
    ) -> Part:
        """See `PartStore.mutate`. Raises SqlError 48 for what cannot be done here (`part_columns`)."""
        functions = self._user_functions(connection)
        refuse_untellable(with_bodies(commands, functions))
        with ExitStack() as stack:
            directory = stack.enter_context(self._held(source))
            table = self._known_definition(connection)
            scratch = stack.enter_context(
                self._scratch.made(
                    connection,
                    "mutate",
                    merging=_merging_for(table, directory),
                    settings=where_mutated(dict(table.settings)) if table else None,
                )
            )
            runs = prepare_for(connection, scratch, directory, commands, self._state.renames)
            if not runs:
                return self.stage_links(directory, result)
            self._scratch.fill(connection, scratch, result.partition_id, directory)
            keeps_numbers = self._keeps_block_numbers(connection)
            for run in runs:
                if keeps_numbers or depends_on_name(with_bodies(run, functions)):
                    for local_name in self._active_local(connection, scratch):
                        renamed = self._scratch.renamed(connection, scratch, local_name, str(source))
                        scratch = stack.enter_context(renamed)
                try:
                    connection.commented(f"ALTER TABLE {scratch.name.quoted} {run}", comment)
                except SqlError as error:
                    raise mutation_error(error) from error
            return self._stage_result(connection, scratch, result)

    def _known_definition(self, connection: Connection) -> TableDefinition | None:
        try:
            return self._scratch.known_definition or self._scratch.definition(connection)
        except SqlError:  # of a GraphiteMergeTree, whose rules stand elsewhere
            return None

    def _user_functions(self, connection: Connection) -> dict[str, str]:
        """The CREATE texts of SQL user functions by name. Nearly always there are none, and asking chDB for
        its functions takes longer than a small mutation."""
        directory = self._state.pool_path / "user_defined"
        if not directory.is_dir() or not any(directory.iterdir()):
            return {}
        rows = connection.rows(
            "SELECT name, create_query FROM system.functions WHERE origin = 'SQLUserDefined'"
        )
        return {str(name): str(create) for name, create in rows}

    def form_for_readers(self, connection: Connection, directory: Path, name: PartName) -> Path | None:
        """A part of the same name with the table's columns where it has others: renamed since, or dropped and
        added again. None if its own bytes will do."""
        if not may_be_behind(self._state, name):
            return None
        here = columns_in(directory)
        commands = [
            f"RENAME COLUMN {quote_identifier(old)} TO {quote_identifier(new)}"
            for old, new in self._state.renames.items()
            if old in here and new not in here
        ]
        if stale := stale_columns(self._state, name, here):
            table = columns_of(connection, self._state.table)
            commands += [f"CLEAR COLUMN {quote_identifier(column)}" for column in stale if column in table]
        if not commands:
            return None
        with self._scratch.made(connection, "rename") as scratch:
            runs = prepare_for(connection, scratch, directory, ", ".join(commands), {})
            self._scratch.fill(connection, scratch, name.partition_id, directory)
            for run in runs:
                connection.execute(f"ALTER TABLE {scratch.name.quoted} {run}")
            (local_name,) = self._active_local(connection, scratch)
            temporary = self._state.temporary("form", self._workers.next_number())
            link_part(scratch.path / local_name, temporary, name=name)
        force_to_disk(temporary, self._state.durability)
        return temporary

    def stage_empty(self, connection: Connection, result: PartName) -> Part:
        """See `PartStore.stage_empty`. Raises SqlError 48 where the partition's value cannot be told."""
        with self._scratch.made(connection, "empty") as scratch:
            self._empty.fill(connection, scratch, result)
            return self._stage_result(connection, scratch, result)

    def _keeps_block_numbers(self, connection: Connection) -> bool:
        """Whether what is made has a column of the numbers in the names of its sources."""
        return self._scratch.has_setting(connection, "enable_block_number_column")

    def _goes_by_names(self, connection: Connection) -> bool:
        """Whether what a merge makes depends on numbers or levels in the names of its sources."""
        return self._keeps_block_numbers(connection) or self._scratch.has_setting(
            connection, "min_level_for_wide_part"
        )

    def _filled(
        self,
        connection: Connection,
        purpose: str,
        partition_id: str,
        directories: Callable[[], list[Path]],
        local_names: Sequence[str],
    ) -> Scratch:
        """A scratch table with links of parts. A swap may move them meanwhile: then once more."""
        tries = 0
        while True:
            tries += 1
            try:
                sources = [(directory, None) for directory in directories()]
                return self._scratch.filled(
                    connection, purpose, partition_id, sources, local_names=local_names
                )
            except FileNotFoundError as error:
                if tries == _MAX_TRIES:
                    raise PartDiffers(f"of partition {partition_id}", f"{error.filename} is gone") from None

    @contextmanager
    def _held(self, name: PartName) -> Iterator[Path]:
        """Links of a part's own bytes that stay, whatever a swap does meanwhile."""
        held = self._state.temporary("held", self._workers.next_number())
        tries = 0
        while True:
            tries += 1
            try:
                link_part(self._local(name).directory, held, name=None)
                break
            except FileNotFoundError as error:
                if tries == _MAX_TRIES:
                    raise PartDiffers(str(name), f"{error.filename} is gone") from None
        try:
            yield held
        finally:
            remove_tree(held)

    def _local(self, name: PartName) -> LocalPart:
        local = self._state.active.get(name)
        if local is None:
            raise SqlError(Code.NO_SUCH_DATA_PART, f"Part {name} is not active in {self._state.table}")
        return local

    def _readable(self, name: PartName) -> Path:
        """A form of a part in which every column of the table can be read. While an ALTER is applied readers
        may see one that chDB rewrote without need, and with less in it."""
        local = self._local(name)
        is_own = local.is_ahead and not needs_other_form(self._state, local)
        return local.directory if is_own else local.visible

    def _active_local(self, connection: Connection, scratch: Scratch) -> list[str]:
        rows = connection.rows(
            "SELECT name FROM system.parts WHERE active"
            f" AND database = {quote_string(scratch.name.database)}"
            f" AND table = {quote_string(scratch.name.table)}"
        )
        return [name for (name,) in rows]

    def _stage_result(
        self, connection: Connection, scratch: Scratch, result: PartName, made: Path | None = None
    ) -> Part:
        """Stage what was made, wherever chDB has put it."""
        if made is not None:
            return self._stage_made(made, result)
        names = self._active_local(connection, scratch)
        if not names:  # chDB removes parts without rows by itself
            return self.stage_empty(connection, result)
        if len(names) != 1:
            raise _not_merged(scratch, result, names)
        return self._stage_made(scratch.path / names[0], result)

    def _stage_made(self, made: Path, result: PartName) -> Part:
        check_written(made, files_of(made))
        return self.stage_links(made, result)


def _not_merged(scratch: Scratch, result: PartName, names: Sequence[str]) -> SqlError:
    """chDB does not say why it does not merge. It does not where it takes the room for too small."""
    size = sum(file.stat().st_size for name in names for file in (scratch.path / name).rglob("*"))
    free = shutil.disk_usage(scratch.path).free
    if free < _ROOM_OF_MERGE * size:
        return SqlError(
            Code.NOT_ENOUGH_SPACE,
            f"Not enough space for merging {len(names)} parts of {size} bytes into {result}: {free} are free",
        )
    return SqlError(Code.LOGICAL_ERROR, f"{result} should be one part, and chDB has made {len(names)}")


def _merging_for(table: TableDefinition | None, part: Path) -> Merging:
    """chDB lets the column of versions have a wider type, and never again a narrower one, as the part has.
    What a mutation makes does not depend on how its table merges."""
    version = table.metadata.version_column if table is not None else ""
    if table is None or not version or version not in table.columns.by_name:
        return Merging.OF_TABLE
    is_alike = columns_in(part).get(version) == table.columns.by_name[version].type
    return Merging.OF_TABLE if is_alike else Merging.NONE
