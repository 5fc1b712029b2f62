"""CHECK TABLE of a replicated table: every part is read and compared with its checksums.

A part that is found broken is handed to the replica's own part check, which fetches it again.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.names import quote_string
from engine.node.replicated.running.runtime import ReplicatedTables
from engine.node.statements.asked_settings import flag, settings_of
from engine.node.statements.statement import Answer, Asked, WholeAnswer
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.sql import Statement, StatementKind, TokenKind, literal_value
from engine.sql.cursor import Cursor
from engine.storage import Scope

_NO_ROW = "('', 1, '')"


class CheckStatements:
    """Implements `ReplicatedStatements` for CHECK TABLE t [PARTITION p | PART 'name']."""

    def __init__(self, tables: ReplicatedTables) -> None:
        self._tables = tables

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind is not StatementKind.CHECK_TABLE or not statement.tables:
            return None
        table = self._tables.find_for(asked, statement.tables[0])
        if table is None:
            return None
        rows: list[tuple[PartName, str]] = []
        for part in await self._chosen(asked, statement, sorted(table.store.active)):
            try:
                await table.store.verify(part)
            except PartDiffers as error:
                if part not in table.store.active:  # merged or dropped since it was listed
                    continue
                rows.append((part, str(error)))
                table.ctx.check_later(part)
            else:
                rows.append((part, ""))
        format = statement.format or asked.format
        if flag(settings_of(asked), "check_query_single_value_result", False):
            sql = f"SELECT toUInt8({int(not any(message for _, message in rows))}) AS result"
        else:
            values = ", ".join(
                f"({quote_string(str(part))}, {int(not message)}, {quote_string(message)})"
                for part, message in rows
            )
            structure = "'part_path String, is_passed UInt8, message String'"
            limit = "" if rows else " LIMIT 0"
            sql = f"SELECT * FROM values({structure}, {values or _NO_ROW}){limit}"
        found = await asked.session.clone().query(sql, format=format, scope=Scope(settings=asked.settings))
        return WholeAnswer(found, format=format)

    async def _chosen(self, asked: Asked, statement: Statement, parts: list[PartName]) -> list[PartName]:
        table = self._tables.find_for(asked, statement.tables[0])
        assert table is not None
        cursor = Cursor(asked.sql)
        if not cursor.skip_to("PARTITION", "PART"):
            return parts
        is_part = cursor.word == "PART"
        cursor.at += 1
        if is_part:
            name = literal_value(cursor.token) if cursor.token.kind is TokenKind.STRING else ""
            chosen = [part for part in parts if str(part) == name]
            if not chosen:
                raise SqlError(Code.NO_SUCH_DATA_PART, f"No part {name} in table {table.name}")
            return chosen
        begins = cursor.at
        cursor.skip_to("SETTINGS", "FORMAT")
        expression = asked.sql[cursor.tokens[begins].start : cursor.last_end]
        ids = await table.store.partition_ids(expression)
        return [part for part in parts if part.partition_id in ids]
