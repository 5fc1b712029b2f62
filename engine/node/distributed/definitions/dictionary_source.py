"""What a dictionary reads of this node: SOURCE(CLICKHOUSE(…)), which chDB asks by itself."""

from __future__ import annotations

from collections.abc import Sequence

from engine.names import TableName
from engine.sql import StatementKind, TokenKind, literal_value
from engine.sql.cursor import Cursor

DICTIONARIES = frozenset({StatementKind.CREATE_DICTIONARY, StatementKind.ATTACH_DICTIONARY})
HINT = "Give it SOURCE(HTTP(url 'http://<this node>/?query=SELECT%20…%20FORMAT%20Native' format 'Native'))."
_SAYS = frozenset({"TABLE", "DB", "HOST", "QUERY", "INVALIDATE_QUERY"})
_HERE = ("localhost", "127.0.0.1")


def reads_of_dictionary(sql: str, current_database: str) -> tuple[str, Sequence[str]]:
    """The database where it reads, and the SELECTs; none of another server's."""
    cursor = Cursor(sql)
    said: dict[str, str] = {}
    for at, word in enumerate(cursor.words[:-1]):
        value = cursor.tokens[at + 1]
        if word in _SAYS and value.kind in (TokenKind.STRING, TokenKind.HEREDOC):
            said[word] = literal_value(value)
    database = said.get("DB") or current_database
    if said.get("HOST", _HERE[0]) not in _HERE:
        return database, []
    table = said.get("TABLE")
    named = f"SELECT * FROM {TableName(database, table).quoted}" if table else ""
    return database, [text for text in (named, said.get("QUERY"), said.get("INVALIDATE_QUERY")) if text]
