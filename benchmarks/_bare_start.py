"""The floor under a node's start: Python with asyncio and aiohttp, and chDB on a directory with one table,
nothing else of a node.

Run as a program it is such a process: chDB is opened on a thread beside the imports, as a node does it, and
any request is answered by a count of the table. It ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from pathlib import Path
from typing import Any

from engine.storage.chdb_module import load_chdb

_POLL_S = 0.02
_START_S = 60.0
_TABLE = "default.b"


async def start_ms(directory: Path, *, rows: int) -> float:
    """From the process's start until it has answered, asked every 20 ms, on what `make_table` has made.

    Raises TimeoutError.
    """
    import aiohttp

    from engine.env import SystemEnv
    from engine.ports import free_ports
    from engine.storage.layout import ChdbSettings, prepare

    env = SystemEnv()
    connect_to = prepare(directory, ChdbSettings(), env)
    [port] = free_ports(1, env=env)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
        started_s = env.monotonic_s()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks._bare_start", connect_to, str(port)
        )
        try:
            async with asyncio.timeout(_START_S):
                while True:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with http.get(f"http://127.0.0.1:{port}/") as reply:
                            if int(await reply.text()) != rows:
                                raise RuntimeError("chDB alone has not the rows it was given")
                            return (env.monotonic_s() - started_s) * 1000
                    await asyncio.sleep(_POLL_S)
        finally:
            process.terminate()
            await process.wait()


async def make_table(directory: Path, *, rows: int) -> Path:
    """A chDB with the table, made by a process of its own; returns `directory`."""
    from engine.env import SystemEnv
    from engine.storage.layout import ChdbSettings, prepare

    directory.mkdir(parents=True)
    connect_to = prepare(directory, ChdbSettings(), SystemEnv())
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks._bare_start", connect_to, "make", str(rows)
    )
    if await process.wait() != 0:
        raise RuntimeError("The process with chDB alone has failed")
    return directory


def _make(connect_to: str, rows: int) -> None:
    connection = _open(connect_to)
    connection.query(f"CREATE TABLE {_TABLE} (id UInt64) ENGINE = MergeTree ORDER BY id", "Null")
    connection.query(f"INSERT INTO {_TABLE} SELECT number FROM numbers({rows})", "Null")
    connection.close()


def _open(connect_to: str) -> Any:
    chdb = load_chdb()
    chdb.set_signal_handlers_enabled(False)
    return chdb.connect(connect_to)


def _serve(connect_to: str, port: int) -> None:
    opened: list[Any] = []
    opening = threading.Thread(target=lambda: opened.append(_open(connect_to)))
    opening.start()
    from aiohttp import web

    async def count(_request: web.Request) -> web.Response:
        result = await asyncio.to_thread(opened[0].query, f"SELECT count() FROM {_TABLE}", "TSV")
        return web.Response(body=result.bytes())

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/", count)
        runner = web.AppRunner(app)
        await runner.setup()
        await asyncio.to_thread(opening.join)
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    if sys.argv[2] == "make":
        _make(sys.argv[1], int(sys.argv[3]))
    else:
        _serve(sys.argv[1], int(sys.argv[2]))
