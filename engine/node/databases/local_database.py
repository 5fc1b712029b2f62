"""One Replicated database in chDB: its name, its definitions, and how statements are run in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from engine.config.model import User
from engine.ddl.attempt import Fence
from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.node.databases.planning import AlterPlanner
from engine.node.databases.texts import SchemaTexts
from engine.node.replicated.rows.dropped_columns import DroppedColumns
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.node.replicated.running.local_tables import LocalTables
from engine.node.statements.statement import Asked
from engine.sql import StatementKind, parse_statement
from engine.storage import ChdbPool

QUIET = {
    "check_table_dependencies": "0",
    "check_referential_table_dependencies": "0",
    "max_table_size_to_drop": "0",
    "max_partition_size_to_drop": "0",
    "allow_replace_partition_from_empty_source": "1",
    "allow_materialized_view_with_bad_select": "1",
}
"""For what others have decided: a replica cannot refuse."""
DISTRIBUTED = "\nENGINE = Distributed("
"""In a metadata text."""
_NO_FENCE = Fence()

RunHere = Callable[[Asked], Awaitable[None]]
"""Runs a statement as a client's that is on this node only."""


@dataclass(frozen=True, slots=True)
class Shell:
    """What the node gives to all its Replicated databases."""

    pool: ChdbPool
    local: LocalTables
    life: TableLifecycle
    texts: SchemaTexts
    planner: AlterPlanner
    dropped_columns: DroppedColumns
    run_here: RunHere
    profile: Mapping[str, str]
    """Settings of statements that others have decided, below what those bring along."""


class LocalDatabase:
    """`name` is its present one: it may be renamed."""

    def __init__(self, shell: Shell, name: Callable[[], str]) -> None:
        self.shell = shell
        self._name = name

    @property
    def name(self) -> str:
        return self._name()

    def texts(self) -> Mapping[str, str]:
        """Metadata texts by table's name."""
        return self.shell.texts.read(self.name)

    def whole(self, table: TableName) -> TableName:
        """With this database, if it names none."""
        return TableName(table.database or self.name, table.table)

    async def has_data(self, name: str) -> bool:
        """Whether a table has files of its own on the disk."""
        whole = self.whole(TableName("", name))
        if self.shell.texts.is_held_back(whole):
            return True
        found = await self.shell.local.named(whole)
        return found is not None and bool(found.data_paths)

    async def has_rows(self, name: str) -> bool:
        """Whether a table has rows, or files that may be some: detached parts, what nobody counts."""
        if not await self.has_data(name):
            return False
        is_it = f"database = {quote_string(self.name)} AND"
        empty = await self.shell.local.rows(
            f"SELECT name FROM system.tables WHERE {is_it} name = {quote_string(name)} "
            "AND total_rows = 0 AND NOT EXISTS (SELECT 1 FROM system.detached_parts "
            f"WHERE {is_it} table = {quote_string(name)})"
        )
        return not empty

    async def run(self, sql: str, settings: Mapping[str, str] | None = None) -> None:
        """A statement that names databases itself. Raises SqlError."""
        session = self.shell.pool.session(one_shot=True)
        try:
            await self.shell.run_here(
                Asked(sql=sql, user=User("default"), session=session, settings=settings or {})
            )
        finally:
            await session.close()

    async def carry_out(self, sql: str, settings: Mapping[str, str], fence: Fence = _NO_FENCE) -> None:
        """A statement in this database that has been decided. Raises SqlError, and MultiFailed where the
        fence did not hold."""
        session = self.shell.pool.session(one_shot=True)
        asked = Asked(
            sql=sql,
            user=User("default"),
            session=session,
            database=self.name,
            settings={**self.shell.profile, **settings, **QUIET},
            fence=fence,
            is_decided=True,
        )
        try:
            await self.shell.run_here(asked)
        finally:
            await session.close()


def not_loaded(table: TableName) -> SqlError:
    return SqlError(
        Code.ASYNC_LOAD_WAIT_FAILED,
        f"Table {table} could not be loaded when the node started.",
        hint="The node's log says why. ATTACH TABLE it when what its definition asks is there.",
    )


_REPLICATING = frozenset(
    f"Replicated{kind}MergeTree"
    for kind in (
        *("", "Replacing", "Summing", "Aggregating", "Collapsing", "VersionedCollapsing", "Coalescing"),
        "Graphite",
    )
)


def is_plain(text: str | None) -> bool:
    """Whether it is the metadata text of a table whose definition is all chDB's."""
    return (
        text is not None
        and text.startswith("ATTACH TABLE ")
        and DISTRIBUTED not in text
        and not replicates(text)
    )


def replicates(text: str) -> bool:
    """Whether a metadata text is that of a table whose replicas share its rows and definition."""
    statement = parse_statement(text.replace(" _ ", " t ", 1))
    is_table = statement.kind in (StatementKind.ATTACH_TABLE, StatementKind.CREATE_TABLE)
    return is_table and statement.engine in _REPLICATING  # a view shows its table's engine
