"""`ATTACH TABLE … AS REPLICATED` and `AS NOT REPLICATED`.

The first is `Converter.attach`, the second `Unconverter.attach`, which have the arguments. SYSTEM RESTORE
REPLICA makes the replica in Keeper for the first; the second leaves it to SYSTEM DROP REPLICA.

Source: ClickHouse's InterpreterCreateQuery::convertMergeTreeTableIfPossible.
"""

from __future__ import annotations

from engine.node.replicated.definitions.convert import Converter
from engine.node.replicated.definitions.unconvert import Unconverter
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.node.replicated.running.statements import done
from engine.node.statements.statement import Answer, Asked
from engine.sql import Statement, StatementKind, tokenize


class AttachAsStatements:
    """Implements `ReplicatedStatements`."""

    def __init__(self, life: TableLifecycle, converter: Converter, unconverter: Unconverter) -> None:
        self._life = life
        self._converter = converter
        self._unconverter = unconverter

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind is not StatementKind.ATTACH_TABLE or statement.engine is not None:
            return None
        words = [
            token.text.upper() for token in tokenize(asked.sql) if token.is_significant and token.text != ";"
        ]
        if words[-2:] == ["AS", "REPLICATED"]:
            attach = self._converter.attach
        elif words[-3:] == ["AS", "NOT", "REPLICATED"]:
            attach = self._unconverter.attach
        else:
            return None
        table = statement.tables[0]
        name = table.within(asked.current_database)
        async with self._life.names.hold([name]):
            await attach(name)
        return done(asked)
