"""`ATTACH TABLE … AS REPLICATED` and `AS NOT REPLICATED`.

The first is `Converter.attach`, which has the argument; SYSTEM RESTORE REPLICA makes the replica in Keeper.
The second is refused: parts whose mutations are not done yet, which readers see through the replica's own
notes, would be left as they are.

Source: ClickHouse's InterpreterCreateQuery::convertMergeTreeTableIfPossible.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.replicated.convert import Converter
from engine.node.replicated.lifecycle import TableLifecycle
from engine.node.replicated.statements import done
from engine.node.statement import Answer, Asked
from engine.sql import Statement, StatementKind, tokenize


class AttachAsStatements:
    """Implements `ReplicatedStatements`."""

    def __init__(self, life: TableLifecycle, converter: Converter) -> None:
        self._life = life
        self._converter = converter

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind is not StatementKind.ATTACH_TABLE or statement.engine is not None:
            return None
        words = [
            token.text.upper() for token in tokenize(asked.sql) if token.is_significant and token.text != ";"
        ]
        if words[-2:] == ["AS", "REPLICATED"]:
            table = statement.tables[0]
            name = TableName(table.database or asked.current_database, table.table)
            async with self._life.names.hold([name]):
                await self._converter.attach(name)
            return done(asked)
        if words[-3:] == ["AS", "NOT", "REPLICATED"]:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                "ATTACH TABLE … AS NOT REPLICATED is not supported.",
                hint="CREATE TABLE a plain one of the same structure, INSERT INTO it SELECT * FROM this.",
            )
        return None
