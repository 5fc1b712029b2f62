"""The session's current database, written into a statement.

What ClickHouse's initiator does for ON CLUSTER (ddl-queue, initiator, item 11): every table without a
database gets the current one, and `currentDatabase()` becomes its value. Left alone are the arguments of
engines (`Distributed(c, '', t)` means each shard's default database) and dictionary sources, whose missing
database is the dictionary's own on the executing server, and that was filled in. `x IN (t)` is left alone:
unlike ClickHouse, which makes a table of it, this reads a list of one column.
"""

from __future__ import annotations

import re

from engine.names import quote_identifier, quote_string
from engine.sql.cursor import NameRef
from engine.sql.draft import Draft
from engine.sql.edit import Edit, apply_edits
from engine.sql.kinds import StatementKind
from engine.sql.parse import draft_of
from engine.sql.sources import read_tables
from engine.sql.tokens import TokenKind

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_CURRENT_DATABASE = frozenset({"CURRENTDATABASE", "CURRENT_DATABASE", "DATABASE", "SCHEMA"})
_NAMES_BEHIND = frozenset({"TABLE", "DATABASE", "VIEW", "DICTIONARY", "FUNCTION", "INTO", ".", "EXISTS"})
_KEYWORDS = """
    ALL AND ANTI ANY ARRAY AS ASOF BETWEEN CASE CAST CROSS CUBE DATABASE DISTINCT ELSE END EXISTS FINAL FORMAT
    FROM FULL FUNCTION GLOBAL GROUP HAVING IF ILIKE IN INNER INTERVAL INTO IS JOIN KEY LEFT LIKE LIMIT NOT
    NULL OFFSET ON OR ORDER PREWHERE RIGHT ROLLUP SAMPLE SELECT SEMI SET SETTINGS TABLE TEMPORARY THEN TO
    UNION USING VIEW WHEN WHERE WINDOW WITH
"""
_QUOTED_ANYWAY = frozenset(_KEYWORDS.split())


def with_default_database(sql: str, database: str) -> str:
    """`sql` with `database` in every place where a table has none, and for `currentDatabase()`.

    That is: the tables acted on, each name of RENAME and EXCHANGE, what a materialized view writes TO,
    `AS other_table`, the other table of REPLACE, ATTACH and MOVE PARTITION, tables on which rights are
    granted, and what views and subqueries read.
    """
    d = draft_of(sql)
    prefix = _identifier(database) + "."
    edits = [
        Edit(ref.start, ref.end, prefix + quote_identifier(ref.name.table))
        if sql[ref.start] == "'"
        else Edit(ref.start, ref.start, prefix)
        for ref in _empty_databases(d)
    ]
    return apply_edits(sql, edits + _current_database(d, database))


def with_current_database(sql: str, database: str) -> str:
    """`sql` with `currentDatabase()` replaced only: for clusters whose addresses have default databases.

    Each executing host fills in its own `default_database` then.
    """
    return apply_edits(sql, _current_database(draft_of(sql), database))


def mentions_empty_database(sql: str) -> bool:
    """Whether `with_default_database` would change anything: a table without a database, or
    `currentDatabase()`."""
    d = draft_of(sql)
    return bool(_empty_databases(d) or _current_database(d, ""))


def _empty_databases(d: Draft) -> list[NameRef]:
    refs = [] if d.temporary else list(d.refs)
    if d.body is not None and d.kind not in (StatementKind.SHOW, StatementKind.CREATE_FUNCTION):
        refs += read_tables(d, d.body)
    unique = {ref.start: ref for ref in refs if not ref.name.database and d.sql[ref.start] != "{"}
    return list(unique.values())


def _current_database(d: Draft, database: str) -> list[Edit]:
    words = d.words
    return [
        Edit(d.tokens[at].start, d.tokens[at + 2].end, quote_string(database))
        for at in range(len(words) - 2)
        if words[at] in _CURRENT_DATABASE
        and d.tokens[at].kind is TokenKind.WORD
        and words[at + 1] == "("
        and words[at + 2] == ")"
        and (at == 0 or words[at - 1] not in _NAMES_BEHIND)
    ]


def _identifier(name: str) -> str:
    return name if _PLAIN.match(name) and name.upper() not in _QUOTED_ANYWAY else quote_identifier(name)
