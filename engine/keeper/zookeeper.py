"""ZooKeeper and ClickHouse Keeper over the network.

    keeper = await connect(config, env)

One object is one session, whatever happens to its connection (see `engine.keeper.base`):

    connection breaks       requests under way get ConnectionLoss; the object stays usable; it connects again
                            by itself, to any of the hosts; new requests wait for that, at most
                            operation_timeout_ms
    no answer in time       OperationTimeout. The request may still be executed later, but always before any
                            later request of the same session: look through the same session
    no connection for the   as if the session had expired, see below. (A server that has lost its data refuses
    session timeout         the old session for ever, because that has seen a later transaction than the
                            server.)
    session expired         pending watches get SESSION, `on_expired` callbacks are called, all calls raise
                            SessionExpired; another session is the caller's to open

Nothing is tried again here. With `identity`, nodes that are created with the default ACL belong to that
identity (scheme `auth`, all permissions), as ClickHouse does it. `root` is put in front of every path and
must exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from engine.config.model import ZooKeeper
from engine.env import Env
from engine.errors import (
    ConnectionLoss,
    KeeperAnswer,
    KeeperUnavailable,
    OnclusterError,
    OperationTimeout,
    SessionExpired,
)
from engine.keeper import zookeeper_codec as codec
from engine.keeper.base import (
    OPEN_ACL,
    EventType,
    Keeper,
    KeeperFactory,
    Watch,
)
from engine.keeper.link import CREATOR_ACL, LinkState, absent_root
from engine.keeper.session import KeeperSession, RequestKind
from engine.keeper.watches import Rearm, WatchKind
from engine.keeper.zookeeper_connection import ConnectionOptions, ZooKeeperConnection

log = logging.getLogger(__name__)

_CLOSE_PATIENCE_S = 5.0


async def connect(config: ZooKeeper, env: Env, *, connect_timeout_s: float = 10.0) -> Keeper:
    """Open a session. Raises KeeperUnavailable with the reason; NoNode if the chroot does not exist."""
    session = ZooKeeperSession(config, env, connect_timeout_s=connect_timeout_s)
    try:
        await session.open()
    except BaseException:  # also a cancellation: the session must not live on unowned
        session.abandon()
        raise
    return session


def factory(config: ZooKeeper, env: Env, *, connect_timeout_s: float = 10.0) -> KeeperFactory:
    """Opens sessions, as `connect`."""

    async def open_session() -> Keeper:
        return await connect(config, env, connect_timeout_s=connect_timeout_s)

    return open_session


class _Call:
    """One request under way; `decode` makes its result out of kazoo's."""

    __slots__ = ("deadline_s", "decode", "future", "path", "session", "watch", "watch_kind")

    def __init__(
        self,
        session: ZooKeeperSession,
        path: str,
        decode: codec.Decode,
        *,
        watch: Watch | None,
        watch_kind: WatchKind,
        deadline_s: float,
    ) -> None:
        self.session = session
        self.path = path
        self.decode = decode
        self.watch = watch
        self.watch_kind = watch_kind
        self.deadline_s = deadline_s
        self.future: asyncio.Future[Any] = session.loop.create_future()

    def settle(self, value: Any, error: Exception | None) -> None:
        """Called in the order of the wire, so that a watch is armed before its event comes."""
        if error is not None:
            self.fail(self.session._error(error, self.path))
            return
        if self.watch is not None:
            was_absent = value is None and self.watch_kind is WatchKind.DATA
            self.session.armed.add(Rearm(self.watch_kind, self.path, was_absent), self.watch)
        if self.future.done():
            return
        try:
            self.future.set_result(self.decode(value))
        except KeeperAnswer as answer:
            self.fail(self.session._answer_outside(answer))

    def fail(self, error: Exception) -> None:
        """Also if nobody waits any more, and then without asyncio's complaint."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()


class ZooKeeperSession(KeeperSession):
    """Made by `connect`."""

    def __init__(self, config: ZooKeeper, env: Env, *, connect_timeout_s: float) -> None:
        super().__init__(
            session_id=0,
            timeout_s=config.session_timeout_ms / 1000,
            state=LinkState.SUSPENDED,
            root=config.root.rstrip("/"),
            default_acl=CREATOR_ACL if config.identity else OPEN_ACL,
        )
        self._config = config
        self._operation_timeout_s = config.operation_timeout_ms / 1000
        self._connect_timeout_s = connect_timeout_s
        self._is_closing = False
        self._first_connection: asyncio.Future[None] = self.loop.create_future()
        self._calls: deque[_Call] = deque()
        self._disposal: asyncio.Future[None] | None = None
        self._connection = ZooKeeperConnection(
            ConnectionOptions(
                hosts=config.hosts,
                session_timeout_s=self._timeout_s,
                connect_timeout_s=connect_timeout_s,
                auth=(("digest", config.identity),) if config.identity else (),
                is_secure=config.secure,
                ca_file=config.ca_file,
                certificate_file=config.certificate_file,
                private_key_file=config.private_key_file,
            ),
            self,
            env,
        )

    async def open(self) -> None:
        """Connect and look for the chroot."""
        self._connection.start()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await asyncio.shield(self._first_connection)
        except TimeoutError:
            where, why = codec.host_list(self._config), self._connection.last_error or "no answer"
            raise KeeperUnavailable(
                f"No session with Keeper at {where} within {self._connect_timeout_s:g} s ({why})."
            ) from None
        try:
            if self._root and await self.exists("/") is None:
                raise absent_root(self._root)
        except (ConnectionLoss, OperationTimeout, SessionExpired) as error:
            raise KeeperUnavailable(f"Keeper was lost while connecting: {error}") from error

    def abandon(self) -> None:
        self.on_lost()
        self._dispose()

    async def close(self) -> None:
        self._is_closing = True
        disposal = self._dispose()
        try:
            async with asyncio.timeout(_CLOSE_PATIENCE_S):
                await asyncio.shield(disposal)
        except TimeoutError:
            log.warning("keeper.close_unanswered session=%#x", self._session_id)
        self.on_lost()

    # --- requests -----------------------------------------------------------------------------------------

    def _send(
        self, kind: RequestKind, path: str, payload: Any = None, watch: Watch | None = None
    ) -> asyncio.Future[Any]:
        if self.state is LinkState.OVER or self._is_closing:
            raise SessionExpired(f"Session {self._session_id:#x} is over")
        request, decode = codec.encode(kind, path, payload)
        call = _Call(
            self,
            path,
            decode,
            watch=watch,
            watch_kind=WatchKind.CHILD if kind is RequestKind.CHILDREN else WatchKind.DATA,
            deadline_s=self.loop.time() + self._operation_timeout_s,
        )
        if watch is None:
            self._connection.submit(request, call.settle)
        else:
            self._connection.submit_watched(request, call.settle)
        self._calls.append(call)
        if self._watchdog is None:
            self._watchdog = self.loop.call_at(call.deadline_s, self._check_timeouts)
        while self._calls[0].future.done():
            self._calls.popleft()
        return call.future

    def _check_timeouts(self) -> None:
        """One timer for all: deadlines come in the order of the requests."""
        self._watchdog = None
        now_s = self.loop.time()
        calls = self._calls
        while calls and (calls[0].future.done() or calls[0].deadline_s <= now_s):
            call = calls.popleft()
            where, after_s = self._outside(call.path), self._operation_timeout_s
            call.fail(OperationTimeout(f"Keeper did not answer within {after_s:g} s, path: {where}"))
        if calls:
            self._watchdog = self.loop.call_at(calls[0].deadline_s, self._check_timeouts)

    def _error(self, error: Exception, path: str) -> OnclusterError:
        return codec.decode_error(error, self._outside(path), self._session_id)

    # --- Listener -----------------------------------------------------------------------------------------

    def on_connected(self, session_id: int, timeout_s: float) -> None:
        if self.state is LinkState.OVER:
            return
        if self._session_id:
            log.info("keeper.resumed session=%#x", session_id)
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self.state = LinkState.CONNECTED
        self._session_id, self._timeout_s = session_id, timeout_s
        if not self._first_connection.done():
            self._first_connection.set_result(None)

    def on_suspended(self) -> None:
        if self.state is LinkState.CONNECTED:
            self.state = LinkState.SUSPENDED
            self._patience = self.loop.call_later(self._timeout_s, self._assume_expired)
            log.warning("keeper.suspended session=%#x", self._session_id)

    def _assume_expired(self) -> None:
        log.warning(
            "keeper.assumed_over session=%#x without_connection_s=%g", self._session_id, self._timeout_s
        )
        self.on_lost()

    def on_event(self, type_: str, path: str) -> None:
        self._call_watches(EventType[type_], path)

    def on_lost(self) -> None:
        """The session is over: tell everybody, once."""
        if self.state is LinkState.OVER:
            return
        self.state = LinkState.OVER
        self._stop_timers()
        calls, self._calls = self._calls, deque()
        for call in calls:
            call.fail(SessionExpired(f"Session {self._session_id:#x} is over"))
        if self._session_id:
            log.info("keeper.session_over session=%#x", self._session_id)
        self._announce_end()
        self._dispose()

    def _dispose(self) -> asyncio.Future[None]:
        if self._disposal is None:
            self._disposal = self._connection.dispose()
        return self._disposal
