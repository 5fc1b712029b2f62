"""Waiting for the hosts of a queue entry, through broken connections, until a limit.

Nothing is lost when a session ends: the first look of the next one shows everything that happened
meanwhile, since outcomes are persistent nodes. Nothing is written to the queue and nothing is cancelled,
ever; who stops waiting merely stops waiting. Used on the worker for the first moments and in the triggerer
for the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from engine.ddl.client import DDLQueueClient
from engine.ddl.outcome import EntryStatus
from engine.ddl.output import OutputMode
from engine.ddl.status_reader import NeverEnqueued, entry_is_gone
from engine.env import Env
from engine.errors import Code, OnclusterError, SqlError, Unavailable, UnknownOutcome
from engine.keeper.base import Keeper
from engine.names import QueuePaths
from oncluster_airflow.outcomes import WaitResult, WaitState, at_deadline, judge
from oncluster_airflow.settings import LOOK_AGAIN_S

log = logging.getLogger(__name__)

OpenSession = Callable[[], AbstractAsyncContextManager[Keeper]]
Seen = Callable[[EntryStatus], Awaitable[None]]
"""Is told every look before it is judged; what it raises as Unavailable is tried again with the next look."""

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 5.0
_LAST_LOOK_S = 3.0
_BACKSTOP_S = 120.0
LONGEST_LIMIT_S = 1_000_000_000
"""Of a wait that ends by itself: thirty years, which are a date that Airflow can write down."""


def backstop(timeout_s: int) -> datetime.timedelta | None:
    """Airflow's own limit for a wait in the triggerer, which ends by itself at its deadline with all it knows
    of the hosts: this only catches a triggerer that is stuck. None where there is no such limit."""
    if not 0 <= timeout_s <= LONGEST_LIMIT_S:
        return None
    return datetime.timedelta(seconds=timeout_s + _BACKSTOP_S)


async def _ignore(_: EntryStatus) -> None:
    return


async def wait_for_hosts(
    open_session: OpenSession,
    entry: str,
    *,
    paths: QueuePaths,
    mode: OutputMode,
    limit_s: float | None,
    env: Env,
    token: str = "",
    seen: Seen = _ignore,
    look_again_s: float = LOOK_AGAIN_S,
) -> WaitResult:
    """Wait until the entry's hosts are done as `mode` understands it, at most `limit_s` (None: for ever).

    At the limit the state is TIMEOUT (or FAILED, when a host is known to have failed) with the last that
    is known of the hosts, which is nothing while Keeper was out of reach; `note` says why then. The entry is
    the one that was submitted with `token`, where that is known, and the one that was seen first: another of
    its name, in a Keeper that has lost its data, is none of ours. Raises Refused and Corrupt.
    """
    waiter = _Waiter(open_session, entry, token, paths, mode, env, seen, look_again_s)
    try:
        async with asyncio.timeout(limit_s):
            return await waiter.wait()
    except TimeoutError:
        return await waiter.last_look()


class _Waiter:
    def __init__(
        self,
        open_session: OpenSession,
        entry: str,
        token: str,
        paths: QueuePaths,
        mode: OutputMode,
        env: Env,
        seen: Seen,
        look_again_s: float,
    ) -> None:
        self._open_session = open_session
        self._entry = entry
        self._token = token
        self._paths = paths
        self._mode = mode
        self._env = env
        self._seen = seen
        self._look_again_s = look_again_s
        self._status: EntryStatus | None = None
        self._trouble: OnclusterError | None = None

    async def wait(self) -> WaitResult:
        delay_s = _FIRST_DELAY_S
        while True:
            try:
                async with self._open_session() as keeper:
                    async for status in self._looks(DDLQueueClient(keeper, self._env, self._paths)):
                        if self._trouble is not None:
                            log.info("ddl.wait_resumed entry=%s", self._entry)
                        self._check_own(status)
                        self._status, self._trouble, delay_s = status, None, _FIRST_DELAY_S
                        await self._seen(status)
                        if (state := judge(status, self._mode)) is not None:
                            return self._result(state)
            except (SqlError, NeverEnqueued) as error:
                if isinstance(error, SqlError) and error.code != Code.UNFINISHED:
                    raise
                return self._result(WaitState.GONE, note=error.message)
            except (Unavailable, UnknownOutcome) as error:
                if self._trouble is None:
                    log.warning("ddl.wait_interrupted entry=%s reason=%s", self._entry, error)
                self._trouble = error
            # Jitter, because all triggers of a triggerer lose the same server at the same moment.
            await self._env.sleep(delay_s * (0.5 + self._env.rng.random()))
            delay_s = min(delay_s * 2, _LONGEST_DELAY_S)

    async def last_look(self) -> WaitResult:
        """The result at the limit; one more look tells which hosts are at work now."""
        note = "" if self._trouble is None else f"Keeper or the ledger cannot be reached: {self._trouble}."
        with contextlib.suppress(Unavailable, UnknownOutcome, SqlError, NeverEnqueued, TimeoutError):
            async with asyncio.timeout(_LAST_LOOK_S), self._open_session() as keeper:
                status = await DDLQueueClient(keeper, self._env, self._paths).status(self._entry)
                self._check_own(status)
                await self._seen(status)
                self._status = status
                # Done in the last moment is done.
                if (state := judge(status, self._mode)) is not None:
                    return self._result(state)
        state = at_deadline(self._status) if self._status else WaitState.TIMEOUT
        return self._result(state, note=note, at_limit=True)

    def _check_own(self, status: EntryStatus) -> None:
        """Raises SqlError 341 when it is the status of another entry of that name."""
        is_another = self._status is not None and status.czxid != self._status.czxid
        if is_another or (self._token and status.token != self._token):
            raise entry_is_gone(self._paths.entry(self._entry))

    async def _looks(self, client: DDLQueueClient) -> AsyncIterator[EntryStatus]:
        """The entry's states as they change, and at least every `look_again_s`."""
        changes = client.watch(self._entry)
        upcoming: asyncio.Task[EntryStatus] | None = None
        try:
            while True:
                if upcoming is None:
                    upcoming = asyncio.ensure_future(_next(changes))
                await asyncio.wait({upcoming}, timeout=self._look_again_s)
                if not upcoming.done():
                    yield await client.status(self._entry)
                    continue
                arrived, upcoming = upcoming, None
                try:
                    status = arrived.result()
                except StopAsyncIteration:
                    return
                except SqlError as error:
                    if error.code != Code.UNFINISHED:
                        raise
                    status = await client.status(self._entry)  # what was recorded when it was removed
                yield status
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)

    def _result(self, state: WaitState, *, note: str = "", at_limit: bool = False) -> WaitResult:
        hosts = self._status.hosts if self._status else ()
        return WaitResult(state, self._entry, hosts, note, at_limit)


async def _next(changes: AsyncIterator[EntryStatus]) -> EntryStatus:
    return await anext(changes)
