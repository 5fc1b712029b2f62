"""Names of Keeper's hosts that have several addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from engine.config.model import ZooKeeper
from engine.env import SystemEnv
from engine.keeper import zookeeper
from tests.unit.keeper.one_server import serving


@contextmanager
def silent(address: str, port: int) -> Iterator[None]:
    """Nothing that is sent to it is answered: its queue of connections is full, and more are not taken."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((address, port))
        yield


async def test_a_name_whose_first_address_is_a_machine_that_is_gone_leads_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as port:

        async def addresses(host: str, port: int, **_: object) -> list[Any]:
            assert host == "keeper.test"
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in ("127.0.0.3", "127.0.0.1")
            ]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", addresses)
        with silent("127.0.0.3", port):
            config = ZooKeeper(hosts=(("keeper.test", port),))
            keeper = await zookeeper.connect(config, SystemEnv(), connect_timeout_s=10.0)
            assert keeper.session_id == 0x17
            keeper.abandon()
