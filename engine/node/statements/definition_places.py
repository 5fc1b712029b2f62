"""Places in the text of a CREATE where columns are written, and what columns a SELECT or a function has."""

from __future__ import annotations

import json
from collections.abc import Sequence

from engine.node.replicated.definitions.definition_sql import comment_at
from engine.node.statements.statement import Asked
from engine.sql.draft import Draft


def behind_name(d: Draft) -> int:
    """The token behind the name that is created, and its UUID: the columns' place. `d` has references."""
    at = d.at_offset(d.refs[0].end)
    return at + 2 if d.words[at : at + 1] == ["UUID"] else at


def select_of(d: Draft) -> str:
    """The SELECT of a CREATE that has one; empty without."""
    return "" if d.body is None else d.sql[d.tokens[d.body].start : comment_at(d)]


async def described(asked: Asked, source: str) -> Sequence[Sequence[str]]:
    """Name, type, kind of default, default and comment of each column, and more. Raises SqlError."""
    found = await asked.session.clone().query(
        f"DESCRIBE TABLE {source}", format="JSONCompactEachRow", params=asked.params, scope=asked.scope
    )
    return [json.loads(line) for line in found.data.decode("utf-8", "surrogateescape").splitlines()]
