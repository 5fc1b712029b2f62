"""Statements that the node itself is busy with, where KILL QUERY finds them.

They are no queries of chDB, or not yet: ON CLUSTER they wait for other hosts, about replicated tables for
entries of a log, over shards they are being prepared. `system.processes` shows them beside chDB's, KILL QUERY
and `replace_running_query` end their waits with QUERY_WAS_CANCELLED 394. What is in a queue or a log by then
is carried out, as with ClickHouse.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from engine.env import Env
from engine.killable import Killable, is_part_of_another
from engine.names import quote_identifier, quote_string
from engine.node.statements.statement import Asked
from engine.sql import Statement, StatementKind, Token, redact, tokenize, without_output_clauses
from engine.storage import ChdbSession

_COLUMNS = (
    "SELECT name, type FROM system.columns WHERE database = 'system' AND table = 'processes' "
    "AND default_kind = '' ORDER BY position"
)
_NOT_OF_CHDB = "query_id NOT IN (SELECT Settings['log_comment'] FROM system.processes)"
"""Many are with chDB for a while, where they are found as its queries."""
_HOW = ("SYNC", "ASYNC", "TEST")


class NodeStatement(Killable):
    """One statement. `ended` is set when it has been answered."""

    def __init__(self, asked: Asked, statement: Statement, begun_s: float) -> None:
        super().__init__()
        self.asked = asked
        self.statement = statement
        self.begun_s = begun_s
        self.ended = asyncio.Event()

    @property
    def query_id(self) -> str:
        return self.asked.query_id


class NodeStatements:
    """All of them; implements SystemView for `processes`."""

    name = "processes"

    def __init__(self, env: Env) -> None:
        self._env = env
        self._running: list[NodeStatement] = []
        self._select = ""

    @contextmanager
    def enter(self, asked: Asked, statement: Statement) -> Iterator[None]:
        """While the block runs, the statement is among them, unless it is a part of one that is."""
        if is_part_of_another():
            yield
            return
        entered = NodeStatement(asked, statement, self._env.monotonic_s())
        self._running.append(entered)
        try:
            with entered.running():
                yield
        finally:
            self.leave(statement)
            entered.ended.set()

    def leave(self, statement: Statement) -> None:
        """From now on it is nothing but a query of chDB."""
        self._running = [each for each in self._running if each.statement is not statement]

    def kill(self, query_id: str) -> None:
        """End the waits of the statement that runs under this id, if there is one."""
        for each in self._running:
            if each.query_id == query_id:
                each.kill()

    @property
    def is_needed(self) -> bool:
        return bool(self._running)

    async def select(self, asked: Asked, tokens: list[Token]) -> str:
        rows = await self._rows(asked.session, self._running, shows=redact)
        mine = f"Settings['log_comment'] = {quote_string(asked.query_id)}"
        as_asked = (
            f"if({mine}, {quote_string(redact(asked.sql))}, query) AS query"  # not with these rows in it
        )
        return (
            f"SELECT * REPLACE ({as_asked}) FROM system.processes "
            f"UNION ALL SELECT * FROM ({rows}) WHERE {_NOT_OF_CHDB}"
        )

    async def chosen_by_kill(
        self, sql: str, session: ChdbSession, params: Mapping[str, str] | None = None
    ) -> list[NodeStatement]:
        """Those that a KILL QUERY means and chDB does not know. Raises SqlError for a condition that chDB
        does not take."""
        # Who kills others' statements ON CLUSTER means none that does the same.
        running = [each for each in self._running if each.statement.kind is not StatementKind.KILL_QUERY]
        if not running:
            return []
        rows = await self._rows(session, running)
        condition, _ = _condition_and_how(sql)
        chosen = await session.clone().query(
            f"SELECT query_id FROM ({rows}) AS processes WHERE {_NOT_OF_CHDB} AND ({condition}\n)",
            format="JSONCompactEachRow",
            params=params or {},
        )
        ids = {json.loads(line)[0] for line in chosen.text.splitlines()}
        return [each for each in running if each.query_id in ids]

    async def _rows(
        self,
        session: ChdbSession,
        running: Sequence[NodeStatement],
        *,
        shows: Callable[[str], str] = str,
    ) -> str:
        """Without a table function, which users who may only read cannot use. `shows` is what is shown of a
        statement."""
        if not self._select:
            columns = (await session.clone().query(_COLUMNS, format="JSONCompactEachRow")).text
            pairs = [json.loads(line) for line in columns.splitlines()]
            types = ", ".join(f"{quote_identifier(name)} {type_}" for name, type_ in pairs)
            parts = ", ".join(
                f"tupleElement(_row, {quote_string(name)}) AS {quote_identifier(name)}" for name, _ in pairs
            )
            whole = f"JSONExtract(arrayJoin({{}}), {quote_string(f'Tuple({types})')})"
            self._select = f"SELECT {parts} FROM (SELECT {whole} AS _row)"
        found = ({**self._row(each), "query": shows(each.asked.sql)} for each in running)
        rows = ", ".join(quote_string(json.dumps(row, ensure_ascii=False)) for row in found)
        return self._select.replace("{}", f"CAST([{rows}], 'Array(String)')")

    def _row(self, running: NodeStatement) -> dict[str, object]:
        asked = running.asked
        return {
            "is_initial_query": 1,
            "user": asked.user.name,
            "query_id": asked.query_id,
            "initial_user": asked.user.name,
            "initial_query_id": asked.query_id,
            "interface": "HTTP",
            "elapsed": self._env.monotonic_s() - running.begun_s,
            "is_cancelled": int(running.is_killed),
            "query_kind": running.statement.kind.value.partition(" ")[0].capitalize(),
            "Settings": {**asked.settings, "log_comment": asked.query_id},
            "current_database": asked.current_database,
        }


def how_to_kill(sql: str) -> str:
    """SYNC, ASYNC or TEST."""
    return _condition_and_how(sql)[1]


def _condition_and_how(sql: str) -> tuple[str, str]:
    """What stands behind WHERE, and the statement's last word."""
    sql = without_output_clauses(sql)
    tokens = [token for token in tokenize(sql) if token.is_significant and token.text != ";"]
    start = next(at for at, token in enumerate(tokens) if token.text.upper() == "WHERE")
    how = tokens[-1].text.upper() if len(tokens) > start + 2 else ""
    end = len(tokens) - (2 if how in _HOW else 1)
    return sql[tokens[start].end : tokens[end].end], how if how in _HOW else "ASYNC"
