"""Listening that outlives the end of descriptors.

While a process has no descriptor for one more connection, asyncio tells so and looks again after a second.
That it does for each connection that it was to accept at once (`backlog`): thousands of times a second, each
with a whole trace in the log, and as many more the second after. So asyncio accepts one connection at a time
here, and the system alone is told how many may wait.
"""

from __future__ import annotations

import os
import socket

from aiohttp import web

AT_ONCE = 1
"""The `backlog` of sites that `listen` starts."""


async def listen(site: web.TCPSite, *, waiting: int) -> int:
    """Start a site, made with `AT_ONCE`; the port. So many connections may wait to be accepted. Raises
    OSError."""
    await site.start()
    sockets = getattr(site._server, "sockets", None)
    assert sockets
    for each in sockets:
        with socket.socket(fileno=os.dup(each.fileno())) as same:
            same.listen(waiting)
    return int(sockets[0].getsockname()[1])
