"""`system.parts` and `system.mutations` with replicated tables as their users know them.

chDB numbers the parts of a replicated table as it likes; their names are kept in their UUIDs (`part_uuid`).
The view of `system.parts` reads names and numbers from there, hides what chDB keeps of parts that were
replaced, and the tables in which parts are made. Mutations of replicated tables are Keeper's: the view of
`system.mutations` has those instead of chDB's, beside chDB's of plain tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from engine.names import quote_identifier, quote_string
from engine.node.replicated.runtime import ReplicatedTables
from engine.node.statement import Asked
from engine.part_storage.part_uuid import uuid_of
from engine.part_storage.workers import SCRATCH_DATABASE
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.insert_times import unix_s
from engine.sql import Token, TokenKind, literal_value

_NO_UUID = "toUUID('00000000-0000-0000-0000-000000000000')"
_FILTERED = frozenset({"database", "table", "name", "active", "rows", "uuid"})
"""Columns by which the view itself chooses rows."""
_ALIASES = {"bytes": "bytes_on_disk", "marks_size": "marks_bytes", "part_name": "name"}
_BITS = "reinterpretAsUInt128(reverse(UUIDToNum(uuid)))"
_MARK = 0x0C
_NAMES = (TokenKind.WORD, TokenKind.IDENTIFIER)
_ANY_COLUMN = frozenset({"*", "COLUMNS", "NATURAL", "{"})
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
        ours = f"((database, table) IN ({_names(self._tables)}))"
        is_named = f"startsWith(toString(uuid), '{_MARK:02x}')"
        replaced = _replaced(ours, f"({ours} AND {is_named})")
        if wanted is None:
            aliases, shown, read = _ALIASES, "*", "*"
        else:
            aliases = {alias: column for alias, column in _ALIASES.items() if alias in wanted}
            kept = (wanted - _ALIASES.keys()) | set(aliases.values()) or {"active"}
            replaced = {name: value for name, value in replaced.items() if name in kept}
            shown = _list(kept)
            read = _list(kept | _FILTERED | ({"partition_id"} if "name" in kept else set()))
        view = (
            f"SELECT {read if replaced else shown} FROM {self._with_all_uuids(read)} "
            f"WHERE database != {quote_string(SCRATCH_DATABASE)} "
            # chDB covers what it drops by empty parts without a name; nobody's rows are in them.
            f"AND (NOT {ours} OR (active AND (rows > 0 OR {is_named})))"
        )
        if replaced:
            replacing = ", ".join(f"{value} AS {name}" for name, value in replaced.items())
            view = f"SELECT * REPLACE ({replacing}) FROM ({view})"
            if shown != read:
                view = f"SELECT {shown} FROM ({view})"
        if aliases:
            further = ", ".join(f"{column} AS {alias}" for alias, column in aliases.items())
            view = f"SELECT *, {further} FROM ({view})"
        return view

    async def _named(self, asked: Asked, tokens: list[Token]) -> frozenset[str] | None:
        """The columns that a SELECT may use, by its words; None where it may use any.

        A view of a hundred columns costs chDB 20 ms to analyse.
        """
        words = {literal_value(token) for token in tokens if token.kind in _NAMES}
        if tokens[0].text.upper() not in ("SELECT", "WITH") or any(
            token.text.upper() in _ANY_COLUMN for token in tokens
        ):
            return None
        if not self._columns:
            found = await asked.session.clone().query(
                "SELECT name FROM system.columns WHERE database = 'system' AND default_kind = '' "
                f"AND table = {quote_string(self.name)}",
                format="TSVRaw",
            )
            self._columns = frozenset(found.text.splitlines())
        nested = {name for name in self._columns if name.partition(".")[0] in words}
        return frozenset(nested | ((self._columns | _ALIASES.keys()) & words))

    def _with_all_uuids(self, columns: str) -> str:
        """chDB's table, with the UUIDs of parts that chDB has not read yet."""
        uuids = {
            (str(table.ctx.name.database), str(table.ctx.name.table), local): str(uuid_of(part))
            for table in self._tables.all()
            for local, part in sorted(table.store.relabelled().items())
        }
        if not uuids:
            return f"system.{self.name}"
        keys = ", ".join(f"({', '.join(map(quote_string, key))})" for key in uuids)
        values = ", ".join(map(quote_string, uuids.values()))
        place = f"indexOf([{keys}], (database, table, name))"
        return (
            f"(SELECT * REPLACE (if({place} = 0, uuid, toUUID([{values}][greatest({place}, 1)])) AS uuid) "
            f"FROM (SELECT {columns} FROM system.{self.name}))"
        )


def _list(columns: Iterable[str]) -> str:
    return ", ".join(map(quote_identifier, sorted(columns)))


def _replaced(ours: str, named: str) -> dict[str, str]:
    """What columns show instead of chDB's: of parts of replicated tables (`ours`), and of those among them
    that have a replicated name (`named`)."""

    def field(number: int, type_: str) -> str:
        shift = 30 * (3 - number)
        return f"to{type_}(bitAnd(bitShiftRight({_BITS}, {shift}), 1073741823))"

    low, high, level, mutation = (field(n, t) for n, t in enumerate(("Int64", "Int64", "UInt32", "UInt64")))
    whole = (
        f"concat(partition_id, '_', toString({low}), '_', toString({high}), '_', toString({level}), "
        f"if({mutation} = 0, '', concat('_', toString({mutation}))))"
    )
    return {
        "name": f"if({named}, {whole}, name)",
        "min_block_number": f"if({named}, {low}, min_block_number)",
        "max_block_number": f"if({named}, {high}, max_block_number)",
        "level": f"if({named}, {level}, level)",
        "data_version": f"if({named}, if({mutation} = 0, toUInt64({low}), {mutation}), data_version)",
        "engine": f"if({ours}, concat('Replicated', engine), engine)",
        "uuid": f"if({named}, {_NO_UUID}, uuid)",
    }


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
        yield {
            "database": ctx.name.database,
            "table": ctx.name.table,
            "mutation_id": f"{number:010}",
            "command": state.entry.commands,
            "create_time": int(unix_s(state.entry.create_time)),
            "finish_time": 0,
            "block_numbers.partition_id": [partition_id for partition_id, _ in numbers],
            "block_numbers.number": [block for _, block in numbers],
            "parts_in_progress_names": [
                str(part)
                for queued in ctx.queue.entries
                if queued.is_executing
                for part in queued.sources
                if str(part) in to_do
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


def _names(tables: ReplicatedTables) -> str:
    """For IN; an empty list of tuples would be no SQL, so it has a name that nothing has."""
    names = [table.ctx.name for table in tables.all()]
    pairs = [f"({quote_string(name.database)}, {quote_string(name.table)})" for name in names]
    return ", ".join([*pairs, "('', '')"])
