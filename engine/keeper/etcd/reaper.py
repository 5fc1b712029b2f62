"""Removes the ephemeral nodes of sessions that have ended, as ZooKeeper's leader does.

etcd ends a session: its lease runs out, or is revoked, and its key goes. Its ephemeral nodes are not bound to
the lease, for etcd would remove them without the parents' counts and without an event. Every session that is
alive sees the key go, and whoever comes first removes all nodes of the session in one transaction. Nothing
can be added meanwhile: every write of a session compares its key.

When nobody is alive to see it, the next session to begin does it before it reads anything. While etcd is full
nobody can; whoever has seen it tries again until there is room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from engine.env import Env
from engine.errors import ConnectionLoss
from engine.keeper.etcd import messages
from engine.keeper.etcd.layout import Layout
from engine.keeper.etcd.overlay import EndSession
from engine.keeper.etcd.store import EtcdFull, Store
from engine.keeper.tree import Caller

log = logging.getLogger(__name__)

_SPREAD_S = 0.05
"""Those who see a session end do not all begin at once."""
_FULL_PAUSE_S = 5.0


class Reaper:
    """Of one connection."""

    def __init__(self, store: Store, layout: Layout, env: Env, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._layout = layout
        self._env = env
        self._now_ms = now_ms
        self._ended: asyncio.Queue[int] = asyncio.Queue()

    def session_ended(self, session_id: int) -> None:
        self._ended.put_nowait(session_id)

    async def run(self) -> None:
        """Until the connection breaks. Raises LinkLost, SessionOver, EtcdRefuses."""
        while True:
            session_id = await self._ended.get()
            await self._env.sleep(self._env.rng.uniform(0, _SPREAD_S))
            if not await self.reap(session_id):
                await self._env.sleep(_FULL_PAUSE_S * self._env.rng.uniform(0.5, 1.0))
                self._ended.put_nowait(session_id)

    async def sweep(self) -> None:
        """Remove what ended sessions have left while nobody was there. Raises as `run`."""
        layout = self._layout
        answers = await self._store.read(
            [
                messages.range_op(layout.ephemerals, layout.ephemerals_end, keys_only=True),
                messages.range_op(layout.sessions, layout.sessions_end, keys_only=True),
            ]
        )
        entries, sessions = answers.ranges
        owners = {layout.ephemeral_of(kv.key)[0] for kv in entries}
        for session_id in owners - {layout.session_of(kv.key) for kv in sessions}:
            if not await self.reap(session_id):
                self._ended.put_nowait(session_id)

    async def reap(self, session_id: int) -> bool:
        """Remove the nodes of a session that has ended. False: etcd is full. Raises as `run`."""
        paths = await self.paths_of(session_id)
        if paths:
            caller = Caller(session_id, frozenset(), self._now_ms())
            written = await self._store.write([EndSession(session_id, paths)], lambda: caller)
            if isinstance(written.error, EtcdFull | ConnectionLoss):
                log.warning("keeper.etcd_not_yet_reaped session=%#x why=%s", session_id, written.error)
                return False
            if written.error is not None:
                log.error("keeper.etcd_not_reaped session=%#x why=%s", session_id, written.error)
            else:
                log.info("keeper.etcd_reaped session=%#x nodes=%d", session_id, len(paths))
        return True

    async def paths_of(self, session_id: int) -> tuple[str, ...]:
        """A session's ephemeral nodes. Raises as `run`."""
        range_ = messages.range_op(*self._layout.ephemerals_of(session_id), keys_only=True)
        answers = await self._store.read([range_])
        return tuple(self._layout.ephemeral_of(kv.key)[1] for kv in answers.ranges[0])
