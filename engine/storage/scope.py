"""What goes into a statement beside its text, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.names import quote_identifier, quote_string


@dataclass(frozen=True, slots=True)
class QueryResult:
    """A statement's result and what it cost. `data` is empty for a streamed result."""

    data: bytes
    read_rows: int
    read_bytes: int
    written_rows: int
    written_bytes: int
    result_rows: int
    elapsed_s: float

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Scope:
    """What holds for one statement only. An empty database leaves the session's.

    `query_id` makes the statement findable for KILL. `is_readonly` is refused in sessions that live on,
    because ClickHouse's readonly mode cannot be left again.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    database: str = ""
    query_id: str = ""
    is_readonly: bool = False


PLAIN = Scope()


def set_statement(settings: Mapping[str, str]) -> str:
    """`SET a = 'x', …`. Values are quoted; ClickHouse turns them into the setting's type."""
    return f"SET {_assignments(settings)}"


def settings_clause(settings: Mapping[str, str]) -> str:
    """The same behind a SELECT, for that statement only."""
    return f"\nSETTINGS {_assignments(settings)}"


def _assignments(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{quote_identifier(name)} = {quote_string(value)}" for name, value in settings.items())
