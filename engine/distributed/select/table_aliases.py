"""Names in FROM that are an alias of the same FROM, and no table of that name.

    SELECT * FROM events AS a JOIN a AS b ON …

reads `events` twice, whether there is a table `a` or not. It is so of names without a database, and not of
subqueries: `events AS a WHERE id IN (SELECT id FROM a)` reads the table.

Source: IdentifierResolver::tryResolveIdentifier, which looks for aliases before it looks for tables.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from engine.distributed.select.clauses import select_of
from engine.distributed.select.sides import is_between_tables
from engine.sql.cursor import Cursor, NameRef
from engine.sql.sources import is_behind_in
from engine.sql.tokens import literal_value


def without_aliases(cursor: Cursor, tables: Sequence[NameRef], keywords: Collection[str]) -> list[NameRef]:
    """Those of `tables` that are none of another's alias. `keywords` are words that no alias can be."""
    names = {ref.name.table for ref in tables if not ref.name.database}
    aliases = [
        (literal_value(token), at, begin)
        for at, token in enumerate(cursor.tokens)
        if token.is_name
        and literal_value(token) in names
        and cursor.words[at] not in keywords
        and (begin := _begin_of_called(cursor, at, keywords)) is not None
    ]
    return [ref for ref in tables if not any(_is_alias(cursor, ref, *alias) for alias in aliases)]


def _is_alias(cursor: Cursor, ref: NameRef, alias: str, at: int, begin: int) -> bool:
    """Whether a table is the alias at token `at` of what begins at token `begin`."""
    if ref.name.database or ref.name.table != alias:
        return False
    first = cursor.at_offset(ref.start)
    return (
        first != begin
        and not is_behind_in(cursor, first)
        and select_of(cursor, first) == select_of(cursor, at)
    )


def _begin_of_called(cursor: Cursor, at: int, keywords: Collection[str]) -> int | None:
    """The first token of the table, subquery or function in FROM whose alias token `at` is; None if it is no
    such alias."""
    words, tokens = cursor.words, cursor.tokens
    if words[at + 1 : at + 2] in (["."], ["("]):
        return None
    begin = at - 1 - (words[at - 1] == "AS")
    if begin < 1 or words[begin] in keywords or words[begin] in ("FROM", "JOIN"):
        return None
    if words[begin] == ")":
        depth = 0
        while begin > 0:
            depth += (words[begin] == ")") - (words[begin] == "(")
            if not depth:
                break
            begin -= 1
        begin -= tokens[begin - 1].is_name and words[begin - 1] not in ("FROM", "JOIN")
    elif tokens[begin].is_name:
        begin -= 2 * (words[begin - 1] == ".")
    before = words[begin - 1] if begin > 0 else ""
    is_table = before == "FROM" or (before == "JOIN" and words[begin - 2] != "ARRAY")
    is_table = is_table or (before == "," and is_between_tables(words, begin - 1))
    return begin if is_table else None
