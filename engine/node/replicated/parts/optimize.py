"""OPTIMIZE TABLE of replicated tables.

    OPTIMIZE TABLE t [PARTITION p] [FINAL] [DEDUPLICATE [BY columns]] [CLEANUP]
    OPTIMIZE TABLE t DRY RUN PARTS …                                               see `dry_run`

Source: ClickHouse's InterpreterOptimizeQuery.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.replicated.parts.dry_run import dry_run, is_dry_run
from engine.node.replicated.running.runtime import ReplicatedTables
from engine.node.replicated.running.statements import done
from engine.node.replicated.running.waiting import sync_of, wait_for_inactive_s
from engine.node.statements.asked_settings import flag, settings_of
from engine.node.statements.statement import Answer, Asked
from engine.replication.columns import DefaultKind
from engine.replication.commands.optimize import Extent, OptimizeOptions, optimize
from engine.sql import Statement, StatementKind, TokenKind, literal_value
from engine.sql.cursor import Cursor
from engine.sql.output import without_output_clauses
from engine.sql.parse import draft_of

_NO_PARTITION = "'no-such-partition'"
"""An OPTIMIZE of it is checked like any other and merges nothing."""
_SHOWN = (None, DefaultKind.DEFAULT)
_BEHIND_PARTITION = frozenset({"FINAL", "FORCE", "DEDUPLICATE", "CLEANUP"})


@dataclass(frozen=True, slots=True)
class OptimizeText:
    """`partition` is an expression as written; `columns` is what stands behind BY, as written."""

    partition: str | None
    is_final: bool
    deduplicate: bool
    columns: str
    cleanup: bool


class OptimizeStatements:
    """Implements ReplicatedStatements."""

    def __init__(self, tables: ReplicatedTables) -> None:
        self._tables = tables

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind is not StatementKind.OPTIMIZE or not statement.tables:
            return None
        table = self._tables.find_for(asked, statement.tables[0])
        if table is None:
            return None
        if is_dry_run(asked.sql):
            await dry_run(table, asked)
            return done(asked)
        ctx = table.ctx
        text = parse_optimize(asked.sql)
        partition_id = None
        if text.partition is not None:
            ids = await ctx.store.partition_ids(text.partition)
            if len(ids) != 1:
                raise SqlError(
                    Code.NOT_IMPLEMENTED,
                    f"Only one partition can be optimized at a time, not {text.partition}",
                )
            partition_id = ids[0]
        columns: tuple[str, ...] = ()
        if text.columns:
            definition = await ctx.store.definition()
            shown = [column.name for column in definition.columns.columns if column.default_kind in _SHOWN]
            columns = deduplicate_columns(
                text.columns, names=[column.name for column in definition.columns.columns], shown=shown
            )
        if text.deduplicate:
            await _check_deduplication(asked, ctx.name, text.columns)
        await optimize(
            ctx,
            OptimizeOptions(
                partition_id=partition_id,
                extent=Extent.FINAL if text.is_final else Extent.BEST,
                deduplicate=text.deduplicate,
                deduplicate_by_columns=columns,
                cleanup=text.cleanup,
                skip_merged=flag(settings_of(asked), "optimize_skip_merged_partitions", False),
                throw_if_noop=flag(settings_of(asked), "optimize_throw_if_noop", False),
                sync=sync_of(asked),
                inactive_timeout_s=wait_for_inactive_s(asked),
                fence=asked.fence.step("first merges", of=2) or (),
            ),
        )
        return done(asked)


def parse_optimize(sql: str) -> OptimizeText:
    """Raises SqlError 62."""
    d = draft_of(without_output_clauses(sql))
    d.at = next((i for i, token in enumerate(d.tokens) if token.start >= d.refs[0].end), len(d.tokens))
    partition: str | None = None
    if d.accept("PARTITION"):
        start = d.at
        while not d.at_end and d.word not in _BEHIND_PARTITION:
            if not d.skip_brackets():
                d.at += 1
        partition = d.sql[d.tokens[start].start : d.last_end] if d.at > start else ""
    is_final = d.accept("FINAL") or d.accept("FORCE")
    deduplicate = d.accept("DEDUPLICATE")
    columns = ""
    if deduplicate and d.accept("BY"):
        start = d.at
        while not d.at_end and d.word != "CLEANUP":
            if not d.skip_brackets():
                d.at += 1
        columns = d.sql[d.tokens[start].start : d.last_end] if d.at > start else ""
        if not columns:
            raise SqlError(Code.SYNTAX_ERROR, "Syntax error: columns are expected behind DEDUPLICATE BY")
    cleanup = d.accept("CLEANUP")
    if not d.at_end or partition == "":
        raise SqlError(
            Code.SYNTAX_ERROR,
            f"Syntax error: failed at position {d.token.start + 1} ({d.token.text or 'end of query'}). "
            "Expected one of: PARTITION, FINAL, DEDUPLICATE, CLEANUP, end of query",
        )
    return OptimizeText(partition, is_final, deduplicate, columns, cleanup)


async def _check_deduplication(asked: Asked, table: TableName, columns: str) -> None:
    """Raises what chDB says against deduplicating, by these columns if any are given. A merge that it refuses
    must not come into the log: no replica could ever execute it."""
    by = f"BY {columns} " if columns else ""
    await asked.session.clone().query(
        f"OPTIMIZE TABLE {table.quoted} PARTITION ID {_NO_PARTITION} DEDUPLICATE {by}"
        "SETTINGS optimize_throw_if_noop = 0",
        multi=False,
    )


def deduplicate_columns(text: str, *, names: Sequence[str], shown: Sequence[str]) -> tuple[str, ...]:
    """What `DEDUPLICATE BY` names of a table's columns: names, `*`, `COLUMNS('regexp')`, `EXCEPT`.

    `shown` are those that `*` and `COLUMNS` mean. Raises SqlError 62, and 16 for a column that there is not.
    """
    c = Cursor(text)
    chosen: dict[str, None] = {}
    while True:
        if c.accept("*"):
            found = list(shown)
        elif c.looking_at("COLUMNS", "(") and c.tokens[c.at + 2].kind is TokenKind.STRING:
            pattern = literal_value(c.tokens[c.at + 2])
            c.at += 1
            c.skip_brackets()
            try:
                found = [name for name in shown if re.search(pattern, name)]
            except re.error as error:
                raise SqlError(Code.BAD_ARGUMENTS, f"COLUMNS('{pattern}'): {error}") from None
        else:
            name = c.identifier()
            if name is None:
                raise _bad_columns(text)
            found = [name]
        if c.accept("EXCEPT"):
            left_out = _except(c, text)
            found = [name for name in found if name not in left_out]
        for name in found:
            if name not in names:
                raise SqlError(
                    Code.NO_SUCH_COLUMN_IN_TABLE, f"There is no column {name} to deduplicate by in the table"
                )
        chosen |= dict.fromkeys(found)
        if not c.accept(","):
            break
    if not c.at_end:
        raise _bad_columns(text)
    return tuple(chosen)


def _except(c: Cursor, text: str) -> frozenset[str]:
    in_brackets = c.accept("(")
    names = set()
    while (name := c.identifier()) is not None:
        names.add(name)
        if not (in_brackets and c.accept(",")):
            break
    if in_brackets and not c.accept(")"):
        raise _bad_columns(text)
    return frozenset(names)


def _bad_columns(text: str) -> SqlError:
    return SqlError(Code.SYNTAX_ERROR, f"Syntax error: DEDUPLICATE BY {text} is no list of columns")
