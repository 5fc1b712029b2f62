"""Another definition for a table, without its parts being rewritten under chDB's names.

What chDB does at once is the metadata; parts it rewrites in a mutation. A replicated table rewrites each part
as its queue says, under a replicated name. Until then readers have to see the old parts through the new
definition:

- columns added, dropped or of another type, indices, projections, TTL: chDB reads old parts well. The ALTER
  is run while the table's mutations are stopped, and its mutation is killed before it begins;
- a renamed column is looked up by name, and reads as its default once the mutation is killed. So that
  mutation is let run, which is links only for a wide part. Readers then see another form of the part. Its own
  bytes stay in `originals/<part>` until the part goes: peers get them, and mutations start from them.

Safety argument.

1. Before an ALTER that concerns data, `originals/` gets links of all active parts, and `altering.json` says
   which of chDB's blocks is which part. Both are on disk before the ALTER begins.
2. The ALTER itself is chDB's: the definition is the old one or the new one.
3. Whatever of its mutation runs (because it is to, or because a restart starts it before it can be killed)
   keeps the block numbers of a part in its name, so that `settle` knows it and writes its name into it.
4. chDB writes a mutation down before the definition. What was cut in between renames to a column that the
   table does not have; it fails for ever, and is killed. A mutation that was done may have something to do
   again after a restart: a part without rows that another one covered, and that the disk still had.
5. `altering.json` goes last. `load` settles if it is there; an ALTER that was cut is repeated by its caller,
   and what is done already makes no command.
6. chDB may have rewritten parts that needed none of it: one that was fetched from a replica that has the
   ALTER already lost what the table did not know yet. Whoever calls has them shown as they are again
   (`Publisher.show_own_bytes`); until then they lie in `originals/`.

7. Where a setting of this replica refuses the ALTER (`local_refusals`), it has another value meanwhile; a
   crash leaves it so, which refuses less.

A column that is added under the name of one that was dropped is cleared in the same way in the parts that
still have the old one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from engine.errors import Code, SqlError
from engine.names import quote_identifier, quote_string
from engine.part_storage.alter_statements import AlterStep, Effect, joined, next_step
from engine.part_storage.column_notes import load_notes, note_alter, stale_columns
from engine.part_storage.disk import force_directory, force_to_disk, write_durably
from engine.part_storage.dropping import (
    check_names_are_not_taken_over,
    check_parts_keep_columns,
    define_past_views,
)
from engine.part_storage.hidden_settings import HIDDEN_SETTINGS
from engine.part_storage.local_refusals import check_sorting_key, is_for_the_alter_alone, lenient
from engine.part_storage.mutation_scratch import columns_in, split_commands
from engine.part_storage.part_files import (
    CHECKSUMS_FILE,
    is_local_name,
    link_part,
    name_in,
    read_part,
    remove_tree,
)
from engine.part_storage.part_uuid import UUID_FILE, uuid_of
from engine.part_storage.scratch_tables import ScratchTables
from engine.part_storage.table_state import LocalPart, TableState, blocks_of
from engine.part_storage.workers import ASKED_IN_PLANS, Connection, Workers
from engine.replication.columns import Columns
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.part_store import AlterPlan, Part
from engine.replication.renamed_columns import renamed_columns
from engine.replication.table_definition import TableDefinition, parse_definition
from engine.replication.table_metadata import TableMetadata

log = logging.getLogger(__name__)

_MAX_STEPS = 16
_POLL_S = 0.02
_MAX_WAIT_S = 3600.0
"""A renamed column's compact parts are written anew; more than that is no rewriting."""


class Alterer:
    """Steps of one table; the caller runs one at a time, and nothing is published meanwhile."""

    def __init__(self, state: TableState, scratch: ScratchTables, workers: Workers) -> None:
        self._state = state
        self._scratch = scratch
        self._workers = workers
        self._changed_settings: set[str] = set()

    # -- what an ALTER would do ----------------------------------------------------------------------------

    def plan(self, connection: Connection, commands: str, allowed: Collection[str]) -> AlterPlan:
        """See `PartStore.plan_alter`."""
        before = parse_definition(self._scratch.create_text(connection))
        with self._scratch.made(connection, "plan") as scratch:
            untouched = parse_definition(self._scratch.create_text(connection, scratch.name))
            settings = {name: str(int(name in allowed)) for name in ASKED_IN_PLANS}
            connection.execute_with(
                {**settings, "alter_sync": "0", "mutations_sync": "0"},
                f"ALTER TABLE {scratch.name.quoted} {commands}",
            )
            table = (
                f" WHERE database = {quote_string(scratch.name.database)}"
                f" AND table = {quote_string(scratch.name.table)}"
            )
            rows = connection.rows(f"SELECT mutation_id, command FROM system.mutations{table}")
            after = parse_definition(self._scratch.create_text(connection, scratch.name))
            if after.settings != untouched.settings:
                self._scratch.check_opens(connection, scratch)
            check_sorting_key(connection, scratch.name, before, after, changed=self._changed_settings)
        mutations = sorted(rows, key=lambda row: _mutation_number(row[0]))
        pieces = [piece for _, command in mutations for piece in split_commands(command)]
        check_parts_keep_columns((local.part for local in self._state.active.values()), pieces)
        check_names_are_not_taken_over(pieces)
        mutation = joined(pieces)
        definition = TableDefinition(
            metadata=after.metadata,
            columns=after.columns,
            settings=_with_changes(dict(before.settings), dict(untouched.settings), dict(after.settings)),
            # A scratch table's may be older than the table's.
            comment=before.comment if after.comment == untouched.comment else after.comment,
        )
        return AlterPlan(definition, mutation)

    # -- doing it ------------------------------------------------------------------------------------------

    def apply(
        self,
        connection: Connection,
        columns: Columns,
        metadata: TableMetadata,
        renames: Mapping[str, str],
        mutation: Mapping[str, int],
    ) -> None:
        """See `PartStore.apply_alter`. Raises SqlError 122 if chDB cannot get there."""
        before = parse_definition(self._scratch.create_text(connection)).columns
        note_alter(self._state, before, columns, renames, mutation)
        commands = ""
        for _ in range(_MAX_STEPS):
            here = parse_definition(self._scratch.create_text(connection))
            step = next_step(here.columns, here.metadata, columns, metadata, renames)
            if step is None:
                return
            commands = step.commands
            try:
                self._run_unrefused(connection, step, dict(here.settings))
            finally:
                self._scratch.forget_definition()
        raise SqlError(
            Code.INCOMPATIBLE_COLUMNS,
            f"ALTER of {self._state.table} leads to no end; what is left: {commands[:500]}",
        )

    def apply_settings(self, connection: Connection, changes: Mapping[str, str | None]) -> None:
        """See `PartStore.apply_settings`. The hidden settings stay as they are."""
        visible = {name: value for name, value in changes.items() if name not in HIDDEN_SETTINGS}
        self._changed_settings |= visible.keys()
        changed = [f"{name} = {value}" for name, value in visible.items() if value is not None]
        reset = [name for name, value in visible.items() if value is None]
        table = self._state.table.quoted
        if changed:
            connection.define(f"ALTER TABLE {table} MODIFY SETTING {', '.join(changed)}")
        if reset:
            connection.define(f"ALTER TABLE {table} RESET SETTING {', '.join(reset)}")
        self._scratch.forget_definition()

    def apply_comment(self, connection: Connection, comment: str) -> None:
        """See `PartStore.apply_comment`."""
        connection.define(f"ALTER TABLE {self._state.table.quoted} MODIFY COMMENT {quote_string(comment)}")
        self._scratch.forget_definition()

    def _run_unrefused(self, connection: Connection, step: AlterStep, settings: Mapping[str, str]) -> None:
        """Also where settings of this replica do not allow what another one was asked for: one after another
        is changed. Those that were not in the way, or need not stay, are given back."""
        is_done = False
        changed: list[str] = []
        refusals: list[str] = []
        try:
            while True:
                try:
                    self._run(connection, step)
                    refusals.append("")
                    is_done = True
                    return
                except SqlError as error:
                    refusals.append(str(error))
                    passing = lenient(settings, error.code)
                    name = next((each for each in passing if each not in changed), None)
                    if name is None:
                        raise
                    changed.append(name)
                    self.apply_settings(connection, {name: passing[name]})
        finally:
            back = {
                name: settings.get(name)
                for name, before, behind in zip(changed, refusals, refusals[1:], strict=False)
                if before == behind or not is_done or is_for_the_alter_alone(name)
            }
            self.apply_settings(connection, back)
            if kept := [name for name in changed if name not in back]:
                log.warning("part_storage.settings_kept table=%s settings=%s", self._state.table, kept)

    def _run(self, connection: Connection, step: AlterStep) -> None:
        table = self._state.table
        statement = f"ALTER TABLE {table.quoted} {step.commands} SETTINGS materialize_ttl_after_modify = 0"
        stale = self._stale(step.added)
        effect = Effect.RENAMES if stale else step.effect
        # chDB begins no ALTER before the mutations of earlier ones are done; stopped, they would never be.
        self._wait_for_mutations(connection)
        at_once = f"{statement}, mutations_sync = 2, alter_sync = 2"
        if effect is Effect.NOTHING or not self._state.active:
            define_past_views(connection, self._workers, table, at_once)
            return
        self._remember(effect, stale)
        try:
            if effect is Effect.RENAMES:
                define_past_views(connection, self._workers, table, at_once)
            else:
                self._run_without_mutations(connection, f"{statement}, mutations_sync = 0, alter_sync = 0")
        finally:
            self._workers.surely(lambda: self.settle(connection))

    def _run_without_mutations(self, connection: Connection, statement: str) -> None:
        table = self._state.table.quoted
        connection.execute(f"SYSTEM STOP MERGES {table}")
        try:
            define_past_views(connection, self._workers, self._state.table, statement)
            self._kill_mutations(connection)
        finally:
            self._workers.surely(lambda: connection.execute(f"SYSTEM START MERGES {table}"))

    def _stale(self, added: Sequence[str]) -> list[str]:
        """New columns of which parts still have old values: one of that name was dropped before."""
        if not added:
            return []
        found: set[str] = set()
        for name, local in self._state.active.items():
            found.update(stale_columns(self._state, name, columns_in(local.visible).keys() & set(added)))
        return sorted(found)

    # -- what parts are what -------------------------------------------------------------------------------

    @property
    def _journal(self) -> Path:
        return self._state.staged_root / "altering.json"

    def _remember(self, effect: Effect, stale: Sequence[str]) -> None:
        state = self._state
        state.originals_root.mkdir(exist_ok=True)
        blocks: dict[str, str] = {}
        moved: list[LocalPart] = []
        for name, local in sorted(state.active.items()):
            blocks[blocks_of(local.visible.name)] = str(name)
            if not local.is_ahead:
                original = state.originals_root / str(name)
                remove_tree(original)
                link_part(local.directory, original, name=name)
                force_to_disk(original, state.durability)
                moved.append(LocalPart(local.part, original, local.visible))
        force_directory(state.originals_root, state.durability)
        journal = {"effect": effect.name, "blocks": blocks, "stale": list(stale)}
        write_durably(self._journal, json.dumps(journal, sort_keys=True).encode(), state.durability)
        state.altering = _parsed(blocks)
        state.change_active(add=moved)  # chDB may remove its own directories from now on

    def settle(self, connection: Connection) -> None:
        """After an ALTER, or after a restart in the middle of one: know the parts again."""
        state = self._state
        try:
            journal = json.loads(self._journal.read_text())
        except (FileNotFoundError, ValueError):
            return
        if journal["effect"] == Effect.RENAMES.name:
            self._kill_renames_to_nowhere(connection)
            self._wait_for_mutations(connection)
        else:
            self._kill_mutations(connection)
        self._clear(connection, journal["stale"])
        state.altering = _parsed(journal["blocks"])
        visible: dict[PartName, Path] = {}
        for local_name in self._active_names(connection):
            name = state.altering.get(blocks_of(local_name))
            if name is None:
                continue
            directory = state.data / local_name
            written = name_in(directory, name.partition_id)
            if written is None:
                write_durably(directory / UUID_FILE, str(uuid_of(name)).encode(), state.durability)
            elif written != name:
                continue
            visible[name] = directory
        state.change_active(
            add=[
                _form_of(state, local.part, visible[name])
                for name, local in state.active.items()
                if name in visible
            ]
        )
        state.new_local_names()
        state.altering = {}  # after `active`: who asks in between finds a part in one of them
        self._journal.unlink()
        force_directory(state.staged_root, state.durability)

    def _clear(self, connection: Connection, stale: Sequence[str]) -> None:
        """Of columns that were dropped and are there again no part shows the old values."""
        here = parse_definition(self._scratch.create_text(connection)).columns.by_name
        commands = [f"CLEAR COLUMN {quote_identifier(name)}" for name in stale if name in here]
        if commands:
            connection.define(
                f"ALTER TABLE {self._state.table.quoted} {', '.join(commands)} SETTINGS mutations_sync = 2"
            )

    def load(self, connection: Connection) -> None:
        """At the start, before active parts are looked at: what an ALTER that was cut has left."""
        load_notes(self._state)
        self.settle(connection)

    def find_originals(self) -> None:
        """At the start, when active parts are known: their own bytes may lie in `originals/`."""
        state = self._state
        changed = []
        root = state.originals_root
        for directory in sorted(root.iterdir()) if root.exists() else []:
            name = PartName.try_parse(directory.name)
            local = None if name is None else state.active.get(name)
            if name is None or local is None:
                remove_tree(directory)
                continue
            try:
                part = read_part(directory, name)
            except PartDiffers:
                log.warning("part_storage.original_broken table=%s part=%s", state.table, name)
                remove_tree(directory)
                continue
            changed.append(_form_of(state, part, local.visible))
        state.change_active(add=changed)

    def _active_names(self, connection: Connection) -> list[str]:
        table = self._state.table
        rows = connection.rows(
            "SELECT name FROM system.parts WHERE active"
            f" AND database = {quote_string(table.database)} AND table = {quote_string(table.table)}"
        )
        return [name for (name,) in rows if is_local_name(name)]

    def _kill_mutations(self, connection: Connection) -> None:
        table = self._state.table
        connection.execute(
            f"KILL MUTATION WHERE database = {quote_string(table.database)}"
            f" AND table = {quote_string(table.table)}"
        )
        self._wait_for_mutations(connection)

    def _kill_renames_to_nowhere(self, connection: Connection) -> None:
        """Of an ALTER that was cut before the table had its new definition. Nothing was rewritten by it."""
        table = self._state.table
        mine = f"database = {quote_string(table.database)} AND table = {quote_string(table.table)}"
        rows = connection.rows(
            f"SELECT mutation_id, command FROM system.mutations WHERE {mine} AND NOT is_done"
        )
        here = parse_definition(self._scratch.create_text(connection)).columns.by_name
        for mutation_id, command in rows:
            if any(new not in here for new in renamed_columns(command).values()):
                log.info("part_storage.alter_taken_back table=%s mutation=%s", table, mutation_id)
                connection.execute(
                    f"KILL MUTATION WHERE {mine} AND mutation_id = {quote_string(mutation_id)}"
                )

    def _wait_for_mutations(self, connection: Connection) -> None:
        table = self._state.table
        mine = f"database = {quote_string(table.database)} AND table = {quote_string(table.table)}"
        clock = self._workers.pool.env.monotonic_s
        deadline_s = clock() + _MAX_WAIT_S
        while connection.rows(
            f"SELECT 1 FROM system.mutations WHERE {mine} AND NOT is_done LIMIT 1"
        ) or connection.rows(f"SELECT 1 FROM system.merges WHERE {mine} LIMIT 1"):
            if clock() > deadline_s:
                raise SqlError(Code.TIMEOUT_EXCEEDED, f"A mutation of {table} does not end")
            if self._only_empty_parts_fail(connection, mine):
                connection.execute(f"KILL MUTATION WHERE {mine}")
            self._workers.pause(_POLL_S)

    def _only_empty_parts_fail(self, connection: Connection, mine: str) -> bool:
        """chDB covers what it drops by parts without rows. After a kill between two renames it can rewrite
        such a part no more and would try for ever; there is nothing in it to be rewritten."""
        [(failing, with_rows)] = connection.rows(
            "SELECT countIf(latest_fail_reason != ''), countIf(part IN"
            f" (SELECT name FROM system.parts WHERE {mine} AND active AND rows > 0))"
            f" FROM system.mutations ARRAY JOIN parts_to_do_names AS part WHERE {mine} AND NOT is_done"
        )
        return int(failing) > 0 and int(with_rows) == 0


def _form_of(state: TableState, part: Part, visible: Path) -> LocalPart:
    """An active part whose bytes are in `originals/`, or in `visible` if that has the same."""
    original = state.originals_root / str(part.name)
    if not original.exists():
        return LocalPart(part, visible, visible)
    if (original / CHECKSUMS_FILE).read_bytes() == (visible / CHECKSUMS_FILE).read_bytes():
        remove_tree(original)
        return LocalPart(part, visible, visible)
    return LocalPart(part, original, visible)


def _parsed(blocks: Mapping[str, str]) -> Mapping[str, PartName]:
    return {local: PartName.parse(name) for local, name in blocks.items()}


def _mutation_number(mutation_id: str) -> int:
    digits = "".join(filter(str.isdigit, mutation_id))
    return int(digits or "0")


def _with_changes(
    settings: dict[str, str], before: Mapping[str, str], after: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """`settings` with what changed from `before` to `after`: a scratch table has more of them than its
    table."""
    settings |= {name: value for name, value in after.items() if before.get(name) != value}
    return tuple((name, value) for name, value in settings.items() if name in after or name not in before)
