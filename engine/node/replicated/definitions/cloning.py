"""CREATE TABLE … CLONE AS other [ENGINE = …]: CREATE TABLE … AS, and the other table's parts."""

from __future__ import annotations

from dataclasses import dataclass

from engine.names import TableName
from engine.sql.cursor import Cursor, Role
from engine.sql.edit import Edit, apply_edits
from engine.sql.parse import draft_of


@dataclass(frozen=True, slots=True)
class Clone:
    """`create` is the statement without its CLONE; `source` is named as the statement does it."""

    create: str
    source: TableName


def clone_in(sql: str) -> Clone | None:
    """None for any other CREATE TABLE."""
    d = draft_of(sql)
    if not d.refs:
        return None
    cursor = Cursor(sql)
    cursor.at = cursor.at_offset(max(d.refs[0].end, d.cluster_span[1] if d.cluster_span else 0))
    if cursor.word == "UUID":
        cursor.at += 2
    token = cursor.token
    if not cursor.accept("CLONE", "AS"):
        return None
    source = cursor.table(Role.SOURCE)
    if source is None:
        return None
    end = cursor.tokens[cursor.at_offset(token.end)].start
    return Clone(apply_edits(sql, [Edit(token.start, end, "")]), source.name)
