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
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from engine.errors import (
    ConnectionLoss,
    KeeperAnswer,
    OperationTimeout,
    SessionExpired,
)
from engine.keeper.base import (
    Acl,
    Watch,
    WatchEvent,
)
from engine.keeper.calls import fail
from engine.keeper.link import LinkState
from engine.keeper.session import KeeperSession, RequestKind
from engine.keeper.watches import Rearm, WatchKind

if TYPE_CHECKING:
    from engine.keeper.memory_server import MemoryServer


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


class MemorySession(KeeperSession):
    """Made by `MemoryServer.connect`."""

    def __init__(
        self,
        server: MemoryServer,
        session_id: int,
        *,
        timeout_s: float,
        client: str,
        root: str,
        default_acl: tuple[Acl, ...],
    ) -> None:
        super().__init__(
            session_id=session_id,
            timeout_s=timeout_s,
            state=LinkState.CONNECTED,
            root=root,
            default_acl=default_acl,
        )
        self._server = server
        self._watchdog: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self.client = client
        self.seen_zxid = 0
        self.pending: deque[Request] = deque()
        self.to_server: deque[Request] = deque()
        self.to_client: deque[Reply | WatchEvent] = deque()
        self.sent_until_s = 0.0
        self.replied_until_s = 0.0

    async def close(self) -> None:
        if self.state is LinkState.OVER:
            return
        if self.state is LinkState.CONNECTED and not self._server.network.is_cut_off(self.client):
            try:
                await self._send(RequestKind.CLOSE, "/")
            except (ConnectionLoss, SessionExpired, OperationTimeout):
                pass  # the server ends the session after its timeout
        self.end()

    def abandon(self) -> None:
        self.end()

    def _send(
        self, kind: RequestKind, path: str, payload: Any = None, watch: Watch | None = None
    ) -> asyncio.Future[Any]:
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
            self._call_watches(message.type, message.path)
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
            fail(request.future, self.answer_outside(error))
        elif not request.future.done():
            request.future.set_result(result)

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
        self._announce_end()

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
                fail(
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
            fail(request.future, error())
