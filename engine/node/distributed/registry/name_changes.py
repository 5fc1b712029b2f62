"""Which statements give names to other tables, and the names that one is just giving.

Between the moment at which chDB has carried out ATTACH, RENAME or EXCHANGE and the one at which the registry
of Distributed tables knows of it, a name would still mean what it meant before: an INSERT would go to chDB's
placeholder, a SELECT would find it empty. Whoever asks what such a name means waits until it is known.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection

from engine.names import TableName
from engine.node.statements.statement import Asked
from engine.sql import AlterCommand, Statement, StatementKind

_K = StatementKind
_OF_TABLES = frozenset({_K.ATTACH_TABLE, _K.RENAME_TABLE, _K.EXCHANGE_TABLES, _K.UNDROP_TABLE})
_OF_DATABASES = frozenset({_K.ATTACH_DATABASE, _K.RENAME_DATABASE})
_NAME_NOTHING = frozenset({_K.INSERT, _K.SET, _K.USE, _K.OPTIMIZE})
_A = AlterCommand
_ABOUT_PARTITIONS = frozenset(
    {
        _A.ATTACH_PARTITION,
        _A.ATTACH_PARTITION_FROM,
        _A.DETACH_PARTITION,
        _A.DROP_PARTITION,
        _A.DROP_DETACHED_PARTITION,
        _A.FETCH_PARTITION,
        _A.FREEZE,
        _A.MOVE_PARTITION_TO_TABLE,
        _A.REPLACE_PARTITION,
    }
)
MAX_WAIT_S = 10.0
"""A statement that takes so long waits for something; then the registry's answer has to do."""


def names_given(asked: Asked, statement: Statement) -> frozenset[TableName]:
    """The names that the statement may give to another table; an empty table stands for a whole database."""
    if statement.kind in _OF_TABLES:
        return frozenset(t.within(asked.current_database) for t in statement.tables)
    if statement.kind in _OF_DATABASES:
        return frozenset(TableName(name, "") for name in (statement.database, statement.new_database) if name)
    return frozenset()


def keeps_names(statement: Statement) -> bool:
    """Whether every Distributed table surely has the name and the columns that it had before this statement,
    which is about another table, or was when it came."""
    if statement.kind in (_K.CREATE_TABLE, _K.CREATE_VIEW, _K.CREATE_MATERIALIZED_VIEW):
        return not statement.or_replace and statement.uuid is None
    if statement.kind is _K.ALTER_TABLE:
        return _ABOUT_PARTITIONS.issuperset(statement.alter_commands)
    return statement.kind in _NAME_NOTHING


def is_among(name: TableName, given: Collection[TableName]) -> bool:
    """Whether a name, or its whole database, is one of those."""
    return name in given or TableName(name.database, "") in given


class NameChanges:
    """The statements that are under way."""

    def __init__(self) -> None:
        self._names: Counter[TableName] = Counter()
        self._ended = asyncio.Event()

    @property
    def under_way(self) -> frozenset[TableName]:
        """The names that are being given."""
        return frozenset(self._names)

    def begin(self, names: Collection[TableName]) -> None:
        self._names.update(names)

    def end(self, names: Collection[TableName]) -> None:
        self._names.subtract(names)
        self._names += Counter()  # only what is left
        self._ended.set()
        self._ended = asyncio.Event()

    async def settled(self, name: TableName) -> None:
        """Return when no statement is giving the name away, or after a while."""
        if not self._names:
            return
        database = TableName(name.database, "")
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                while name in self._names or database in self._names:
                    await self._ended.wait()
        except TimeoutError:
            pass
