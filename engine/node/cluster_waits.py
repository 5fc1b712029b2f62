"""Statements ON CLUSTER that wait here for other hosts, where KILL QUERY finds them.

They are no queries of chDB. `system.processes` shows them beside chDB's, KILL QUERY and
`replace_running_query` end their wait with QUERY_WAS_CANCELLED 394. The entry stays in the queue and every
host carries it out, as with ClickHouse.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from engine.env import Env
from engine.errors import Code, SqlError
from engine.names import quote_identifier, quote_string
from engine.node.statement import Asked
from engine.sql import Statement, StatementKind, Token, redact, tokenize, without_output_clauses
from engine.storage import ChdbSession

_COLUMNS = (
    "SELECT name, type FROM system.columns WHERE database = 'system' AND table = 'processes' "
    "AND default_kind = '' ORDER BY position"
)
_HOW = ("SYNC", "ASYNC", "TEST")


class ClusterWait:
    """One statement. `kill` it; `ended` is set when it has been answered."""

    def __init__(self, asked: Asked, statement: Statement, begun_s: float) -> None:
        self.query_id = asked.query_id
        self.user = asked.user.name
        self.query = asked.sql
        self.kind = statement.kind
        self.database = asked.current_database
        self.settings = {**asked.settings, "log_comment": asked.query_id}
        self.begun_s = begun_s
        self.is_killed = False
        self.ended = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None

    def kill(self) -> None:
        self.is_killed = True
        if self._task is not None:
            self._task.cancel()

    async def until_killed(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Raises SqlError 394 once it is killed, also when that was before."""
        self._task = asyncio.create_task(waiting)
        if self.is_killed:
            self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not self.is_killed or (caller is not None and caller.cancelling()):
                raise
            raise SqlError(Code.QUERY_WAS_CANCELLED, "Query was cancelled") from None
        finally:
            self._task = None


class ClusterWaits:
    """All of them; implements SystemView for `processes`."""

    name = "processes"

    def __init__(self, env: Env) -> None:
        self._env = env
        self._waits: list[ClusterWait] = []
        self._select = ""

    @contextmanager
    def enter(self, asked: Asked, statement: Statement) -> Iterator[ClusterWait]:
        """While the block runs, the statement is among them."""
        wait = ClusterWait(asked, statement, self._env.monotonic_s())
        self._waits.append(wait)
        try:
            yield wait
        finally:
            self._waits.remove(wait)
            wait.ended.set()

    def kill(self, query_id: str) -> None:
        """End the wait of the statement that runs under this id, if there is one."""
        for wait in self._waits:
            if wait.query_id == query_id:
                wait.kill()

    @property
    def is_needed(self) -> bool:
        return bool(self._waits)

    async def select(self, asked: Asked, tokens: list[Token]) -> str:
        rows = await self._rows(asked.session, self._waits, shows=redact)
        return f"SELECT * FROM system.processes UNION ALL {rows}"

    async def chosen_by_kill(
        self, sql: str, session: ChdbSession, params: Mapping[str, str] | None = None
    ) -> list[ClusterWait]:
        """Those that a KILL QUERY means. Raises SqlError for a condition that chDB does not take."""
        # Who kills others' statements ON CLUSTER means none that does the same.
        waits = [wait for wait in self._waits if wait.kind is not StatementKind.KILL_QUERY]
        if not waits:
            return []
        rows = await self._rows(session, waits)
        condition, _ = _condition_and_how(sql)
        chosen = await session.clone().query(
            f"SELECT query_id FROM ({rows}) AS processes WHERE ({condition}\n)",
            format="JSONCompactEachRow",
            params=params or {},
        )
        ids = {json.loads(line)[0] for line in chosen.text.splitlines()}
        return [wait for wait in waits if wait.query_id in ids]

    async def _rows(
        self, session: ChdbSession, waits: Sequence[ClusterWait], *, shows: Callable[[str], str] = str
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
        found = ({**self._row(wait), "query": shows(wait.query)} for wait in waits)
        rows = ", ".join(quote_string(json.dumps(row, ensure_ascii=False)) for row in found)
        return self._select.replace("{}", f"CAST([{rows}], 'Array(String)')")

    def _row(self, wait: ClusterWait) -> dict[str, object]:
        return {
            "is_initial_query": 1,
            "user": wait.user,
            "query_id": wait.query_id,
            "initial_user": wait.user,
            "initial_query_id": wait.query_id,
            "interface": "HTTP",
            "elapsed": self._env.monotonic_s() - wait.begun_s,
            "is_cancelled": int(wait.is_killed),
            "query_kind": wait.kind.value.partition(" ")[0].capitalize(),
            "Settings": wait.settings,
            "current_database": wait.database,
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
