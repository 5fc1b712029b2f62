"""`system.parts` and `system.mutations` with replicated tables as their users know them.

chDB numbers the parts of a replicated table as it likes; their names are kept in their UUIDs (`part_uuid`).
The view of `system.parts` reads names and numbers from there, hides what chDB keeps of parts that were
replaced, and the tables in which parts are made.

What chDB makes of a part by itself, in an ALTER that renames a column, has no UUID before the ALTER is
through, and shows none before the next start. Its blocks are those of the part that it was made of. So the
view is told of such parts by their store when its text is made; and a reader whose text was made before such
an ALTER began, and who reads in the middle of it, finds the UUID beside it: chDB lists the part that was
there before for a while (`old_parts_lifetime`), in the same snapshot.

Mutations of replicated tables are Keeper's: the view of `system.mutations` has those instead of chDB's,
beside chDB's of plain tables. As there, a mutation has one row for each of its commands, in parentheses.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping

from engine.errors import Code
from engine.names import quote_identifier, quote_string
from engine.node.replicated.running.runtime import ReplicatedTables
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import words_of_select
from engine.part_storage.mutation_scratch import split_commands
from engine.part_storage.part_uuid import uuid_of
from engine.part_storage.workers import SCRATCH_DATABASE
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.insert_times import unix_s
from engine.sql import Token, literal_value

_NO_UUID = "toUUID('00000000-0000-0000-0000-000000000000')"
_FILTERED = frozenset(
    {"database", "table", "name", "active", "rows", "uuid", "partition_id", "min_block_number"}
)
"""Columns by which the view itself chooses and knows rows."""
_ALIASES = {"bytes": "bytes_on_disk", "marks_size": "marks_bytes", "part_name": "name"}
_STATE = "_state"
"""A column that only who names it gets."""
_HELPERS = frozenset({"_ours", "_bits", "_named"})
"""Columns of the view's own."""
_BLOCKS = "arrayStringConcat(arraySlice(splitByChar('_', name), 1, 4), '_')"
"""As `blocks_of`."""
_MARK = 0x0C
_MUTATION_COLUMNS = (
    "`database` String, `table` String, `mutation_id` String, `command` String, `create_time` DateTime, "
    "`finish_time` DateTime, `block_numbers.partition_id` Array(String), "
    "`block_numbers.number` Array(Int64), `parts_in_progress_names` Array(String), "
    "`parts_to_do_names` Array(String), `parts_to_do` Int64, `parts_postpone_reasons` Map(String, String), "
    "`is_done` UInt8, `is_killed` UInt8, `latest_failed_part` String, `latest_fail_time` DateTime, "
    "`latest_fail_reason` String, `latest_fail_error_code_name` String"
)


class PartsView:
    """Implements SystemView, for `parts` and for `parts_columns`, which has a row per column."""

    def __init__(self, tables: ReplicatedTables, name: str = "parts") -> None:
        self.name = name
        self._tables = tables
        self._columns: frozenset[str] = frozenset()

    @property
    def is_needed(self) -> bool:
        return bool(self._tables.all())

    async def select(self, asked: Asked, tokens: list[Token]) -> str:
        wanted = await self._named(asked, tokens)
        if wanted is None:
            words = {literal_value(token) for token in tokens if token.is_name}
            aliases = {alias: column for alias, column in _ALIASES.items() if alias in words}
            kept, read = None, "*"
            hidden = frozenset(_HELPERS)
        else:
            aliases = {alias: column for alias, column in _ALIASES.items() if alias in wanted}
            kept = (wanted - _ALIASES.keys()) | set(aliases.values()) or frozenset({"active"})
            read = _list(kept | _FILTERED)
            hidden = (kept | _FILTERED | _HELPERS) - kept
        relabelled = self._relabelled()
        if kept is not None and not relabelled and kept.isdisjoint(_REPLACED):
            ours = f"(database, table) IN ({_names(self._tables)})"
            named = f"bitShiftRight({_bits_of('uuid')}, 120) = {_MARK}"
            view = f"SELECT {_list(kept)} FROM system.{self.name} WHERE {_shown(ours, named)}"
        else:
            replaced = {name: value for name, value in _REPLACED.items() if kept is None or name in kept}
            view = f"SELECT * EXCEPT ({_list(hidden)})"
            if replaced:
                view += f" REPLACE ({', '.join(f'{value} AS {name}' for name, value in replaced.items())})"
            view += f" FROM ({self._with_helpers(read, relabelled)}) WHERE {_shown('_ours', '_named')}"
        if aliases:
            further = ", ".join(f"{column} AS {alias}" for alias, column in aliases.items())
            view = f"SELECT *, {further} FROM ({view})"
        return view

    async def _named(self, asked: Asked, tokens: list[Token]) -> frozenset[str] | None:
        """The columns that a SELECT may use, by its words; None where it may use any.

        A view of a hundred columns costs chDB 20 ms to analyse.
        """
        words = words_of_select(tokens)
        if words is None:
            return None
        if not self._columns:
            found = await asked.session.clone().query(
                "SELECT name FROM system.columns WHERE database = 'system' AND default_kind = '' "
                f"AND table = {quote_string(self.name)}",
                format="TSVRaw",
            )
            self._columns = frozenset(found.text.splitlines())
        nested = {name for name in self._columns if name.partition(".")[0] in words}
        return frozenset(nested | ((self._columns | _ALIASES.keys() | {_STATE}) & words))

    def _relabelled(self) -> Mapping[tuple[str, str, str], str]:
        """By database, table and blocks, the UUIDs of parts that show none."""
        return {
            (str(table.ctx.name.database), str(table.ctx.name.table), blocks): str(uuid_of(part))
            for table in self._tables.all()
            for blocks, part in sorted(table.store.relabelled().items())
        }

    def _with_helpers(self, columns: str, uuids: Mapping[tuple[str, str, str], str]) -> str:
        """chDB's table, and of each part: whether it is of a replicated table, whether it has a replicated
        name, and the number that says which; `uuids` are those of `_relabelled`."""
        # Empty parts by which chDB covers what it drops begin with the blocks of that, and are no such part.
        known = (
            f"if(rows = 0, {_NO_UUID}, "
            "max(uuid) OVER (PARTITION BY database, table, partition_id, min_block_number))"
        )
        if uuids:
            keys = ", ".join(f"({', '.join(map(quote_string, key))})" for key in uuids)
            values = ", ".join(map(quote_string, uuids.values()))
            place = f"indexOf([{keys}], (database, table, {_BLOCKS}))"
            known = f"if({place} = 0, {known}, toUUID([{values}][greatest({place}, 1)]))"
        return (
            f"SELECT {columns}, (database, table) IN ({_names(self._tables)}) AS _ours, "
            f"{_bits_of(f'if(uuid = {_NO_UUID}, {known}, uuid)')} AS _bits, "
            f"_ours AND bitShiftRight(_bits, 120) = {_MARK} AS _named FROM system.{self.name}"
        )


def _bits_of(uuid: str) -> str:
    return f"reinterpretAsUInt128(reverse(UUIDToNum({uuid})))"


def _shown(ours: str, named: str) -> str:
    """chDB covers what it drops by empty parts without a name; nobody's rows are in them."""
    scratch = quote_string(SCRATCH_DATABASE)
    return f"database != {scratch} AND (NOT {ours} OR (active AND (rows > 0 OR {named})))"


def _list(columns: Iterable[str]) -> str:
    return ", ".join(map(quote_identifier, sorted(columns)))


def _replaced() -> dict[str, str]:
    """What columns show instead of chDB's, in words of `_HELPERS`."""

    def field(number: int, type_: str) -> str:
        shift = 30 * (3 - number)
        return f"to{type_}(bitAnd(bitShiftRight(_bits, {shift}), 1073741823))"

    low, high, level, mutation = (field(n, t) for n, t in enumerate(("Int64", "Int64", "UInt32", "UInt64")))
    whole = (
        f"concat(partition_id, '_', toString({low}), '_', toString({high}), '_', toString({level}), "
        f"if({mutation} = 0, '', concat('_', toString({mutation}))))"
    )
    return {
        "name": f"if(_named, {whole}, name)",
        "min_block_number": f"if(_named, {low}, min_block_number)",
        "max_block_number": f"if(_named, {high}, max_block_number)",
        "level": f"if(_named, {level}, level)",
        "data_version": f"if(_named, if({mutation} = 0, toUInt64({low}), {mutation}), data_version)",
        "engine": "if(_ours, concat('Replicated', engine), engine)",
        "uuid": f"if(_named, {_NO_UUID}, uuid)",
    }


_REPLACED = _replaced()


class MutationsView:
    """Implements SystemView."""

    name = "mutations"

    def __init__(self, tables: ReplicatedTables) -> None:
        self._tables = tables

    @property
    def is_needed(self) -> bool:
        return bool(self._tables.all())

    async def select(self, asked: Asked, tokens: list[Token]) -> str:
        rows = [row for table in self._tables.all() for row in mutation_rows(table.ctx)]
        plain = (
            f"SELECT * FROM system.mutations WHERE (database, table) NOT IN ({_names(self._tables)}) "
            f"AND database != {quote_string(SCRATCH_DATABASE)}"
        )
        if not rows:
            return plain
        lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        structure = quote_string(_MUTATION_COLUMNS)
        return f"{plain} UNION ALL SELECT * FROM format(JSONEachRow, {structure}, {quote_string(lines)})"


def mutation_rows(ctx: ReplicaContext) -> Iterable[Mapping[str, object]]:
    """From what this replica knows; Keeper is not asked."""
    for number, state in ctx.queue.mutations.items():
        to_do = sorted(map(str, ctx.queue.parts_to_do(number))) if not state.is_done else []
        numbers = sorted(state.entry.block_numbers)
        row = {
            "database": ctx.name.database,
            "table": ctx.name.table,
            "mutation_id": f"{number:010}",
            "create_time": int(unix_s(state.entry.create_time)),
            "finish_time": int(state.finished_s),
            "block_numbers.partition_id": [partition_id for partition_id, _ in numbers],
            "block_numbers.number": [block for _, block in numbers],
            "parts_in_progress_names": [
                str(part) for queued in ctx.queue.executing for part in queued.sources if str(part) in to_do
            ],
            "parts_to_do_names": to_do,
            "parts_to_do": len(to_do),
            "parts_postpone_reasons": {},
            "is_done": int(state.is_done),
            "is_killed": 0,
            "latest_failed_part": state.latest_failed_part,
            "latest_fail_time": int(state.latest_fail_s),
            "latest_fail_reason": state.latest_fail_reason,
            "latest_fail_error_code_name": state.latest_fail_error,
        }
        yield from ({**row, "command": command} for command in _shown_commands(state.entry.commands))
    for number, error in ctx.queue.unreadable_mutations.items():
        yield {
            "database": ctx.name.database,
            "table": ctx.name.table,
            "mutation_id": f"{number:010}",
            "is_done": 0,
            "latest_fail_time": int(ctx.env.now_s()),
            "latest_fail_reason": str(error),
            "latest_fail_error_code_name": Code(error.code).name,
        }


@functools.lru_cache(maxsize=256)
def _shown_commands(commands: str) -> tuple[str, ...]:
    return tuple(f"({command})" for command in split_commands(commands))


def _names(tables: ReplicatedTables) -> str:
    """For IN; an empty list of tuples would be no SQL, so it has a name that nothing has."""
    names = [table.ctx.name for table in tables.all()]
    pairs = [f"({quote_string(name.database)}, {quote_string(name.table)})" for name in names]
    return ", ".join([*pairs, "('', '')"])
