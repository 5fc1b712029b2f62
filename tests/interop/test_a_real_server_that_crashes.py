"""A failure that a crash of a real server caused is called one, and is not taken for ours."""

from __future__ import annotations

import asyncio
import signal

import pytest

from engine.errors import SqlError
from tests.interop.cluster import ENV
from tests.interop.conftest import REAL_CLUSTERS


async def test_a_segmentation_fault_is_known_while_the_server_still_writes_its_trace(
    start_real, request: pytest.FixtureRequest
) -> None:
    await start_real(2)
    (cluster,) = request.node.stash[REAL_CLUSTERS]
    victim, other = cluster.servers
    with pytest.raises(SqlError):
        await victim.query("SELEC 1")
    assert not victim.has_crashed, "an error is no crash"

    victim.process.signal(signal.SIGSEGV)
    async with asyncio.timeout(60):
        while not victim.has_crashed:
            await ENV.sleep(0.02)

    assert victim.process.is_running, "it sleeps for ten seconds"
    await other.kill()
    assert not other.has_crashed, "that one was killed by us"
