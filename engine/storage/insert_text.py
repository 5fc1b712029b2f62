"""An INSERT with rows behind it, as a statement that reads them from a file: chDB raises whatever fails then.

Rows that are handed over piece by piece (`insert_append`) fail in silence when they cannot be written, hang
where blocks are small, and end the process when there are more than their format can hold; those in a
statement's text could go on with another statement. `FROM INFILE` has none of this. But it measures blocks by
other settings, finds no columns by a pattern and none that is MATERIALIZED, and makes defaults of nothing but
what the rows have: so settings are translated, a pattern is replaced by the names that it stands for, and
rows that need the table's other columns come by way of another table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.names import quote_identifier, quote_string
from engine.sql.tokens import Token, TokenKind, literal_value, scan
from engine.storage.insert_columns import NAMES, Ask, Column, described, is_pattern, matched, standing_alone

_LIMITS = ("max_insert_block_size", "max_insert_block_size_rows", "max_insert_block_size_bytes")
_BLOCKS = frozenset({*_LIMITS, "min_insert_block_size_rows", "min_insert_block_size_bytes"})
_DEFAULT_BLOCK_ROWS = "1048449"
_MATERIALIZED = "insert_allow_materialized_columns"
_BEFORE_NAME = ("INSERT", "INTO", "TABLE")
_OFF = ("", "0", "false")
_NOT_IN_LOG = re.compile(r"\b(?:JSON|Dynamic)\b")
"""Types that tables of engine Log cannot have."""
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")


@dataclass(frozen=True, slots=True)
class InsertHead:
    """`INSERT INTO [TABLE] t | FUNCTION f(…) [(columns)] [SETTINGS …]`, cut. `columns` has no brackets,
    None without any; `own_settings` is its clause, and `settings` are all that hold for the statement."""

    begin: str
    target: str
    columns: str | None
    own_settings: str
    settings: Mapping[str, str]

    @property
    def block_settings(self) -> dict[str, str]:
        """What measures a file's blocks as this statement measures its own, if it says how."""
        if self.settings.keys().isdisjoint(_BLOCKS):
            return {}
        rows = self.settings.get("max_insert_block_size") or self.settings.get("max_insert_block_size_rows")
        return {
            "max_block_size": rows or _DEFAULT_BLOCK_ROWS,
            "input_format_max_block_size_bytes": self.settings.get("max_insert_block_size_bytes", "0"),
        }

    @property
    def may_cut_few(self) -> bool:
        """Whether less than a megabyte may be more than one block."""
        limits = (self.settings.get(name, _DEFAULT_BLOCK_ROWS) for name in _LIMITS)
        return any(not limit.isdigit() or 0 < int(limit) < int(_DEFAULT_BLOCK_ROWS) for limit in limits)

    @property
    def takes_materialized(self) -> bool:
        return self.settings.get(_MATERIALIZED, "0").lower() not in _OFF

    def reading(self, path: str, format: str, clause: str, ask: Ask) -> str:
        """The statement with the rows of a file. `clause` are more settings, where it has none of its own.

        Raises RuntimeError for a table that is not there, where the table must be looked at.
        """
        listed = "" if self.columns is None else f" ({self.columns})"
        if self.columns is not None and is_pattern(self.columns):
            listed = f" ({', '.join(map(quote_identifier, self._names(ask) or ()))})"
        file = f"FROM INFILE {quote_string(path)} COMPRESSION 'none'"
        return f"{self.begin}{listed}\n{file}\n{self.own_settings or clause}\nFORMAT {format}"

    def by_way_of(self, rows: str, path: str, format: str, clause: str, ask: Ask) -> tuple[str, str, str]:
        """The same by way of a table `rows`: what makes it, what fills it, and what copies it."""
        columns = described(self.target, ask)
        names = self._given(columns, ask)
        listed = ", ".join(map(quote_identifier, names))
        declared = ", ".join(standing_alone(columns, names))
        engine = "Memory" if _NOT_IN_LOG.search(declared) else "Log"
        return (
            f"CREATE TEMPORARY TABLE {rows} ({declared}) ENGINE = {engine}",
            replace(self, begin=f"INSERT INTO {rows}", columns=None).reading(path, format, "", ask),
            f"{self.begin} ({listed})\n{self.own_settings or clause}\nSELECT {listed} FROM {rows}",
        )

    def leans_on_others(self, ask: Ask) -> bool:
        """Whether the default of one of the columns may need one that the rows do not have: a file's columns
        are all that its rows' defaults can be made of."""
        columns = described(self.target, ask)
        names = self._given(columns, ask)
        others = {column.name for column in columns}.difference(names)
        return any(column.name in names and column.uses(others) for column in columns)

    def _given(self, columns: Sequence[Column], ask: Ask) -> list[str]:
        """Of the target's columns those that a row has."""
        names = self._names(ask)
        if names is not None:
            return names
        hidden = ("ALIAS", "EPHEMERAL") if self.takes_materialized else ("ALIAS", "EPHEMERAL", "MATERIALIZED")
        return [column.name for column in columns if column.kind not in hidden]

    def _names(self, ask: Ask) -> list[str] | None:
        """Of the columns, if the statement says any."""
        if self.columns is None:
            return None
        if is_pattern(self.columns):
            return matched(self.columns, self.target, ask)
        names = [""]
        for token in scan(self.columns):
            if token.text == ",":
                names.append("")
            elif token.is_significant:
                names[-1] += literal_value(token)
        return names


def cut_insert(sql: str, settings: Mapping[str, str]) -> InsertHead:
    """`settings` hold for the statement unless it says something else. Raises SqlError 62 as `tokenize`."""
    tokens = [token for token in scan(sql) if token.is_significant]
    words = [token.text.upper() if token.kind is TokenKind.WORD else token.text for token in tokens]
    name_at = next((at for at, word in enumerate(words) if word not in _BEFORE_NAME), len(tokens))
    if name_at == len(tokens):
        return InsertHead(begin=sql, target="", columns=None, own_settings="", settings=settings)
    outer = [at for at in _outside_brackets(tokens) if at > name_at and words[at - 1] != "."]
    settings_at = next((at for at in outer if words[at] == "SETTINGS"), len(tokens))
    is_function = words[name_at] == "FUNCTION"
    name_at += is_function
    brackets = [at for at in outer if words[at] == "(" and at < settings_at]
    columns_at = brackets[is_function] if len(brackets) > is_function else settings_at
    columns = None
    if columns_at < settings_at:
        columns = sql[tokens[columns_at].end : tokens[settings_at - 1].start]
    target_end = tokens[columns_at - 1].end
    return InsertHead(
        begin=sql[:target_end],
        target=sql[tokens[name_at].start : target_end],
        columns=columns,
        own_settings=sql[tokens[settings_at].start :] if settings_at < len(tokens) else "",
        settings={**settings, **_said(tokens[settings_at + 1 :])},
    )


def _outside_brackets(tokens: Sequence[Token]) -> list[int]:
    """Indexes of the tokens that stand in no brackets; an opening bracket stands outside itself."""
    found, depth = [], 0
    for at, token in enumerate(tokens):
        is_bracket = token.kind is TokenKind.PUNCTUATION
        depth -= is_bracket and token.text in _CLOSE
        if depth == 0:
            found.append(at)
        depth += is_bracket and token.text in _OPEN
    return found


def _said(tokens: Sequence[Token]) -> dict[str, str]:
    """The settings of a clause whose values are one token; others are none that matter here."""
    said = {}
    for name, equals, value in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if name.kind in NAMES and equals.text == "=":
            said[literal_value(name)] = literal_value(value)
    return said
