"""OPTIMIZE TABLE t DRY RUN PARTS 'a', 'b' [DEDUPLICATE [BY columns]] [CLEANUP].

chDB merges these parts of this node and throws the result away: it says whether a merge of them is possible,
and how long it takes. Nothing of it comes into Keeper, and no other replica hears of it.

Source: ClickHouse's InterpreterOptimizeQuery and MergeTreeData::optimizeDryRun.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.names import quote_string
from engine.node.replicated.parts.local_parts import on_local_parts
from engine.node.replicated.running.runtime import RunningTable
from engine.node.statements.statement import Asked
from engine.sql import TokenKind, literal_value
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.output import without_output_clauses
from engine.sql.parse import draft_of
from engine.sql.tokens import Token

_DRY_RUN = ("DRY", "RUN")


def is_dry_run(sql: str) -> bool:
    """Of an OPTIMIZE."""
    c = Cursor(sql)
    while c.skip_to("DRY"):
        if c.looking_at(*_DRY_RUN):
            return True
        c.at += 1
    return False


async def dry_run(table: RunningTable, asked: Asked) -> None:
    """Raises what chDB says against the text and the merge, and SqlError 232 and 233 for the parts."""
    await asked.check_syntax()
    named = [(token, literal_value(token)) for token in _parts(asked.sql)]
    ref = draft_of(asked.sql).refs[0]

    async def run(local: Mapping[str, str]) -> object:
        edits = [Edit(ref.start, ref.end, table.ctx.name.quoted)]
        edits += [Edit(token.start, token.end, quote_string(local[name])) for token, name in named]
        return await asked.session.query(
            without_output_clauses(apply_edits(asked.sql, edits)),
            format="Null",
            params=asked.params,
            scope=asked.scope,
            multi=False,
        )

    await on_local_parts(table, [name for _, name in named], run)


def _parts(sql: str) -> list[Token]:
    c = Cursor(sql)
    while c.skip_to("DRY") and not c.accept(*_DRY_RUN, "PARTS"):
        c.at += 1
    found: list[Token] = []
    while c.token.kind is TokenKind.STRING:
        found.append(c.token)
        c.at += 1
        if not c.accept(","):
            break
    return found
