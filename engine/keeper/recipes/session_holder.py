"""A session for services that outlive sessions.

`SessionHolder.get` returns the present session and opens a new one when it is over, with growing pauses while
Keeper cannot be reached. What must be made anew for each session (ephemeral nodes, watches) goes into hooks,
which have run when `get` returns.

What the caller must do: on ConnectionLoss or OperationTimeout look what happened, on the same session; on
SessionExpired call `get` again and start from what the tree says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

from engine.env import Env
from engine.errors import KeeperFull, KeeperUnavailable, Unavailable, UnknownOutcome
from engine.keeper.base import Keeper, KeeperFactory

log = logging.getLogger(__name__)

SessionHook = Callable[[Keeper], Awaitable[None]]


class SessionHolder:
    """Holds at most one session. Pauses between attempts grow from `first_pause_s` to `longest_pause_s`.

    `where` is the address, for messages.
    """

    def __init__(
        self,
        factory: KeeperFactory,
        env: Env,
        *,
        where: str = "",
        first_pause_s: float = 0.1,
        longest_pause_s: float = 5.0,
    ) -> None:
        self._factory = factory
        self._server = f"Keeper at {where}" if where else "Keeper"
        self._env = env
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._hooks: list[SessionHook] = []
        self._opening = asyncio.Lock()
        self._keeper: Keeper | None = None
        self._is_closed = False
        self._failure: Unavailable | UnknownOutcome | None = None
        """Of the last attempt to open one."""

    async def __aenter__(self) -> SessionHolder:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def current(self) -> Keeper | None:
        """The session, if there is one and it lives as far as is known."""
        return None if self._keeper is None or self._keeper.is_expired else self._keeper

    def explain(self, reason: str) -> str:
        """Why something waits, with why there is no session if there is none."""
        if not reason or self._failure is None:
            return reason
        return f"{reason}; no session with {self._server}: {self._failure}"

    def on_new_session(self, hook: SessionHook) -> None:
        """Have `hook` run on every new session before anybody gets it; in the order of registration.

        A hook that raises Unavailable or UnknownOutcome gives the session up, and another is tried.
        """
        self._hooks.append(hook)

    async def get(self, *, timeout_s: float | None = None) -> Keeper:
        """A live session; waits for Keeper as long as it takes, or raises KeeperUnavailable after
        `timeout_s`; KeeperFull where it was that for which there was none."""
        if self._keeper is not None and not self._keeper.is_expired:
            return self._keeper
        try:
            async with asyncio.timeout(timeout_s):
                return await self._open()
        except TimeoutError:
            if isinstance(self._failure, KeeperFull):
                raise KeeperFull(self._failure.message, hint=self._failure.hint) from None
            raise KeeperUnavailable(f"No session with {self._server} within {timeout_s:g} s") from None

    async def run(self) -> None:
        """Keep a session at all times: a new one as soon as the old one is over. Until cancelled."""
        while True:
            keeper = await self.get()
            over = asyncio.Event()
            keeper.on_expired(over.set)
            await over.wait()

    async def close(self) -> None:
        """End the session; `get` raises KeeperUnavailable from now on."""
        self._is_closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await keeper.close()

    async def _open(self) -> Keeper:
        async with self._opening:
            pause_s = self._first_pause_s
            while True:
                if self._is_closed:
                    raise KeeperUnavailable("This holder of Keeper sessions is closed")
                if self._keeper is not None and not self._keeper.is_expired:
                    return self._keeper
                try:
                    return await self._open_once()
                except (Unavailable, UnknownOutcome) as error:
                    self._failure = error
                    log.warning("keeper.no_session retry_in_s=%.2f reason=%s", pause_s, error)
                await self._env.sleep(pause_s * self._env.rng.uniform(0.5, 1.0))
                pause_s = min(pause_s * 2, self._longest_pause_s)

    async def _open_once(self) -> Keeper:
        keeper = await self._factory()
        try:
            for hook in self._hooks:
                await hook(keeper)
        except BaseException:  # also a cancellation: nobody else would close it
            await keeper.close()
            raise
        if self._is_closed:
            await keeper.close()
            raise KeeperUnavailable("This holder of Keeper sessions is closed")
        log.info(
            "keeper.session_opened session=%#x timeout_s=%g", keeper.session_id, keeper.session_timeout_s
        )
        self._keeper, self._failure = keeper, None
        return keeper
