"""Constraints of a CREATE TABLE that would read Distributed tables.

chDB keeps the text of a constraint and runs it by itself with every INSERT. It cannot read such a table, and
the addresses of shards must not be kept in a definition either, so these are refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from engine.errors import Code, SqlError
from engine.sql.cursor import Cursor


def kept_expression_refused(what: str) -> SqlError:
    return SqlError(
        Code.NOT_IMPLEMENTED,
        f"{what} cannot read Distributed tables: chDB runs it by itself, and they are not chDB's.",
        hint="Make a view of the subquery, and read that where it is needed.",
    )


async def check_constraints(
    sql: str, database: str, reads_distributed: Callable[[str, str], Awaitable[bool]]
) -> None:
    """Raises SqlError 48 for a CREATE TABLE of which a constraint reads Distributed tables, however
    indirectly."""
    for expression in constraint_expressions(sql):
        if await reads_distributed(f"SELECT ({expression})", database):
            raise kept_expression_refused("A constraint")


def constraint_expressions(sql: str) -> list[str]:
    """What stands behind CHECK and ASSUME in the columns of a CREATE TABLE."""
    cursor, item = Cursor(sql), Cursor(sql)
    cursor.skip_to("(")  # the columns: a name, UUID or cluster before them has no brackets of this kind
    found: list[str] = []
    while cursor.word in ("(", ","):
        cursor.at += 1
        item.at = cursor.at
        cursor.skip_to(",", ")")
        if item.accept("CONSTRAINT") and item.identifier() and item.accept_one_of("CHECK", "ASSUME"):
            found.append(sql[item.token.start : cursor.last_end])
    return found
