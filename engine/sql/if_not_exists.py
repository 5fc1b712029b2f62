"""`IF NOT EXISTS` that the setting `create_if_not_exists` puts into a CREATE."""

from __future__ import annotations

from engine.sql.edit import Edit, apply_edits
from engine.sql.kinds import StatementKind as K
from engine.sql.parse import draft_of

CREATES = frozenset({K.CREATE_TABLE, K.CREATE_VIEW, K.CREATE_MATERIALIZED_VIEW, K.CREATE_DICTIONARY})


def with_if_not_exists(sql: str) -> str:
    """A CREATE of a table, view or dictionary with it; what replaces, and any other statement, as it is."""
    d = draft_of(sql)
    is_plain = d.kind in CREATES and d.words[0] == "CREATE" and not d.or_replace and not d.if_not_exists
    if not is_plain or not d.refs:
        return sql
    at = d.refs[0].start
    return apply_edits(sql, [Edit(at, at, "IF NOT EXISTS ")])
