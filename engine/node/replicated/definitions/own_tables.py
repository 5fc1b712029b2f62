"""The replicated table that a materialized view has of its own, and the statements that mean it.

`OPTIMIZE TABLE v`, `TRUNCATE TABLE v`, and of ALTER what changes parts or rows are about the view's table, as
they are for ClickHouse; of a view that writes TO a table it refuses them.

Source: ClickHouse's StorageMaterializedView.
"""

from __future__ import annotations

from dataclasses import replace

from engine.names import TableName
from engine.node.replicated.definitions.view_definition import inner_name, is_inner
from engine.node.replicated.running.catalog import TableRecord, TableState
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.node.replicated.running.runtime import RunningTable
from engine.node.replicated.running.statements import StatementHandlers
from engine.node.statements.statement import Answer, Asked
from engine.sql import AlterCommand, Statement, StatementKind, parse_statement
from engine.sql.cursor import Role
from engine.sql.edit import Edit, apply_edits
from engine.sql.parse import draft_of

_K = StatementKind
_A = AlterCommand
_WHOLE = frozenset({_K.OPTIMIZE, _K.TRUNCATE_TABLE})
_ALTERS = frozenset(
    {
        *(command for command in _A if "PARTITION" in command.value),
        *(_A.FREEZE, _A.UNFREEZE, _A.DELETE, _A.UPDATE, _A.APPLY_DELETED_MASK, _A.REWRITE_PARTS),
        *(_A.MATERIALIZE_COLUMN, _A.MATERIALIZE_INDEX, _A.MATERIALIZE_PROJECTION),
        *(_A.MATERIALIZE_STATISTICS, _A.MATERIALIZE_TTL),
    }
)


async def own_table(life: TableLifecycle, view: TableName) -> TableRecord | None:
    """The record of the table that the view of this name has of its own; None for anything else."""
    if not any(is_inner(record.name) for record in life.catalog.all()):
        return None
    local = await life.local.named(view)
    record = None if local is None else life.catalog.named(inner_name(view, local.uuid))
    return None if record is None or record.state is TableState.DROPPING else record


async def table_behind(life: TableLifecycle, name: TableName) -> RunningTable | None:
    """The running table of this name, or the one that the view of this name has of its own."""
    table = life.tables.find(name)
    if table is not None:
        return table
    record = await own_table(life, name)
    return None if record is None else life.tables.by_uuid(record.uuid)


class OwnTableStatements:
    """Implements `ReplicatedStatements`: asks `handlers` again, with the table's name."""

    def __init__(self, life: TableLifecycle, handlers: StatementHandlers) -> None:
        self._life = life
        self._handlers = handlers

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        is_alter = statement.kind is _K.ALTER_TABLE and _ALTERS.issuperset(statement.alter_commands)
        if not statement.tables or not (is_alter or statement.kind in _WHOLE):
            return None
        record = await own_table(self._life, statement.tables[0].within(asked.current_database))
        if record is None:
            return None
        d = draft_of(asked.sql)
        ref = next(ref for ref in d.refs if ref.role is Role.OBJECT)
        edits = [Edit(ref.start, ref.end, record.name.quoted)]
        if d.words[1] == "VIEW":  # TRUNCATE VIEW
            edits.append(Edit(d.tokens[1].start, d.tokens[1].end, "TABLE"))
        sql = apply_edits(asked.sql, edits)
        return await self._handlers.run(replace(asked, sql=sql), parse_statement(sql))
