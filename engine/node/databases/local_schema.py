"""The tables of one Replicated database in chDB, as the database's worker sees and changes them.

Safety argument. What is executed here is executed by the same handlers that a client's statements go through,
so replicated and Distributed tables keep their own promises. Of the initiator's statement `moments` says when
it is committed. On the other replicas, and for whatever is left half done, a statement is executed again
until it is done: what is there already with its UUID, and what is gone already, counts as done.

Recovery moves aside and destroys nothing that has rows: a table that is to go and has files of its own is
renamed into another database. What a CREATE OR REPLACE that was not committed has put away comes back with
its rows (`replacement`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from engine.config.model import User
from engine.databases import Commit
from engine.ddl.attempt import Fence
from engine.errors import Code, OnclusterError, SqlError, UnknownOutcome
from engine.names import TableName, quote_identifier, quote_string
from engine.node.databases.begun import BegunEntry
from engine.node.databases.commit_fence import CommitFence
from engine.node.databases.definition_places import select_of
from engine.node.databases.moments import Moment, moment_of, opposite_of
from engine.node.databases.planning import AlterPlanner
from engine.node.databases.replacement import Replacement, has_rows_of_its_own, replaces_table
from engine.node.databases.rewriting import from_log, left_empty
from engine.node.databases.texts import SchemaTexts, changes, uuid_of
from engine.node.databases.unfinished import check_unfinished
from engine.node.replicated.definitions.dependents import REFERENTIAL, check_referred
from engine.node.replicated.definitions.if_empty import check_empty, is_if_empty, without_if_empty
from engine.node.replicated.definitions.own_tables import own_table, table_behind
from engine.node.replicated.parts.partition_sql import alter_pieces, column_drops
from engine.node.replicated.rows.dropped_columns import DroppedColumns
from engine.node.replicated.running.drop_limits import check_replaced
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.node.replicated.running.local_tables import LocalTables
from engine.node.statements.asked_settings import flag, number, settings_of
from engine.node.statements.statement import Asked
from engine.sql import AlterCommand, Statement, StatementKind, parse_statement, redact, runs_once_per_shard
from engine.sql.lenient import LENIENT
from engine.sql.parse import draft_of
from engine.storage import ChdbPool
from engine.storage.layout import SCRATCH_DATABASE

log = logging.getLogger(__name__)

_K = StatementKind
_INNER = ".inner"
_DISTRIBUTED = "\nENGINE = Distributed("
_QUIET = {
    "check_table_dependencies": "0",
    "check_referential_table_dependencies": "0",
    "max_table_size_to_drop": "0",
    "max_partition_size_to_drop": "0",
    "allow_replace_partition_from_empty_source": "1",
    "allow_materialized_view_with_bad_select": "1",
}
"""For what others have decided: a replica cannot refuse."""
_NO_FENCE = Fence()
_TAKES_BACK = {"database_atomic_wait_for_drop_and_detach_synchronously": "1"}
"""chDB drops a table that it could not fill; the next try has the same UUID, and needs its directory."""
_NOT_HERE = frozenset({Code.UNKNOWN_TABLE, Code.UNKNOWN_DATABASE, Code.UNKNOWN_FUNCTION})
"""There are no rows for a table where what they are read from is not."""

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


class ChdbSchema:
    """One database. `name` is its present one."""

    def __init__(self, shell: Shell, uuid: UUID, name: Callable[[], str], begun: BegunEntry) -> None:
        self._shell = shell
        self._begun = begun
        self._name = name
        self._replacement = Replacement(uuid, shell.texts, lambda sql: self._run(sql, _QUIET))

    # -- what there is ---------------------------------------------------------------------------------------

    def texts(self) -> Mapping[str, str]:
        """By table's name."""
        return self._shell.texts.read(self._name())

    def replicates(self, text: str) -> bool:
        """Whether a metadata text is that of a table whose replicas share its rows and definition."""
        statement = parse_statement(text.replace(" _ ", " t ", 1))
        is_table = statement.kind in (_K.ATTACH_TABLE, _K.CREATE_TABLE)
        return is_table and statement.engine in _REPLICATING  # a view shows its table's engine

    async def runs_once_per_shard(self, query: str) -> bool:
        """Of a statement of the log: one replica of each shard does it for the others."""
        statement = parse_statement(query)
        if not runs_once_per_shard(statement) or not statement.tables:
            return False
        return await table_behind(self._shell.life, self._whole(statement.tables[0])) is not None

    # -- statements of the log -------------------------------------------------------------------------------

    async def execute_as_initiator(self, asked: Asked, commit: Commit) -> None:
        """`asked.sql` is a statement of the log with this database's name. Raises what chDB says, and what
        `commit` says; nothing was changed then, as far as it can be undone."""
        # What stays a short name, as a dictionary's in a string, means the same as on the other replicas.
        asked = replace(asked, database=self._name())
        statement = parse_statement(asked.sql)
        match moment_of(statement):
            case Moment.BEHIND if await self._takes_rows_place(statement):
                await check_replaced(self._shell.local, asked, statement.tables[0])
                await self._replace(asked, statement.tables[0], commit)
            case Moment.BEHIND:
                await self._behind(asked, statement, commit)
            case Moment.BEFORE:
                await self._before(asked, statement, commit)
            case Moment.PLANNED:
                await self._planned(asked, statement, commit)
            case Moment.DATA if await table_behind(self._shell.life, statement.tables[0]) is not None:
                await self._with_commit(asked, commit, {})
            case Moment.DATA:
                await self._shell.run_here(asked)
                await commit({})

    async def execute(self, number: int, query: str, settings: Mapping[str, str], fence: Fence) -> None:
        """Entry `number`, which another replica has committed. Done already counts as done. Raises
        SqlError, and MultiFailed where the fence did not hold."""
        sql = from_log(query, self._name())
        statement = parse_statement(sql)
        for table in map(self._whole, statement.tables):
            if self._shell.texts.is_held_back(table):
                raise _not_loaded(table)
        if self._is_done(statement) or await self._has_mutated(number, statement):
            return
        if statement.tables and self._shell.life.tables.find(statement.tables[0]) is not None:
            sql = without_if_empty(sql)  # who sent it has looked, and its rows are these
        before = self.texts()
        empty = left_empty(sql)
        if empty != sql:
            settings = {**settings, **_TAKES_BACK}
            if not await self._has_what_fills(sql, settings):
                log.warning("databases.left_empty database=%s entry=%d", self._name(), number)
                sql = empty
        try:
            await self._carry_out(sql, settings, fence)
        except SqlError as error:
            if not self._has_altered(statement, before):
                raise
            # Of rows that are this replica's own. The initiator does not wait for them either.
            log.warning("databases.mutation_fails database=%s entry=%d error=%s", self._name(), number, error)

    async def _has_what_fills(self, sql: str, settings: Mapping[str, str]) -> bool:
        """Whether what the SELECT of a CREATE reads is here; it may be on the initiator only."""
        try:
            await self._carry_out(f"DESCRIBE TABLE ({select_of(draft_of(sql))}\n)", settings)
        except SqlError as error:
            return error.code not in _NOT_HERE
        return True

    def _has_altered(self, statement: Statement, before: Mapping[str, str]) -> bool:
        """Whether an ALTER of a plain table has taken effect, though not yet in its parts: a second one would
        be refused."""
        if moment_of(statement) is not Moment.PLANNED:
            return False
        table = statement.tables[0]
        if self._shell.life.tables.find(self._whole(table)) is not None:
            return False
        return before.get(table.table) != self.texts().get(table.table)

    async def _has_mutated(self, number: int, statement: Statement) -> bool:
        """Whether an earlier try has made the mutation of a plain table that the entry asks for."""
        if moment_of(statement) is not Moment.DATA or statement.kind is _K.TRUNCATE_TABLE:
            return False
        table = self._whole(statement.tables[0])
        if await table_behind(self._shell.life, table) is not None:
            return False
        rows = await self._shell.local.rows(
            f"SELECT mutation_id FROM system.mutations WHERE database = {quote_string(table.database)} "
            f"AND table = {quote_string(table.table)}"
        )
        return self._begun.is_done(number, [name for (name,) in rows])

    async def _carry_out(self, sql: str, settings: Mapping[str, str], fence: Fence = _NO_FENCE) -> None:
        session = self._shell.pool.session(one_shot=True)
        asked = Asked(
            sql=sql,
            user=User("default"),
            session=session,
            database=self._name(),
            settings={**settings, **_QUIET},
            fence=fence,
        )
        try:
            await self._shell.run_here(asked)
        finally:
            await session.close()

    def begins(self, number: int) -> None:
        self._begun.begins(number)

    def begun(self) -> int:
        return self._begun.number

    async def redo(self, query: str, settings: Mapping[str, str]) -> None:
        """Of what is committed before it is carried out (`moments`). Raises SqlError."""
        if moment_of(parse_statement(query)) in (Moment.BEFORE, Moment.PLANNED):
            sql = from_log(query, self._name())
            if not self._is_done(parse_statement(sql)):
                await self._carry_out(sql, settings)

    async def _behind(self, asked: Asked, statement: Statement, commit: Commit) -> None:
        database = self._name()
        before = self.texts()
        await self._shell.run_here(asked)
        changed = changes(before, self.texts())
        try:
            await commit(changed)
        except UnknownOutcome:
            raise  # undone or not: one of the two is wrong, and only the start of a session knows which
        except OnclusterError:
            new = [TableName(database, name) for name in changed.keys() - before.keys()]
            await self._undo(opposite_of(asked.sql, statement, new))
            raise

    async def _takes_rows_place(self, statement: Statement) -> bool:
        """Whether rows would be dropped that are not to go yet."""
        if not replaces_table(statement):
            return False
        name = statement.tables[0].table
        old = self.texts().get(name)
        return old is not None and has_rows_of_its_own(old) and await self.has_data(name)

    async def _replace(self, asked: Asked, name: TableName, commit: Commit) -> None:
        before = self.texts()
        await self._replacement.make(asked, self._shell.run_here)
        try:
            await commit(changes(before, self.texts()))
        except UnknownOutcome:
            raise  # as in `_behind`
        except OnclusterError:
            try:
                await self._replacement.undo(name)
            except OnclusterError as error:
                log.error("databases.not_put_back database=%s error=%s", self._name(), error)
            raise
        await self._replacement.settle()

    async def _undo(self, statements: Sequence[str]) -> None:
        for sql in statements:
            try:
                await self._run(sql)
            except OnclusterError as error:
                shown = redact(sql)
                log.error("databases.not_undone database=%s sql=%s error=%s", self._name(), shown, error)

    async def _before(self, asked: Asked, statement: Statement, commit: Commit) -> None:
        texts = self.texts()
        name = statement.tables[0].table
        text = texts.get(name)
        if text is None:  # chDB's to say, also with IF EXISTS
            await self._shell.run_here(asked)
            await commit({})
            return
        uuid = uuid_of(text)
        inner = [other for other in texts if other.startswith(_INNER) and str(uuid) in other]
        await self._check_droppable(asked, statement, inner)
        await commit(dict.fromkeys([name, *inner]))
        quiet = replace(asked, sql=without_if_empty(asked.sql), settings={**asked.settings, **_QUIET})
        await self._shell.run_here(quiet)

    async def _check_droppable(self, asked: Asked, statement: Statement, inner: Sequence[str]) -> None:
        """Raises SqlError for what chDB would refuse: it is too late when that is committed. `inner` are
        tables that go along."""
        if is_if_empty(asked.sql):
            await check_empty(self._shell.local, statement.tables[0])
        name = statement.tables[0]
        given = settings_of(asked)
        if flag(given, REFERENTIAL, False):
            await check_referred(asked, name)
        names = ", ".join(map(quote_string, (name.table, *inner)))
        rows = await self._shell.local.rows(
            "SELECT name, total_bytes, loading_dependent_database, loading_dependent_table, "
            "getSetting('check_table_dependencies'), getSetting('max_table_size_to_drop') FROM system.tables "
            f"WHERE database = {quote_string(name.database or self._name())} AND name IN ({names})"
        )
        if name.table not in (row[0] for row in rows):
            raise _not_loaded(name)
        for own, total, databases, tables, checks, most in rows:
            limit = int(number(given, "max_table_size_to_drop", float(most)))
            is_drop = statement.kind.value.startswith("DROP ")
            if is_drop and total and limit and int(total) > limit:
                raise SqlError(
                    Code.TABLE_SIZE_EXCEEDS_MAX_DROP_SIZE_LIMIT,
                    f"Table {name} was not dropped: its size ({total} bytes) is greater than "
                    f"max_table_size_to_drop ({limit} bytes).",
                    hint="SETTINGS max_table_size_to_drop = 0 behind the statement allows it.",
                )
            needs = [f"{d}.{t}" for d, t in zip(databases, tables, strict=True) if d != SCRATCH_DATABASE]
            if own == name.table and needs and flag(given, "check_table_dependencies", bool(checks)):
                others = ", ".join(needs)
                raise SqlError(
                    Code.HAVE_DEPENDENT_OBJECTS,
                    f"Cannot drop or rename {name}, because some tables depend on it: {others}.",
                )

    async def _planned(self, asked: Asked, statement: Statement, commit: Commit) -> None:
        name = statement.tables[0]
        if AlterCommand.RENAME_COLUMN in statement.alter_commands and _DISTRIBUTED in self.texts().get(
            name.table, ""
        ):
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                "RENAME COLUMN of a Distributed table is not supported in a Replicated database",
                hint="DROP the table and CREATE it: it has no rows of its own.",
            )
        planned = await self._shell.planner.altered(asked, name)
        if planned is None:  # a view, or nothing at all
            await self._behind(asked, statement, commit)
            return
        before = self.texts()
        changed = changes({name.table: before.get(name.table, "")}, {name.table: planned})
        table = self._shell.life.tables.find(name)
        if table is None:
            await self._shell.dropped_columns.check(name, column_drops(alter_pieces(asked.sql)))
            await check_unfinished(self._shell.local, name, asked.sql)
            await commit(changed)
            await self._shell.run_here(asked)
            return
        await self._with_commit(asked, commit, changed)

    async def _with_commit(self, asked: Asked, commit: Commit, changed: Mapping[str, str | None]) -> None:
        """Of a replicated table: in one transaction with the table's own, where that is the whole of it."""
        fence = CommitFence(await commit.ops(changed))
        try:
            await self._shell.run_here(replace(asked, fence=fence))
        except OnclusterError:
            if fence.is_handed_out:
                await commit.handed_over()
            raise
        if not fence.is_handed_out or not await commit.handed_over():
            await commit(changed)

    def _is_done(self, statement: Statement) -> bool:
        """Whether an earlier try has taken effect, as far as the definitions say so."""
        texts = self.texts()
        first = statement.tables[0].table if statement.tables else ""
        if statement.kind in (_K.DROP_TABLE, _K.DROP_VIEW, _K.DROP_DICTIONARY):
            return first not in texts
        if statement.kind.value.startswith("DETACH "):
            return first not in texts
        if statement.uuid is not None:
            found = uuid_of(texts.get(first, ""))
            return found is not None and str(found) == statement.uuid.lower()
        if statement.kind in (_K.RENAME_TABLE, _K.RENAME_DICTIONARY) and len(statement.tables) == 2:
            return first not in texts and statement.tables[1].table in texts
        return False

    # -- recovery --------------------------------------------------------------------------------------------

    async def create(self, name: str, text: str) -> None:
        """A table, view or dictionary by its metadata text. Raises SqlError."""
        uuid = uuid_of(text)
        if uuid is not None and uuid == uuid_of(self.texts().get(name, "")):
            return
        whole = TableName(self._name(), name)
        if await self._replacement.give_back(whole, text, replicates=self.replicates(text)):
            return
        await self._make_way(uuid)
        head, newline, body = text.partition("\n")
        head = head.replace(" _ ", f" {whole.quoted} ", 1)
        definition = text.partition("\nAS ")[0]
        if not head.startswith("ATTACH MATERIALIZED VIEW") or "TO INNER UUID '" not in definition:
            head = head.replace("ATTACH ", "CREATE ", 1)  # an inner table is made by itself
        await self._carry_out(f"{head}{newline}{body}", LENIENT)

    async def _make_way(self, uuid: UUID | None) -> None:
        """A table of this UUID that was put away was altered by the others since."""
        for kept, text in self._replacement.kept().items():
            if uuid is not None and uuid_of(text) == uuid:
                await self._put_into(kept, f"{kept.table}_{uuid.hex[:8]}", replicated=False)

    async def settle(self) -> None:
        """All definitions are as they should be: what a replacement has put away is decided."""
        await self._replacement.settle()

    async def rename(self, name: str, new_name: str) -> None:
        database = self._name()
        await self._run(
            f"RENAME TABLE {TableName(database, name).quoted} TO {TableName(database, new_name).quoted}",
            _QUIET,
        )

    async def drop(self, name: str) -> None:
        """What has no rows of its own: a view, a dictionary, a table in memory. A replicated table that a
        view has for its own stays."""
        text = self.texts().get(name, "")
        what = "DICTIONARY" if text.startswith("CREATE DICTIONARY") else "TABLE"
        whole = TableName(self._name(), name)
        own, uuid = await own_table(self._shell.life, whole), uuid_of(text)
        if own is None or uuid is None:
            await self._run(f"DROP {what} IF EXISTS {whole.quoted} SYNC", _QUIET)
            return
        # With a view chDB drops no table that is detached; that is attached again also at the next start.
        await self._run(f"DETACH TABLE {own.name.quoted}", _QUIET)
        try:
            await self._shell.local.drop(whole, uuid)
        finally:
            await self._run(f"ATTACH TABLE {own.name.quoted}", _QUIET)

    async def has_data(self, name: str) -> bool:
        """Whether a table has files of its own on the disk."""
        whole = TableName(self._name(), name)
        if self._shell.texts.is_held_back(whole):
            return True
        found = await self._shell.local.named(whole)
        return found is not None and bool(found.data_paths)

    async def move_aside(self, name: str, new_name: str, *, replicated: bool) -> None:
        """Into `<database>_broken_replicated_tables`, or else into `<database>_broken_tables`, whose tables
        have no UUID. What chDB does not have goes to `oncluster/orphans`; of a replicated table that is for a
        person to do, since it has a replica in Keeper."""
        table = TableName(self._name(), name)
        if self._shell.texts.is_held_back(table):
            if not replicated:
                self._shell.texts.set_aside(table)
            return
        await self._put_into(TableName(self._name(), name), new_name, replicated=replicated)

    async def _put_into(self, table: TableName, new_name: str, *, replicated: bool) -> None:
        database = self._name()
        to = f"{database}_broken_replicated_tables" if replicated else f"{database}_broken_tables"
        engine = "Atomic" if replicated else "Ordinary"
        await self._run(
            f"CREATE DATABASE IF NOT EXISTS {quote_identifier(to)} ENGINE = {engine}",
            {"allow_deprecated_database_ordinary": "1"},
        )
        await self._run(f"RENAME TABLE {table.quoted} TO {TableName(to, new_name).quoted}", _QUIET)

    def forget(self) -> None:
        """The database is gone."""
        self._begun.forget()

    async def drop_database(self, name: str) -> None:
        """With all that is in it. Raises SqlError."""
        await self._replacement.settle()
        await self._run(f"DROP DATABASE IF EXISTS {quote_identifier(name)} SYNC", _QUIET)

    async def _run(self, sql: str, settings: Mapping[str, str] | None = None) -> None:
        session = self._shell.pool.session(one_shot=True)
        try:
            await self._shell.run_here(
                Asked(sql=sql, user=User("default"), session=session, settings=settings or {})
            )
        finally:
            await session.close()

    def _whole(self, name: TableName) -> TableName:
        return TableName(name.database or self._name(), name.table)


def _not_loaded(table: TableName) -> SqlError:
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
