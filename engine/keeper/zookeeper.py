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
from typing import Any

from engine.config.model import ZooKeeper
from engine.env import Env
from engine.errors import KeeperAnswer, OnclusterError
from engine.keeper import zookeeper_codec as codec
from engine.keeper.base import EventType, Keeper, Watch
from engine.keeper.calls import Call
from engine.keeper.remote_session import CLOSE_PATIENCE_S, RemoteSession
from engine.keeper.session import RequestKind
from engine.keeper.watches import Rearm, WatchKind
from engine.keeper.zookeeper_connection import ConnectionOptions, ZooKeeperConnection

log = logging.getLogger(__name__)


async def connect(config: ZooKeeper, env: Env, *, connect_timeout_s: float = 10.0) -> Keeper:
    """Open a session. Raises KeeperUnavailable with the reason; NoNode if the chroot does not exist."""
    return await ZooKeeperSession(config, env, connect_timeout_s=connect_timeout_s).opened()


class _Call(Call):
    """`decode` makes its result out of kazoo's."""

    __slots__ = ("decode", "session", "watch", "watch_kind")

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
        super().__init__(path, deadline_s)
        self.session = session
        self.decode = decode
        self.watch = watch
        self.watch_kind = watch_kind

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
            self.answer(self.decode(value))
        except KeeperAnswer as answer:
            self.fail(self.session.answer_outside(answer))


class ZooKeeperSession(RemoteSession[_Call]):
    """Made by `connect`."""

    server = "Keeper"

    def __init__(self, config: ZooKeeper, env: Env, *, connect_timeout_s: float) -> None:
        super().__init__(config, env, connect_timeout_s=connect_timeout_s)
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

    async def close(self) -> None:
        self._is_closing = True
        disposal = self._dispose()
        try:
            async with asyncio.timeout(CLOSE_PATIENCE_S):
                await asyncio.shield(disposal)
        except TimeoutError:
            log.warning("keeper.close_unanswered session=%#x", self._session_id)
        self.over()

    # --- RemoteSession ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._connection.start()

    def _why_not(self) -> str:
        return self._connection.last_error

    def _server(self) -> tuple[str, int]:
        return self._connection.server

    def _progress(self) -> tuple[int, int]:
        return self._connection.progress

    def _let_go(self) -> None:
        self._dispose()

    def _dispose(self) -> asyncio.Future[None]:
        if self._disposal is None:
            self._disposal = self._connection.dispose()
        return self._disposal

    def _submit(
        self, kind: RequestKind, path: str, payload: Any, watch: Watch | None, deadline_s: float
    ) -> _Call:
        request, decode = codec.encode(kind, path, payload)
        call = _Call(
            self,
            path,
            decode,
            watch=watch,
            watch_kind=WatchKind.CHILD if kind is RequestKind.CHILDREN else WatchKind.DATA,
            deadline_s=deadline_s,
        )
        if watch is None:
            self._connection.submit(request, call.settle)
        else:
            self._connection.submit_watched(request, call.settle)
        return call

    def _error(self, error: Exception, path: str) -> OnclusterError:
        return codec.decode_error(error, self._outside(path), self._session_id)

    # --- Listener -----------------------------------------------------------------------------------------

    def on_connected(self, session_id: int, timeout_s: float) -> None:
        self._connected(session_id, timeout_s)

    def on_suspended(self) -> None:
        self._suspended()

    def on_event(self, type_: str, path: str) -> None:
        self._call_watches(EventType[type_], path)

    def on_lost(self) -> None:
        self.over()
