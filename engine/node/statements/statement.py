"""One statement on its way through the node: what was asked, and what is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from engine.config.model import User
from engine.ddl.attempt import Fence
from engine.errors import Code, SqlError
from engine.names import quote_string
from engine.node.quotas import QuotaUse
from engine.node.statements.reads_key import FilledIn
from engine.sql import StatementKind
from engine.storage import ChdbSession, QueryResult, Scope
from engine.storage.statement_text import LONG_TEXT, InsertText
from engine.storage.text_limits import behind_explain_ast, lifted

CHANGE_NO_DEFINITION = frozenset({StatementKind.INSERT, StatementKind.SET, StatementKind.USE})
"""Statements that are no queries, and after which every name means what it meant."""

_BEYOND_LIMITS = frozenset(
    {
        Code.BAD_ARGUMENTS,
        Code.TOO_DEEP_AST,
        Code.TOO_BIG_AST,
        Code.TOO_DEEP_RECURSION,
        Code.TOO_SLOW_PARSING,
    }
)
_OF_LONG = {"max_ast_elements": "1000000000", "max_expanded_ast_elements": "1000000000"}
"""What else bounds a text, by its 50,000 or 500,000 parts; 0 would be none."""


@dataclass(frozen=True, slots=True)
class Asked:
    """`sql` is the whole text. `format` is what the answer is written in unless the text says otherwise.

    `is_stateless`: the session lives for this request only. `token` names an ON CLUSTER submission; empty for
    a fresh one. `fence`: what the transactions take along that change a replicated table in Keeper.
    `has_one_row`: the answer is known to be that small, so that it needs no stream. `takes_settings`: behind
    `sql` a clause SETTINGS may be put. `early`: what of it others may be asked before chDB begins.
    `behind_insert` is called on the thread on which chDB has taken rows of a stream; it raises nothing.
    `native_revision`: of the protocol that the client reads blocks in Native by; 0 as they are. `filled_in`
    says what chDB gets for what texts leave open that may have been looked at before. `is_decided`: another
    replica has carried it out, and this one has to follow. `quota_use`: what is counted of whoever asks.
    """

    sql: str
    user: User
    session: ChdbSession
    format: str = "TabSeparated"
    query_id: str = ""
    database: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    is_readonly: bool = False
    is_stateless: bool = True
    token: str = ""
    fence: Fence = field(default_factory=Fence)
    has_one_row: bool = False
    takes_settings: bool = False
    early: Early | None = None
    behind_insert: Callable[[], None] | None = None
    filled_in: FilledIn = field(default_factory=FilledIn)
    native_revision: int = 0
    is_decided: bool = False
    quota_use: QuotaUse | None = None

    @property
    def scope(self) -> Scope:
        """What the statement needs of chDB. In a session that lives on, readonly is checked by the node."""
        return Scope(
            settings=self.settings,
            database=self.database,
            query_id=self.query_id,
            is_readonly=self.is_readonly and self.is_stateless,
        )

    @property
    def parameters(self) -> Mapping[str, str]:
        """The query parameters: the request's, and those that the session was SET to."""
        return {**self.session.parameters, **self.params}

    @property
    def current_database(self) -> str:
        return self.database or self.session.database

    def rewritten(self, sql: str) -> Asked:
        """The request with a text that the node has made of it: limits of texts hold for the client's."""
        told = {**self.session.settings, **self.settings}
        of_text = lifted(told)
        is_usual = len(sql) <= LONG_TEXT and not of_text
        if is_usual or not self.session.takes_settings:
            return replace(self, sql=sql)
        usual = {name: most for name, most in _OF_LONG.items() if name not in told}
        return replace(self, sql=sql, settings={**usual, **self.settings, **of_text})

    async def check_text(self) -> None:
        """Whether a text that is to be rewritten keeps the limits that are set. Raises SqlError 36, 167, 168,
        306, 718; whatever else is wrong with it, the statement itself says."""
        limits = behind_explain_ast({**self.session.settings, **self.settings})
        if not limits or not self.session.takes_settings:
            return
        try:
            await self.session.clone().query(
                f"EXPLAIN AST {self.sql}",
                format="Null",
                params=self.parameters,
                scope=Scope(settings={**self.settings, **limits}),
                is_harmless=True,
            )
        except SqlError as error:
            if error.code in _BEYOND_LIMITS:
                raise

    async def check_syntax(self) -> None:
        """chDB's parser's word on the text, and chDB's on the settings. Raises SqlError 62, 115."""
        sql = f"SELECT formatQuerySingleLine({quote_string(self.sql)})"
        try:
            await self.session.clone().query(
                sql,
                format="Null",
                scope=Scope(settings=self.rewritten(sql).settings),
                is_harmless=True,
            )
        except SqlError as error:
            message = error.message.partition(": In scope SELECT formatQuerySingleLine(")[0]
            raise error.reworded(message) from error

    async def run(self, sql: str, *, is_harmless: bool, session: ChdbSession | None = None) -> QueryResult:
        """One statement in chDB as this request runs it; `is_harmless` as in `ChdbSession.query`. Raises
        SqlError."""
        in_session = session or self.session

        async def run(text: str) -> QueryResult:
            return await in_session.query(
                text,
                format=self.format,
                params=self.params,
                scope=self.scope,
                multi=False,
                is_harmless=is_harmless,
                takes_settings=self.takes_settings,
            )

        return await (run(sql) if self.early is None else self.early.run(sql, run))


WriteInput = Callable[[Asked, InsertText, AsyncIterator[bytes]], Awaitable[QueryResult]]
"""Runs an INSERT that reads its rows from `input()`."""


class Early(Protocol):
    """What other nodes are asked while chDB plans the statement that needs it."""

    async def run(self, sql: str, run: Callable[[str], Awaitable[QueryResult]]) -> QueryResult:
        """Run the statement `sql`, or one with the same answer. Raises SqlError."""
        ...


class Answer(Protocol):
    """A result: read until empty, then `finish`, which raises what went wrong. `native_revision`: blocks in
    Native are of it."""

    @property
    def format(self) -> str: ...

    @property
    def native_revision(self) -> int: ...

    async def read(self) -> bytes: ...

    async def finish(self) -> QueryResult: ...


class WholeAnswer:
    """A result that is there."""

    def __init__(self, result: QueryResult, *, format: str, native_revision: int = 0) -> None:
        self.format = format
        self.native_revision = native_revision
        self._result = result
        self._rest = result.data

    async def read(self) -> bytes:
        data, self._rest = self._rest, b""
        return data

    async def finish(self) -> QueryResult:
        return self._result
