"""`_part` in queries is the replicated name of a part, as in `system.parts`, DROP PART and ClickHouse itself.

chDB has names of its own for the parts of a replicated table; the replicated ones are in the UUIDs of the
parts (`part_uuid`). So a SELECT from a replicated table that names `_part` gets the name as an expression:

    SELECT _part FROM t      →  WITH <name out of _part_uuid> AS _part SELECT _part FROM t
    SELECT x._part FROM t x  →  WITH … AS _part SELECT _part FROM t x

chDB chooses parts by such a condition before it reads, as by the column. Only a SELECT that reads one table
is rewritten: not one with JOIN, none of a view's, and none that calls something else `_part`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.errors import SqlError
from engine.names import quote_identifier, quote_string
from engine.node.replicated.running.runtime import ReplicatedTables, RunningTable
from engine.node.statements.statement import Asked
from engine.sql import Statement, StatementKind
from engine.sql.cursor import Cursor
from engine.sql.sources import read_tables
from engine.sql.tokens import TokenKind, literal_value, name_of

_COLUMN = "_part"
_READING = frozenset(
    {StatementKind.SELECT, StatementKind.EXPLAIN, StatementKind.INSERT, StatementKind.CREATE_TABLE}
)
_BITS = "reinterpretAsUInt128(reverse(UUIDToNum(_part_uuid)))"
_MARK = 0x0C
_BEHIND_TABLE = frozenset(
    {
        "", ")", ";", "FINAL", "SAMPLE", "WHERE", "PREWHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET",
        "UNION", "EXCEPT", "INTERSECT", "SETTINGS", "WINDOW", "QUALIFY", "FORMAT", "INTO", "FETCH", "ARRAY",
        "LEFT",
    }
)  # fmt: skip
"""What follows a table that has no alias, and may follow one that has."""
_BEFORE_COLUMN = frozenset(
    {
        "SELECT", "DISTINCT", "BY", "WHERE", "PREWHERE", "HAVING", "QUALIFY", "AND", "OR", "NOT", "IN",
        "LIKE", "ILIKE", "BETWEEN", "FROM", "FOR", "CASE", "WHEN", "THEN", "ELSE", "ON", "DIV", "MOD",
        "REGEXP", "ALL", "WITH",
    }
)  # fmt: skip
"""Words in front of a column. Behind any other it is an alias."""


@dataclass(slots=True, eq=False)
class _Select:
    """One SELECT: tokens that are its own, not those of subqueries, by their index."""

    select_at: int = -1
    with_at: int = -1
    own: list[int] = field(default_factory=list)


class PartNames:
    """Rewrites queries that name `_part`."""

    def __init__(self, tables: ReplicatedTables) -> None:
        self._tables = tables

    async def prepare(self, asked: Asked, statement: Statement) -> Asked:
        """The request with the names that its user knows."""
        if _COLUMN not in asked.sql or statement.kind not in _READING or not self._tables:
            return asked
        c = Cursor(asked.sql)
        edits: list[tuple[int, int, str]] = []
        for select in _selects_naming_it(c):
            found = self._only_table(c, select, asked.current_database)
            if found is None:
                continue
            table, alias = found
            if not await _has_column(table):
                edits += _edits(c, select, table, alias)
        sql = asked.sql
        for start, end, text in sorted(edits, reverse=True):
            sql = sql[:start] + text + sql[end:]
        return asked if sql is asked.sql else replace(asked, sql=sql)

    def _only_table(self, c: Cursor, select: _Select, database: str) -> tuple[RunningTable, str] | None:
        """The replicated table that it reads, and the alias if it has one; None if it reads anything else."""
        own = set(select.own)
        if any(c.words[at] == "JOIN" and c.words[at - 1] != "ARRAY" for at in own):
            return None
        refs = {c.at_offset(ref.start): ref for ref in read_tables(c, 0)}
        read = [refs[at] for at in select.own if at in refs and c.words[at - 1] == "FROM"]
        if len(read) != 1:
            return None
        (ref,) = read
        table = self._tables.find(ref.name.within(database))
        if table is None:
            return None
        words = [*c.words, "", "", ""]
        behind = c.at_offset(ref.end)
        alias = ""
        if words[behind] == "AS":
            behind += 1
        if behind < len(c.tokens) and words[behind] not in _BEHIND_TABLE:
            if not c.tokens[behind].is_name:
                return None
            alias = literal_value(c.tokens[behind])
            behind += 1
        elif behind < len(c.tokens) and not words[behind]:
            alias = literal_value(c.tokens[behind])
            behind += 1
        return (table, alias) if words[behind] in _BEHIND_TABLE else None


async def _has_column(table: RunningTable) -> bool:
    """Whether the table has a column of its own that is called so."""
    try:
        return _COLUMN in (await table.store.definition()).columns.by_name
    except SqlError:  # of a GraphiteMergeTree, whose rules stand elsewhere
        return False


def _selects_naming_it(c: Cursor) -> list[_Select]:
    """The SELECTs in which `_part` stands as a column."""
    levels: list[_Select] = [_Select()]
    naming: list[_Select] = []
    for at, (token, word) in enumerate(zip(c.tokens, c.words, strict=True)):
        if word in (")", "]", "}") and len(levels) > 1:
            levels.pop()
        here = levels[-1]
        if word in ("UNION", "EXCEPT", "INTERSECT") and here.select_at >= 0 and _begins_another(c, at):
            here = levels[-1] = _Select()
        if word == "SELECT" and here.select_at < 0:
            here.select_at = at
        elif word == "WITH" and here.select_at < 0 and here.with_at < 0:
            here.with_at = at
        here.own.append(at)
        if word in ("(", "[", "{"):
            is_query = c.words[at + 1 : at + 2] in (["SELECT"], ["WITH"])
            # Brackets of an expression belong to the SELECT that they stand in.
            levels.append(_Select() if is_query else here)
        if name_of(token) == _COLUMN and here not in naming:
            naming.append(here)
    return [each for each in naming if each.select_at >= 0 and not _is_something_else(c, each)]


def _begins_another(c: Cursor, at: int) -> bool:
    """Whether what stands there goes between two SELECTs; `* EXCEPT (a)` does not."""
    words = c.words[at + 1 : at + 4]
    if words[:1] in (["ALL"], ["DISTINCT"]):
        words = words[1:]
    return words[:1] in (["SELECT"], ["WITH"]) or words[:2] in (["(", "SELECT"], ["(", "WITH"])


def _is_something_else(c: Cursor, select: _Select) -> bool:
    """Whether `_part` is an alias in it."""
    for at in select.own:
        token = c.tokens[at]
        if not token.is_name or literal_value(token) != _COLUMN or at == 0:
            continue
        before, word = c.tokens[at - 1], c.words[at - 1]
        if word in (")", "]") or (before.kind is not TokenKind.PUNCTUATION and word not in _BEFORE_COLUMN):
            return True
    return False


def _edits(c: Cursor, select: _Select, table: RunningTable, alias: str) -> list[tuple[int, int, str]]:
    qualifiers = (
        [[alias]] if alias else [[table.ctx.name.table], [table.ctx.name.database, table.ctx.name.table]]
    )
    name = _name_of(table, quote_identifier(alias) if alias else table.ctx.name.quoted)
    if select.with_at >= 0:
        at = select.with_at
        at += c.words[at + 1 : at + 2] == ["RECURSIVE"]
        edits = [(c.tokens[at].end, c.tokens[at].end, f" {name} AS {_COLUMN},")]
    else:
        start = c.tokens[select.select_at].start
        edits = [(start, start, f"WITH {name} AS {_COLUMN} ")]
    for at in select.own:
        if name_of(c.tokens[at]) == _COLUMN and c.words[at - 1] == ".":
            first = at
            while first >= 2 and c.words[first - 1] == ".":
                first -= 2
            if [literal_value(token) for token in c.tokens[first:at:2]] in qualifiers:
                edits.append((c.tokens[first].start, c.tokens[at].start, ""))
    return edits


def _name_of(table: RunningTable, source: str) -> str:
    """The name out of the UUID, of chDB's type for it. What an ALTER has rewritten may have none yet."""
    low, high, level, mutation = (
        f"toString(bitAnd(bitShiftRight({_BITS}, {shift}), 1073741823))" for shift in (90, 60, 30, 0)
    )
    name = (
        f"concat(_partition_id, '_', {low}, '_', {high}, '_', {level}, "
        f"if({mutation} = '0', '', concat('_', {mutation})))"
    )
    local = _of_rewritten(table.store.relabelled(), f"toString({source}.{_COLUMN})")
    return f"toLowCardinality(if(bitShiftRight({_BITS}, 120) = {_MARK}, {name}, {local}))"


def _of_rewritten(names: Mapping[str, object], local: str) -> str:
    """By chDB's name without a mutation."""
    if not names:
        return local
    known = ", ".join(map(quote_string, names))
    wanted = ", ".join(quote_string(str(name)) for name in names.values())
    blocks = f"arrayStringConcat(arraySlice(splitByChar('_', {local}), 1, 4), '_')"
    return f"transform({blocks}, [{known}], [{wanted}], {local})"
