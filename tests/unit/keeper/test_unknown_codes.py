"""Answers of Keeper with error codes that nobody here knows: each concerns its own request only."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from engine.config.model import ZooKeeper
from engine.env import SystemEnv
from engine.errors import BadArguments, ConnectionLoss
from engine.keeper import Create, Keeper, SetData, zookeeper

UNKNOWN, THROTTLED, QUOTA = -10, -127, -125
"""ClickHouse Keeper and ZooKeeper have codes that the other lacks."""
GREETING = struct.pack(">iiqi16s?", 0, 10_000, 0x17, 16, b"p" * 16, False)
STAT = bytes(68)
EXISTS, MULTI = 3, 14


def frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@asynccontextmanager
async def session_with(*answers: tuple[int, bytes]) -> AsyncIterator[Keeper]:
    """A session with a server that gives these answers, each code and body, one after the other."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def request() -> bytes:
            return await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])

        await request()
        writer.write(frame(GREETING))
        while left:
            xid, kind = struct.unpack_from(">ii", await request())
            code, body = left.pop(0) if kind in (EXISTS, MULTI) else (0, b"")
            writer.write(frame(struct.pack(">iqi", xid, 1, code) + body))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        keeper = await zookeeper.connect(ZooKeeper(hosts=(("127.0.0.1", port),)), SystemEnv())
        yield keeper
        keeper.abandon()


@pytest.mark.parametrize("code", [UNKNOWN, THROTTLED])
async def test_a_request_that_ends_with_such_a_code_may_be_tried_again(code: int) -> None:
    async with session_with((code, b""), (0, STAT)) as keeper:
        asked = asyncio.gather(keeper.exists("/a"), keeper.exists("/b"), return_exceptions=True)
        first, second = await asked
        assert isinstance(first, ConnectionLoss)
        assert not isinstance(second, BaseException), "its neighbour has its answer"


async def test_so_does_a_transaction_of_which_an_operation_ended_with_it() -> None:
    failed = struct.pack(">i?ii", -1, False, UNKNOWN, UNKNOWN) + struct.pack(">i?i", -1, True, -1)
    async with session_with((0, failed), (0, STAT)) as keeper:
        writes = keeper.multi([Create("/a"), SetData("/b", b"")])
        first, second = await asyncio.gather(writes, keeper.exists("/b"), return_exceptions=True)
        assert isinstance(first, ConnectionLoss)
        assert not isinstance(second, BaseException), "its neighbour has its answer"


async def test_a_quota_that_is_used_up_is_named() -> None:
    async with session_with((QUOTA, b"")) as keeper:
        with pytest.raises(BadArguments, match="a quota of ZooKeeper's"):
            await keeper.exists("/a")
