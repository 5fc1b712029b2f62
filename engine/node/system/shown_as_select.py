"""SHOW statements, and `information_schema`, as the SELECTs from `system` that ClickHouse makes of them.

What they read is the node's own then, or shown otherwise than chDB has it: engines of tables, above all.

Source: ClickHouse's InterpreterShowTablesQuery, attachInformationSchemaTables.
"""

from __future__ import annotations

import re

from engine.names import quote_identifier, quote_string
from engine.sql import Token, TokenKind, tokenize
from engine.sql.cursor import Cursor
from engine.sql.tokens import literal_value, name_of

_SCHEMA = re.compile(r"\binformation_schema\b", re.IGNORECASE)


def show_as_select(sql: str, *, database: str = "") -> str:
    """SHOW CLUSTERS, CLUSTER 'name', PROCESSLIST, QUOTA, and SHOW [FULL] TABLES where engines are shown or
    asked for, or of `system`; any other text unchanged. `database` is the current one."""
    tokens = [token for token in tokenize(sql) if token.is_significant]
    words = [token.text.upper() for token in tokens]
    if words[1:2] == ["CLUSTER"] and len(tokens) > 2:
        rest = sql[tokens[2].end :]
        return (
            f"SELECT * FROM system.clusters WHERE cluster = {_as_literal(tokens[2])} "
            f"ORDER BY cluster, shard_num, replica_num, host_name, host_address, port{rest}"
        )
    if words[1:2] == ["PROCESSLIST"]:
        return f"SELECT * FROM system.processes ORDER BY elapsed DESC{sql[tokens[1].end :]}"
    if words[1:2] == ["QUOTA"] or words[1:3] == ["CURRENT", "QUOTA"]:
        return f"SELECT * FROM system.quota_usage{sql[tokens[words.index('QUOTA')].end :]}"
    if words[1:2] == ["CLUSTERS"]:
        is_filtered = "LIKE" in words[2:5] or "ILIKE" in words[2:5]
        end = (
            tokens[words.index("LIKE" if "LIKE" in words else "ILIKE") + 1].end
            if is_filtered
            else tokens[1].end
        )
        where = f" WHERE cluster {sql[tokens[1].end : end]}" if is_filtered else ""
        return f"SELECT DISTINCT cluster FROM system.clusters{where} ORDER BY cluster{sql[end:]}"
    return _tables(sql, database)


def _tables(sql: str, database: str) -> str:
    c = Cursor(sql)
    if not c.accept("SHOW"):
        return sql
    is_full = c.accept("FULL")
    if not c.accept("TABLES"):
        return sql
    if c.accept("FROM") or c.accept("IN"):
        database = c.identifier() or ""
        if not database or database.startswith("{"):
            return sql
    if not (is_full or "ENGINE" in c.words or database == "system"):
        return sql
    begins = c.at
    c.skip_to("LIMIT", "FORMAT", "INTO", "SETTINGS")
    condition = sql[c.tokens[begins].start : c.last_end] if c.at > begins else ""
    if condition and condition.split()[0].upper() == "WHERE":
        condition = f"({condition[5:]})"
    elif condition:
        condition = f"name {condition}"
    where = f"database = {quote_string(database)}" + (f" AND {condition}" if condition else "")
    rest = "" if c.at_end else sql[c.tokens[c.at].start :]
    columns = "name, engine" if is_full else "name"
    return f"SELECT {columns} FROM system.tables WHERE {where} ORDER BY name {rest}".rstrip()


def shown_database(sql: str) -> str:
    """The database that SHOW [FULL] TABLES names; empty if none."""
    c = Cursor(sql)
    c.accept("SHOW")
    c.accept("FULL")
    is_named = c.accept("TABLES") and (c.accept("FROM") or c.accept("IN"))
    return (c.identifier() or "") if is_named else ""  # no SHOW that becomes a SELECT has a parameter there


def mentions_information_schema(sql: str) -> bool:
    return _SCHEMA.search(sql) is not None


def without_information_schema(sql: str, definition: str) -> str:
    """`information_schema.tables` behind FROM, JOIN or a comma becomes its `definition`, chDB's own, in which
    `system.tables` can be found. Where columns are named with the schema all stays as it is."""
    tokens = [token for token in tokenize(sql) if token.is_significant]
    pieces: list[str] = []
    at = 0
    for index, token in enumerate(tokens[:-2]):
        if name_of(token).lower() != "information_schema" or tokens[index + 1].text != ".":
            continue
        table = tokens[index + 2]
        behind = tokens[index + 3] if index + 3 < len(tokens) else None
        if name_of(table).lower() != "tables" or (behind is not None and behind.text == "."):
            return sql
        if index == 0 or tokens[index - 1].text.upper() not in ("FROM", "JOIN", ","):
            return sql
        alias = "" if _is_alias(behind) else f" AS {quote_identifier(name_of(table))}"
        pieces += (sql[at : token.start], f"({definition}){alias}")
        at = table.end
    return "".join([*pieces, sql[at:]])


_ENDS = frozenset(
    {
        *("WHERE", "PREWHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "FORMAT", "SETTINGS", "INTO"),
        *("UNION", "EXCEPT", "INTERSECT", "WINDOW", "QUALIFY", "ARRAY", "USING", "ON", "NATURAL", "PASTE"),
        *("JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "ANY", "ALL", "GLOBAL", "ASOF", "SEMI", "ANTI"),
    }
)
"""Words that may follow a table, none of which is its alias."""


def _is_alias(token: Token | None) -> bool:
    if token is None:
        return False
    if token.kind is TokenKind.IDENTIFIER:
        return True
    return token.kind is TokenKind.WORD and token.text.upper() not in _ENDS


def _as_literal(token: Token) -> str:
    return token.text if token.kind is TokenKind.STRING else f"'{literal_value(token)}'"
