"""chDB's own analysis of a query, read from EXPLAIN QUERY TREE.

The dump is a tree by indentation: a node is `KIND id: n, key: value, …`, what is in capitals without an id is
a section (PROJECTION, WHERE, ARGUMENTS, …). Strings are escaped by ClickHouse, so a node is one line. Below
the tree, after the last empty line, stands the query again as resolved text. ClickHouse writes a column
`limit` in it as `__table1.limit`, and an alias as `AS limit`; here every such name is quoted, so that who
looks for clauses meets keywords only. It writes a constant of ORDER BY as `ORDER BY 2`, which would be the
second column to whoever reads the text again; here it is a call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from engine.distributed.select import clauses
from engine.distributed.select.model import names
from engine.names import quote_identifier
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.tokens import TokenKind

_NODE = re.compile(r"([A-Z_ ]+?) id: (\d+)(?:, (.*))?\Z", re.DOTALL)
_TABLE = re.compile(r"__table\d+")
"""What the analysis calls the tables themselves."""
_FACT = re.compile(r"(?:^|, )([a-z_]+): ")
_BEHIND_ITEM = names("ASC DESC WITH")


@dataclass(slots=True)
class Node:
    """A node (`id` ≥ 0) or a section of one (`id` -1, and `kind` is its title)."""

    kind: str
    id: int = -1
    rest: str = ""
    children: list[Node] = field(default_factory=list)
    parent: Node | None = None

    def fact(self, name: str) -> str:
        """A short value such as function_name; empty where there is none."""
        facts = list(_FACT.finditer(self.rest))
        for at, match in enumerate(facts):
            if match.group(1) == name:
                end = facts[at + 1].start() if at + 1 < len(facts) else len(self.rest)
                return self.rest[match.end() : end]
        return ""

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending += reversed(node.children)

    def section(self, title: str) -> Node | None:
        return next((child for child in self.children if child.id < 0 and child.kind == title), None)


@dataclass(frozen=True)
class QueryTree:
    """`text` is the query as ClickHouse writes it after resolving every name. A statement may read hundreds
    of tables, so what is asked for each of them is gathered once."""

    root: Node
    text: str

    @cached_property
    def cursor(self) -> Cursor:
        """Of `text`; where it stands is nobody's."""
        return Cursor(self.text)

    @cached_property
    def tables(self) -> Mapping[int, Sequence[Node]]:
        """The calls of `null('…')`, by the number of spaces at the end of the string."""
        found: dict[int, list[Node]] = {}
        for node in self.root.walk():
            if node.kind == "TABLE_FUNCTION" and node.fact("table_function_name") == "null":
                for constant in node.walk():
                    if constant.kind == "CONSTANT":
                        structure = constant.rest.partition("', constant_value_type")[0]
                        found.setdefault(clauses.spaces_behind(structure), []).append(node)
        return found

    @cached_property
    def places(self) -> Mapping[int, Sequence[int]]:
        """The tokens of strings in `text`, likewise. An alias stands for a whole text, wherever it is used:
        a table may be there more than once."""
        return clauses.strings_by_spaces(self.cursor)

    @cached_property
    def has_unwritten_values(self) -> bool:
        """Some values stand in `text` by a number, which nobody knows but the analysis that made it: those of
        subqueries that give an array or a state."""
        return any(node.fact("function_name") == "__getScalar" for node in self.root.walk())

    @cached_property
    def columns(self) -> Mapping[str, Sequence[str]]:
        """The columns that the query uses, by the id of their table, each once."""
        found: dict[str, dict[str, None]] = {}
        for node in self.root.walk():
            if node.kind == "COLUMN":
                found.setdefault(node.fact("source_id"), {})[node.fact("column_name")] = None
        return {table: list(used) for table, used in found.items()}


def parse_query_tree(dump: str) -> QueryTree | None:
    """None for a dump that has not this form: then nothing is known about the query."""
    head, blank, text = dump.rstrip("\n").rpartition("\n\n")  # an empty list leaves an empty line, too
    root: Node | None = None
    stack: list[tuple[int, Node]] = []
    for line in head.split("\n"):
        if not line.strip():
            continue
        stripped = line.lstrip(" ")
        indent = len(line) - len(stripped)
        match = _NODE.match(stripped)
        node = Node(match[1], int(match[2]), match[3] or "") if match else Node(stripped.strip())
        while stack and stack[-1][0] >= indent:
            stack.pop()
        if not stack:
            if root is not None:
                return None
            root = node
        else:
            node.parent = stack[-1][1]
            node.parent.children.append(node)
        stack.append((indent, node))
    if root is None or not blank:
        return None
    return QueryTree(root, _without_positions(_with_quoted_names(text.strip())))


def _with_quoted_names(text: str) -> str:
    cursor = Cursor(text)
    edits = [
        Edit(token.start, token.end, quote_identifier(token.text))
        for before, token in zip(cursor.words, cursor.tokens[1:], strict=False)
        if before in (".", "AS") and token.kind is TokenKind.WORD and not _TABLE.fullmatch(token.text)
    ]
    return apply_edits(text, edits)


def _without_positions(text: str) -> str:
    """With every number, or Bool, that is an item of GROUP BY, ORDER BY or LIMIT BY as a call. It stays a
    constant: ROLLUP does not count such a key."""
    cursor = Cursor(text)
    words = cursor.words
    edits: list[Edit] = []
    for begin in [at + 1 for at, word in enumerate(words) if word == "BY"]:
        for first, last in _items(cursor, begin):
            number = first + (words[first] == "-")
            is_whole = number + 1 == last or words[number + 1] in _BEHIND_ITEM
            is_bool = words[number] in ("TRUE", "FALSE")
            if is_whole and (is_bool or cursor.tokens[number].text.isdigit()):
                start, end = cursor.tokens[first].start, cursor.tokens[number].end
                type_ = "Bool" if is_bool else "UInt64" if number == first else "Int64"
                edits.append(Edit(start, end, f"_CAST({text[start:end]}, '{type_}')"))
    return apply_edits(text, edits)


def _items(cursor: Cursor, begin: int) -> list[tuple[int, int]]:
    """What stands between commas behind BY, also within GROUPING SETS."""
    if cursor.words[begin : begin + 2] != ["GROUPING", "SETS"]:
        return clauses.split(cursor, begin, clauses.end_of(cursor, begin), ",")
    cursor.at = begin + 2
    cursor.skip_brackets()
    sets = clauses.split(cursor, begin + 3, cursor.at - 1, ",")
    inner = [(a + 1, b - 1) if cursor.words[a] == "(" else (a, b) for a, b in sets]
    return [item for a, b in inner for item in clauses.split(cursor, a, b, ",")]
