"""The columns that an INSERT names, by their names or by a pattern, and what the others mean to them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

from engine.names import quote_identifier, quote_string
from engine.sql.tokens import TokenKind, literal_value, scan

Ask = Callable[[str], bytes]
"""Runs a statement and gives its rows in JSONCompactEachRow. Raises RuntimeError."""

NAMES = (TokenKind.WORD, TokenKind.IDENTIFIER)


class Column(NamedTuple):
    """As DESCRIBE TABLE has it. `kind` is DEFAULT, MATERIALIZED, ALIAS, EPHEMERAL or empty."""

    name: str
    type: str
    kind: str
    expression: str

    def uses(self, names: Set[str]) -> bool:
        """Whether its default may be made of one of these."""
        return any(token.kind in NAMES and literal_value(token) in names for token in scan(self.expression))


def standing_alone(columns: Iterable[Column], names: Sequence[str]) -> list[str]:
    """`name Type [DEFAULT …]` of the columns with these names, in their order. Other columns that their
    defaults are made of are written out."""
    known = {column.name: column for column in columns}
    others = {name: column for name, column in known.items() if name not in names}

    def written_out(expression: str) -> str:
        tokens = [token for token in scan(expression) if token.is_significant]
        text, at = "", 0
        for before, token, behind in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
            is_name = token.kind in NAMES and literal_value(token) in others
            is_part = before is not None and before.text == "."
            if is_name and not is_part and not (behind is not None and behind.text == "("):
                text += expression[at : token.start] + value(others[literal_value(token)])
                at = token.end
        return text + expression[at:]

    def value(column: Column) -> str:
        type = quote_string(column.type)
        if not column.expression:
            return f"defaultValueOfTypeName({type})"
        return f"CAST({written_out(column.expression)}, {type})"

    def definition(column: Column) -> str:
        default = f" DEFAULT {written_out(column.expression)}" if column.expression else ""
        return f"{quote_identifier(column.name)} {column.type}{default}"

    return [definition(known[name]) for name in names if name in known]


def described(table: str, ask: Ask) -> list[Column]:
    """Of a table, a table function or a subquery."""
    return [Column(*json.loads(row)[:4]) for row in ask(f"DESCRIBE TABLE {table}").splitlines()]


def is_pattern(columns: str) -> bool:
    """Whether there is `*` or COLUMNS('…') among them."""
    tokens = [token for token in scan(columns) if token.is_significant]
    return any(token.text == "*" for token in tokens) or any(
        word.text.upper() == "COLUMNS" and bracket.text == "(" for word, bracket in itertools.pairwise(tokens)
    )


def matched(pattern: str, table: str, ask: Ask) -> list[str]:
    """The names that `*`, `* EXCEPT …` and COLUMNS('…') stand for, but for those of aliases."""
    aliases = {column.name for column in described(table, ask) if column.kind == "ALIAS"}
    found = described(f"(SELECT {pattern} FROM {table})", ask)
    return [column.name for column in found if column.name not in aliases]
