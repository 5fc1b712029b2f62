"""Statements that another replica has committed, carried out on this one.

Safety argument. A statement is executed again until it is done: what is there already with its UUID, and what
is gone already, counts as done; of a mutation, what an earlier try has made (`begun`). chDB changes a text by
ALTER, names by RENAME and EXCHANGE, and makes and drops a table, at one moment each: the digest of what was
before tells.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from engine.databases.digest import digest_of
from engine.ddl.attempt import Fence
from engine.errors import Code, SqlError
from engine.names import quote_string
from engine.node.databases.begun import BegunEntry
from engine.node.databases.local_database import QUIET, LocalDatabase, is_plain, not_loaded
from engine.node.databases.moments import (
    DETACHES,
    Moment,
    detached_again,
    moment_of,
    opposite_of,
    renamed_back,
)
from engine.node.databases.replacement import Replacement
from engine.node.databases.rewriting import from_log, left_empty
from engine.node.databases.texts import uuid_of
from engine.node.replicated.definitions.if_empty import without_if_empty
from engine.node.replicated.definitions.own_tables import table_behind
from engine.node.statements.definition_places import select_of
from engine.sql import Statement, StatementKind, parse_statement
from engine.sql.parse import draft_of

log = logging.getLogger(__name__)

_K = StatementKind
_TAKES_BACK = {"database_atomic_wait_for_drop_and_detach_synchronously": "1"}
"""chDB drops a table that it could not fill; the next try has the same UUID, and needs its directory."""
_NOT_HERE = frozenset({Code.UNKNOWN_TABLE, Code.UNKNOWN_DATABASE, Code.UNKNOWN_FUNCTION})
"""There are no rows for a table where what they are read from is not."""


class LoggedStatements:
    """Of one database."""

    def __init__(self, database: LocalDatabase, begun: BegunEntry, replacement: Replacement) -> None:
        self._database = database
        self._replacement = replacement
        self._shell = database.shell
        self._begun = begun

    async def execute(self, number: int, query: str, settings: Mapping[str, str], fence: Fence) -> None:
        """Entry `number`, which another replica has committed. Done already counts as done. Raises
        SqlError, and MultiFailed where the fence did not hold."""
        sql = from_log(query, self._database.name)
        statement = parse_statement(sql)
        for table in map(self._database.whole, statement.tables):
            if self._shell.texts.is_held_back(table):
                raise not_loaded(table)
        if self._is_done(statement) or await self._has_mutated(number, statement):
            return
        if statement.tables and self._shell.life.tables.find(statement.tables[0]) is not None:
            sql = without_if_empty(sql)  # who sent it has looked, and its rows are these
        before = self._database.texts()
        if _has_to_be_noted(statement, before):
            self._begun.alters(number, digest_of(before), digest_of(_others(before, statement)))
        empty = left_empty(sql)
        if empty != sql:
            settings = {**settings, **_TAKES_BACK}
            if not await self._has_what_fills(sql, settings):
                log.warning("databases.left_empty database=%s entry=%d", self._database.name, number)
                sql = empty
        try:
            await self._database.carry_out(sql, settings, fence)
        except SqlError as error:
            if not self._has_altered(statement, before):
                raise
            # Of rows that are this replica's own. The initiator does not wait for them either.
            name = self._database.name
            log.warning("databases.mutation_fails database=%s entry=%d error=%s", name, number, error)

    async def _has_what_fills(self, sql: str, settings: Mapping[str, str]) -> bool:
        """Whether what the SELECT of a CREATE reads is here; it may be on the initiator only."""
        try:
            await self._database.carry_out(f"DESCRIBE TABLE ({select_of(draft_of(sql))}\n)", settings)
        except SqlError as error:
            return error.code not in _NOT_HERE
        return True

    def _has_altered(self, statement: Statement, before: Mapping[str, str]) -> bool:
        """Whether an ALTER of a plain table has taken effect, though not yet in its parts: a second one would
        be refused."""
        if moment_of(statement) is not Moment.PLANNED:
            return False
        table = statement.tables[0]
        if self._shell.life.tables.find(self._database.whole(table)) is not None:
            return False
        return before.get(table.table) != self._database.texts().get(table.table)

    async def _has_mutated(self, number: int, statement: Statement) -> bool:
        """Whether an earlier try has made the mutation of a plain table that the entry asks for."""
        if moment_of(statement) is not Moment.DATA or statement.kind is _K.TRUNCATE_TABLE:
            return False
        table = self._database.whole(statement.tables[0])
        if await table_behind(self._shell.life, table) is not None:
            return False
        rows = await self._shell.local.rows(
            f"SELECT mutation_id FROM system.mutations WHERE database = {quote_string(table.database)} "
            f"AND table = {quote_string(table.table)}"
        )
        return self._begun.is_done(number, [name for (name,) in rows])

    async def redo(self, query: str, settings: Mapping[str, str]) -> None:
        """Of what is committed before it is carried out (`moments`). Raises SqlError."""
        if moment_of(parse_statement(query)) in (Moment.BEFORE, Moment.PLANNED):
            sql = from_log(query, self._database.name)
            if not self._is_done(parse_statement(sql)):
                await self._database.carry_out(sql, settings)

    def is_effect_of(self, number: int, query: str, digest: int) -> bool:
        """What is here shows what was before RENAME, EXCHANGE, CREATE, ATTACH; else it was written down."""
        statement = parse_statement(from_log(query, self._database.name))
        texts = self._database.texts()
        if digest_of(texts) == digest:
            return False  # there is no effect
        from_here = (
            self.before_create(query),
            renamed_back(statement, texts),
            detached_again(statement, texts),
        )
        for before in from_here:
            if before is not None and digest_of(before) == digest:
                return True
        is_there = bool(statement.tables) and statement.tables[0].table in texts
        if is_there is (moment_of(statement) is Moment.BEFORE):
            return False
        return self._begun.altered(number) == (digest, digest_of(_others(texts, statement)))

    def before_create(self, query: str) -> Mapping[str, str] | None:
        """By the UUID that a CREATE says; with what it has replaced, which is put away."""
        statement = parse_statement(from_log(query, self._database.name))
        if statement.uuid is None or not self._is_done(statement):
            return None
        name = statement.tables[0].table
        replaced = {kept.table: text for kept, text in self._replacement.kept().items() if kept.table == name}
        return {**_others(self._database.texts(), statement), **replaced}

    async def take_back(self, query: str) -> None:
        sql = from_log(query, self._database.name)
        for opposite in opposite_of(sql, parse_statement(sql), []):
            await self._database.run(opposite, QUIET)

    def _is_done(self, statement: Statement) -> bool:
        """Whether an earlier try has taken effect, as far as the definitions say so."""
        texts = self._database.texts()
        first = statement.tables[0].table if statement.tables else ""
        if moment_of(statement) is Moment.BEFORE:
            return first not in texts
        if statement.uuid is not None:
            found = uuid_of(texts.get(first, ""))
            return found is not None and str(found) == statement.uuid.lower()
        if statement.kind in (_K.RENAME_TABLE, _K.RENAME_DICTIONARY):
            return first not in texts and statement.tables[1].table in texts
        return False


def _has_to_be_noted(statement: Statement, before: Mapping[str, str]) -> bool:
    """Whether nothing else would tell what was before it. The own replication of a table alters that."""
    text = before.get(statement.tables[0].table) if statement.tables else None
    match moment_of(statement):
        case Moment.PLANNED:
            return is_plain(text)
        case Moment.BEFORE:
            return text is not None
        case Moment.BEHIND:
            return statement.or_replace and text is not None
        case Moment.DATA:
            return False


def _others(texts: Mapping[str, str], statement: Statement) -> Mapping[str, str]:
    """Without the table that a statement is about, and the one that goes with it."""
    about = statement.tables[0].table
    uuid = None if statement.kind in DETACHES else uuid_of(texts.get(about, ""))
    return {
        name: text
        for name, text in texts.items()
        if name != about and not (uuid is not None and name.startswith(".inner") and str(uuid) in name)
    }
