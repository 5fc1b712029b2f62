"""Functions that say something of a server: over a Distributed table each shard answers for itself.

`hostName()` in a SELECT that reads such a table becomes a hidden column of the table, whose value is the
function where the rows are; so it can stand in conditions and keys of groups as it does in ClickHouse. In a
SELECT around that one, or without such a table, it is this server's own.

Source: FunctionServerConstantBase in ClickHouse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.distributed.select.clauses import select_of
from engine.distributed.select.model import SHARD_PLACE, SHARDS_PLACE, SourceColumn
from engine.names import quote_identifier
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit
from engine.sql.tokens import TokenKind

_TYPES = {
    "hostName": "String",
    "hostname": "String",
    "fullHostName": "String",
    "displayName": "String",
    "serverUUID": "UUID",
    "tcpPort": "UInt16",
    "uptime": "UInt32",
    "buildId": "String",
    "getOSKernelVersion": "String",
    "serverTimezone": "String",
    "serverTimeZone": "String",
    "zookeeperSessionUptime": "UInt32",
    "shardNum": "UInt32",
    "shardCount": "UInt32",
}
_TYPES_IN_ANY_CASE = {"fqdn": "String", "version": "String", "revision": "UInt32"}
_VALUES = {"shardNum": SHARD_PLACE, "shardCount": SHARDS_PLACE}


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is answered where the rows of `table` are; `table` is its first token."""

    table: int
    column: SourceColumn
    edit: Edit


def server_calls(cursor: Cursor, tables: Mapping[int, frozenset[str]]) -> Iterator[Call]:
    """The calls in SELECTs that read any of `tables`, Distributed ones by their first tokens, with the names
    of their columns. Of several tables in one SELECT the first answers."""
    first_of: dict[int, int] = {}
    for at, token in enumerate(cursor.tokens):
        type_ = _TYPES.get(token.text) or _TYPES_IN_ANY_CASE.get(token.text.lower())
        if type_ is None or token.kind is not TokenKind.WORD:
            continue
        is_call = cursor.words[at + 1 : at + 3] == ["(", ")"]
        if not is_call or cursor.words[at - 1 : at] == ["."]:
            continue
        if not first_of:
            for table in sorted(tables, reverse=True):
                first_of[select_of(cursor, table)] = table
        name = f"{token.text}()"
        table = first_of.get(select_of(cursor, at), -1)
        if table < 0 or name in tables[table]:
            continue
        column = SourceColumn(name, type_, True, _VALUES.get(token.text, name))
        yield Call(table, column, Edit(token.start, cursor.tokens[at + 2].end, quote_identifier(name)))
