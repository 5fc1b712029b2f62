"""Statements of clients that concern Replicated databases: their objects, and the databases themselves.

A statement on an object goes through the database's log (`routing`): the text is checked and rewritten, then
proposed, executed here in the client's own session and committed for all replicas; the answer is a row per
replica. What the log is not for goes the way of any other statement.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.databases import OUTPUT_COLUMNS, Commit
from engine.ddl import DEFAULT_TIMEOUT_S, OutputMode
from engine.env import Env
from engine.errors import Code, SqlError
from engine.node.databases.create_text import is_create_replicated
from engine.node.databases.function_bodies import with_function_bodies
from engine.node.databases.rewriting import (
    check_create,
    for_log,
    for_others,
    from_log,
    one_by_one,
    with_whole_names,
)
from engine.node.databases.routing import ATTACHES, Way, check_statement, concerns_objects, way_of
from engine.node.databases.running import ReplicatedDatabases, RunningDatabase
from engine.node.databases.show import ShowDatabase
from engine.node.databases.system_commands import DatabaseCommands
from engine.node.databases.table_columns import AS_THEY_ARE, TableColumns
from engine.node.databases.texts import uuid_of
from engine.node.replicated.definitions.definition_sql import Definition
from engine.node.replicated.definitions.view_definition import inner_name
from engine.node.replicated.running.statements import done
from engine.node.statements.asked_settings import flag, number, settings_of
from engine.node.statements.hosts_answer import HostsAnswer
from engine.node.statements.own_dictionaries import with_whole_dictionaries
from engine.node.statements.session_commands import trailing_settings
from engine.node.statements.statement import Answer, Asked
from engine.node.statements.temporary_tables import is_about_temporary
from engine.node.statements.view_columns import Describable, with_columns, with_columns_for_others
from engine.sql import (
    Statement,
    StatementKind,
    expand_macros,
    output_settings,
    parse_statement,
    without_on_cluster,
)

_K = StatementKind
_ABOUT_DATABASES = frozenset(
    {
        _K.CREATE_DATABASE,
        _K.ATTACH_DATABASE,
        _K.DROP_DATABASE,
        _K.DETACH_DATABASE,
        _K.RENAME_DATABASE,
        _K.TRUNCATE_DATABASE,
        _K.ALTER_DATABASE,
    }
)
NOT_INITIAL = "It's not initial query. ON CLUSTER is not allowed for Replicated database."
_NOT_SHIPPED = frozenset(
    {
        *("readonly", "log_comment", "implicit_select", "query_id", "session_timezone"),
        *("max_query_size", "max_ast_elements", "max_expanded_ast_elements"),  # of the text as it came
    }
)


class DatabaseStatements:
    """Asked before any other handler."""

    def __init__(
        self,
        databases: ReplicatedDatabases,
        columns: TableColumns,
        env: Env,
        *,
        path: Path,
        describable: Describable,
    ) -> None:
        """`path` is the node's data."""
        self._databases = databases
        self._columns = columns
        self._env = env
        self._path = path
        self._describable = describable
        self._show = ShowDatabase(databases.catalog)
        self._commands = DatabaseCommands(databases)

    def concerns(self, asked: Asked, statement: Statement) -> bool:
        """False: `run` and `without_cluster` would do nothing, without a doubt."""
        return self.concerns_in(statement, asked.current_database)

    def concerns_in(self, statement: Statement, current_database: str) -> bool:
        """The same, where that is the current database."""
        if statement.kind is _K.SYSTEM:
            return self._commands.takes(statement)
        if statement.kind in (_K.CREATE_DATABASE, _K.ATTACH_DATABASE):
            return True
        if not self._databases.catalog.all():
            return False
        if statement.kind is _K.SHOW:
            return True
        if statement.kind in _ABOUT_DATABASES:
            return any(map(self._databases.find, (statement.database, statement.new_database)))
        return concerns_objects(statement) and bool(self._of(statement, current_database))

    def without_cluster(self, asked: Asked, statement: Statement) -> tuple[Asked, Statement]:
        """ON CLUSTER of a statement on objects of a Replicated database: all replicas have it anyway.

        Raises SqlError 80, unless the clause names the database itself, or a setting says to ignore it.
        """
        if statement.on_cluster is None or not concerns_objects(statement):
            return asked, statement
        databases = self._of(statement, asked.current_database)
        if not databases:
            return asked, statement
        cluster = expand_macros(statement.on_cluster, self._databases.macros)
        ignores = flag(settings_of(asked), "ignore_on_cluster_for_replicated_database", False)
        if not ignores and cluster != databases[0].name:
            raise SqlError(
                Code.INCORRECT_QUERY,
                NOT_INITIAL,
                hint=f"Leave ON CLUSTER out: {databases[0].name} has the statement carried out by all its "
                "replicas.",
            )
        asked = replace(asked, sql=without_on_cluster(asked.sql))
        return asked, parse_statement(asked.sql)

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        """None: not of a Replicated database, or not for its log. Raises SqlError."""
        if asked.session.is_readonly and not statement.is_query:
            return None
        match statement.kind:
            case _K.SYSTEM:
                return await self._commands.run(asked, statement)
            case _K.SHOW:
                return await self._show.run(asked, statement)
            case kind if kind in _ABOUT_DATABASES:
                return await self.run_about_database(asked, statement)
        if not concerns_objects(statement) or await is_about_temporary(asked, statement):
            return None
        databases = self._of(statement, asked.current_database)
        if not databases:
            return None
        asked = replace(asked, sql=await with_whole_dictionaries(asked))
        *firsts, last = one_by_one(with_whole_names(asked.sql, asked.current_database))
        for sql in firsts:
            answer = await self._on_objects(databases[0], replace(asked, sql=sql), None)
            if answer is not None:
                await answer.read()
                await answer.finish()
        asked = replace(asked, sql=last) if firsts else asked
        return await self._on_objects(databases[0], asked, statement.format)

    async def run_about_database(self, asked: Asked, statement: Statement) -> Answer | None:
        """Also from the DDL queue. Raises SqlError."""
        databases = self._databases
        database = databases.find(statement.database)
        match statement.kind:
            case _K.CREATE_DATABASE | _K.ATTACH_DATABASE if is_create_replicated(asked.sql):
                await databases.create(asked, without_on_cluster(asked.sql))
            case _K.ATTACH_DATABASE if databases.catalog.named(statement.database or "") is not None:
                await databases.attach(asked, statement)
            case _K.DROP_DATABASE if database is not None:
                await databases.drop(asked, database)
            case _K.DETACH_DATABASE if database is not None:
                await databases.detach(asked, database)
            case _K.RENAME_DATABASE if database is not None:
                await databases.rename(asked, database, statement)
            case _K.ALTER_DATABASE if database is not None:
                await databases.alter(asked, database)
            case _K.TRUNCATE_DATABASE if database is not None:
                raise SqlError(
                    Code.NOT_IMPLEMENTED,
                    f"TRUNCATE of all tables of the Replicated database {database.name} is not supported",
                    hint="TRUNCATE TABLE them one by one.",
                )
            case _:
                return None
        return done(asked)

    # -- objects ---------------------------------------------------------------------------------------------

    def _of(self, statement: Statement, current_database: str) -> list[RunningDatabase]:
        """The Replicated databases that the statement changes objects of."""
        names = dict.fromkeys(table.database or current_database for table in statement.tables[:2])
        if not statement.kind.value.startswith(("RENAME ", "EXCHANGE ", "DROP ", "DETACH ")):
            names = dict.fromkeys(list(names)[:1])  # another table behind AS
        return [found for name in names if (found := self._databases.find(name)) is not None]

    async def _on_objects(self, database: RunningDatabase, asked: Asked, format: str | None) -> Answer | None:
        settings = settings_of(asked)
        sql = with_whole_names(asked.sql, asked.current_database)
        statement = parse_statement(sql)
        table = statement.tables[0]
        replicates = self._databases.replicates(table)
        way = way_of(statement, table_replicates=replicates, has_many_shards=database.has_many_shards)
        if way is Way.LOCAL or (statement.kind in ATTACHES and self._databases.is_held_back(table)):
            return None
        permanently = flag(settings, "database_replicated_always_detach_permanently", False)
        check_statement(sql, statement, detaches_permanently=permanently)
        if statement.kind.value.startswith("DETACH ") and "PERMANENTLY" not in sql.upper():
            sql = f"{sql} PERMANENTLY"
        sql = check_create(sql, settings)
        defined = self._with_definition(sql)
        if defined != sql:
            sql, asked = defined, replace(asked, settings={**asked.settings, **AS_THEY_ARE})
        await asked.check_syntax()
        sql = await with_function_bodies(asked, sql, self._path)
        sql = await with_columns(asked, sql, self._describable)
        asked = replace(asked, settings={**asked.settings, **output_settings(asked.sql)})
        own = {**asked.session.settings, **asked.settings, **trailing_settings(asked.sql)}
        mode = OutputMode.parse(settings.get("distributed_ddl_output_mode", "throw"))
        timeout_s = number(settings, "distributed_ddl_task_timeout", DEFAULT_TIMEOUT_S)
        query = for_log(sql, self._env.new_uuid)
        others = await with_columns_for_others(asked, for_others(query), self._describable)
        written_out = await self._columns.written_out(asked, others)
        if written_out != others:
            own |= AS_THEY_ARE
        here = asked.rewritten(from_log(query, database.name))

        async def execute(commit: Commit) -> None:
            await database.schema.execute_as_initiator(here, commit)

        entry = await database.core.submit(
            written_out,
            settings={name: value for name, value in own.items() if name not in _NOT_SHIPPED},
            initial_query_id=asked.query_id,
            execute=execute,
            timeout_s=number(settings, "database_replicated_initial_query_timeout_sec", 300),
        )
        rows = database.core.outcomes(
            entry,
            mode=mode,
            timeout_s=timeout_s,
            synced=flag(settings, "database_replicated_enforce_synchronous_settings", False),
        )
        columns = OUTPUT_COLUMNS if mode.has_rows and timeout_s != 0 else None
        return HostsAnswer(asked, rows, columns=columns, format=format or asked.format)

    def _with_definition(self, sql: str) -> str:
        """CREATE TABLE … AS other_table with the other one's definition written out: other replicas need not
        have it. Only where the new table has no engine of its own."""
        statement = parse_statement(sql)
        if statement.kind is not _K.CREATE_TABLE or statement.engine is not None:
            return sql
        definition = Definition(sql)
        if definition.source is None:
            return sql
        text = self._databases.text_of(definition.source)
        if text is not None and text.startswith("ATTACH MATERIALIZED VIEW ") and (uuid := uuid_of(text)):
            text = self._databases.text_of(inner_name(definition.source, uuid))
        if text is None or not text.startswith("ATTACH TABLE "):
            return sql
        return definition.like(text)
