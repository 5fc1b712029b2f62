"""HTTP sessions: `session_id` keeps one chDB connection, with its database, settings and temporary tables.

A session belongs to its user. It ends when it was not used for its timeout, with `close_session=1`, or with
the node. One request at a time: the second one is refused with SESSION_IS_LOCKED 373, as by a server, also
while a statement has not ended whose client has left.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from engine.env import Env
from engine.errors import Code, SqlError
from engine.node.http.query import SessionRequest
from engine.storage import ChdbSession

_SWEEP_S = 1.0


@dataclass(slots=True)
class _Kept:
    session: ChdbSession
    expires_s: float
    in_use: bool = True


class HttpSessions:
    """All sessions of a node."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def use(
        self, user: str, request: SessionRequest, make: Callable[[], ChdbSession]
    ) -> AsyncIterator[ChdbSession]:
        """The session asked for, made by `make` if it is new. Raises SqlError 372 and 373."""
        key = (user, request.session_id)
        kept = self._kept.get(key)
        if kept is None:
            if self._is_closed:  # in a new one names without a database would mean other tables
                raise SqlError(
                    Code.SESSION_NOT_FOUND, f"Session {request.session_id} not found: the node stops"
                )
            if request.must_exist:
                raise SqlError(Code.SESSION_NOT_FOUND, f"Session {request.session_id} not found")
            kept = self._kept[key] = _Kept(make(), 0.0)
        elif kept.in_use or kept.session.is_locked:
            raise SqlError(
                Code.SESSION_IS_LOCKED, f"Session {request.session_id} is locked by a concurrent client"
            )
        kept.in_use = True
        try:
            yield kept.session
        finally:
            kept.in_use = False
            kept.expires_s = self._env.monotonic_s() + request.timeout_s
            if request.is_last:
                self._kept.pop(key, None)  # `close` may have been faster
                await kept.session.close()
            elif self._sweeper is None or self._sweeper.done():
                self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        while self._kept:
            await self._env.sleep(_SWEEP_S)
            now_s = self._env.monotonic_s()
            for key, kept in list(self._kept.items()):
                if not (kept.in_use or kept.session.is_locked) and kept.expires_s <= now_s:
                    del self._kept[key]
                    await kept.session.close()

    async def close(self) -> None:
        """End all of them; there are no new ones."""
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        while self._kept:
            _, kept = self._kept.popitem()
            await kept.session.close()
