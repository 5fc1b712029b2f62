"""Where kazoo's threads meet asyncio; nothing else in the project touches a kazoo thread.

kazoo does the wire protocol on one connection thread. This file replaces the parts of it that do not suit an
event loop, by its own seams (handler, connection):

- **one queue to the loop.** kazoo hands replies and watch events to two worker threads, so that an event may
  overtake the reply before it. Here both go through one queue, in the order of the wire, and one wake-up of
  the loop takes all that has gathered.
- **requests in batches.** kazoo writes one request per round of its loop and is woken by one byte per request
  through
  a pipe that blocks when it is full — which would hang the event loop while Keeper is away. Here one byte
  wakes it and everything that waits is written at once; replies are read through a buffer.
- **watches outlive connections.** kazoo forgets them when a connection breaks. Here they are set again on the
  next
  connection of the same session, ahead of any other request (ZooKeeper's SetWatches), so that the server
  tells what fired meanwhile.
- **a session is never replaced.** After the end of a session kazoo would quietly begin another. Here it
  stops.

Threads: only `_Connection` and the methods marked so run on kazoo's thread; everything else on the loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import AUTH_XID, CLOSE_RESPONSE, ConnectionHandler
from kazoo.protocol.serialization import (
    Auth,
    CloseInstance,
    Exists,
    int_int_struct,
    int_struct,
)
from kazoo.retry import KazooRetry

from engine.keeper.set_watches import split_watches

log = logging.getLogger(__name__)

_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(
    logging.CRITICAL
)  # it repeats each failed attempt to connect; the owner of a session says it once

THREAD_NAME = "kazoo-connection"
_RETRY_PAUSE_S = 0.05
_LONGEST_RETRY_PAUSE_S = 1.0
_WRITE_AT_ONCE_BYTES = 256 * 1024
_READ_AT_ONCE_BYTES = 256 * 1024


class Listener(Protocol):
    """Who is told, on the loop's thread and in the order of the wire."""

    def on_connected(self, session_id: int, timeout_s: float) -> None: ...
    def on_suspended(self) -> None: ...
    def on_lost(self) -> None: ...
    def on_event(self, type_: str, path: str) -> None:
        """`type_` is kazoo's: CREATED, DELETED, CHANGED, CHILD."""
        ...


class Result:
    """What kazoo settles on its thread; `settle(value, error)` is then called on the loop's."""

    __slots__ = ("_post", "_settle", "payload")

    def __init__(
        self,
        post: Callable[..., None],
        settle: Callable[[Any, Exception | None], None],
        payload: bytes,
    ) -> None:
        self._post = post
        self._settle = settle
        self.payload = payload

    def set(self, value: Any = None) -> None:
        self._post(self._settle, value, None)

    def set_exception(self, error: Exception) -> None:
        self._post(self._settle, None, error)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler without worker threads: what they would do is posted to the loop."""

    def __init__(
        self, post: Callable[..., None], on_event: Callable[[str, str], None], timeout_s: float
    ) -> None:
        super().__init__()
        self._post = post
        self._on_event = on_event
        self._timeout_s = timeout_s
        self.last_error = ""
        self.absent: set[str] = set()
        """Paths whose data watch waits for a creation; kazoo's thread only."""

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
        thread = threading.Thread(target=func, args=args, kwargs=kwargs, name=THREAD_NAME, daemon=True)
        thread.start()
        return thread

    def dispatch_callback(self, callback: Any) -> None:
        """Called with watch events, and with event type NONE when kazoo forgets its watches."""
        event = callback.args[0]
        if event.type != "NONE":
            self.absent.discard(event.path)
            self._post(self._on_event, event.type, event.path)

    def create_socket_pair(self) -> Any:
        pair = super().create_socket_pair()
        for end in pair:
            end.setblocking(False)
        return pair

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = min(kwargs.get("timeout") or self._timeout_s, self._timeout_s)
        try:
            return super().create_connection(*args, **kwargs)
        except OSError as error:
            self.last_error = f"{kwargs.get('address', ('?',))[0]}: {error.strerror or error}"
            raise

    def select(self, rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None) -> Any:
        """poll(2) instead of a selector made anew for each call."""
        poller = select.poll()
        for each in rlist:
            poller.register(each, select.POLLIN)
        for each in wlist:
            poller.register(each, select.POLLOUT)
        ready = {fd for fd, _ in poller.poll(None if timeout is None else max(0, timeout * 1000))}
        return (
            [each for each in rlist if each.fileno() in ready],
            [each for each in wlist if each.fileno() in ready],
            [],
        )


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection with batched writing, buffered reading, and watches that are set again."""

    def __init__(self, bridge: KazooBridge, client: Any, retry: Any) -> None:
        super().__init__(client, retry, logger=_kazoo_log)
        self._bridge = bridge
        self._buffer = bytearray()
        self._xid: int = 0
        self._is_woken = False

    def wake(self) -> None:
        """Have the thread look at the queue. May be called on any thread; never blocks."""
        if self._is_woken:
            return
        self._is_woken = True
        sock = self._write_sock
        if sock is not None:
            try:
                sock.send(b"\0")
            except OSError:
                pass  # full: it will wake anyway; closed: it has ended

    def _connect(self, *args: Any) -> tuple[float, float]:
        self._buffer.clear()
        self._is_woken = False
        read_timeout_ms, connect_timeout_ms = super()._connect(*args)
        self._bridge._connected(negotiated_timeout_s=read_timeout_ms * 1.5 / 1000)
        if self.client._queue:
            self.wake()
        return read_timeout_ms, connect_timeout_ms

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        try:
            self._read_sock.recv(4096)
        except BlockingIOError:
            pass
        # The order matters. Cleared after the bytes are taken, or a byte sent in between would be taken with
        # the mark left standing, and nobody would wake this thread again. Cleared before the queue is read,
        # or a request that comes after the reading would find the mark standing.
        self._is_woken = False
        queue, pending = self.client._queue, self.client._pending
        packed = bytearray()
        while queue and len(packed) < _WRITE_AT_ONCE_BYTES:
            request, result = queue.popleft()
            payload = request.serialize() if result is None else result.payload
            if request.type == Auth.type:
                xid = AUTH_XID
            else:
                xid = self._xid = self._xid % 2147483647 + 1
            packed += int_struct.pack(8 + len(payload)) + int_int_struct.pack(xid, request.type) + payload
            # Before it is written: if that fails, whatever is pending gets ConnectionLoss.
            pending.append((request, result, xid))
        if packed:
            self._write(packed, connect_timeout)
        if queue:
            self.wake()

    def _write(self, message: bytes | bytearray, timeout: float) -> None:
        """Written at once if the socket takes it; kazoo would ask first."""
        sent = 0
        if not hasattr(self._socket, "pending"):  # no TLS, which has errors of its own
            with self._socket_error_handling(), contextlib.suppress(BlockingIOError):
                sent = self._socket.send(message)
        if sent < len(message):
            super()._write(message[sent:], timeout)

    def _read(self, length: int, timeout: float) -> bytes:
        buffer = self._buffer
        while len(buffer) < length:
            if hasattr(self._socket, "pending"):  # TLS keeps a buffer of its own
                return super()._read(length, timeout)  # type: ignore[no-any-return]
            with self._socket_error_handling():
                try:
                    chunk = self._socket.recv(_READ_AT_ONCE_BYTES)
                except BlockingIOError:
                    if not self.handler.select([self._socket], [], [], timeout)[0]:
                        raise self.handler.timeout_exception("socket time-out during read") from None
                    continue
            if not chunk:
                raise ConnectionDropped("socket connection broken")
            buffer += chunk
        taken = bytes(buffer[:length])
        del buffer[:length]
        return taken

    def _read_socket(self, read_timeout: float) -> Any:
        """Take every message that has arrived whole; the caller waits for the socket, not for the buffer."""
        buffer = self._buffer
        while True:
            outcome = super()._read_socket(read_timeout)
            if outcome is CLOSE_RESPONSE:
                return outcome
            if hasattr(self._socket, "pending") and self._socket.pending():
                continue  # decrypted already, so that the socket will not look readable
            if len(buffer) < 4:
                return outcome
            if len(buffer) - 4 < int_struct.unpack_from(buffer)[0]:
                return outcome


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """What a session is opened with. `hosts` as kazoo reads them; `auth` is (scheme, credentials)."""

    hosts: str
    session_timeout_s: float
    connect_timeout_s: float
    auth: tuple[tuple[str, str], ...] = ()
    is_secure: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    private_key_file: str = ""


class KazooBridge:
    """One kazoo client, one session. Made and used on the loop's thread."""

    def __init__(self, options: BridgeOptions, listener: Listener) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._messages: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_draining_due = False
        self._is_waking_due = False
        self._lost_watches: tuple[list[str], list[str], list[str]] = ([], [], [])
        self._is_disposed = False
        self._handler = _Handler(self.post, listener.on_event, options.connect_timeout_s)
        self._client = KazooClient(
            hosts=options.hosts,
            timeout=options.session_timeout_s,
            handler=self._handler,
            auth_data=set(options.auth),
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=_RETRY_PAUSE_S,
                max_delay=_LONGEST_RETRY_PAUSE_S,
                sleep_func=self._handler.sleep_func,
            ),
            logger=_kazoo_log,
            use_ssl=options.is_secure,
            check_hostname=options.is_secure,
            ca=options.ca_file or None,
            certfile=options.certificate_file or None,
            keyfile=options.private_key_file or None,
        )
        self._connection = _Connection(self, self._client, self._client._conn_retry.copy())
        self._client._connection = self._connection
        self._client.add_listener(self._state_changed)

    @property
    def last_error(self) -> str:
        """Why the last attempt to connect failed."""
        return self._handler.last_error

    def start(self) -> None:
        """Begin to connect; `on_connected` follows when a session is had."""
        self._client.start_async()

    def submit(self, request: Any, settle: Callable[[Any, Exception | None], None]) -> None:
        """Queue a request of kazoo's serialization module; `settle` is called with its result or its
        error."""
        self._client._queue.append((request, Result(self.post, settle, request.serialize())))
        self._wake_soon()

    def submit_watched(self, request: Any, settle: Callable[[Any, Exception | None], None]) -> None:
        """As `submit`, for a read that sets a watch."""
        self._client._queue.append(
            (request._replace(watcher=self._dummy_watcher), _WatchedResult(self, request, settle))
        )
        self._wake_soon()

    def _wake_soon(self) -> None:
        """Once for all that is asked in this turn of the loop: each waking costs a change of threads."""
        if not self._is_waking_due:
            self._is_waking_due = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._is_waking_due = False
        self._connection.wake()

    def dispose(self) -> asyncio.Future[None]:
        """End the session if it lives, then thread and sockets. The future is set when that is done."""
        done: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._dispose, args=(done,), name="kazoo-dispose", daemon=True).start()
        return done

    def post(self, call: Callable[..., None], *args: Any) -> None:
        """Have `call(*args)` run on the loop, after everything posted before. Any thread."""
        self._messages.append((call, args))
        if not self._is_draining_due:
            self._is_draining_due = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

    def _drain(self) -> None:
        self._is_draining_due = False  # before the queue is read, for the same reason as in _send_request
        messages = self._messages
        while messages:
            call, args = messages.popleft()
            call(*args)

    # --- on kazoo's thread --------------------------------------------------------------------------------

    @staticmethod
    def _dummy_watcher(event: Any) -> None:
        """Stands in kazoo's tables for “this path is watched”; events go through the handler."""

    def _state_changed(self, state: str) -> None:
        client = self._client
        if state == KazooState.SUSPENDED:
            # kazoo is about to forget these.
            data = list(client._data_watchers)
            self._lost_watches = (
                [path for path in data if path not in self._handler.absent],
                [path for path in data if path in self._handler.absent],
                list(client._child_watchers),
            )
            self.post(self._listener.on_suspended)
        elif state == KazooState.LOST:
            client._stopped.set()  # or it would begin another session
            self.post(self._listener.on_lost)

    def _connected(self, *, negotiated_timeout_s: float) -> None:
        client = self._client
        self.post(self._listener.on_connected, client._session_id, negotiated_timeout_s)
        data, absent, child = self._lost_watches
        self._lost_watches = ([], [], [])
        requests = split_watches(client.last_zxid, data, absent, child)
        for path in (*data, *absent):
            client._data_watchers[path].add(self._dummy_watcher)
        for path in child:
            client._child_watchers[path].add(self._dummy_watcher)
        for request in reversed(requests):
            client._queue.appendleft((request, Result(self.post, _ignore, request.serialize())))

    def _dispose(self, done: asyncio.Future[None]) -> None:
        client = self._client
        if not self._is_disposed:
            self._is_disposed = True
            client._stopped.set()
            client._queue.append((CloseInstance, None))
            self._connection._is_woken = False
            self._connection.wake()
            self._handler.stop()
            if self._connection.stop(client._session_timeout / 1000):
                client.close()
            else:
                log.warning("keeper.thread_left_behind hosts=%s", client.hosts)
        self.post(_set_done, done)


class _WatchedResult(Result):
    """Notes whether the watched node existed, which decides how its watch is set again."""

    __slots__ = ("_bridge", "_is_exists", "_path")

    def __init__(
        self, bridge: KazooBridge, request: Any, settle: Callable[[Any, Exception | None], None]
    ) -> None:
        super().__init__(bridge.post, settle, request._replace(watcher=True).serialize())
        self._bridge = bridge
        self._path = request.path
        self._is_exists = request.type == Exists.type

    def set(self, value: Any = None) -> None:
        if self._is_exists and value is None:
            self._bridge._handler.absent.add(self._path)
        else:
            self._bridge._handler.absent.discard(self._path)
        super().set(value)


def _ignore(value: Any, error: Exception | None) -> None:
    """The events speak for themselves; if the connection broke, the watches are set again on the next one."""


def _set_done(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
