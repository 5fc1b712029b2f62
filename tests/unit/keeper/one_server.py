"""A server that speaks just enough of ZooKeeper's protocol for one session."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engine.config.model import ZooKeeper
from engine.env import SystemEnv
from engine.keeper import Keeper, zookeeper

GREETING = struct.pack(">iiqi16s?", 0, 10_000, 0x17, 16, b"p" * 16, False)
EXISTS, MULTI = 3, 14


def frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@asynccontextmanager
async def serving(*answers: tuple[int, bytes]) -> AsyncIterator[int]:
    """The port on 127.0.0.1 of a server that gives these answers, each code and body, one after the other."""
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
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def session_with(*answers: tuple[int, bytes]) -> AsyncIterator[Keeper]:
    """A session with a server that gives these answers."""
    async with serving(*answers) as port:
        keeper = await zookeeper.connect(ZooKeeper(hosts=(("127.0.0.1", port),)), SystemEnv())
        yield keeper
        keeper.abandon()
