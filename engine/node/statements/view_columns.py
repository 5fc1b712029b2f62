"""The columns of a view, written into its CREATE as ClickHouse writes them when it makes the view.

In a Replicated database that is done on the initiator, as in ClickHouse: so the view is the same on all
replicas, and can be made where what it reads is not there. A replica that could not make it would come to no
later entry. Elsewhere it is done for SELECTs of which chDB does not find out the columns by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from engine.names import quote_identifier
from engine.node.replicated.definitions.definition_sql import comment_at
from engine.node.statements.definition_places import behind_name, described
from engine.node.statements.statement import Asked
from engine.sql import StatementKind
from engine.sql.cursor import Role
from engine.sql.draft import Draft
from engine.sql.edit import Edit, apply_edits
from engine.sql.parse import draft_of

Describable = Callable[[str, str], Awaitable[str]]
"""A SELECT, in a database, as chDB can describe it."""


async def with_columns(asked: Asked, sql: str, describable: Describable) -> str:
    """`sql` unchanged if it makes no view, names its columns itself, or has parameters, which have no columns
    yet. Raises SqlError for a SELECT that cannot be."""
    d = draft_of(sql)
    if d.kind is not StatementKind.CREATE_VIEW or not d.refs:
        return sql
    return await _with_columns_at(asked, d, behind_name(d), describable)


async def with_columns_for_others(asked: Asked, sql: str, describable: Describable) -> str:
    """The same for a materialized view in the log, with its UUIDs. The initiator makes it without: chDB looks
    more closely at columns that a statement names."""
    d = draft_of(sql)
    if d.kind is not StatementKind.CREATE_MATERIALIZED_VIEW or not d.refs:
        return sql
    target = next((ref for ref in d.refs if ref.role is Role.TARGET), None)
    if target is not None:
        return await _with_columns_at(asked, d, d.at_offset(target.end), describable)
    inner = next((i for i in range(len(d.words)) if d.words[i : i + 3] == ["TO", "INNER", "UUID"]), None)
    return sql if inner is None else await _with_columns_at(asked, d, inner + 4, describable)


async def _with_columns_at(asked: Asked, d: Draft, at: int, describable: Describable) -> str:
    """`at` is the token before which the columns belong."""
    sql = d.sql
    if d.body is None or d.words[at : at + 1] == ["("]:
        return sql
    if d.words[d.body - 1 : d.body] != ["AS"] or "{" in d.words[d.body :]:
        return sql
    select = sql[d.tokens[d.body].start : comment_at(d)].rstrip("; \t\r\n")
    rows = await described(asked, f"({await describable(select, asked.current_database)}\n)")
    columns = ", ".join(f"{quote_identifier(row[0])} {row[1]}" for row in rows)
    behind = d.tokens[at - 1].end
    return apply_edits(sql, [Edit(behind, behind, f" ({columns})")])
