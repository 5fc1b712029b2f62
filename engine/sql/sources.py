"""Which tables a SELECT, or an expression with subqueries, reads: found on tokens, without a full parser.

What counts as a table: a name or a string behind FROM, JOIN or a comma between them, and a name that is the
right side of IN, alone in brackets, too. What does not: common table expressions where they can be seen,
table functions, parameters, aliases, names that already have a database, the text of
`position(part IN text)`.

Source: ClickHouse's AddDefaultDatabaseVisitor, whose effect `tests/unit/sql/test_oracle.py` compares on the
syntax tree. Two differences are deliberate. Within its own body a CTE that is not RECURSIVE is the table of
that name, while ClickHouse takes it for itself and finds nothing. And so it is within the bodies of those
before it that it is made of, as when the SELECT is analysed:

    WITH recent AS (SELECT * FROM orders), orders AS (SELECT * FROM recent) SELECT * FROM orders
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from engine.names import TableName
from engine.sql.cursor import Cursor, NameRef, Role
from engine.sql.tokens import literal_value


class _From(enum.Enum):
    """Where in a FROM clause a bracket level is."""

    OUTSIDE = enum.auto()
    EXPECTS_TABLE = enum.auto()
    BEHIND_TABLE = enum.auto()
    IN_EXPRESSION = enum.auto()
    """Behind ON: a comma ends it and joins one more table."""
    IN_COLUMNS = enum.auto()
    """Behind USING or ARRAY JOIN: commas stand between columns."""


@dataclass(frozen=True, slots=True)
class Cte:
    """`name AS (SELECT …)` in WITH, by indices of tokens: `begin` is the name, `body` the bracket that opens,
    `with_at` the word WITH."""

    name: str
    with_at: int
    begin: int
    body: int
    is_recursive: bool = False
    has_more: bool = False
    """It names its columns, or is MATERIALIZED."""


@dataclass(slots=True)
class _Level:
    """One level of brackets."""

    is_select: bool = False
    place: _From = _From.OUTSIDE
    names: dict[str, Cte] = field(default_factory=dict)
    """What WITH names here: seen on this level and inside it."""
    hidden: str | None = None
    """This level is the body of that CTE, which cannot see itself."""
    is_position: bool = False
    """The brackets of `position(part IN text)`."""
    is_alone: bool = False
    """It sees no CTE of the levels around it: what stands in `view(…)`."""


_BEGINS_SELECT = frozenset({"SELECT", "WITH", "FROM"})
_ENDS_FROM = frozenset(
    {
        "WHERE",
        "PREWHERE",
        "GROUP",
        "HAVING",
        "ORDER",
        "LIMIT",
        "UNION",
        "EXCEPT",
        "INTERSECT",
        "SETTINGS",
        "WINDOW",
        "QUALIFY",
        "FORMAT",
        "INTO",
        "FETCH",
        "SELECT",
    }
)
_BEHIND_TABLE = _ENDS_FROM | frozenset(
    {"AS", "FINAL", "SAMPLE", "ARRAY", "JOIN", "LEFT", "RIGHT", "INNER", "FULL", "CROSS", "ANY"}
)
_BEHIND_WITH = frozenset({"TOTALS", "ROLLUP", "CUBE", "FILL", "TIES", "NAME"})
_BEFORE_WITH = frozenset(
    {"UNION", "ALL", "DISTINCT", "EXCEPT", "INTERSECT", "(", "AS", "QUERY", "EXPLAIN", ""}
)
_MAX_DEPTH = 1000
"""ClickHouse's max_parser_depth: it refuses what is nested deeper, so nobody needs its tables."""
_BEFORE_COLUMN = frozenset({"SELECT", "DISTINCT", "BY", "AS", ",", "(", "."})
"""Behind these AS is a name itself."""
_NO_TABLE_BEHIND_IN = frozenset(
    {"PARTITION", "NULL", "TRUE", "FALSE", "INF", "NAN", "SELECT", "CAST", "INTERVAL"}
)


def read_tables(cursor: Cursor, begin: int) -> list[NameRef]:
    """Every table read from token `begin` on, qualified or not, in order."""
    return _Walk(cursor, begin).run()


def is_behind_in(cursor: Cursor, at: int) -> bool:
    """Whether a table that is named from token `at` on is the right side of IN."""
    while at > 0 and cursor.words[at - 1] == "(":
        at -= 1
    return at > 0 and cursor.words[at - 1] == "IN"


def ctes(cursor: Cursor) -> tuple[list[Cte], list[tuple[NameRef, Cte]]]:
    """The common table expressions of a statement, and where they are read."""
    walk = _Walk(cursor, 0)
    walk.run()
    return walk.ctes, walk.cte_refs


def _reached(reads: Mapping[Cte, Collection[Cte]], cte: Cte) -> set[Cte]:
    """What a CTE reads, and what that reads, and so on."""
    found: set[Cte] = set()
    pending = [cte]
    while pending:
        new = set(reads[pending.pop()]) - found
        found |= new
        pending += new
    return found


class _Walk:
    def __init__(self, cursor: Cursor, begin: int) -> None:
        self.cursor = cursor
        self.words = cursor.words
        self.tokens = cursor.tokens
        self.begin = begin
        self.levels = [_Level()]
        self.bodies: dict[int, str] = {}
        self.refs: list[NameRef] = []
        self.ctes: list[Cte] = []
        self.cte_refs: list[tuple[NameRef, Cte]] = []
        self.aliases = {
            literal_value(self.tokens[at + 1])
            for at in range(begin, len(self.words) - 1)
            if self.words[at] == "AS" and self.tokens[at + 1].is_name
        }

    def run(self) -> list[NameRef]:
        at = self.begin
        while at < len(self.words) and len(self.levels) <= _MAX_DEPTH:
            at = self._step(at)
        if self.cte_refs and len(self.ctes) > 1:
            self._give_back()
        return self.refs

    def _give_back(self) -> None:
        """What a CTE reads by the name of a later one that is made of it, is the table of that name."""
        bodies = {cte: self._body(cte) for cte in self.ctes}
        around = {
            ref: [cte for cte, body in bodies.items() if body[0] < ref.start < body[1]]
            for ref, _ in self.cte_refs
        }
        reads = {cte: {read for ref, read in self.cte_refs if cte in around[ref]} for cte in self.ctes}

        def is_table(ref: NameRef, cte: Cte) -> bool:
            return not cte.is_recursive and any(
                one.with_at == cte.with_at and one.begin < cte.begin and one in _reached(reads, cte)
                for one in around[ref]
            )

        tables = [ref for ref, cte in self.cte_refs if is_table(ref, cte)]
        if tables:
            self.cte_refs = [(ref, cte) for ref, cte in self.cte_refs if ref not in tables]
            self.refs = sorted([*self.refs, *tables], key=lambda ref: ref.start)

    def _body(self, cte: Cte) -> tuple[int, int]:
        """Offsets of its brackets."""
        self.cursor.at = cte.body
        self.cursor.skip_brackets()
        return self.tokens[cte.body].start, self.cursor.last_end

    def _step(self, at: int) -> int:
        """Handle the token at `at`; the index of the next one to handle."""
        word = self.words[at]
        level = self.levels[-1]
        if word in ("(", "[", "{"):
            self._open(at, level)
            return at + 1
        if word in (")", "]", "}"):
            if len(self.levels) > 1:
                self.levels.pop()
            return at + 1
        if level.place is _From.EXPECTS_TABLE and self._is_table(at):
            return at + 1 if self._is_late_from(at) else self._table(at, level)
        if not word or self._is_in_path(at) or self._is_alias(at, level):
            return at + 1
        if word == "IN":
            return at + 1 if level.is_position else self._in(at + 1)
        if word == "WITH":
            self._with(at, level)
        elif word == "FROM":
            self._from(at, level)
        else:
            self._move(at, level)
        return at + 1

    def _from(self, at: int, level: _Level) -> None:
        """FROM of a SELECT, if it is one: not that of `substring(a FROM 2)`, say."""
        before, following = self.words[at - 1], self.words[at + 1 : at + 2]
        if not self._is_table(at + 1) and following not in (["("], ["{"]):
            return
        is_comparison = before == "DISTINCT" and self.words[at - 2] in ("IS", "NOT")
        is_of_select = level.is_select or at == self.begin or before == "(" or self._begins_select(at)
        if is_of_select and not is_comparison:
            level.is_select = True
            level.place = _From.EXPECTS_TABLE

    def _move(self, at: int, level: _Level) -> None:
        """Note where behind FROM the words have come to."""
        word = self.words[at]
        if word == "," and level.place in (_From.BEHIND_TABLE, _From.IN_EXPRESSION):
            level.place = _From.EXPECTS_TABLE
        elif word == "JOIN" and level.is_select:
            is_array = self.words[at - 1] == "ARRAY"
            level.place = _From.IN_COLUMNS if is_array else _From.EXPECTS_TABLE
        elif word == "ON" and level.place is _From.BEHIND_TABLE:
            level.place = _From.IN_EXPRESSION
        elif word == "USING" and level.place is _From.BEHIND_TABLE and self.words[at + 1 : at + 2] != ["("]:
            level.place = _From.IN_COLUMNS
        elif word in _ENDS_FROM:
            level.place = _From.OUTSIDE
            level.is_select = level.is_select or word == "SELECT"

    def _open(self, at: int, level: _Level) -> None:
        function = self.words[at - 1] if at > self.begin and self.words[at] == "(" else ""
        inner = _Level(
            hidden=self.bodies.get(at), is_position=function == "POSITION", is_alone=function == "VIEW"
        )
        following = self.words[at + 1] if at + 1 < len(self.words) else ""
        if level.place is _From.EXPECTS_TABLE and self.words[at] == "(":
            level.place = _From.BEHIND_TABLE
            if following not in _BEGINS_SELECT and following not in ("(", "VALUES", "EXPLAIN"):
                inner.is_select = True
                inner.place = _From.EXPECTS_TABLE
        self.levels.append(inner)

    def _begins_select(self, at: int) -> bool:
        """The FROM of CREATE … AS FROM t SELECT …, or of INSERT INTO t FROM s SELECT …"""
        is_of_insert = self.words[0] == "INSERT" and self.words[at + 1 : at + 2] != ["INFILE"]
        return len(self.levels) == 1 and (is_of_insert or self.words[at - 1] == "AS")

    def _is_in_path(self, at: int) -> bool:
        """Whether it is a name beside a dot, whatever its word."""
        is_behind = at > self.begin and self.words[at - 1] == "."
        return is_behind or (self.tokens[at].is_name and self.words[at + 1 : at + 2] == ["."])

    def _is_late_from(self, at: int) -> bool:
        """The word before it, such as FROM or JOIN, was the name of a column; else it is a table's."""
        if self.words[at] != "FROM" or self.words[at + 1 : at + 2] == ["("]:
            return self.words[at] == "FROM"
        return self._is_name(at + 1) and self.words[at + 1] not in _BEHIND_TABLE

    def _is_alias(self, at: int, level: _Level) -> bool:
        """A keyword behind AS names something, such as in `SELECT 1 AS in`."""
        words = self.words
        is_behind_as = level.is_select and at > self.begin + 1 and words[at - 1] == "AS"
        return is_behind_as and self._is_name(at) and words[at - 2] not in _BEFORE_COLUMN

    def _is_table(self, at: int) -> bool:
        """A name, or a string, which ClickHouse reads as one where a table is expected."""
        return self._is_name(at) or self._is_string(at)

    def _is_string(self, at: int) -> bool:
        return at < len(self.tokens) and self.tokens[at].text[:1] == "'"

    def _is_name(self, at: int) -> bool:
        return at < len(self.tokens) and self.tokens[at].is_name

    def _table(self, at: int, level: _Level) -> int:
        """A name where a table is expected: a table, or a function if a bracket follows."""
        level.place = _From.BEHIND_TABLE
        if self._is_string(at):
            token = self.tokens[at]
            self._note(NameRef(token.start, token.end, TableName("", literal_value(token)), Role.SOURCE))
            return at + 1
        self.cursor.at = at
        ref = self.cursor.table(Role.SOURCE)
        if ref is None:
            return at + 1
        if self.cursor.word != "(":
            self._note(ref)
        return self.cursor.at

    def _in(self, at: int) -> int:
        begins = at
        while self.words[begins : begins + 1] == ["("]:
            begins += 1
        if not self._is_name(begins) or self.words[begins] in _NO_TABLE_BEHIND_IN:
            return at
        self.cursor.at = begins
        ref = self.cursor.table(Role.SOURCE)
        ends, brackets = self.cursor.at, begins - at
        if ref is None or self.cursor.word in ("(", "["):
            return at
        if self.words[ends : ends + brackets] != [")"] * brackets:
            return at
        is_alias = not ref.name.database and ref.name.table in self.aliases
        if not is_alias:
            self._note(ref)
        return ends + brackets

    def _note(self, ref: NameRef) -> None:
        cte = self._cte(ref.name)
        if cte is None:
            self.refs.append(ref)
        else:
            self.cte_refs.append((ref, cte))

    def _cte(self, name: TableName) -> Cte | None:
        if name.database:
            return None
        hidden = False
        for level in reversed(self.levels):
            if name.table in level.names:
                if not hidden:
                    return level.names[name.table]
                hidden = False
            hidden = hidden or level.hidden == name.table
            if level.is_alone:
                return None
        return None

    def _with(self, at: int, level: _Level) -> None:
        """Read ahead over WITH's list: the names count from here on, the bodies are walked later."""
        words = self.words
        before = words[at - 1] if at > self.begin else ""
        is_first = self.words[0] in ("INSERT", "EXPLAIN") and len(self.levels) == 1 and not level.is_select
        if before not in _BEFORE_WITH and not is_first:
            return
        if words[at + 1 : at + 2] in ([w] for w in _BEHIND_WITH):
            return
        level.is_select = True
        cursor = self.cursor
        cursor.at = at + 1
        recursive = cursor.accept("RECURSIVE")
        while not cursor.at_end and cursor.word not in ("SELECT", "FROM", ")", ";"):
            begins = cursor.at
            name = cursor.identifier()
            if name is not None:
                has_more = cursor.skip_brackets()
                if cursor.accept("AS"):
                    cursor.accept("NOT")
                    has_more = cursor.accept("MATERIALIZED") or has_more
                    if cursor.word == "(":
                        cte = Cte(name, at, begins, cursor.at, recursive, has_more)
                        self.ctes.append(cte)
                        level.names[name] = cte
                        if not recursive:
                            self.bodies[cursor.at] = name
            # An expression with an alias, or the rest of a CTE: go on to the next comma.
            cursor.at = begins
            while not cursor.at_end and cursor.word not in (",", "SELECT", "FROM", ")", ";"):
                if not cursor.skip_brackets():
                    if cursor.word in ("(", "[", "{"):
                        return  # It never closes: there is no list to read to its end.
                    cursor.at += 1
            if not cursor.accept(","):
                return
