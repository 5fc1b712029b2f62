"""ARRAY JOIN in the text of a statement, beside parts of columns: see `array_joins`."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from engine.distributed.select.clauses import select_of
from engine.sql.cursor import Cursor
from engine.sql.tokens import literal_value


def has_array_join(cursor: Cursor, table: int) -> bool:
    """Whether there is one in the SELECT that reads `table`, a token."""
    pairs = list(enumerate(itertools.pairwise(cursor.words)))
    joins = [at for at, pair in pairs if pair == ("ARRAY", "JOIN")]
    return bool(joins) and select_of(cursor, table) in {select_of(cursor, at) for at in joins}


def names_subcolumns(cursor: Cursor, called: Collection[str], columns: Collection[str]) -> bool:
    """Whether the text names parts of `columns`, those of a table that it calls so; without `columns`, which
    are not known then, whether it may."""
    for path in _paths(cursor):
        for parts in (path, path[1:]) if path[0] in called else (path,):
            whole = [".".join(parts[:size]) for size in range(1, len(parts) + 1)]
            is_whole = len(whole) < 2 or whole[-1] in columns
            if not is_whole and (not columns or not set(columns).isdisjoint(whole)):
                return True
    return False


def _paths(cursor: Cursor) -> Iterator[list[str]]:
    """Names with dots, in their parts: `a.b.c`."""
    path: list[str] = []
    for token, word, behind in zip(cursor.tokens, cursor.words, [*cursor.words[1:], ""], strict=True):
        if token.is_name:
            path += literal_value(token).split(".")
            if behind != ".":
                yield path
                path = []
        elif word != ".":
            path = []
