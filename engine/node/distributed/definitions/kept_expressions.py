"""Constraints, projections and TTL of a CREATE TABLE that would read Distributed tables.

chDB keeps the text and runs it by itself with every INSERT and merge. It cannot read such a table, and
the addresses of shards must not be kept in a definition either, so these are refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from engine.errors import Code, SqlError
from engine.sql.cursor import Cursor

CONSTRAINT = "A constraint"
PROJECTION = "A projection"
TTL = "TTL"
_BEHIND_TTL = ("SETTINGS", "COMMENT", "AS", "EMPTY", "CLONE")


def kept_expression_refused(what: str) -> SqlError:
    hint = "Make a view of the subquery, and read that where it is needed."
    if what == TTL:
        hint = "Delete rows with ALTER TABLE … DELETE, whose condition may read them."
    return SqlError(
        Code.NOT_IMPLEMENTED,
        f"{what} cannot read Distributed tables: chDB runs it by itself, and they are not chDB's.",
        hint=hint,
    )


async def check_kept(
    sql: str, database: str, reads_distributed: Callable[[str, str], Awaitable[bool]]
) -> None:
    """Raises SqlError 48 for a CREATE TABLE of which a constraint, projection or TTL reads Distributed
    tables, however indirectly."""
    kept = [*_of_columns(sql), (TTL, _ttl(sql))]
    for what, expression in kept:
        if await reads_distributed(f"SELECT ({expression})", database):
            raise kept_expression_refused(what)


def _ttl(sql: str) -> str:
    """What stands behind TTL of the table in a CREATE TABLE; a column's has no subquery (36)."""
    cursor = Cursor(sql)
    if not (cursor.skip_to("ENGINE") and cursor.skip_to("TTL")):
        return ""
    begin = cursor.token.end
    cursor.skip_to(*_BEHIND_TTL)
    return sql[begin : cursor.last_end]


def _of_columns(sql: str) -> list[tuple[str, str]]:
    """What stands behind CHECK, ASSUME and PROJECTION in the columns of a CREATE TABLE."""
    cursor, item = Cursor(sql), Cursor(sql)
    cursor.skip_to("(")  # the columns: a name, UUID or cluster before them has no brackets of this kind
    found: list[tuple[str, str]] = []
    while cursor.word in ("(", ","):
        cursor.at += 1
        item.at = cursor.at
        cursor.skip_to(",", ")")
        if item.accept("CONSTRAINT"):
            what = CONSTRAINT if item.identifier() and item.accept_one_of("CHECK", "ASSUME") else ""
        else:
            what = PROJECTION if item.accept("PROJECTION") and item.identifier() else ""
        if what:
            found.append((what, sql[item.token.start : cursor.last_end]))
    return found
