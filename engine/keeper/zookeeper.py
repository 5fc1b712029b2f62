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
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kazoo.protocol import serialization as wire

from engine.config.model import ZooKeeper
from engine.env import Env
from engine.errors import (
    AuthFailed,
    ConnectionLoss,
    KeeperAnswer,
    KeeperUnavailable,
    OnclusterError,
    OperationTimeout,
    SessionExpired,
)
from engine.keeper import zookeeper_codec as codec
from engine.keeper.base import (
    ANY_VERSION,
    OPEN_ACL,
    Acl,
    Children,
    Create,
    CreateMode,
    EventType,
    Keeper,
    KeeperFactory,
    Node,
    Op,
    OpResult,
    SetData,
    Stat,
    Watch,
    WatchEvent,
)
from engine.keeper.checks import below_root, check_size, outside_root
from engine.keeper.link import CREATOR_ACL, LinkState, absent_root
from engine.keeper.watches import ArmedWatches, Rearm, WatchKind
from engine.keeper.zookeeper_connection import ConnectionOptions, ZooKeeperConnection

log = logging.getLogger(__name__)

T = TypeVar("T")

_CLOSE_PATIENCE_S = 5.0


async def connect(config: ZooKeeper, env: Env, *, connect_timeout_s: float = 10.0) -> Keeper:
    """Open a session. Raises KeeperUnavailable with the reason; NoNode if the chroot does not exist."""
    session = ZooKeeperSession(config, env, connect_timeout_s=connect_timeout_s)
    try:
        await session.open()
    except BaseException:
        session.abandon()
        raise
    return session


def factory(config: ZooKeeper, env: Env, *, connect_timeout_s: float = 10.0) -> KeeperFactory:
    """Opens sessions, as `connect`."""

    async def open_session() -> Keeper:
        return await connect(config, env, connect_timeout_s=connect_timeout_s)

    return open_session


class _Call:
    """One request under way; `convert` makes its result out of kazoo's."""

    __slots__ = ("convert", "deadline_s", "future", "path", "session", "watch", "watch_kind")

    def __init__(
        self, session: ZooKeeperSession, path: str, convert: Callable[[Any], Any], deadline_s: float
    ) -> None:
        self.session = session
        self.path = path
        self.convert = convert
        self.deadline_s = deadline_s
        self.future: asyncio.Future[Any] = session.loop.create_future()
        self.watch: Watch | None = None
        self.watch_kind = WatchKind.DATA

    def settle(self, value: Any, error: Exception | None) -> None:
        """Called in the order of the wire, so that a watch is armed before its event comes."""
        if error is not None:
            self.fail(self.session._error(error, self.path))
            return
        if self.watch is not None:
            was_absent = value is None and self.watch_kind is WatchKind.DATA
            self.session._armed.add(Rearm(self.watch_kind, self.path, was_absent), self.watch)
        if self.future.done():
            return
        try:
            self.future.set_result(self.convert(value))
        except OnclusterError as answer:
            self.fail(answer)

    def fail(self, error: Exception) -> None:
        """Also if nobody waits any more, and then without asyncio's complaint."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()


class ZooKeeperSession:
    """Implements `Keeper`; made by `connect`."""

    def __init__(self, config: ZooKeeper, env: Env, *, connect_timeout_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self._config = config
        self._env = env
        self._root = config.root.rstrip("/")
        self._operation_timeout_s = config.operation_timeout_ms / 1000
        self._connect_timeout_s = connect_timeout_s
        self._default_acl = CREATOR_ACL if config.identity else OPEN_ACL
        self._state = LinkState.SUSPENDED
        self._session_id = 0
        self._is_closing = False
        self._timeout_s = config.session_timeout_ms / 1000
        self._first_connection: asyncio.Future[None] = self.loop.create_future()
        self._callbacks: list[Callable[[], None]] = []
        self._armed = ArmedWatches()
        self._calls: deque[_Call] = deque()
        self._watchdog: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
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
        """End it without waiting."""
        self.on_lost()
        self._dispose()

    # --- Keeper -------------------------------------------------------------------------------------------

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_s(self) -> float:
        return self._timeout_s

    @property
    def is_expired(self) -> bool:
        return self._state is LinkState.OVER

    def on_expired(self, callback: Callable[[], None]) -> None:
        if self._state is LinkState.OVER:
            self.loop.call_soon(callback)
        else:
            self._callbacks.append(callback)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        mode: CreateMode = CreateMode.PERSISTENT,
        acl: Sequence[Acl] = OPEN_ACL,
    ) -> str:
        op = Create(path, data, mode, OPEN_ACL if acl is OPEN_ACL else tuple(acl))
        request = self._wire_op(op)
        check_size((op,))
        result: str = await self._call(request, self._outside)
        return result

    async def remove(self, path: str, *, version: int = ANY_VERSION) -> None:
        await self._call(wire.Delete(self._inside(path), version), codec.decode_nothing)

    async def set(self, path: str, data: bytes, *, version: int = ANY_VERSION) -> Stat:
        check_size((SetData(path, data, version),))
        result: Stat = await self._call(wire.SetData(self._inside(path), data, version), codec.decode_stat)
        return result

    async def exists(self, path: str, *, watch: Watch | None = None) -> Stat | None:
        request = wire.Exists(self._inside(path), None)
        result: Stat | None = await self._call(request, codec.decode_optional_stat, watch=watch)
        return result

    async def get(self, path: str, *, watch: Watch | None = None) -> Node:
        result: Node = await self._call(
            wire.GetData(self._inside(path), None), codec.decode_node, watch=watch
        )
        return result

    async def children(self, path: str, *, watch: Watch | None = None) -> Children:
        request = wire.GetChildren2(self._inside(path), None)
        result: Children = await self._call(
            request, codec.decode_children, watch=watch, watch_kind=WatchKind.CHILD
        )
        return result

    async def sync(self, path: str) -> None:
        await self._call(wire.Sync(self._inside(path)), codec.decode_nothing)

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        if not ops:
            return []
        check_size(ops)
        request = wire.Transaction([self._wire_op(op) for op in ops])
        inside = self._inside(ops[0].path)
        result: list[OpResult] = await self._submit(
            request, inside, lambda results: codec.decode_multi(ops, results, self._outside)
        )
        return result

    async def get_many(self, paths: Sequence[str]) -> list[Node | KeeperAnswer]:
        return await self._call_many(
            [wire.GetData(self._inside(path), None) for path in paths], codec.decode_node
        )

    async def exists_many(self, paths: Sequence[str]) -> list[Stat | None]:
        requests = [wire.Exists(self._inside(path), None) for path in paths]
        futures = [self._submit(request, request.path, codec.decode_optional_stat) for request in requests]
        return [await future for future in futures]

    async def children_many(self, paths: Sequence[str]) -> list[Children | KeeperAnswer]:
        return await self._call_many(
            [wire.GetChildren2(self._inside(path), None) for path in paths], codec.decode_children
        )

    async def get_acl(self, path: str) -> tuple[Acl, ...]:
        result: tuple[Acl, ...] = await self._call(wire.GetACL(self._inside(path)), codec.decode_acl)
        return result

    async def set_acl(self, path: str, acl: Sequence[Acl], *, version: int = ANY_VERSION) -> Stat:
        result: Stat = await self._call(
            wire.SetACL(self._inside(path), codec.encode_acl(acl), version), codec.decode_stat
        )
        return result

    async def add_auth(self, scheme: str, credentials: bytes) -> None:
        try:
            await self._submit(wire.Auth(0, scheme, credentials.decode()), "/", codec.decode_nothing)
        except AuthFailed:
            self.abandon()  # the server has closed the connection for good
            raise

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

    def _inside(self, path: str) -> str:
        return below_root(self._root, path)

    def _outside(self, path: str) -> str:
        return outside_root(self._root, path)

    def _wire_op(self, op: Op) -> Any:
        return codec.encode_op(op, self._inside(op.path), self._default_acl)

    def _submit(
        self,
        request: Any,
        path: str,
        convert: Callable[[Any], T],
        *,
        watch: Watch | None = None,
        watch_kind: WatchKind = WatchKind.DATA,
    ) -> asyncio.Future[T]:
        if self._state is LinkState.OVER or self._is_closing:
            raise SessionExpired(f"Session {self._session_id:#x} is over")
        call = _Call(self, path, convert, self.loop.time() + self._operation_timeout_s)
        if watch is None:
            self._connection.submit(request, call.settle)
        else:
            call.watch, call.watch_kind = watch, watch_kind
            self._connection.submit_watched(request, call.settle)
        self._calls.append(call)
        if self._watchdog is None:
            self._watchdog = self.loop.call_at(call.deadline_s, self._check_timeouts)
        while self._calls[0].future.done():
            self._calls.popleft()
        return call.future

    async def _call(
        self,
        request: Any,
        convert: Callable[[Any], Any],
        *,
        watch: Watch | None = None,
        watch_kind: WatchKind = WatchKind.DATA,
    ) -> Any:
        return await self._submit(request, request.path, convert, watch=watch, watch_kind=watch_kind)

    async def _call_many(self, requests: Sequence[Any], convert: Callable[[Any], T]) -> list[Any]:
        futures = [self._submit(request, request.path, convert) for request in requests]
        results: list[Any] = []
        for future in futures:
            try:
                results.append(await future)
            except KeeperAnswer as answer:
                results.append(answer)
        return results

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
        if self._state is LinkState.OVER:
            return
        if self._session_id:
            log.info("keeper.resumed session=%#x", session_id)
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._state = LinkState.CONNECTED
        self._session_id, self._timeout_s = session_id, timeout_s
        if not self._first_connection.done():
            self._first_connection.set_result(None)

    def on_suspended(self) -> None:
        if self._state is LinkState.CONNECTED:
            self._state = LinkState.SUSPENDED
            self._patience = self.loop.call_later(self._timeout_s, self._assume_expired)
            log.warning("keeper.suspended session=%#x", self._session_id)

    def _assume_expired(self) -> None:
        log.warning(
            "keeper.assumed_over session=%#x without_connection_s=%g", self._session_id, self._timeout_s
        )
        self.on_lost()

    def on_event(self, type_: str, path: str) -> None:
        event_type = EventType[type_]
        callbacks = self._armed.take(event_type, path)
        event = WatchEvent(event_type, self._outside(path))
        for callback in callbacks:
            callback(event)

    def on_lost(self) -> None:
        """The session is over: tell everybody, once."""
        if self._state is LinkState.OVER:
            return
        self._state = LinkState.OVER
        for timer in (self._watchdog, self._patience):
            if timer is not None:
                timer.cancel()
        calls, self._calls = self._calls, deque()
        for call in calls:
            call.fail(SessionExpired(f"Session {self._session_id:#x} is over"))
        if self._session_id:
            log.info("keeper.session_over session=%#x", self._session_id)
        for path, watch in self._armed.take_all():
            watch(WatchEvent(EventType.SESSION, self._outside(path)))
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        self._dispose()

    def _dispose(self) -> asyncio.Future[None]:
        if self._disposal is None:
            self._disposal = self._connection.dispose()
        return self._disposal
