"""`t.column` of a table that is read as `t AS x`: ClickHouse allows both names, a subquery has one only.

The text becomes `x.column` where nothing else can be meant: in the table's own SELECT, if nothing else there
is called like it, and in all others, if nothing else in the text is. Else `t` would be a table of a SELECT
around it. So does the `t` of `SELECT * FROM t AS a JOIN t`, which is called `db.t` there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from engine.distributed.select.clauses import select_of
from engine.names import TableName
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit
from engine.sql.tokens import literal_value


def own_name_edits(
    cursor: Cursor,
    name: TableName,
    *,
    first: int,
    tables: Collection[int],
    alias: str,
    columns: Sequence[str],
) -> list[Edit]:
    """For the table `name` at token `first`, with what the text calls it, as it is written there. `tables`
    are the tokens that are no columns, `columns` are those of all tables."""
    if name.table in columns:
        return []
    tokens, words = cursor.tokens, cursor.words
    own: list[Edit] = []
    others: list[Edit] = []
    is_only_one = True
    for at, token in enumerate(tokens):
        if at in tables or not token.is_name or literal_value(token) != name.table:
            continue
        is_own = select_of(cursor, at) == select_of(cursor, first)
        if words[at + 1 : at + 2] == ["."] and _is_table(cursor, at, name):
            (own if is_own else others).append(Edit(token.start, token.end, alias))
        elif is_own:
            return []
        else:
            is_only_one = False
    return own + others if is_only_one else own


def _is_table(cursor: Cursor, at: int, name: TableName) -> bool:
    """Whether the token is the table's name, alone or behind that of its database."""
    tokens, words = cursor.tokens, cursor.words
    if at == 0 or words[at - 1] != ".":
        return True
    is_whole = at >= 2 and tokens[at - 2].is_name and literal_value(tokens[at - 2]) == name.database
    return is_whole and (at == 2 or words[at - 3] != ".")


def database_edits(
    cursor: Cursor, names: Collection[TableName], taken: Collection[tuple[int, int]]
) -> list[Edit]:
    """`db.t.column` loses `db.`: a subquery has no database."""
    tokens, words = cursor.tokens, cursor.words
    whole = {(name.database, name.table) for name in names}
    edits = []
    for at in range(len(tokens) - 3):
        if words[at + 1] != "." or words[at + 3] != "." or (at and words[at - 1] == "."):
            continue
        if not tokens[at].is_name or not tokens[at + 2].is_name:
            continue
        if (literal_value(tokens[at]), literal_value(tokens[at + 2])) not in whole:
            continue
        if not any(start <= tokens[at].start < end for start, end in taken):
            edits.append(Edit(tokens[at].start, tokens[at + 2].start, ""))
    return edits
