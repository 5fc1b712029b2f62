"""Reaching a replica: a machine with far too much to do makes connections late."""

from __future__ import annotations

import socket
from typing import cast

import pytest
from aiohttp import web

from engine.distributed.peers import Peer
from engine.distributed.replica_choice import ErrorLimits, ReplicaFailures
from engine.env import SystemEnv
from engine.names import HostId
from engine.node.distributed.peers.peer_health import PeerHealth
from engine.storage import ChdbPool

NO_POOL = cast(ChdbPool, None)
"""A ping needs none."""


async def answer(request: web.Request) -> web.Response:
    return web.Response(text="Ok.\n")


@pytest.mark.slow
async def test_a_replica_that_makes_no_connection_in_time_is_tried_again() -> None:
    """1. The queue of its listener is full, so no connection is made. 2. When the first try was given up, it
    begins to take them."""
    app = web.Application()
    app.router.add_get("/ping", answer)
    runner = web.AppRunner(app)
    await runner.setup()

    class Beginning(SystemEnv):
        async def sleep(self, delay_s: float) -> None:
            await web.SockSite(runner, listener).start()

    with socket.socket() as listener, socket.socket() as first:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        first.connect(listener.getsockname())
        peer = Peer(HostId("other", 9000), *listener.getsockname())
        env = Beginning()
        health = PeerHealth(NO_POOL, env, "here", ReplicaFailures(ErrorLimits(), env.monotonic_s))
        try:
            await health.client(peer).ping()
        finally:
            await health.close()
            await runner.cleanup()
