"""How long a client may keep its statement waiting: until it takes more of the result, or sends more rows.

A statement whose result nobody takes holds a thread, and a node has few (`max_connections`): some clients
that hang, or were cut off without a word, would hold up everybody else for ever. A client that is slow has
not stopped: Linux counts the bytes that it acknowledged. Where nobody counts them, it has stopped when the
kernel has taken none of the bytes that wait for it.

Source: ClickHouse's `http_send_timeout` and `http_receive_timeout`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass

from engine.errors import Code, SqlError
from engine.node.distributed.reading.chdb_request import DEPTH
from engine.node.http.query import HttpQuery
from engine.setting_values import number_of

log = logging.getLogger(__name__)

_SEND, _RECEIVE = "http_send_timeout", "http_receive_timeout"
_SEND_S = 30.0
_LONG_S = 300.0
"""For rows, which may be slow in coming, and for another node, which takes a result as its client does."""
_BYTES_ACKED = struct.Struct("=120xQ")
"""Of Linux's `struct tcp_info`; older and emulated ones may end before it."""


@dataclass(frozen=True, slots=True)
class ClientPatience:
    """Seconds; 0 is for ever."""

    send_s: float = _SEND_S
    receive_s: float = _LONG_S

    @classmethod
    def of(cls, query: HttpQuery, profile: Mapping[str, str]) -> ClientPatience:
        """What request and profile say; of values that are no numbers chDB tells the client."""
        settings = {**profile, **query.settings}
        usual_s = _SEND_S if DEPTH.match(query.query) is None else _LONG_S
        return cls(_seconds(settings, _SEND, usual_s), _seconds(settings, _RECEIVE, _LONG_S))

    @contextlib.contextmanager
    def while_sending(self, transport: asyncio.Transport | None, query_id: str) -> Iterator[None]:
        """Whoever takes nothing for so long while the block runs is cut off, as if it had gone away."""
        if transport is None or transport.is_closing() or not self.send_s:
            yield
            return
        connection = transport.get_extra_info("socket")
        looking = _Looking(transport, connection, self.send_s, query_id)
        try:
            yield
        finally:
            looking.stop()

    async def received(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same chunks of a body. Raises SqlError 209 when there is none for so long."""
        while True:
            try:
                async with asyncio.timeout(self.receive_s or None):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                raise SqlError(
                    Code.SOCKET_TIMEOUT,
                    f"Timeout exceeded while reading from socket: nothing came for {self.receive_s:g} s",
                    hint=f"The setting {_RECEIVE} allows more.",
                ) from None
            if chunk is None:
                return
            yield chunk


def _seconds(settings: Mapping[str, str], name: str, usual_s: float) -> float:
    try:
        return max(0.0, float(number_of(settings[name])))
    except (KeyError, ValueError):
        return usual_s


class _Looking:
    """Looks from time to time whether the client has taken something since."""

    def __init__(
        self, transport: asyncio.Transport, connection: socket.socket, every_s: float, query_id: str
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._every_s = every_s
        self._query_id = query_id
        self._taken = self._count()
        self._next = asyncio.get_running_loop().call_later(every_s, self._look)

    def _count(self) -> int:
        """It stays the same while nothing is taken."""
        if sys.platform == "linux":
            info = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
            (acknowledged,) = _BYTES_ACKED.unpack(info.ljust(_BYTES_ACKED.size, b"\0"))
            if acknowledged:
                return int(acknowledged)
        return -self._transport.get_write_buffer_size()

    def _look(self) -> None:
        if self._transport.is_closing():
            return
        taken = self._count()
        if taken == self._taken:
            log.info("http.client_stalled query_id=%s waited_s=%g", self._query_id, self._every_s)
            self._transport.abort()
            return
        self._taken = taken
        self._next = asyncio.get_running_loop().call_later(self._every_s, self._look)

    def stop(self) -> None:
        self._next.cancel()
