"""Table functions in the place of a table: `cluster('c', numbers(10))`, `remote('h', view(SELECT …))`.

Such a text is for the shards, where the names in it mean what they mean there. So it is taken out of a
statement before anybody looks for names in it, and a quoted name stands for it until the call is read.
Source: TableFunctionRemote, StorageDistributed::remote_table_function_ptr.
"""

from __future__ import annotations

from engine.names import TableName, quote_identifier
from engine.node.distributed.functions.table_functions import FUNCTION_PLACE, inner_function, outer_calls
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits


class InnerCalls:
    """Those of one statement."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        """By the names that stand for them."""

    def hidden(self, sql: str) -> str:
        """The statement with a name in the place of each. Raises SqlError 36 for an empty argument."""
        cursor = Cursor(sql)
        edits = []
        for at in outer_calls(cursor):
            tokens = inner_function(cursor, at)
            if tokens:
                start, end = tokens[0].start, tokens[-1].end
                name = FUNCTION_PLACE.format(len(self._texts))
                edits.append(Edit(start, end, quote_identifier(name)))
                self._texts[name] = sql[start:end]
        return apply_edits(sql, edits)

    def shown(self, sql: str) -> str:
        """The text as it was."""
        for name, text in self._texts.items():
            sql = sql.replace(quote_identifier(name), text)
        return sql

    def text_of(self, table: TableName) -> str:
        """The call that a name stands for; empty for a name of a table."""
        return "" if table.database else self._texts.get(table.table, "")
