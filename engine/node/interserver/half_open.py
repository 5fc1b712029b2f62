"""An HTTP server for clients that end their side of the connection behind their request, and then read.

HTTP allows it, and ClickHouse 18.16 does it when it fetches a part. aiohttp's server takes it for the end of
the client; so here a connection whose request is being answered is kept until the answer is written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web


class HalfOpenServer(web.Server):
    """`handler` answers every request. Run it by `web.ServerRunner`."""

    def __init__(
        self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], **options: Any
    ) -> None:
        # `Any`: aiohttp's own options for each connection, which it does not type either.
        super().__init__(handler, handler_cancellation=True, **options)
        self._options = options

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._options)


class _Connection(web.RequestHandler):
    __slots__ = ()

    def eof_received(self) -> bool | None:  # type: ignore[override]  # the base says None
        """True keeps the connection open for the answer. TLS has no such state."""
        waiter = self._waiter
        is_idle = waiter is not None and not waiter.done() and not self._messages
        transport = self.transport
        if transport is None or transport.get_extra_info("sslcontext") is not None:
            return None
        return None if is_idle else True
