"""ALTER TABLE of Distributed tables: names, types and comments of columns, on this node only.

Safety argument. The whole statement first runs on a scratch table of the same columns, with an engine that
allows all of it, so that ClickHouse itself says what is wrong with it, and the sharding key is evaluated on
what comes out. Nothing was changed until then. Without RENAME COLUMN chDB then does the same to the table.
The placeholder in chDB cannot rename, and pending rows are named by columns: they would go to whatever has
the old name by then. So with RENAME COLUMN everything pending is sent first, or the statement is refused;
then a new table with the renamed columns takes the old one's place (`replacing`), under a UUID of its own.

Source: ClickHouse's StorageDistributed::checkAlterIsPossible and alter.
"""

from __future__ import annotations

from dataclasses import replace

from engine.distributed.definition import ENGINE
from engine.distributed.sharding import slot_expression
from engine.env import Env
from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.distributed.definitions.replacing import Replacing
from engine.node.distributed.registry.catalog import DistributedRecord
from engine.node.distributed.registry.create_sql import CreateText, on_scratch
from engine.node.distributed.registry.tables import DistributedTable, DistributedTables
from engine.node.distributed.sending.stage import Stages
from engine.node.replicated.definitions.taking_place import Taking
from engine.node.replicated.running.name_locks import NameLocks
from engine.node.statements.statement import Asked
from engine.part_storage import LIKE_ONE_THAT_IS_THERE, SCRATCH_DATABASE
from engine.sql import AlterCommand, Statement
from engine.sql.edit import Edit, apply_edits
from engine.sql.parse import draft_of

_ALLOWED = frozenset(
    {
        AlterCommand.ADD_COLUMN,
        AlterCommand.DROP_COLUMN,
        AlterCommand.MODIFY_COLUMN,
        AlterCommand.CLEAR_COLUMN,
        AlterCommand.RENAME_COLUMN,
        AlterCommand.COMMENT_COLUMN,
        AlterCommand.MODIFY_COMMENT,
    }
)


class AlterDistributed:
    """One ALTER TABLE of a Distributed table."""

    def __init__(
        self,
        tables: DistributedTables,
        *,
        stages: Stages,
        names: NameLocks,
        replacing: Replacing,
        env: Env,
    ) -> None:
        self._tables = tables
        self._stages = stages
        self._names = names
        self._replacing = replacing
        self._env = env

    async def run(self, asked: Asked, statement: Statement, table: DistributedTable) -> None:
        """Raises SqlError 48 for what ClickHouse does not allow either, 47 and 53 when the sharding key would
        not fit any more, what `Spools.settle` raises, and chDB's own."""
        other = [command for command in statement.alter_commands if command not in _ALLOWED]
        if other:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"Alter of type '{other[0].value}' is not supported by storage {ENGINE}.",
                hint="ALTER the tables on the shards: ALTER TABLE … ON CLUSTER.",
            )
        async with self._names.hold([table.name]):
            altered = await self._on_scratch(asked, table)
            if AlterCommand.RENAME_COLUMN in statement.alter_commands:
                await self._take_place(asked, table, altered)
                return
            try:
                await asked.session.query(
                    asked.sql, format="Null", params=asked.params, scope=asked.scope, multi=False
                )
            finally:
                self._tables.changed()

    async def _on_scratch(self, asked: Asked, table: DistributedTable) -> str:
        """The definition that the statement leads to: chDB's text of the scratch table."""
        scratch = TableName(SCRATCH_DATABASE, f"alter_{self._env.new_uuid().hex}")
        local = self._tables.local
        await local.run(f"CREATE DATABASE IF NOT EXISTS {SCRATCH_DATABASE} ENGINE = Memory")
        await local.run(on_scratch(table.create_query, scratch), settings=LIKE_ONE_THAT_IS_THERE)
        try:
            await asked.session.query(
                _about(asked.sql, scratch),
                format="Null",
                params=asked.params,
                scope=asked.scope,
                multi=False,
            )
            key = table.definition.sharding_key
            if key:
                slot_expression(key, await self._stages.type_of(key, scratch.quoted), 1)
            found = await local.named(scratch)
            if found is None:
                raise SqlError(Code.LOGICAL_ERROR, f"{scratch} is gone.")
            return found.create_query
        except SqlError as error:
            message = error.message.replace(scratch.quoted, table.name.quoted)
            message = message.replace(str(scratch), str(table.name))
            raise error.reworded(message) from error
        finally:
            await local.run(f"DROP TABLE IF EXISTS {scratch.quoted} SYNC")

    async def _take_place(self, asked: Asked, table: DistributedTable, altered: str) -> None:
        uuid = self._env.new_uuid()

        async def make(temporary: TableName) -> None:
            with self._tables.making(DistributedRecord(uuid, temporary, table.definition)):
                try:
                    create = CreateText(altered).for_chdb(uuid, temporary)
                    await self._tables.local.run(create, settings=LIKE_ONE_THAT_IS_THERE)
                except SqlError:
                    self._tables.catalog.remove(uuid)
                    raise
                finally:
                    self._tables.changed()

        plain = replace(asked, sql="", params={})
        await self._replacing.put_in_place(plain, table.name, uuid, make, taking=Taking.A_TABLES_PLACE)


def _about(sql: str, table: TableName) -> str:
    """The ALTER with another table's name, on this node."""
    draft = draft_of(sql)
    edits = [Edit(draft.refs[0].start, draft.refs[0].end, table.quoted)]
    if draft.cluster_span is not None:
        edits.append(Edit(*draft.cluster_span, ""))
    return apply_edits(sql, edits)
