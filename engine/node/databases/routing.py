"""Which statements on objects of a Replicated database go through the database's queue.

By the statement alone and what is known of its table. Source: ClickHouse's DatabaseReplicated,
`shouldReplicateQuery` and `checkQueryValid`.
"""

from __future__ import annotations

import enum

from engine.errors import Code, SqlError
from engine.node.replicated.parts.partition_sql import alter_pieces, family_of
from engine.sql import AlterCommand, Statement, StatementKind, tokenize

_K = StatementKind
_A = AlterCommand


class Way(enum.Enum):
    """Where a statement on an object of the database is carried out."""

    QUEUE = "all replicas, in the order of the database's log"
    LOCAL = "this replica only; the table's own replication does the rest"


_CREATES = frozenset(
    {
        _K.CREATE_TABLE,
        _K.CREATE_VIEW,
        _K.CREATE_MATERIALIZED_VIEW,
        _K.CREATE_LIVE_VIEW,
        _K.CREATE_WINDOW_VIEW,
        _K.CREATE_DICTIONARY,
    }
)
ATTACHES = frozenset({_K.ATTACH_TABLE, _K.ATTACH_VIEW, _K.ATTACH_DICTIONARY})
_DETACHES = frozenset({_K.DETACH_TABLE, _K.DETACH_VIEW, _K.DETACH_DICTIONARY})
_RENAMES = frozenset({_K.RENAME_TABLE, _K.RENAME_DICTIONARY})
_EXCHANGES = frozenset({_K.EXCHANGE_TABLES, _K.EXCHANGE_DICTIONARIES})
_ALWAYS = (
    _CREATES
    | ATTACHES
    | _DETACHES
    | _RENAMES
    | _EXCHANGES
    | {_K.DROP_TABLE, _K.DROP_VIEW, _K.DROP_DICTIONARY, _K.TRUNCATE_TABLE, _K.UNDROP_TABLE}
)
_BY_TABLE = frozenset({_K.ALTER_TABLE, _K.DELETE, _K.UPDATE, _K.CREATE_INDEX, _K.DROP_INDEX})
_ONLY_HERE = (
    frozenset({_A.ATTACH_PARTITION}),
    frozenset({_A.FETCH_PARTITION}),
    frozenset({_A.DROP_PARTITION, _A.DETACH_PARTITION, _A.DROP_DETACHED_PARTITION}),
    frozenset({_A.FREEZE}),
    frozenset({_A.UNFREEZE}),
    frozenset({_A.UNLOCK_SNAPSHOT}),
)
"""An ALTER all of whose commands are of one of these."""
_DATA = frozenset(
    {
        *(command for command in AlterCommand if "PARTITION" in command.value),
        _A.FREEZE,
        _A.UNFREEZE,
        _A.UNLOCK_SNAPSHOT,
        _A.DELETE,
        _A.UPDATE,
        _A.APPLY_DELETED_MASK,
        _A.APPLY_PATCHES,
        _A.REWRITE_PARTS,
        _A.MATERIALIZE_COLUMN,
        _A.MATERIALIZE_INDEX,
        _A.MATERIALIZE_PROJECTION,
        _A.MATERIALIZE_STATISTICS,
        _A.MATERIALIZE_TTL,
    }
)
"""Commands that leave the definition as it is. CLEAR COLUMN is a change of the definition to ClickHouse."""


def concerns_objects(statement: Statement) -> bool:
    """It changes tables, views or dictionaries of a database, rather than reading or writing their rows."""
    return not statement.temporary and statement.kind in _ALWAYS | _BY_TABLE


def way_of(statement: Statement, *, table_replicates: bool, has_many_shards: bool) -> Way:
    """Of a statement that `concerns_objects`. `table_replicates`: its table is there, and its engine is
    Replicated…MergeTree."""
    if statement.kind in _ALWAYS:
        return Way.QUEUE
    if statement.kind is _K.ALTER_TABLE and _is_only_here(statement):
        return Way.LOCAL
    if has_many_shards or not table_replicates:
        return Way.QUEUE
    if statement.kind in (_K.DELETE, _K.UPDATE):
        return Way.LOCAL
    if statement.kind is _K.ALTER_TABLE and changes_rows_only(statement):
        return Way.LOCAL
    return Way.QUEUE


def changes_rows_only(statement: Statement) -> bool:
    """An ALTER that leaves the definition as it is."""
    return bool(statement.alter_commands) and _DATA.issuperset(statement.alter_commands)


def _is_only_here(statement: Statement) -> bool:
    commands = frozenset(statement.alter_commands)
    return bool(commands) and any(commands <= family for family in _ONLY_HERE)


def check_statement(sql: str, statement: Statement, *, detaches_permanently: bool) -> None:
    """What no replica could carry out alike. `detaches_permanently`: a setting says that DETACH means so.

    Raises SqlError 48, 80, 344, 392.
    """
    if statement.kind in _DETACHES and not detaches_permanently:
        words = [token.text.upper() for token in tokenize(sql) if token.is_significant]
        if "PERMANENTLY" not in words:
            raise SqlError(
                Code.INCORRECT_QUERY,
                "DETACH TABLE is not allowed for Replicated databases. Use DETACH TABLE PERMANENTLY or "
                "SYSTEM RESTART REPLICA or set database_replicated_always_detach_permanently to 1",
            )
    if statement.kind is _K.ALTER_TABLE and len({family_of(piece) for piece in alter_pieces(sql)}) > 1:
        raise SqlError(
            Code.QUERY_IS_PROHIBITED,
            "For Replicated databases it's not allowed to execute ALTERs of different types in single query",
            hint="Write one statement for each of data, partitions and metadata.",
        )
    if statement.kind is _K.UNDROP_TABLE:
        raise SqlError(Code.SUPPORT_IS_DISABLED, "Replicated database does not support UNDROP query")
    if statement.kind in _RENAMES | _EXCHANGES:
        _check_names(statement)
    elif len(statement.tables) > 1:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"{statement.kind.value} of several tables at once is not supported for Replicated databases",
            hint="Write one statement for each.",
        )


def _check_names(statement: Statement) -> None:
    one, other, *more = statement.tables
    if len({table.database for table in statement.tables}) > 1:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            "Moving tables between databases is not supported for Replicated databases",
            hint="Create the table anew in the other database and copy its rows.",
        )
    if more:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            "A Replicated database does not support renaming of multiple tables in single query",
            hint="Write one statement for each, or EXCHANGE TABLES for two that swap their names.",
        )
    if one == other:
        raise SqlError(Code.INCORRECT_QUERY, "Cannot rename table to itself")
