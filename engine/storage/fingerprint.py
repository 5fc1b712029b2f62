"""What a statement would change, read from chDB (`engine.ddl.executor.Fingerprint`).

Definitions are read from their files, or with SHOW CREATE, which costs 0.6 ms; `system.tables` would cost
three times that. Only what the statement's family needs is read: mutations for ALTER, UPDATE and DELETE,
parts for what removes data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.ddl.executor import Blocks, Fingerprint
from engine.errors import Code, SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.sql import AlterCommand, Statement, StatementKind
from engine.storage.chdb_session import ChdbSession
from engine.storage.errors import sql_error
from engine.storage.metadata_files import definition_on_disk
from engine.storage.statement_text import sendable

_K = StatementKind
_NOT_THERE = frozenset({Code.UNKNOWN_TABLE, Code.UNKNOWN_DATABASE, 390})
"""390 is CANNOT_GET_CREATE_TABLE_QUERY."""
_REPEATABLE = frozenset({_K.OPTIMIZE, _K.SYSTEM, _K.GRANT, _K.REVOKE, _K.KILL_QUERY})
_DEFINITIONS_ONLY = frozenset(
    {_K.CREATE_TABLE, _K.CREATE_VIEW, _K.CREATE_MATERIALIZED_VIEW, _K.DROP_TABLE, _K.DROP_VIEW}
)
_WHILE_DETACHED = ("ATTACH", "DETACH")
"""SHOW CREATE knows detached tables, too."""
_WITH_MUTATIONS = frozenset({_K.ALTER_TABLE, _K.DELETE, _K.UPDATE, _K.CREATE_INDEX, _K.DROP_INDEX})
_WITH_BLOCKS = frozenset({_K.TRUNCATE_TABLE})
_PARTITION_COMMANDS = frozenset(command for command in AlterCommand if "PARTITION" in command.value)
_SHOW_UUID = {"show_table_uuid_in_table_create_query_if_not_nil": "1"}
READER_SETTINGS = {**_SHOW_UUID, "log_comment": "oncluster fingerprint"}
"""For the session that reads fingerprints."""


async def read_fingerprint(
    session: ChdbSession, statement: Statement, database: str, *, path: Path
) -> Fingerprint | None:
    """None when nothing here tells whether the statement took effect, or nothing needs to.

    `session` was opened with `READER_SETTINGS`, `path` is the data directory. Raises SqlError where chDB
    cannot answer.
    """
    if statement.kind in _REPEATABLE:
        return None
    if statement.kind is _K.KILL_MUTATION:
        return Fingerprint(mutations=await _mutations(session, "1"))
    tables = [table.within(database) for table in dict.fromkeys((*statement.tables, *statement.targets))]
    objects = []
    for table in tables:
        digest = definition_on_disk(path, table)
        if digest is None:
            digest = await _definition(session, f"TABLE {table.quoted}")
        objects.append((f"table {table}", digest))
    if statement.kind.value.startswith(_WHILE_DETACHED):
        objects += [(f"attached {table}", await _is_attached(session, table)) for table in tables]
    for name in (statement.database, statement.new_database):
        if name is not None and not tables:
            shown = await _definition(session, f"DATABASE {quote_identifier(name)}")
            objects.append((f"database {name}", shown))
    if statement.name is not None and not tables:
        objects += await _named_object(session, statement)
    if not objects:
        return None
    where = " OR ".join(
        f"(database = {quote_string(table.database)} AND table = {quote_string(table.table)})"
        for table in tables
    )
    mutations = blocks = None
    if statement.kind in _WITH_MUTATIONS:
        mutations = await _mutations(session, where)
    if statement.kind in _WITH_BLOCKS or _PARTITION_COMMANDS.intersection(statement.alter_commands):
        blocks = await _blocks(session, where)
    return Fingerprint(objects=tuple(objects), mutations=mutations, blocks=blocks)


def definitions_of(statement: Statement, database: str) -> tuple[TableName, ...] | None:
    """The tables whose definitions are the statement's whole fingerprint; None where it takes more.

    So it is with CREATE and DROP of tables and views, which are most of what a queue carries.
    """
    if statement.kind not in _DEFINITIONS_ONLY or statement.targets or not statement.tables:
        return None
    return tuple(t.within(database) for t in dict.fromkeys(statement.tables))


def fingerprint_now(connection: Any, tables: Sequence[TableName], *, path: Path) -> Fingerprint:
    """As `read_fingerprint` for `definitions_of`, on a connection of one's own thread."""
    objects = []
    for table in tables:
        digest = definition_on_disk(path, table)
        if digest is None:
            digest = _digest(_shown(connection, table))
        objects.append((f"table {table}", digest))
    return Fingerprint(objects=tuple(objects))


def _shown(connection: Any, table: TableName) -> bytes:
    try:
        shown: bytes = connection.query(sendable(f"SHOW CREATE TABLE {table.quoted}"), "TSVRaw").bytes()
    except RuntimeError as text:
        error = sql_error(str(text))
        if error.code not in _NOT_THERE:
            raise error from None
        return b""
    return shown


async def _definition(session: ChdbSession, what: str) -> str:
    """A digest of UUID and definition; empty when there is no such object."""
    try:
        shown = await session.query(f"SHOW CREATE {what}", format="TSVRaw")
    except SqlError as error:
        if error.code in _NOT_THERE:
            return ""
        raise
    return hashlib.sha256(shown.data).hexdigest()[:32]


async def _is_attached(session: ChdbSession, table: TableName) -> str:
    return (await session.query(f"EXISTS TABLE {table.quoted}", format="TSVRaw")).text.strip()


async def _named_object(session: ChdbSession, statement: Statement) -> list[tuple[str, str]]:
    name = statement.name or ""
    match statement.kind:
        case _K.CREATE_FUNCTION | _K.DROP_FUNCTION:
            sql = (
                f"SELECT create_query FROM system.functions WHERE name = {quote_string(name)} "
                "AND origin = 'SQLUserDefined'"
            )
        case _K.CREATE_NAMED_COLLECTION | _K.DROP_NAMED_COLLECTION | _K.ALTER_NAMED_COLLECTION:
            sql = (
                f"SELECT toString(collection) FROM system.named_collections WHERE name = {quote_string(name)}"
            )
        case _:
            return []
    found = await session.query(sql)
    return [(f"{statement.kind.value.split(' ', 1)[1].lower()} {name}", _digest(found.data))]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32] if data else ""


async def _mutations(session: ChdbSession, where: str) -> tuple[str, ...]:
    found = await session.query(
        f"SELECT concat(database, '.', table, ' ', mutation_id) FROM system.mutations WHERE {where}",
        format="JSONCompactEachRow",
    )
    return tuple(json.loads(line)[0] for line in found.data.splitlines())


async def _blocks(session: ChdbSession, where: str) -> tuple[Blocks, ...]:
    found = await session.query(
        "SELECT concat(database, '.', table, ' ', partition_id), min_block_number, max_block_number "
        f"FROM system.parts WHERE active AND ({where})",
        format="JSONCompactEachRow",
    )
    rows = [json.loads(line) for line in found.data.splitlines()]
    return tuple(Blocks(partition, int(first), int(last)) for partition, first, last in rows)
