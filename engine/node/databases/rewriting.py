"""The text of a statement on its way into a database's log, and out of it on each replica.

In the log the object has no database: replicas may call theirs by different names. What a view reads, and
what it writes to, has one. A CREATE carries all UUIDs, which the initiator has made.

Source: ClickHouse's InterpreterCreateQuery::assertOrSetUUID, DatabaseReplicated::checkQueryValid and
registerStorageMergeTree.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from uuid import UUID

from engine.errors import Code, SqlError
from engine.names import quote_identifier, quote_string
from engine.node.replicated.definitions.cloning import clone_in
from engine.node.replicated.definitions.definition_sql import REPLICATED, Definition
from engine.node.statements.asked_settings import number
from engine.sql import (
    StatementKind,
    one_line,
    with_default_database,
    without_on_cluster,
    without_output_clauses,
)
from engine.sql.cursor import NameRef, Role
from engine.sql.draft import Draft
from engine.sql.edit import Edit, apply_edits
from engine.sql.inner_uuid import inner_uuid_at
from engine.sql.parse import draft_of

_K = StatementKind
_HAVE_UUID = frozenset(
    {
        _K.CREATE_TABLE,
        _K.CREATE_VIEW,
        _K.CREATE_MATERIALIZED_VIEW,
        _K.CREATE_LIVE_VIEW,
        _K.CREATE_WINDOW_VIEW,
        _K.CREATE_DICTIONARY,
    }
)
_NO_DATA = frozenset(
    {
        *("Buffer", "Dictionary", "Distributed", "Executable", "ExecutablePool", "Kafka", "Memory", "Merge"),
        *("MaterializedPostgreSQL", "MongoDB", "MySQL", "NATS", "Null", "ODBC", "PostgreSQL", "RabbitMQ"),
        *("Redis", "S3", "S3Queue", "URL", "View"),
    }
)
"""Engines that store nothing on this server's disk."""


class EngineArguments(enum.Enum):
    """`database_replicated_allow_replicated_engine_arguments`."""

    FORBID = 0
    ALLOW = 1
    REPLACE = 2
    ALLOW_SILENTLY = 3


def with_whole_names(sql: str, database: str) -> str:
    """Every name with its database: of the current one, where it has none."""
    return with_default_database(without_output_clauses(sql), database)


def one_by_one(sql: str) -> list[str]:
    """DROP and DETACH of several tables of one database as one statement for each; any other as it is."""
    d = draft_of(sql)
    refs = _objects(d)
    is_list = d.kind.value.startswith(("DROP ", "DETACH ")) and d.kind is not _K.DROP_INDEX and len(refs) > 1
    if not is_list or len({ref.name.database for ref in refs}) > 1:
        return [sql]
    return [f"{sql[: refs[0].start]}{sql[ref.start : ref.end]}{sql[refs[-1].end :]}" for ref in refs]


def for_log(sql: str, new_uuid: Callable[[], UUID]) -> str:
    """A statement with whole names as it goes into the log: without ON CLUSTER, its objects' database and
    whatever is about its answer, a CREATE with UUIDs."""
    sql = without_on_cluster(without_output_clauses(sql))
    d = draft_of(sql)
    edits = [Edit(ref.start, ref.end, quote_identifier(ref.name.table)) for ref in _objects(d)]
    if d.kind in _HAVE_UUID:
        edits = _with_uuid(d, edits, new_uuid)
    return one_line(apply_edits(sql, edits)).rstrip("; \t\r\n")


def for_others(sql: str) -> str:
    """A statement of the log without the SELECT that fills a replicated table: the other replicas get its
    rows from the initiator's. Each would insert its own, and only equal blocks are stored once."""
    return left_empty(sql) if (draft_of(sql).engine or "").startswith(REPLICATED) else sql


def left_empty(sql: str) -> str:
    """CREATE TABLE … AS SELECT, and CREATE of a view with POPULATE, without what fills it; any other as it
    is."""
    d = draft_of(sql)
    if d.kind is _K.CREATE_TABLE:
        definition = Definition(sql)
        if definition.select is None or definition.as_at is None:
            return sql
        return apply_edits(sql, [Edit(definition.as_at, definition.as_at, "EMPTY ")])
    if d.kind is not _K.CREATE_MATERIALIZED_VIEW or (at := _populate_at(d)) is None:
        return sql
    return apply_edits(sql, [Edit(d.tokens[at].start, d.tokens[at].end, "")])


def from_log(sql: str, database: str) -> str:
    """What was made by `for_log`, or by a ClickHouse server, for this replica's database."""
    d = draft_of(sql)
    prefix = quote_identifier(database) + "."
    return apply_edits(
        sql, [Edit(ref.start, ref.start, prefix) for ref in _objects(d) if not ref.name.database]
    )


def _objects(d: Draft) -> list[NameRef]:
    return [ref for ref in d.refs if ref.role is Role.OBJECT]


def _with_uuid(d: Draft, edits: list[Edit], new_uuid: Callable[[], UUID]) -> list[Edit]:
    ref = d.refs[0]
    if d.uuid is None:
        name = quote_identifier(ref.name.table)
        edits = [edit for edit in edits if edit.start != ref.start]
        edits.append(Edit(ref.start, ref.end, f"{name} UUID {quote_string(str(new_uuid()))}"))
    at = inner_uuid_at(d)
    if at is not None:
        edits.append(Edit(at, at, f" TO INNER UUID {quote_string(str(new_uuid()))}"))
    return edits


# -- what is refused ----------------------------------------------------------------------------------------


def check_create(sql: str, settings: Mapping[str, str]) -> str:
    """A CREATE that a client sent, as `settings` allow it; a replicated engine's arguments are replaced
    where they say so. Raises SqlError 36, 80, 344."""
    d = draft_of(sql)
    if d.kind not in _HAVE_UUID:
        return sql
    if d.uuid is not None and _flag(settings, "database_replicated_allow_explicit_uuid") == 0:
        raise SqlError(
            Code.BAD_ARGUMENTS,
            "It's not allowed to explicitly specify UUIDs for tables in Replicated databases, see "
            "database_replicated_allow_explicit_uuid",
        )
    if d.kind is _K.CREATE_MATERIALIZED_VIEW and "REFRESH" in d.words and "APPEND" not in d.words:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            "Refreshable materialized views without APPEND are not supported in Replicated databases: each "
            "replica would put another table in the place of its own.",
            hint="Use REFRESH … APPEND, or make the view in an Atomic database.",
        )
    definition = Definition(sql)
    is_heavy = _is_filled(d, definition) and (d.engine or "").startswith(REPLICATED)
    if is_heavy and not _flag(settings, "database_replicated_allow_heavy_create"):
        what = "CREATE AS SELECT" if d.kind is _K.CREATE_TABLE else "CREATE with POPULATE"
        raise SqlError(
            Code.SUPPORT_IS_DISABLED,
            f"{what} is not supported with Replicated databases. Consider using separate CREATE and INSERT "
            "queries.",
            hint="Or set database_replicated_allow_heavy_create.",
        )
    if d.kind is _K.CREATE_TABLE and clone_in(sql) is not None:
        raise SqlError(
            Code.SUPPORT_IS_DISABLED,
            "CREATE CLONE AS is not supported with Replicated databases. Consider using separate CREATE and "
            "INSERT queries.",
            hint="Or CREATE TABLE … AS, then ALTER TABLE … ATTACH PARTITION ALL FROM.",
        )
    if d.engine is None:
        return sql
    if not d.engine.startswith(REPLICATED):
        only = _flag(settings, "database_replicated_allow_only_replicated_engine")
        if only and d.kind is _K.CREATE_TABLE and d.engine not in _NO_DATA:
            raise SqlError(
                Code.INCORRECT_QUERY,
                "Only tables with a Replicated engine or tables which do not store data on disk are allowed "
                "in a Replicated database",
            )
        return sql
    return _check_arguments(sql, definition, settings)


def _check_arguments(sql: str, definition: Definition, settings: Mapping[str, str]) -> str:
    if definition.engine is None or definition.keeper_arguments() is None:
        return sql
    name = "database_replicated_allow_replicated_engine_arguments"
    try:
        mode = EngineArguments(_flag(settings, name))
    except ValueError:
        raise SqlError(Code.BAD_ARGUMENTS, f"{name} can be 0, 1, 2, 3") from None
    match mode:
        case EngineArguments.FORBID:
            raise SqlError(
                Code.BAD_ARGUMENTS,
                "It's not allowed to specify explicit zookeeper_path and replica_name for "
                "ReplicatedMergeTree arguments in Replicated database. If you really want to "
                f"specify them explicitly, enable setting {name}.",
            )
        case EngineArguments.REPLACE:
            return definition.without_keeper_arguments()
        case EngineArguments.ALLOW | EngineArguments.ALLOW_SILENTLY:
            path, replica = definition.engine.arguments[:2]
            if "{shard}" not in path or "{replica}" not in replica:
                raise SqlError(
                    Code.INCORRECT_QUERY,
                    "Explicit zookeeper_path and replica_name are specified in ReplicatedMergeTree "
                    "arguments. If you really want to specify it explicitly, then you should use some macros "
                    "to distinguish different shards and replicas",
                )
    return sql


def _is_filled(d: Draft, definition: Definition) -> bool:
    return definition.select is not None if d.kind is _K.CREATE_TABLE else _populate_at(d) is not None


def _populate_at(d: Draft) -> int | None:
    """The token POPULATE of a CREATE MATERIALIZED VIEW."""
    before = d.words[: d.words.index("AS")] if "AS" in d.words else d.words
    return before.index("POPULATE") if "POPULATE" in before else None


def _flag(settings: Mapping[str, str], name: str) -> int:
    return int(number(settings, name, 0))
