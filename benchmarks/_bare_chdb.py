"""The floor under `benchmarks.ddl`: the same statements on chDB alone, without queue, Keeper or Python around
them.

Run as a program it is one such process: it opens chDB on the directory given, says `ready`, and answers each
line `first count` on its input by creating and dropping `count // 2` tables and saying how much processor
time that took, in milliseconds.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from engine.env import SystemEnv
from engine.storage.chdb_module import load_chdb
from engine.storage.layout import ChdbSettings, prepare


@asynccontextmanager
async def bare_processes(directory: Path, count: int, create: str) -> AsyncIterator[Sequence[Process]]:
    """`count` processes, each with a chDB of its own. `create` is CREATE TABLE with `{table}` for a name."""
    processes = []
    try:
        for number in range(count):
            place = directory / f"bare{number + 1:02d}"
            place.mkdir(parents=True)
            processes.append(
                await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "benchmarks._bare_chdb", str(place), create, stdin=PIPE, stdout=PIPE
                )
            )
        for process in processes:
            await _answer(process)
        yield processes
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        await asyncio.gather(*(process.wait() for process in processes))


async def run_statements(processes: Sequence[Process], first: int, count: int) -> float:
    """Have all of them run `count` statements at once; returns their processor time in milliseconds."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{first} {count}\n".encode())
    return sum([float(await _answer(process)) for process in processes])


async def _answer(process: Process) -> str:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError("A process with chDB alone has ended")
    return line.decode().strip()


def _processor_time_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1000


def main(directory: str, create: str) -> None:
    chdb = load_chdb()
    chdb.set_signal_handlers_enabled(False)
    connection = chdb.connect(prepare(Path(directory), ChdbSettings(), SystemEnv()))
    print("ready", flush=True)
    for line in sys.stdin:
        first, count = map(int, line.split())
        before_ms = _processor_time_ms()
        for number in range(first, first + count // 2):
            connection.query(create.format(table=f"default.b{number}"), "Null")
            connection.query(f"DROP TABLE default.b{number}", "Null")
        print(_processor_time_ms() - before_ms, flush=True)
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
