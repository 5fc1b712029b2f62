"""A TCP proxy with the faults of a network, one per link.

    async with TcpProxy("127.0.0.1", server_port) as link:
        connect_to("127.0.0.1", link.port)
        link.hold(Way.TO_SERVER)

`hold` lets nothing through and closes nothing, as a partition does; what was held is delivered after
`release`. `cut` breaks the connections there are, `cut_after` does so in the middle of a message, `refuse`
accepts none.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum

from engine.lifetime import Startable

_CHUNK_BYTES = 64 * 1024


class Way(enum.Enum):
    TO_SERVER = "to server"
    TO_CLIENT = "to client"


class _Direction:
    """The state of one direction, shared by all connections."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.delay_s = 0.0
        self.bytes_left: int | None = None
        self.bytes_passed = 0


class TcpProxy(Startable):
    """Listens on a free port of the loopback interface and forwards to one server."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._ways = {way: _Direction() for way in Way}
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_refusing = False
        self.port = 0
        self.connections_made = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Break everything and listen no more."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- faults -------------------------------------------------------------------------------------------

    def hold(self, *ways: Way) -> None:
        """Let nothing through in these directions, both if none is named."""
        for way in ways or Way:
            self._ways[way].open.clear()

    def release(self) -> None:
        """Undo `hold`, `delay` and `refuse`; what was held is delivered."""
        self._is_refusing = False
        for direction in self._ways.values():
            direction.delay_s = 0.0
            direction.open.set()

    def delay(self, delay_s: float, *ways: Way) -> None:
        """Have every chunk wait; order is kept."""
        for way in ways or Way:
            self._ways[way].delay_s = delay_s

    def cut(self) -> None:
        """Break all connections now."""
        for writer in list(self._writers):
            writer.transport.abort()

    def cut_after(self, size_bytes: int, way: Way) -> None:
        """Break the connections once that many more bytes have gone that way."""
        self._ways[way].bytes_left = size_bytes

    def refuse(self) -> None:
        """Break every new connection at once; those there are stay."""
        self._is_refusing = True

    def bytes_passed(self, way: Way) -> int:
        """What has been forwarded so far."""
        return self._ways[way].bytes_passed

    # --- inside -------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_refusing:
            writer.transport.abort()
            return
        try:
            target_reader, target_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self.connections_made += 1
        self._writers |= {writer, target_writer}
        pumps = [
            asyncio.create_task(self._pump(reader, target_writer, self._ways[Way.TO_SERVER])),
            asyncio.create_task(self._pump(target_reader, writer, self._ways[Way.TO_CLIENT])),
        ]
        self._tasks |= set(pumps)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for each in (writer, target_writer):
                each.close()
            self._tasks -= set(pumps)
            self._writers -= {writer, target_writer}

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: _Direction
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await way.open.wait()
                if way.delay_s:
                    await asyncio.sleep(way.delay_s)
                if way.bytes_left is not None:
                    chunk, way.bytes_left = chunk[: way.bytes_left], way.bytes_left - len(chunk)
                writer.write(chunk)
                await writer.drain()
                way.bytes_passed += len(chunk)
                if way.bytes_left is not None and way.bytes_left <= 0:
                    way.bytes_left = None
                    return
