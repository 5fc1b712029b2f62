"""One ZooKeeper session on the wire: connecting, replies and events in order, pings, watches that outlive a
connection. All of it on the event loop; kazoo's request classes say how each request looks in bytes.

- **no thread.** A request costs neither a change of threads nor a wait for the interpreter's lock, and what
  is asked in one turn of the loop is written at once. The price: a loop that stands still for the session's
  timeout loses the session, as a process that is stopped does.
- **the order of the wire.** Replies and events are told as they arrive, so that an event comes before the
  reply of any later read that sees its change.
- **watches outlive connections.** They are set again on the next connection of the same session, ahead of any
  other request (ZooKeeper's SetWatches), so that the server tells what fired meanwhile.
- **a session is never replaced.** After its end nothing connects again.

When a connection breaks, everything asked and not answered fails with kazoo's ConnectionLoss; what is asked
while there is none waits for the next one.

Source: the protocol of ZooKeeper's own client (ClientCnxn): one frame for each request, led by its length;
xid −1 events, −2 pings, −4 authentication; a ping after a third of the timeout, and no answer for two thirds
is the connection's end.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kazoo.exceptions import EXCEPTIONS, AuthFailedError, ConnectionLoss, NoNodeError, ZookeeperError
from kazoo.protocol.serialization import (
    Auth,
    CloseInstance,
    Connect,
    Exists,
    GetChildren2,
    PingInstance,
    Watch,
    int_int_struct,
    int_struct,
    reply_header_struct,
)

from engine.env import Env
from engine.keeper.attempts import Attempt, Attempts
from engine.keeper.set_watches import split_watches
from engine.keeper.zookeeper_wire import Wire

log = logging.getLogger(__name__)

_NEXT_ADDRESS_S = 0.25
"""A name may have several addresses, and machines behind some of them may be gone: after this time another
one is tried beside it."""
_EVENT_XID, _PING_XID, _AUTH_XID = -1, -2, -4
_EVENT_TYPES = {1: "CREATED", 2: "DELETED", 3: "CHANGED", 4: "CHILD"}

Settle = Callable[[Any, Exception | None], None]
"""Called with a request's result, or with kazoo's error for it."""


class Listener(Protocol):
    """Who is told, in the order of the wire."""

    def on_connected(self, session_id: int, timeout_s: float) -> None: ...
    def on_suspended(self) -> None: ...
    def on_lost(self) -> None: ...
    def on_event(self, type_: str, path: str) -> None:
        """`type_` is CREATED, DELETED, CHANGED or CHILD."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """What a session is opened with. `auth` is (scheme, credentials)."""

    hosts: tuple[tuple[str, int], ...]
    session_timeout_s: float
    connect_timeout_s: float
    auth: tuple[tuple[str, str], ...] = ()
    is_secure: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    private_key_file: str = ""


class _SessionOver(Exception):
    """The server says that the session has ended, or refuses its identity."""


class _Request:
    """One request, from the caller's hand to its reply."""

    __slots__ = ("is_watched", "payload", "request", "settle", "xid")

    def __init__(self, request: Any, payload: bytes, settle: Settle, *, is_watched: bool) -> None:
        self.request = request
        self.payload = payload
        self.settle = settle
        self.is_watched = is_watched
        self.xid = 0


class ZooKeeperConnection:
    """One session over one connection after the other."""

    def __init__(self, options: ConnectionOptions, listener: Listener, env: Env) -> None:
        self._loop = asyncio.get_running_loop()
        self._options = options
        self._listener = listener
        self._attempts = Attempts(options.hosts, env, patience_s=options.connect_timeout_s)
        self._session_id = 0
        self._password = b"\0" * 16
        self._timeout_s = options.session_timeout_s
        self._auth = dict.fromkeys(options.auth)
        """The server knows identities by connection: each new one is told them."""
        self._seen_zxid = 0
        self._xid = 0
        self._wire: Wire | None = None
        self._unsent: deque[_Request] = deque()
        self._unanswered: deque[_Request] = deque()
        self._unanswered_auth: deque[_Request] = deque()
        self._watched: tuple[dict[str, None], dict[str, None], dict[str, None]] = ({}, {}, {})
        self._is_flush_due = False
        self._last_sent_s = self._last_received_s = 0.0
        self._heartbeat: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._disposed: asyncio.Future[None] | None = None
        self.last_error = ""
        """Why the last attempt to connect failed."""

    @property
    def client_id(self) -> tuple[int, bytes]:
        """What makes a connection the session's, as kazoo's clients take it: whoever knows it can end it."""
        return self._session_id, self._password

    @property
    def server(self) -> tuple[str, int]:
        """Host and port of the one that was tried last."""
        return self._attempts.last

    @property
    def progress(self) -> tuple[int, int]:
        """The number of the session's last request, and the last transaction that it has seen."""
        return self._xid, self._seen_zxid

    def start(self) -> None:
        """Begin to connect; `on_connected` follows when a session is had."""
        self._connect()

    def submit(self, request: Any, settle: Settle) -> None:
        """Queue a request of kazoo's serialization module."""
        self._queue(_Request(request, request.serialize(), settle, is_watched=False))

    def submit_watched(self, request: Any, settle: Settle) -> None:
        """As `submit`, for a read that sets a watch."""
        payload = request._replace(watcher=True).serialize()
        self._queue(_Request(request, payload, settle, is_watched=True))

    def dispose(self) -> asyncio.Future[None]:
        """End the session if it lives, then the connection. The future is set when that is done."""
        if self._disposed is not None:
            return self._disposed
        self._disposed = self._loop.create_future()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._wire is None:
            self._disposed.set_result(None)
            return self._disposed
        self._flush()
        self._send(CloseInstance.serialize(), xid=self._new_xid(), type_=CloseInstance.type)
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._heartbeat = self._loop.call_later(self._timeout_s, self._end_connection)
        return self._disposed

    def _end_connection(self) -> None:
        if self._wire is not None and self._wire.transport is not None:
            self._wire.transport.abort()

    # --- connecting ---------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._connecting = self._loop.create_task(self._connect_to_any(), name="keeper connection")

    async def _connect_to_any(self) -> None:
        """One host after the other, until one takes the session; over when it is over."""
        while True:
            attempt = await self._attempts.next()
            try:
                await self._connect_to(attempt)
                return
            except _SessionOver:
                self._listener.on_lost()
                return
            except TimeoutError:
                self.last_error = f"{attempt.host}: no answer"
            except (OSError, struct.error, UnicodeError) as error:  # UnicodeError: of the name of a host
                why = getattr(error, "strerror", None) or str(error) or self._hung_up
                self.last_error = f"{attempt.host}: {why}"

    @property
    def _hung_up(self) -> str:
        if self._options.is_secure:
            return "the server closed the connection at the first word of TLS; is that its port for TLS?"
        return "the server closed the connection"

    async def _connect_to(self, attempt: Attempt) -> None:
        """Raises OSError, UnicodeError (of the name), TimeoutError, struct.error (no ZooKeeper there),
        _SessionOver."""
        options = self._options
        wire = Wire(self)
        try:
            async with asyncio.timeout(attempt.patience_s):
                await self._loop.create_connection(
                    lambda: wire,
                    attempt.host,
                    attempt.port,
                    ssl=_tls_context(options) if options.is_secure else None,
                    server_hostname=attempt.host if options.is_secure else None,
                    happy_eyeballs_delay=_NEXT_ADDRESS_S,
                )
                timeout_ms = round(options.session_timeout_s * 1000)
                hello = Connect(0, self._seen_zxid, timeout_ms, self._session_id, self._password, False)
                wire.write_frame(bytes(hello.serialize()))
                answer, _ = Connect.deserialize(await wire.first_frame, 0)
            if answer.time_out <= 0:
                raise _SessionOver
            self._session_id, self._password = answer.session_id, answer.passwd
            self._timeout_s = answer.time_out / 1000
            self._attempts.succeeded()
            self._take_over(wire)
        except BaseException:  # also a cancellation: the socket must not stay open
            if wire.transport is not None:
                wire.transport.abort()
            raise

    def _take_over(self, wire: Wire) -> None:
        """The session goes on over this connection: identity first, then watches, then whatever waits."""
        self._wire = wire
        self._last_received_s = self._loop.time()
        waiting, self._unsent = self._unsent, deque()
        for scheme, credentials in self._auth:
            auth = Auth(0, scheme, credentials)
            self._unsent.append(_Request(auth, auth.serialize(), self._own_identity, is_watched=False))
        data, absent, child = (list(paths) for paths in self._watched)
        for request in split_watches(self._seen_zxid, data, absent, child):
            self._unsent.append(_Request(request, request.serialize(), _ignore, is_watched=False))
        self._unsent += waiting
        self._flush()
        self._beat()
        self._listener.on_connected(self._session_id, self._timeout_s)

    def _own_identity(self, value: Any, error: Exception | None) -> None:
        if isinstance(error, AuthFailedError):
            self.last_error = "the server refuses the identity"
            self._listener.on_lost()

    def connection_lost(self, wire: Wire) -> None:
        if wire is not self._wire:
            return  # it never was the session's
        self._wire = None
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._disposed is not None:
            if not self._disposed.done():
                self._disposed.set_result(None)
            return
        failed = (*self._unanswered, *self._unanswered_auth, *self._unsent)
        for requests in (self._unanswered, self._unanswered_auth, self._unsent):
            requests.clear()
        for each in failed:
            each.settle(None, ConnectionLoss())
        self._listener.on_suspended()
        if self._disposed is None:
            self._connect()

    # --- sending ------------------------------------------------------------------------------------------

    def _queue(self, request: _Request) -> None:
        self._unsent.append(request)
        if not self._is_flush_due and self._wire is not None:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write all that waits, at once."""
        self._is_flush_due = False
        if self._wire is None or self._wire.transport is None or not self._unsent:
            return
        packed = bytearray()
        for each in self._unsent:
            is_auth = each.request.type == Auth.type
            each.xid = _AUTH_XID if is_auth else self._new_xid()
            (self._unanswered_auth if is_auth else self._unanswered).append(each)
            packed += int_struct.pack(8 + len(each.payload))
            packed += int_int_struct.pack(each.xid, each.request.type) + each.payload
        self._unsent.clear()
        self._last_sent_s = self._loop.time()
        self._wire.transport.write(bytes(packed))

    def _send(self, payload: bytes, *, xid: int, type_: int) -> None:
        if self._wire is not None:
            self._last_sent_s = self._loop.time()
            self._wire.write_frame(int_int_struct.pack(xid, type_) + payload)

    def _new_xid(self) -> int:
        self._xid = self._xid % 2147483647 + 1
        return self._xid

    def _beat(self) -> None:
        """Keep the session alive, and notice when nobody answers any more."""
        if self._wire is None:
            return
        now_s = self._loop.time()
        if now_s - self._last_received_s > self._timeout_s * 2 / 3:
            self._wire.drop(f"no answer for {now_s - self._last_received_s:.1f} s")
            return
        if now_s - self._last_sent_s >= self._timeout_s / 3 * 0.9:
            self._send(PingInstance.serialize(), xid=_PING_XID, type_=PingInstance.type)
        self._heartbeat = self._loop.call_later(self._timeout_s / 12, self._beat)

    # --- receiving ----------------------------------------------------------------------------------------

    def frame_received(self, wire: Wire, data: bytes, at: int) -> None:
        self._last_received_s = self._loop.time()
        try:
            xid, zxid, code = reply_header_struct.unpack_from(data, at)
            at += reply_header_struct.size
            if xid == _EVENT_XID:
                event, _ = Watch.deserialize(data, at)
                self._tell_event(event.type, event.path)
            elif xid == _AUTH_XID and self._unanswered_auth:
                asked = self._unanswered_auth.popleft()
                if not code:
                    self._auth[asked.request.scheme, asked.request.auth] = None
                asked.settle(None if code else True, AuthFailedError() if code else None)
            elif xid >= 0:
                if zxid > 0:
                    self._seen_zxid = zxid
                self._answer(wire, xid, code, data, at)
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            wire.drop(f"a reply that cannot be read: {error}")

    def _answer(self, wire: Wire, xid: int, code: int, data: bytes, at: int) -> None:
        if not self._unanswered:
            if self._disposed is None:
                wire.drop(f"a reply nobody asked for, xid {xid}")
            else:
                self._end_connection()  # the session has ended over there
            return
        asked = self._unanswered.popleft()
        if asked.xid != xid:
            asked.settle(None, ConnectionLoss())
            wire.drop(f"the reply to {xid} instead of {asked.xid}")
            return
        value = None
        is_absent = code == NoNodeError.code and asked.request.type == Exists.type
        if code and not is_absent:
            asked.settle(None, EXCEPTIONS.get(code, ZookeeperError)())
            return
        if not code:
            try:
                value = asked.request.deserialize(data, at)
            except RuntimeError:  # kazoo does not know the code of one of a multi's operations
                asked.settle(None, ZookeeperError())
                return
        if asked.is_watched:
            present, absent, child = self._watched
            path = asked.request.path
            if asked.request.type == GetChildren2.type:
                child[path] = None
            else:
                (absent if value is None else present)[path] = None
                (present if value is None else absent).pop(path, None)
        asked.settle(value, None)

    def _tell_event(self, type_: int, path: str) -> None:
        name = _EVENT_TYPES.get(type_)
        if name is None or self._disposed is not None:
            return
        present, absent, child = self._watched
        if name != "CHILD":
            present.pop(path, None)
            absent.pop(path, None)
        if name in ("CHILD", "DELETED"):
            child.pop(path, None)
        self._listener.on_event(name, path)


def _tls_context(options: ConnectionOptions) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=options.ca_file or None)
    if options.certificate_file and options.private_key_file:
        context.load_cert_chain(options.certificate_file, options.private_key_file)
    return context


def _ignore(value: Any, error: Exception | None) -> None:
    """The events speak for themselves; if the connection broke, the watches are set again on the next one."""
