"""On which hosts a statement takes effect by itself, as far as files and nodes tell. Pure; for plans.

An ALTER of a replicated table is made by one replica of each shard. Whether a table is replicated is known
from the folder, which may create it, and from nodes, which may have it; where the two differ, because the run
itself makes it anew, it is not said.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from engine.migrations.files import MigrationSet
from engine.migrations.model import RunRequest
from engine.migrations.statements import qualified
from engine.names import TableName
from engine.sql import Statement, StatementKind, parse_statement, runs_once_per_shard


class Where(enum.StrEnum):
    """On which hosts a statement takes effect by itself."""

    EVERY_HOST = "every host"
    ONCE_PER_SHARD = "once per shard"
    ONCE_PER_SHARD_IF_REPLICATED = "once per shard if the table is replicated, else every host"


def where_of(statement: Statement, engines: Iterable[str]) -> Where:
    """`engines` are those that the statement's tables are known to have; none where nobody knows."""
    if not runs_once_per_shard(statement):
        return Where.EVERY_HOST
    is_replicated = {engine.startswith(("Replicated", "Shared")) for engine in engines}
    if is_replicated == {True}:
        return Where.ONCE_PER_SHARD
    return Where.EVERY_HOST if is_replicated == {False} else Where.ONCE_PER_SHARD_IF_REPLICATED


def engines_of(migrations: MigrationSet, request: RunRequest) -> Mapping[TableName, str]:
    """The engines of the tables that the folder itself creates; names are followed to where they go."""
    engines: dict[TableName, str] = {}
    for migration in migrations.migrations:
        for statement in migration.up.statements if migration.up is not None else ():
            parsed = parse_statement(statement.sql)
            tables = qualified(parsed, statement, request)
            pairs = list(zip(tables[::2], tables[1::2], strict=False))
            match parsed.kind:
                case StatementKind.CREATE_TABLE if parsed.engine:
                    engines |= dict.fromkeys(tables, parsed.engine)
                case StatementKind.RENAME_TABLE:
                    for old, new in pairs:
                        if old in engines:
                            engines[new] = engines[old]
                case StatementKind.EXCHANGE_TABLES:
                    for one, other in pairs:
                        moved = {
                            new: engines[old] for old, new in ((one, other), (other, one)) if old in engines
                        }
                        engines |= moved
                case _:
                    pass
    return engines
