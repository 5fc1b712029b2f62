"""The client's half of the memory Keeper: one session, with all that a real client goes through.

A session is CONNECTED, SUSPENDED (the connection broke; it comes back by itself unless the server says that
the session is over, or the session timeout passes without a connection) or OVER. Requests and replies travel
on two first-in-first-out wires, events on the same wire as replies, so that an event arrives before the reply
of any later read that sees its change.

While SUSPENDED, new requests wait for the connection, at most `operation_timeout_s`; a request that timed out
may still be executed later, but always before any later request of the same session.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from engine.errors import (
    AuthFailed,
    ConnectionLoss,
    KeeperAnswer,
    MultiFailed,
    OperationTimeout,
    SessionExpired,
)
from engine.keeper.base import (
    ANY_VERSION,
    OPEN_ACL,
    Acl,
    Check,
    Children,
    Create,
    CreateMode,
    EventType,
    Node,
    Op,
    OpResult,
    Remove,
    SetData,
    Stat,
    Watch,
    WatchEvent,
)
from engine.keeper.checks import below_root, check_size, outside_root
from engine.keeper.link import LinkState
from engine.keeper.watches import ArmedWatches, Rearm, WatchKind

if TYPE_CHECKING:
    from engine.keeper.memory import MemoryKeeperServer


class RequestKind(enum.Enum):
    CREATE = "create"
    REMOVE = "remove"
    SET = "set"
    EXISTS = "exists"
    GET = "get"
    CHILDREN = "children"
    SYNC = "sync"
    MULTI = "multi"
    GET_ACL = "get_acl"
    SET_ACL = "set_acl"
    AUTH = "auth"
    CLOSE = "close"


class Request:
    """One request under way. `payload` is what its kind needs: an Op, a tuple of Ops, credentials, …"""

    __slots__ = ("future", "kind", "path", "payload", "started_s", "watch")

    def __init__(self, kind: RequestKind, path: str, payload: Any, watch: Watch | None) -> None:
        self.kind = kind
        self.path = path
        self.payload = payload
        self.watch = watch
        self.started_s = 0.0
        self.future: asyncio.Future[Any]


Reply = tuple[Request, Any, KeeperAnswer | None, int]
"""The request, its result or its error, and the zxid up to which the server has seen changes."""


class MemorySession:
    """Implements `Keeper`. Made by `MemoryKeeperServer.connect`."""

    def __init__(
        self,
        server: MemoryKeeperServer,
        session_id: int,
        *,
        timeout_s: float,
        client: str,
        root: str,
        default_acl: tuple[Acl, ...],
    ) -> None:
        self._server = server
        self.loop = asyncio.get_running_loop()
        self._session_id = session_id
        self._timeout_s = timeout_s
        self._root = root
        self._default_acl = default_acl
        self._callbacks: list[Callable[[], None]] = []
        self._watchdog: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self.client = client
        self.state = LinkState.CONNECTED
        self.seen_zxid = 0
        self.armed = ArmedWatches()
        self.pending: deque[Request] = deque()
        self.to_server: deque[Request] = deque()
        self.to_client: deque[Reply | WatchEvent] = deque()
        self.sent_until_s = 0.0
        self.replied_until_s = 0.0

    # --- Keeper -------------------------------------------------------------------------------------------

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_s(self) -> float:
        return self._timeout_s

    @property
    def is_expired(self) -> bool:
        return self.state is LinkState.OVER

    def on_expired(self, callback: Callable[[], None]) -> None:
        if self.state is LinkState.OVER:
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
        op = Create(self._inside(path), data, mode, self._default_acl if acl is OPEN_ACL else tuple(acl))
        check_size((op,))
        return self._outside(await self._call(RequestKind.CREATE, op.path, op))

    async def remove(self, path: str, *, version: int = ANY_VERSION) -> None:
        path = self._inside(path)
        await self._call(RequestKind.REMOVE, path, Remove(path, version))

    async def set(self, path: str, data: bytes, *, version: int = ANY_VERSION) -> Stat:
        op = SetData(self._inside(path), data, version)
        check_size((op,))
        return cast(Stat, await self._call(RequestKind.SET, op.path, op))

    async def exists(self, path: str, *, watch: Watch | None = None) -> Stat | None:
        return cast("Stat | None", await self._call(RequestKind.EXISTS, self._inside(path), watch=watch))

    async def get(self, path: str, *, watch: Watch | None = None) -> Node:
        return cast(Node, await self._call(RequestKind.GET, self._inside(path), watch=watch))

    async def children(self, path: str, *, watch: Watch | None = None) -> Children:
        return cast(Children, await self._call(RequestKind.CHILDREN, self._inside(path), watch=watch))

    async def sync(self, path: str) -> None:
        await self._call(RequestKind.SYNC, self._inside(path))

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        if not ops:
            return []
        inside = tuple(self._op_inside(op) for op in ops)
        check_size(inside)
        results = cast("list[OpResult]", await self._call(RequestKind.MULTI, inside[0].path, inside))
        return [self._outside(result) if isinstance(result, str) else result for result in results]

    async def get_many(self, paths: Sequence[str]) -> list[Node | KeeperAnswer]:
        return cast("list[Node | KeeperAnswer]", await self._call_many(RequestKind.GET, paths))

    async def exists_many(self, paths: Sequence[str]) -> list[Stat | None]:
        futures = [self._send(RequestKind.EXISTS, self._inside(path), None, None) for path in paths]
        return [await future for future in futures]

    async def children_many(self, paths: Sequence[str]) -> list[Children | KeeperAnswer]:
        return cast("list[Children | KeeperAnswer]", await self._call_many(RequestKind.CHILDREN, paths))

    async def get_acl(self, path: str) -> tuple[Acl, ...]:
        return cast("tuple[Acl, ...]", await self._call(RequestKind.GET_ACL, self._inside(path)))

    async def set_acl(self, path: str, acl: Sequence[Acl], *, version: int = ANY_VERSION) -> Stat:
        return cast(Stat, await self._call(RequestKind.SET_ACL, self._inside(path), (tuple(acl), version)))

    async def add_auth(self, scheme: str, credentials: bytes) -> None:
        try:
            await self._call(RequestKind.AUTH, "/", (scheme, credentials))
        except AuthFailed:
            self.end()
            raise

    async def close(self) -> None:
        if self.state is LinkState.OVER:
            return
        if self.state is LinkState.CONNECTED and not self._server.network.is_cut_off(self.client):
            try:
                await self._call(RequestKind.CLOSE, "/")
            except (ConnectionLoss, SessionExpired, OperationTimeout):
                pass  # the server ends the session after its timeout
        self.end()

    # --- requests -----------------------------------------------------------------------------------------

    def _inside(self, path: str) -> str:
        return below_root(self._root, path)

    def _outside(self, path: str) -> str:
        return outside_root(self._root, path)

    def _op_inside(self, op: Op) -> Op:
        path = self._inside(op.path)
        if not self._root and self._default_acl is OPEN_ACL:
            return op
        match op:
            case Create(_, data, mode, acl):
                return Create(path, data, mode, self._default_acl if acl is OPEN_ACL else acl)
            case Remove(_, version):
                return Remove(path, version)
            case SetData(_, data, version):
                return SetData(path, data, version)
            case Check(_, version):
                return Check(path, version)

    def _answer_outside(self, error: KeeperAnswer) -> KeeperAnswer:
        if isinstance(error, MultiFailed):
            return MultiFailed(error.index, self._answer_outside(error.error), error.op_codes)
        return type(error)(self._outside(error.path), error.reason)

    def _send(self, kind: RequestKind, path: str, payload: Any, watch: Watch | None) -> asyncio.Future[Any]:
        request = Request(kind, path, payload, watch)
        future: asyncio.Future[Any] = self.loop.create_future()
        request.future = future
        if self.state is LinkState.OVER:
            raise SessionExpired(f"Session {self._session_id:#x} is over")
        request.started_s = self.loop.time()
        self.pending.append(request)
        is_in_trouble = self.state is not LinkState.CONNECTED or self._server.network.is_cut_off(self.client)
        if self.state is LinkState.CONNECTED:
            self._server.network.send(self, request)
        if is_in_trouble or self.replied_until_s > request.started_s:
            self.watch_timeouts()
        return future

    async def _call(
        self, kind: RequestKind, path: str, payload: Any = None, *, watch: Watch | None = None
    ) -> Any:
        return await self._send(kind, path, payload, watch)

    async def _call_many(self, kind: RequestKind, paths: Sequence[str]) -> list[Any]:
        futures = [self._send(kind, self._inside(path), None, None) for path in paths]
        results: list[Any] = []
        for future in futures:
            try:
                results.append(await future)
            except KeeperAnswer as answer:
                results.append(answer)
        return results

    # --- what the network does to a client (called by the server) -----------------------------------------

    def receive(self) -> None:
        """Take the next message off the wire, if the network lets it through."""
        if (
            not self.to_client
            or self.state is not LinkState.CONNECTED
            or self._server.network.is_deaf(self.client)
        ):
            return
        message = self.to_client.popleft()
        if isinstance(message, WatchEvent):
            self._call_watches(message)
            return
        request, result, error, zxid = message
        self.seen_zxid = max(self.seen_zxid, zxid)
        if self.pending and self.pending[0] is request:
            self.pending.popleft()
        else:
            self.pending.remove(request)
        if request.watch is not None and error is None:
            is_child = request.kind is RequestKind.CHILDREN
            key = Rearm(
                WatchKind.CHILD if is_child else WatchKind.DATA,
                request.path,
                was_absent=not is_child and result is None,
            )
            self.armed.add(key, request.watch)
        if error is not None:
            _fail(request.future, self._answer_outside(error) if self._root else error)
        elif not request.future.done():
            request.future.set_result(result)

    def _call_watches(self, event: WatchEvent) -> None:
        callbacks = self.armed.take(event.type, event.path)
        if self._root:
            event = WatchEvent(event.type, self._outside(event.path))
        for callback in callbacks:
            callback(event)

    def lose_connection(self) -> None:
        """The connection is gone, as far as the client can tell: all that is under way has an unknown
        outcome."""
        if self.state is not LinkState.CONNECTED:
            return
        self.state = LinkState.SUSPENDED
        self._patience = self.loop.call_later(self._timeout_s, self.end)
        self.to_server.clear()
        self.to_client.clear()
        self._fail_pending(lambda: ConnectionLoss(f"Connection of session {self._session_id:#x} was lost"))

    def resume(self, missed: Sequence[WatchEvent]) -> None:
        """The connection is back; `missed` are the watches that fired meanwhile."""
        self.state = LinkState.CONNECTED
        if self._patience is not None:
            self._patience.cancel()
        self.armed_again(missed)
        for request in self.pending:
            self._server.network.send(self, request)

    def armed_again(self, missed: Sequence[WatchEvent]) -> None:
        """Put events on the wire ahead of every later reply."""
        for event in missed:
            self._server.network.deliver(self, event)

    def end(self, *, silently: bool = False) -> None:
        """The session is over. `silently`: its process died, nobody is there to be told."""
        if self.state is LinkState.OVER:
            return
        self.state = LinkState.OVER
        self.to_client.clear()
        for timer in (self._watchdog, self._patience):
            if timer is not None:
                timer.cancel()
        if silently:
            return
        self._fail_pending(lambda: SessionExpired(f"Session {self._session_id:#x} is over"))
        for path, watch in self.armed.take_all():
            watch(WatchEvent(EventType.SESSION, self._outside(path)))
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def watch_timeouts(self) -> None:
        """Have requests fail that stay unanswered for the operation timeout. Needed only in trouble."""
        if self._watchdog is None and self.pending:
            due = self.pending[0].started_s + self._server.operation_timeout_s
            self._watchdog = self.loop.call_at(due, self._check_timeouts)

    def _check_timeouts(self) -> None:
        self._watchdog = None
        now = self.loop.time()
        next_due = None
        for request in self.pending:
            due = request.started_s + self._server.operation_timeout_s
            if due <= now:
                _fail(
                    request.future,
                    OperationTimeout(f"No answer from Keeper, path: {self._outside(request.path)}"),
                )
            elif next_due is None:
                next_due = due
        if next_due is not None:
            self._watchdog = self.loop.call_at(next_due, self._check_timeouts)

    def _fail_pending(self, error: Callable[[], Exception]) -> None:
        pending, self.pending = self.pending, deque()
        for request in pending:
            _fail(request.future, error())


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    """Set the exception without asyncio's complaint when nobody waits for the request any more."""
    if not future.done():
        future.set_exception(error)
        future.exception()
