"""What chDB does not drop or rename while a mutation of the table still needs it.

An ALTER is committed for all replicas before chDB looks at the table's mutations, and could not be taken back
then. An empty table, on which it is planned, has none. So they are looked at before the commit.

Source: ClickHouse's MergeTreeData, checkDropOrRenameCommandDoesntAffectInProgressMutations.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.node.replicated.parts.partition_sql import AlterPiece, alter_pieces
from engine.node.replicated.running.local_tables import LocalTables
from engine.sql import AlterCommand, StatementKind, parse_statement
from engine.sql.cursor import Cursor

_A = AlterCommand
_TAKES = {
    _A.DROP_COLUMN: "drop column",
    _A.CLEAR_COLUMN: "drop column",
    _A.RENAME_COLUMN: "rename column",
    _A.DROP_INDEX: "drop index",
    _A.CLEAR_INDEX: "drop index",
    _A.DROP_PROJECTION: "drop projection",
    _A.CLEAR_PROJECTION: "drop projection",
}


async def check_unfinished(local: LocalTables, table: TableName, sql: str) -> None:
    """Of an ALTER, or DROP INDEX. Raises SqlError 36."""
    pieces: Sequence[AlterPiece] = alter_pieces(sql)
    if parse_statement(sql).kind is StatementKind.DROP_INDEX:
        pieces = [AlterPiece(_A.DROP_INDEX, sql)]
    taken = {_name(piece): _TAKES[piece.command] for piece in pieces if piece.command in _TAKES}
    if not taken:
        return
    rows = await local.rows(
        "SELECT mutation_id, command FROM system.mutations WHERE NOT is_done AND NOT is_killed "
        f"AND database = {quote_string(table.database)} AND table = {quote_string(table.table)}"
    )
    for mutation, command in rows:
        for name in sorted(taken.keys() & _names_in(command)):
            raise SqlError(
                Code.BAD_ARGUMENTS,
                f"Cannot {taken[name]} {name} because it's affected by mutation with ID '{mutation}' which "
                "is not finished yet. Wait this mutation, or KILL it with command "
                f"\"KILL MUTATION WHERE mutation_id = '{mutation}'\"",
            )


def _name(piece: AlterPiece) -> str:
    c = Cursor(piece.text)
    c.at = 2
    c.accept("IF", "EXISTS")
    return _compound(c)


def _names_in(command: str) -> set[str]:
    """Also of a Nested column, where a column of it is named."""
    c = Cursor(command)
    names = set()
    while not c.at_end:
        if name := _compound(c):
            names |= {name, name.partition(".")[0]}
        else:
            c.at += 1
    return names


def _compound(c: Cursor) -> str:
    parts = []
    while (part := c.identifier()) is not None:
        parts.append(part)
        if not c.accept("."):
            break
    return ".".join(parts)
