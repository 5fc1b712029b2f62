"""Engines of tables that a rehearsal replaces by Null, because they reach other servers: there has to be one
of that name. A misspelt one would pass for a far one, and be refused by the first host."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.errors import Code, SqlError

_NOT_IN_CHDB = frozenset(
    {
        *("RabbitMQ", "NATS", "ExternalDistributed", "MaterializedMySQL", "Hive", "MeiliSearch"),
        *("ArrowFlight", "SharedSet", "SharedJoin"),
    }
)
"""What servers have besides, or had."""


class Rows(Protocol):
    """What is asked of the scratch."""

    async def rows(self, sql: str) -> Sequence[Sequence[str]]:
        """The result of a SELECT, every value as text. Raises SqlError."""
        ...


@dataclass(slots=True)
class TableEngines:
    """Asked of the scratch once, when the first far engine comes."""

    scratch: Rows
    _known: frozenset[str] = field(default=frozenset())

    async def require(self, engine: str) -> None:
        """Raises SqlError 56 for a name that no engine has."""
        if not self._known:
            found = await self.scratch.rows("SELECT name FROM system.table_engines")
            self._known = _NOT_IN_CHDB | {name for (name,) in found}
        if engine not in self._known:
            like = difflib.get_close_matches(engine, sorted(self._known), n=1)
            meant = f" Maybe {like[0]} is meant." if like else ""
            raise SqlError(Code.UNKNOWN_STORAGE, f"Unknown table engine {engine}.{meant}")
