"""What a shard can do for one reference: fewer columns, fewer rows.

Everything here only leaves out what the query would not use: the initiator evaluates the whole query again,
so a condition, an ORDER BY … LIMIT or a DISTINCT on the shard has to be implied by it. What was not
understood is not pushed.

- Columns: those that ClickHouse's analysis names for the reference; its subcolumns by their column.
- Conditions: the conjuncts of WHERE that use nothing but this reference, constants and functions of `SAFE`,
  which depend on nothing else and raise no errors; of a join only if all joins are plain INNER or CROSS.
- ORDER BY … LIMIT n OFFSET m: n + m rows, if all conditions were pushed and nothing stands between.
- DISTINCT: on the columns that are read, likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.distributed.select import clauses
from engine.distributed.select.model import ALIAS_PLACE, IS_CHECKED, RemoteSelect, SourceColumn, names
from engine.distributed.select.query_tree import Node, QueryTree
from engine.distributed.select.template import Slot
from engine.names import quote_identifier
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits

SAFE = names(
    "equals notEquals less greater lessOrEquals greaterOrEquals and or not xor in notIn globalIn globalNotIn "
    "isNull isNotNull "
    "plus minus multiply negate abs toYear toMonth toDayOfMonth toHour toMinute toSecond toDayOfWeek "
    "toStartOfHour toStartOfDay toStartOfMonth toStartOfYear toStartOfMinute toYYYYMM toYYYYMMDD toDate "
    "lower upper length empty notEmpty startsWith endsWith like notLike ilike notILike has "
    "cityHash64 intHash32 intHash64 xxHash64 sipHash64 toUInt64 toUInt32 toUInt16 toUInt8 toString "
    "identity coalesce ifNull if multiIf tupleElement bitAnd bitOr"
)
_MAY_FAIL_ON_TEXT = frozenset({"toDate", "toUInt64", "toUInt32", "toUInt16", "toUInt8"})
_QUERIES = frozenset({"QUERY", "UNION"})
SPACES = 7
_UNKNOWN_LIMIT = -1
_MOST_ROWS = 2**64 - 1
"""What LIMIT may say; it stands for "all that come behind OFFSET" in queries that were made for MySQL."""


@dataclass(frozen=True, slots=True)
class _Found:
    node: Node
    query: Node
    is_alone: bool


def tag(number: int) -> str:
    """What ends the structure of slot `number` in the text for analysis."""
    return " " * (SPACES + number)


def nodes_of(tree: QueryTree, number: int) -> Sequence[Node]:
    """Where slot `number` is in the tree: more than once if a CTE is used more than once."""
    return tree.tables.get(SPACES + number, ())


def place_of(tree: QueryTree, number: int) -> int | None:
    """The token of the slot's string in the resolved text; None if that is not there once."""
    found = tree.places.get(SPACES + number, ())
    return found[0] if len(found) == 1 else None


def is_resolved(node: Node) -> bool:
    """Not within `view(SELECT …)`, whose query is not looked into."""
    at = node.parent
    while at is not None and at.kind != "TABLE_FUNCTION":
        at = at.parent
    return at is None


def columns_of(tree: QueryTree, nodes: Sequence[Node], slot: Slot) -> tuple[SourceColumn, ...]:
    """The columns of the slot that the query needs; all of them if that cannot be told."""
    known = {column.name for column in slot.columns}
    needed: set[str] = set()
    for node in nodes:
        for name in tree.columns.get(str(node.id), ()):
            while name not in known:
                name, dot, _ = name.rpartition(".")
                if not dot:
                    return slot.columns
            needed.add(name)
    return tuple(column for column in slot.columns if column.name in needed)


def plain_read(slot: Slot, columns: tuple[SourceColumn, ...]) -> RemoteSelect:
    """Whole columns, all rows."""
    alias = "__table1"
    return RemoteSelect(
        _expressions(alias, columns),
        f" AS {alias}{slot.modifiers}",
        source=slot.source,
        read_with=slot.read_with,
    )


def names_all_columns(tree: QueryTree, number: int) -> bool:
    """Whether a query may depend on columns of the slot that it does not read: in a join others have their
    names by them."""
    return not all(
        is_resolved(node) and (found := _query_of(node)) is not None and found.is_alone
        for node in nodes_of(tree, number)
    )


def read_of(tree: QueryTree, slot: Slot, number: int, *, limits_rows: bool = True) -> RemoteSelect:
    """The most that a shard can do for this slot. Without `limits_rows` it sends also rows behind a LIMIT, so
    that they can be counted."""
    nodes = nodes_of(tree, number)
    if not nodes or not all(map(is_resolved, nodes)):
        return plain_read(slot, slot.columns)
    columns = columns_of(tree, nodes, slot)
    plain = plain_read(slot, columns)
    if len(nodes) != 1:
        return plain
    found = _query_of(nodes[0])
    cursor, place = tree.cursor, place_of(tree, number)
    if found is None or place is None:
        return plain
    parts = {clause.keyword: clause for clause in clauses.clauses_behind(cursor, place)}
    pushed, are_all = _conditions(cursor, parts.get("WHERE"), found)
    alias = found.node.fact("alias")
    tail = f" AS {alias}{slot.modifiers}"
    if pushed:
        tail += " WHERE " + " AND ".join(f"({remote_text(one, alias, slot.columns)})" for one in pushed)
    is_distinct = False
    if are_all and found.is_alone and _is_plain(found.query):
        if found.query.fact("is_distinct") == "1":
            is_distinct = bool(columns)
        elif limits_rows:
            tail += _limit(cursor, parts, found, alias, slot)
    return RemoteSelect(
        _expressions(alias, columns),
        tail,
        is_distinct,
        tuple(pushed),
        source=slot.source,
        read_with=slot.read_with,
    )


def remote_text(text: str, alias: str, columns: Sequence[SourceColumn]) -> str:
    """Resolved text as any server takes it, with their values in place of columns that a shard has not."""
    values = [
        ((alias, ".", name), column.value.replace(ALIAS_PLACE, alias))
        for column in columns
        if column.value
        for name in (column.name, quote_identifier(column.name))
    ]
    return _with_casts(clauses.replaced(text, values))


def _with_casts(text: str) -> str:
    """`_CAST` of ClickHouse's own text becomes CAST, which every server knows, but where CAST would refuse
    the type, as that of the constant `toLowCardinality(1)`."""
    if "_CAST" not in text:
        return text
    cursor = Cursor(text)
    edits = []
    for at, token in enumerate(cursor.tokens):
        if token.text != "_CAST" or cursor.words[at + 1 : at + 2] != ["("]:
            continue
        cursor.at = at + 1
        cursor.skip_brackets()
        if not IS_CHECKED.search(cursor.tokens[cursor.at - 2].text):
            edits.append(Edit(token.start, token.end, "CAST"))
    return apply_edits(text, edits)


def _expressions(alias: str, columns: tuple[SourceColumn, ...]) -> tuple[tuple[str, SourceColumn], ...]:
    if not columns:
        return (("toUInt8(0)", SourceColumn("__nothing", "UInt8")),)
    return tuple(
        (
            column.value.replace(ALIAS_PLACE, alias) or f"{alias}.{quote_identifier(column.name)}",
            column,
        )
        for column in columns
    )


def _query_of(node: Node) -> _Found | None:
    """The query that reads the slot; None if a join stands between that conditions cannot pass."""
    at = node.parent
    is_alone = True
    while at is not None and at.kind not in _QUERIES:
        if at.id >= 0:
            is_alone = False
            is_inner = at.fact("kind") in ("INNER", "CROSS", "COMMA")
            if not (at.kind in ("JOIN", "CROSS_JOIN") and is_inner and at.fact("strictness") in ("ALL", "")):
                return None
        at = at.parent
    return _Found(node, at, is_alone) if at is not None and at.kind == "QUERY" else None


def _conditions(cursor: Cursor, where: clauses.Clause | None, found: _Found) -> tuple[list[str], bool]:
    """The conjuncts to push, and whether these are all there are."""
    section = found.query.section("WHERE")
    if section is None or len(section.children) != 1:
        return [], section is None and where is None
    if where is None:
        return [], False
    top = section.children[0]
    conjuncts = [top]
    ranges = [(where.begin, where.end)]
    if top.fact("function_name") == "and":
        arguments = top.section("ARGUMENTS")
        conjuncts = arguments.children[0].children if arguments and arguments.children else []
        ranges = clauses.split(cursor, where.begin, where.end, "AND")
    if len(conjuncts) != len(ranges):
        return [], False
    pushed = [
        clauses.text_of(cursor, *place)
        for node, place in zip(conjuncts, ranges, strict=True)
        if is_safe(node, found.node.id)
    ]
    return pushed, len(pushed) == len(conjuncts)


def is_safe(node: Node, table: int) -> bool:
    """Whether an expression depends on nothing but columns of `table`, and cannot fail."""
    for one in node.walk():
        if one.id < 0:
            continue
        if one.kind == "COLUMN":
            if one.fact("source_id") != str(table):
                return False
        elif one.kind == "FUNCTION":
            name = one.fact("function_name")
            if one.fact("function_type") != "ordinary":
                return False
            if name not in SAFE and not _is_folded(one, node):
                return False
            if name in _MAY_FAIL_ON_TEXT and not _is_folded(one, node) and "String" in _argument_types(one):
                return False
        elif one.kind not in ("CONSTANT", "LIST"):
            return False
    return True


def _is_folded(node: Node, upto: Node) -> bool:
    """It only explains how a constant came about."""
    at: Node | None = node
    while at is not None and at is not upto.parent:
        if at.kind == "CONSTANT":
            return True
        at = at.parent
    return False


def _argument_types(node: Node) -> str:
    return " ".join(
        one.fact("result_type") + one.fact("constant_value_type") for one in node.walk() if one is not node
    )


def _is_plain(query: Node) -> bool:
    """Rows of the table become rows of the result one by one."""
    titles = {child.kind for child in query.children if child.id < 0}
    if titles & {"GROUP BY", "HAVING", "WINDOW", "QUALIFY", "LIMIT BY", "LIMIT BY LIMIT", "INTERPOLATE"}:
        return False
    for title in ("PROJECTION", "ORDER BY"):
        section = query.section(title)
        for one in section.walk() if section else ():
            if one.kind in _QUERIES or one.kind in ("WINDOW", "LAMBDA"):
                return False
            if (
                one.kind == "FUNCTION"
                and (one.fact("function_type") != "ordinary" or one.fact("function_name") not in SAFE)
                and not _is_folded(one, section or one)
            ):
                return False
    return "limit_with_ties" not in query.rest and "group_by" not in query.rest


def _limit(cursor: Cursor, parts: dict[str, clauses.Clause], found: _Found, alias: str, slot: Slot) -> str:
    limit, offset = _number(found.query, "LIMIT", _UNKNOWN_LIMIT), _number(found.query, "OFFSET", 0)
    if limit < 0 or offset < 0 or limit + offset > _MOST_ROWS:
        return ""
    order = parts.get("ORDER")
    section = found.query.section("ORDER BY")
    if (order is None) != (section is None):
        return ""
    text = ""
    if order is not None and section is not None:
        if any("with_fill: 1" in one.rest for one in section.walk() if one.kind == "SORT"):
            return ""
        text = " ORDER BY " + remote_text(
            clauses.text_of(cursor, order.begin, order.end), alias, slot.columns
        )
    return f"{text} LIMIT {limit + offset}"


def _number(query: Node, title: str, default: int) -> int:
    section = query.section(title)
    if section is None:
        return default
    if any(one.kind in _QUERIES for one in section.walk()):
        return _UNKNOWN_LIMIT  # a subquery, whose value here is that of tables without rows
    value = section.children[0].fact("constant_value") if section.children else ""
    number = value.removeprefix("UInt64_")
    return int(number) if number != value and number.isdigit() else _UNKNOWN_LIMIT
