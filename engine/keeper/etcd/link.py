"""One connection of a session: how it begins, what goes on over it, until it breaks.

Beginning: show user and password; grant the session's lease, or find it; write the session's key anew, at
whose revision everything begins (see `engine.keeper.etcd.store`); tell the watches what happened since the
last connection; remove what ended sessions have left. Then five things go on side by side, and when one
fails the connection is over:

    the session's requests (`engine.keeper.etcd.requests`)
    keeping the lease alive
    listening (`engine.keeper.etcd.feed`)
    removing ephemeral nodes of ended sessions (`engine.keeper.etcd.reaper`)
    telling the time (`engine.keeper.etcd.clock`)
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from engine.config.model import Etcd
from engine.env import Env
from engine.keeper.base import OPEN_ACL, EventType
from engine.keeper.etcd import messages
from engine.keeper.etcd.channel import EtcdChannel, EtcdRefuses, LinkLost
from engine.keeper.etcd.clock import TICK_S
from engine.keeper.etcd.feed import Feed
from engine.keeper.etcd.layout import Layout
from engine.keeper.etcd.reaper import Reaper
from engine.keeper.etcd.record import Record
from engine.keeper.etcd.requests import Requests
from engine.keeper.etcd.store import SessionOver, Store
from engine.keeper.watches import WatchKind

if TYPE_CHECKING:
    from engine.keeper.etcd.session import EtcdSession

_ROOT = Record(0, 0, 0, 0, 0, 0, 0, OPEN_ACL, b"")


class Link:
    """Made by `begin`."""

    def __init__(
        self, session: EtcdSession, config: Etcd, layout: Layout, env: Env, channel: EtcdChannel
    ) -> None:
        self._session = session
        self._config = config
        self._layout = layout
        self._env = env
        self._channel = channel
        self.store: Store
        self.feed: Feed
        self.reaper: Reaper

    # --- beginning ----------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Raises LinkLost, EtcdRefuses, SessionOver."""
        session = self._session
        await self._channel.authenticate(timeout_s=self._config.operation_timeout_ms / 1000)
        if not session.born:
            await self._grant()
        epoch = await self._write_key()
        self.store = Store(
            self._channel,
            self._layout,
            self._env,
            session_id=session.session_id,
            epoch=epoch,
            max_txn_ops=self._config.max_txn_ops,
            remembered=session.remembered,
        )
        self.reaper = Reaper(self.store, self._layout, self._env, session.clock.now_ms)
        self.feed = Feed(
            self._channel,
            self._layout,
            on_changes=session.tell,
            on_session_end=self._on_session_end,
            on_clock=session.clock.heard,
        )
        await self.feed.begin(epoch)
        await session.clock.tick(self._channel, session.session_id)
        await self.reaper.sweep()
        await self._catch_up(epoch)

    async def _grant(self) -> None:
        wanted_s = math.ceil(self._config.session_timeout_ms / 1000)
        answer = await self._channel.call(messages.LEASE_GRANT, messages.LeaseGrantRequest(TTL=wanted_s))
        self._session.granted(answer.ID, float(answer.TTL))

    async def _write_key(self) -> int:
        """The revision at which the session's key was written for this connection."""
        session, layout = self._session, self._layout
        key, root = layout.session(session.session_id), layout.node("/")
        plant = messages.TxnRequest(
            compare=[messages.compare_mod(root, 0)], success=[messages.put_op(root, _ROOT.to_bytes())]
        )
        request = messages.TxnRequest(
            compare=[messages.compare_created(key, session.born)],
            success=[
                messages.put_op(key, b"", lease=session.session_id),
                messages.range_op(layout.clock),
                messages.txn_op(plant),
            ],
        )
        try:
            answer = await self._channel.call(messages.TXN, request)
        except EtcdRefuses as refused:
            if "lease not found" in refused.text:
                raise SessionOver from None
            raise
        if not answer.succeeded:
            raise SessionOver
        epoch = int(answer.header.revision)
        session.born = session.born or epoch
        clock = answer.responses[1].response_range.kvs
        session.clock.found(clock[0].value if clock else None)
        return epoch

    async def _catch_up(self, epoch: int) -> None:
        """Tell the watches what happened since the last connection, as ZooKeeper's SetWatches does: by what
        is there now."""
        session = self._session
        armed = session.armed.keys()
        if not armed:
            return
        families, event_revision = await self.store.read_families(dict.fromkeys(key.path for key in armed))
        await self.feed.follow(max(event_revision, epoch))
        for key in armed:
            family = families.get(key.path)
            there = family is not None and family.record is not None
            if key.was_absent:
                type_ = EventType.CREATED if there else None
            elif family is None or not there:
                type_ = EventType.DELETED
            elif key.kind is WatchKind.DATA:
                type_ = EventType.CHANGED if family.mzxid > session.seen else None
            else:
                type_ = EventType.CHILD if family.pzxid > session.seen else None
            if type_ is not None:
                session.fire(type_, key.path)
        session.saw(max(event_revision, epoch))

    def _on_session_end(self, session_id: int) -> None:
        if session_id == self._session.session_id:
            self._session.over()
        else:
            self.reaper.session_ended(session_id)

    # --- what goes on -------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Until the connection breaks or the session is over. Raises LinkLost, SessionOver, EtcdRefuses."""
        requests = Requests(self._session, self._layout, self.store, self.feed, self.reaper, self._revoke)
        tasks = [
            asyncio.create_task(work, name=f"keeper etcd {name}")
            for name, work in (
                ("requests", requests.carry_out()),
                ("lease", self._keep_alive()),
                ("feed", self.feed.listen()),
                ("reaper", self.reaper.run()),
                ("clock", self._tell_time()),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_alive(self) -> None:
        session = self._session
        timeout_s = session.session_timeout_s
        conversation = self._channel.converse(messages.LEASE_KEEP_ALIVE, messages.LeaseKeepAliveRequest)
        request = messages.LeaseKeepAliveRequest(ID=session.session_id)
        while True:
            try:
                async with asyncio.timeout(timeout_s * 2 / 3):
                    await conversation.say(request)
                    answer = await conversation.hear()
            except TimeoutError:
                raise LinkLost(f"no answer for {timeout_s * 2 / 3:.1f} s") from None
            if answer.TTL <= 0:
                raise SessionOver
            await self._env.sleep(timeout_s / 4)

    async def _tell_time(self) -> None:
        while True:
            await self._env.sleep(TICK_S * self._env.rng.uniform(0.5, 1.0))
            await self._session.clock.tick(self._channel, self._session.session_id)

    async def _revoke(self) -> None:
        """Give the lease back."""
        request = messages.LeaseRevokeRequest(ID=self._session.session_id)
        try:
            await self._channel.call(messages.LEASE_REVOKE, request, timeout_s=1.0)
        except (LinkLost, EtcdRefuses):
            pass  # it runs out by itself
