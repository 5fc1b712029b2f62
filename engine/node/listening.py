"""Descriptors: as many as the system gives, and listening that outlives their end.

While a process has no descriptor for one more connection, asyncio tells so and looks again after a second.
That it does for each connection that it was to accept at once (`backlog`): thousands of times a second, each
with a whole trace in the log, and as many more the second after. So asyncio accepts one connection at a time
here, and the system alone is told how many may wait.
"""

from __future__ import annotations

import logging
import os
import resource
import socket

from aiohttp import web

from engine.errors import TOO_FEW_DESCRIPTORS

log = logging.getLogger(__name__)

AT_ONCE = 1
"""The `backlog` of sites that `listen` starts."""
_FEW = 4096
"""A node with a hundred tables and as many clients has some hundreds open; a query, one for each file."""


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


def take_all_descriptors() -> None:
    """Make the hard limit of open files the process's own, as ClickHouse does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:  # on systems whose hard limit is more than a process may have
        log.info("node.descriptors limit=%d error=%s", soft, error)
        hard = soft
    if hard != resource.RLIM_INFINITY and hard < _FEW:
        log.warning("node.few_descriptors limit=%d hint=%s", hard, TOO_FEW_DESCRIPTORS)
