"""Reading that outlives connections and sessions.

A read may be repeated as often as needed; a write may not. So only reads go through `PatientKeeper.ask`, and
whoever writes looks first and again after every unknown outcome.

Each new session begins with `sync`: a new session may be served by a follower that is behind what an earlier
session has seen, and the proof that a dump is of one instant rests on reads that never go back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar

from engine.env import Env
from engine.errors import KeeperUnavailable, SessionExpired, Unavailable, UnknownOutcome
from engine.keeper.base import Keeper, KeeperFactory
from engine.keeper.recipes import SessionHolder

T = TypeVar("T")

_PAUSE_S = 0.2


class PatientKeeper:
    """Sessions with one Keeper, one after the other. `async with` ends the last one."""

    def __init__(self, factory: KeeperFactory, env: Env, *, patience_s: float = 60.0) -> None:
        self._env = env
        self._patience_s = patience_s
        self._holder = SessionHolder(factory, env)
        self._holder.on_new_session(_catch_up)

    async def __aenter__(self) -> PatientKeeper:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._holder.close()

    async def session(self) -> Keeper:
        """A live session. Raises KeeperUnavailable when none is had within the patience."""
        return await self._holder.get(timeout_s=self._patience_s)

    async def ask(self, reading: Callable[[Keeper], Awaitable[T]]) -> T:
        """What `reading` returns; repeated after a lost connection or session, at most for the patience.

        Raises KeeperUnavailable after that, and every definite answer at once.
        """
        deadline_s = self._env.monotonic_s() + self._patience_s
        while True:
            keeper = await self.session()
            try:
                return await reading(keeper)
            except (UnknownOutcome, Unavailable) as error:
                await self.pause_after(error, deadline_s=deadline_s)

    async def pause_after(self, error: UnknownOutcome | Unavailable, *, deadline_s: float) -> None:
        """Wait a little before the next attempt. Raises KeeperUnavailable when the deadline has passed."""
        if self._env.monotonic_s() > deadline_s:
            raise KeeperUnavailable(
                f"Keeper did not answer for {self._patience_s:g} s: {error.message}",
                hint="What was done so far is kept; give the same command again.",
            ) from error
        if not isinstance(error, SessionExpired):
            await self._env.sleep(_PAUSE_S)

    def deadline_s(self) -> float:
        """When patience ends that begins now."""
        return self._env.monotonic_s() + self._patience_s


async def _catch_up(keeper: Keeper) -> None:
    await keeper.sync("/")
