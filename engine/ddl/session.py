"""Where the queue's code gets its Keeper session from, and how it goes on after a broken connection.

Whoever has one session passes the `Keeper`: after a broken connection the same session is used again, and
when it is over the caller is told. Whoever can open new ones passes a `SessionHolder`, and is never told.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, cast

from engine.env import Env
from engine.errors import ConnectionLoss, KeeperUnavailable, OperationTimeout, SessionExpired
from engine.keeper.base import Keeper
from engine.keeper.recipes import SessionHolder

logger = logging.getLogger(__name__)

T = TypeVar("T")

_OPENING_TIMEOUT_S = 10.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class SessionSource(Protocol):
    """Hands out the present session, and perhaps a new one when it is over."""

    async def session(self) -> Keeper:
        """A session that is not known to be over. Raises KeeperUnavailable."""
        ...


class OneSession:
    """A source that has just the one."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    async def session(self) -> Keeper:
        if self._keeper.is_expired:
            raise SessionExpired("The Keeper session is over.", hint="Attach again with a new session.")
        return self._keeper


class HeldSessions:
    """A source that opens new sessions, by a `SessionHolder`."""

    def __init__(self, holder: SessionHolder) -> None:
        self._holder = holder

    async def session(self) -> Keeper:
        return await self._holder.get(timeout_s=_OPENING_TIMEOUT_S)


class UpToDate:
    """What is read through it is as new as it is itself: one `sync` serves all reads of a session."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._session: Keeper | None = None

    async def bring(self, keeper: Keeper) -> None:
        """Before reading from this session."""
        if keeper is not self._session:
            await keeper.sync(self._path)
            self._session = keeper


def session_source(keeper: Keeper | SessionHolder | SessionSource) -> SessionSource:
    """Whatever the caller has, as a source."""
    if isinstance(keeper, SessionHolder):
        return HeldSessions(keeper)
    if isinstance(keeper, (OneSession, HeldSessions)) or not hasattr(keeper, "multi"):
        return keeper
    return OneSession(cast(Keeper, keeper))


async def retrying(
    source: SessionSource, env: Env, action: Callable[[Keeper], Awaitable[T]], *, patience_s: float = 60.0
) -> T:
    """Run `action` until it gets an answer. For reads, and for writes that may be repeated.

    Raises KeeperUnavailable when there is no session to be had for `patience_s`, SessionExpired when the only
    session is over, and every definite answer at once.
    """
    started_s = env.monotonic_s()
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await action(await source.session())
        except (ConnectionLoss, OperationTimeout, SessionExpired, KeeperUnavailable) as error:
            one_session_is_over = isinstance(source, OneSession) and isinstance(error, SessionExpired)
            if one_session_is_over or env.monotonic_s() - started_s > patience_s:
                raise
            logger.info("ddl.keeper_retry error=%s", error)
        await env.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
