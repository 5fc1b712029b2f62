"""engine.node.lookups: names that nobody answers for, and everything else that a node does on threads."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.node import run
from engine.node.lookups import NodeLoop

MORE_THAN_THREADS = (os.cpu_count() or 1) + 40


@contextmanager
def silent_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The lookup of each name that ends with `.silent` lasts as long as this."""
    real, asked, over = socket.getaddrinfo, list[str](), threading.Event()

    def getaddrinfo(host: str, *more: Any) -> Any:
        if not host.endswith(".silent"):
            return real(host, *more)
        asked.append(host)
        over.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    try:
        yield asked
    finally:
        over.set()


def test_names_that_nobody_answers_for_hold_up_neither_other_names_nor_work_on_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        names = [f"{number}.silent" for number in range(MORE_THAN_THREADS)]
        lookups = [asyncio.create_task(loop.getaddrinfo(name, 1)) for name in names * 2]
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(lambda: "done") == "done"
            assert (await loop.getaddrinfo("localhost", 1))[0][4][1] == 1
            with pytest.raises(socket.gaierror):
                await loop.getaddrinfo("no.address", 1, flags=socket.AI_NUMERICHOST)
        for lookup in lookups:
            lookup.cancel()
        await asyncio.wait(lookups)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await loop.getaddrinfo(names[0], 1)
        assert sorted(asked) == sorted(names), "each was looked up once, however often it was asked for"

    with asyncio.Runner(loop_factory=NodeLoop) as runner, silent_names(monkeypatch) as asked:
        runner.run(main())


def test_a_name_is_looked_up_again_when_there_was_an_answer() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(2):
            with pytest.raises(socket.gaierror):
                await loop.getaddrinfo("no.address", 1, flags=socket.AI_NUMERICHOST)
            assert await loop.getaddrinfo("127.0.0.1", 7, type=socket.SOCK_STREAM)

    with asyncio.Runner(loop_factory=NodeLoop) as runner:
        runner.run(main())


def test_the_process_of_a_node_has_this_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(_: object) -> int:
        return 7 if isinstance(asyncio.get_running_loop(), NodeLoop) else 8

    monkeypatch.setattr(run, "_serve", serve)
    monkeypatch.setattr(os, "umask", lambda _: 0)
    (tmp_path / "config.xml").write_text("<clickhouse/>")
    assert run.run_node(tmp_path / "config.xml") == 7


@pytest.mark.slow
def test_a_lookup_that_lasts_does_not_hold_up_the_end_of_the_process() -> None:
    program = """if True:
        import asyncio, socket, threading
        from engine.node.lookups import NodeLoop
        socket.getaddrinfo = lambda *_: threading.Event().wait()
        async def main():
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.get_running_loop().getaddrinfo("a", 1)
            except TimeoutError:
                print("given up")
        with asyncio.Runner(loop_factory=NodeLoop) as runner:
            runner.run(main())
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "given up\n", "")


def test_a_name_that_there_is_no_thread_for_is_an_error_of_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuses)
            with pytest.raises(OSError, match="cannot be looked up now"):
                await loop.getaddrinfo("localhost", 80)
        assert await loop.getaddrinfo("localhost", 80)

    with asyncio.Runner(loop_factory=NodeLoop) as runner:
        runner.run(main())
