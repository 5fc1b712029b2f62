"""CREATE TABLE of replicated tables, taken apart and put together on tokens; no expression is understood.

Three forms of one definition: as the user wrote it (`ENGINE = ReplicatedMergeTree('/path', '{replica}') …`);
as chDB has it (`ENGINE = MergeTree …`, with settings that keep chDB's own merges away); as everybody is shown
it (chDB's text, with the replicated engine and without those settings). Everything outside the engine clause
and the SETTINGS clause stays byte for byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from engine.errors import Code, SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.sql import StatementKind, TokenKind, literal_value
from engine.sql.cursor import Cursor, Role
from engine.sql.draft import Draft
from engine.sql.edit import Edit, apply_edits
from engine.sql.parse import draft_of

REPLICATED = "Replicated"
_BEHIND_STORAGE = frozenset(
    {"AS", "EMPTY", "CLONE", "COMMENT", "FORMAT", "INTO", "POPULATE", "SQL", "DEFINER", "PARALLEL"}
)
_LITERALS = (TokenKind.STRING, TokenKind.HEREDOC)
_EXTENDED = frozenset({("ORDER", "BY"), ("PRIMARY", "KEY"), ("PARTITION", "BY"), ("SAMPLE", "BY")})


@dataclass(frozen=True, slots=True)
class _Clause:
    """A range of the text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class EngineText:
    """An engine clause: its name, and its arguments as they stand in the text."""

    name: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return self.name + (f"({', '.join(self.arguments)})" if self.arguments else "")


class Definition:
    """The text of a CREATE TABLE (or of `engine_full`), and where in it the pieces are that concern us.

    Raises SqlError 62 as `tokenize`.
    """

    def __init__(self, sql: str) -> None:
        self._draft = d = draft_of(sql)
        self.sql = sql
        self.statement = d.statement()
        self.engine: EngineText | None = None
        self._storage_start = 0
        self._engine_at = _Clause(0, 0)
        self._storage_end = d.tokens[-1].end if d.tokens else 0
        self._settings_at: _Clause | None = None
        self._settings: tuple[_Setting, ...] = ()
        self._select_at: int | None = None
        self._as_at: int | None = None
        self.source: TableName | None = None
        """`AS other_table`, before the engine or behind it."""
        self.rows_of: TableName | None = None
        """The table that the new one gets the parts of (`cloning`)."""
        if not d.refs or d.body is None:
            return
        behind_name = max(d.refs[0].end, d.cluster_span[1] if d.cluster_span else 0)
        d.at = next((i for i, token in enumerate(d.tokens) if token.start >= behind_name), len(d.tokens))
        if d.engine is not None:
            self._read_storage(d)
        else:
            self._read_as(d)

    @property
    def is_replicated(self) -> bool:
        """The engine is of the Replicated…MergeTree family."""
        return self.engine is not None and self.engine.name.startswith(REPLICATED)

    @property
    def is_extended(self) -> bool:
        """Keys or settings stand outside the engine's arguments, or come from the table behind AS: the engine
        may have other arguments than path and replica. Source: ClickHouse's ASTStorage."""
        if self.source is not None or self._settings_at is not None:
            return True
        return not _EXTENDED.isdisjoint(itertools.pairwise(self._draft.words))

    @property
    def is_bare_replace(self) -> bool:
        """REPLACE TABLE, which needs a table to be replaced."""
        return self._draft.words[:1] == ["REPLACE"]

    @property
    def select(self) -> str | None:
        """The SELECT behind AS, whose rows the table gets; None without one, and with EMPTY AS."""
        return None if self._select_at is None else self.sql[self._select_at :].rstrip("; \t\r\n")

    @property
    def is_filled(self) -> bool:
        """Whether the table is to have rows from the beginning."""
        return self._select_at is not None or self.rows_of is not None

    @property
    def storage(self) -> tuple[int, int]:
        """Where ENGINE begins, and where the last clause of the storage ends, SETTINGS included."""
        return self._storage_start, self._storage_end

    @property
    def behind_engine(self) -> int:
        """Where the engine and its arguments end."""
        return self._engine_at.end

    @property
    def as_at(self) -> int | None:
        """Where AS SELECT or AS other_table begins."""
        return self._as_at

    @property
    def settings(self) -> Mapping[str, str]:
        """Those of the table, as literals."""
        return {setting.name: setting.value for setting in self._settings}

    def keeper_arguments(self) -> tuple[str, str] | None:
        """Path and replica name as the engine's first two arguments give them; None for the defaults.

        Raises SqlError 36 for anything else. Source: ClickHouse's registerStorageMergeTree.
        """
        assert self.engine is not None
        arguments = [_literal(text) for text in self.engine.arguments[:2]]
        if len(arguments) == 2 and arguments[0] is not None and arguments[1] is not None:
            return arguments[0], arguments[1]
        is_graphite = self.engine.name == "ReplicatedGraphiteMergeTree" and len(self.engine.arguments) == 1
        if not arguments or (self.is_extended and (arguments[0] is None or is_graphite)):
            return None
        raise SqlError(
            Code.BAD_ARGUMENTS, "Expected two string literal arguments: zookeeper_path and replica_name"
        )

    def keeper_expressions(self) -> tuple[str, str] | None:
        """The engine's first two arguments, if they are path and replica name and not both literals."""
        given = () if self.engine is None else self.engine.arguments[:2]
        if len(given) < 2 or not all(_literal(text) is not None or _is_computed(text) for text in given):
            return None
        return (given[0], given[1]) if any(map(_is_computed, given)) else None

    def with_keeper_arguments(self, path: str, replica: str) -> str:
        """The text with an engine that has these before all other arguments."""
        assert self.engine is not None
        has_own = self.keeper_expressions() or self.keeper_arguments()
        rest = self.engine.arguments[2:] if has_own else self.engine.arguments
        engine = EngineText(self.engine.name, (quote_string(path), quote_string(replica), *rest))
        return apply_edits(self.sql, [Edit(self._engine_at.start, self._engine_at.end, str(engine))])

    def without_keeper_arguments(self) -> str:
        """The text with an engine that has the default path and replica name."""
        assert self.engine is not None
        rest = self.engine.arguments[2:] if self.keeper_arguments() else self.engine.arguments
        engine = EngineText(self.engine.name, rest)
        return apply_edits(self.sql, [Edit(self._engine_at.start, self._engine_at.end, str(engine))])

    # -- for chDB ------------------------------------------------------------------------------------------

    def for_chdb(self, uuid: UUID, name: TableName, hidden: Mapping[str, str]) -> str:
        """CREATE TABLE of the plain table: whole name, UUID, engine without Keeper, `hidden` settings."""
        assert self.engine is not None
        plain = EngineText(
            self.engine.name.removeprefix(REPLICATED),
            self.engine.arguments[2:] if self.keeper_arguments() else self.engine.arguments,
        )
        edits = [*self._name_edits(uuid, name), Edit(self._engine_at.start, self._engine_at.end, str(plain))]
        kept = [s for s in self._settings if s.name not in hidden]
        edits.append(self._settings_edit([*(_Setting(n, v) for n, v in hidden.items()), *kept]))
        if self._select_at is not None and self._as_at is not None:
            edits.append(Edit(self._as_at, self._as_at, "EMPTY "))
        return apply_edits(self.sql, edits)

    def hidden_from_user(self, hidden: Mapping[str, str]) -> dict[str, str]:
        """Settings of the statement that `hidden` ones take the place of."""
        return {s.name: s.value for s in self._settings if s.name in hidden}

    def like(self, shown: str) -> str:
        """`CREATE TABLE x AS y` with the definition of `y` (its shown text) written out behind x's name. A
        comment of its own takes the place of that of `y`."""
        d = Cursor(shown)
        d.skip_to("(")
        body_at = d.token.start if not d.at_end else len(shown)
        end = self._as_at if self._as_at is not None else len(self.sql)
        own = self.sql[comment_at(self._draft) :].rstrip("; \t\r\n")
        body = shown[body_at : comment_at(d)].rstrip() + f" {own}" if own else shown[body_at:]
        return f"{self.sql[:end].rstrip()} {body}"

    # -- for people ----------------------------------------------------------------------------------------

    def shown(self, path: str, replica: str, *, hidden: Mapping[str, str], user: Mapping[str, str]) -> str:
        """chDB's text as the user made the table; `user` are the settings that `hidden` ones replaced."""
        if self.engine is None:
            return self.sql
        engine = EngineText(
            REPLICATED + self.engine.name,
            (quote_string(path), quote_string(replica), *self.engine.arguments),
        )
        settings = [s for s in self._settings if s.name not in hidden]
        settings += [_Setting(name, value) for name, value in user.items()]
        return apply_edits(
            self.sql,
            [Edit(self._engine_at.start, self._engine_at.end, str(engine)), self._settings_edit(settings)],
        )

    # -- reading -------------------------------------------------------------------------------------------

    def _read_storage(self, d: Draft) -> None:
        if d.skip_to("AS", "ENGINE") and d.accept("AS"):
            source = d.table(Role.SOURCE)
            self.source = source.name if source is not None else None
        if not d.skip_to("ENGINE"):
            return
        self._storage_start = d.token.start
        d.at += 1
        d.accept("=")
        start = d.token.start
        name = d.identifier() or ""
        begins = d.at
        arguments: tuple[str, ...] = ()
        if d.word == "(" and d.skip_brackets():
            arguments = _by_commas(d, begins + 1, d.at - 1)
        self.engine = EngineText(name, arguments)
        self._engine_at = _Clause(start, d.last_end)
        if d.skip_to("SETTINGS", *_BEHIND_STORAGE) and d.word == "SETTINGS":
            self._read_settings(d)
        self._storage_end = d.last_end
        self._read_as(d)

    def _read_settings(self, d: Draft) -> None:
        start = d.token.start
        found: list[_Setting] = []
        d.at += 1
        while (setting := d.setting_name()) is not None:
            name, has_value = setting
            begins = d.at
            while has_value and not d.at_end and d.word != "," and d.word not in _BEHIND_STORAGE:
                if not d.skip_brackets():
                    d.at += 1
            value = d.sql[d.tokens[begins].start : d.last_end] if d.at > begins else ""
            found.append(_Setting(name, value if has_value else "1"))
            if not d.accept(","):
                break
        self._settings = tuple(found)
        self._settings_at = _Clause(start, d.last_end)

    def _read_as(self, d: Draft) -> None:
        while d.skip_to("AS", "EMPTY"):
            if d.looking_at("EMPTY", "AS"):
                self._as_at = d.token.start
                return
            if d.word == "AS":
                self._as_at = d.token.start
                d.at += 1
                if d.word in ("SELECT", "WITH", "(", "FROM"):
                    self._select_at = d.token.start
                    return
                source = d.table(Role.SOURCE)
                if source is not None and d.word != "(":
                    self.source = source.name
                return
            d.at += 1

    # -- writing -------------------------------------------------------------------------------------------

    def _name_edits(self, uuid: UUID, name: TableName) -> list[Edit]:
        """The whole name with its UUID, and neither ON CLUSTER nor OR REPLACE."""
        d = self._draft
        ref = d.refs[0]
        text = name.quoted
        edits = []
        if self.statement.or_replace:
            edits.append(Edit(d.tokens[0].start, d.tokens[d.words.index("TABLE")].start, "CREATE "))
        edits += [Edit(ref.start, ref.end, text if self.statement.uuid else f"{text} UUID '{uuid}'")]
        if d.cluster_span is not None:
            edits.append(Edit(*d.cluster_span, ""))
        return edits

    def _settings_edit(self, settings: Sequence[_Setting]) -> Edit:
        text = ", ".join(f"{s.name} = {s.value}" for s in settings)
        if self._settings_at is None:
            return Edit(self._storage_end, self._storage_end, f" SETTINGS {text}" if text else "")
        start, end = self._settings_at.start, self._settings_at.end
        if text:
            return Edit(start, end, f"SETTINGS {text}")
        while start > 0 and self.sql[start - 1] in " \n":
            start -= 1
        return Edit(start, end, "")


def comment_at(d: Cursor) -> int:
    """Where the COMMENT begins that ends a CREATE; its end without one."""
    count = len(d.words)
    while count and d.words[count - 1] == ";":
        count -= 1
    if d.words[max(count - 2, 0) : count - 1] == ["COMMENT"] and d.tokens[count - 1].kind is TokenKind.STRING:
        return d.tokens[count - 2].start
    return len(d.sql.rstrip("; \t\r\n"))


def settings_clause(settings: Mapping[str, str]) -> str:
    """`a = 1, b = 2`; values are literals."""
    return ", ".join(f"{quote_identifier(name)} = {value}" for name, value in settings.items())


def is_create_of_replicated(kind: StatementKind, engine: str | None) -> bool:
    """Whether chDB must not be given the text: some object of it has a replicated engine."""
    return engine is not None and engine.startswith(REPLICATED) and kind is not StatementKind.CREATE_DATABASE


def _literal(text: str) -> str | None:
    cursor = Cursor(text)
    if len(cursor.tokens) == 1 and cursor.token.kind in _LITERALS:
        return literal_value(cursor.token)
    return None


def _is_computed(text: str) -> bool:
    """Neither a literal nor a column or several in brackets."""
    words = Cursor(text).words
    return len(words) > 1 and words[0] != "("


def _by_commas(d: Draft, begin: int, end: int) -> tuple[str, ...]:
    """The texts between commas outside brackets, of the tokens from `begin` up to `end`."""
    found: list[str] = []
    d.at = start = begin
    while d.at < end:
        if d.word == ",":
            found.append(d.sql[d.tokens[start].start : d.tokens[d.at - 1].end])
            d.at += 1
            start = d.at
        elif not d.skip_brackets():
            d.at += 1
    if end > start:
        found.append(d.sql[d.tokens[start].start : d.tokens[end - 1].end])
    d.at = end + 1
    return tuple(found)
