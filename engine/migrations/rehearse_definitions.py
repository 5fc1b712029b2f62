"""What a rehearsal compares: the text of every definition in the scratch, as chDB shows it.

chDB writes each text anew whenever it is asked, which takes longer the more tables there are. So which ones
there are is asked every time, and the texts only of those that are new or named by a statement since. Of a
table that stands for another one (engine Alias) an ALTER changes the other, which it does not name: with one
of these all texts are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.migrations.rehearse_engines import Rows
from engine.names import TableName, quote_identifier, quote_string
from engine.sql import literal_value, tokenize

_PRIMARY_KEY_SAID = re.compile(r" PRIMARY KEY (.+) ORDER BY \1(?= |$)")
"""As it is when a key was longer for a while; it says nothing."""
_TABLES = (
    " FROM system.tables WHERE database NOT IN ('system', 'INFORMATION_SCHEMA', 'information_schema')"
    r" AND NOT is_temporary AND name NOT LIKE '.inner%'"
)


class Named(NamedTuple):
    """Something that has a definition; `kind` is `database`, `table` (anything in one) or `function`."""

    kind: str
    name: str
    database: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.database}.{self.name}" if self.database else f"{self.kind} {self.name}"

    def dropped(self, text: str) -> str:
        name = TableName(self.database, self.name).quoted if self.database else quote_identifier(self.name)
        is_dictionary = text.startswith("CREATE DICTIONARY")
        return f"DROP {'DICTIONARY' if is_dictionary else self.kind.upper()} {name}"

    def created(self, text: str) -> str:
        """By its definition; of a database that is its engine."""
        made = f"CREATE DATABASE {quote_identifier(self.name)} ENGINE = {text}"
        return made if self.kind == "database" else text


class _Text(NamedTuple):
    """A table's. Another table that gets its name has another UUID."""

    uuid: str
    text: str


@dataclass(slots=True)
class Definitions:
    """Of one scratch. Every statement that is run there is noted."""

    scratch: Rows
    _texts: dict[Named, _Text] = field(default_factory=dict)
    _words: set[str] = field(default_factory=set)
    """What stands in the statements since the last look."""
    _functions: dict[Named, str] | None = None
    """None behind a statement that may have changed them. chDB goes through all of its own to find them, and
    that takes longer than a statement of a migration."""

    def note(self, sql: str) -> None:
        self._words |= {literal_value(token) for token in tokenize(sql) if token.is_significant}
        if "FUNCTION" in sql.upper():
            self._functions = None

    async def read(self) -> dict[Named, str]:
        """Every database, table, dictionary and function, with the text that makes it. A table within a view
        is the view's. Raises SqlError, ReplyLost."""
        found = await self.scratch.rows(f"SELECT database, name, toString(uuid), engine{_TABLES}")
        any_may_differ = any(engine == "Alias" for *_, engine in found)
        there = {Named("table", name, database): uuid for database, name, uuid, _ in found}
        await self._read_texts(
            [
                table
                for table, uuid in there.items()
                if any_may_differ
                or table.name in self._words
                or table not in self._texts
                or self._texts[table].uuid != uuid
            ]
        )
        self._words.clear()
        self._texts = {table: known for table, known in self._texts.items() if table in there}
        databases = await self.scratch.rows("SELECT name, engine FROM system.databases")
        return {
            **{Named("database", name): engine for name, engine in databases},
            **{table: known.text for table, known in self._texts.items()},
            **await self._read_functions(),
        }

    async def _read_texts(self, tables: Sequence[Named]) -> None:
        if not tables:
            return
        databases, names = (
            ", ".join(map(quote_string, sorted(of)))
            for of in ({table.database for table in tables}, {table.name for table in tables})
        )
        rows = await self.scratch.rows(
            f"SELECT database, name, toString(uuid), create_table_query{_TABLES}"
            f" AND database IN ({databases}) AND name IN ({names})"
        )
        for database, name, uuid, text in rows:
            said = _PRIMARY_KEY_SAID.sub(r" ORDER BY \1", text)
            self._texts[Named("table", name, database)] = _Text(uuid, said)

    async def _read_functions(self) -> dict[Named, str]:
        if self._functions is None:
            functions = await self.scratch.rows(
                "SELECT name, create_query FROM system.functions WHERE origin = 'SQLUserDefined'"
            )
            self._functions = {Named("function", name): query for name, query in functions}
        return self._functions
