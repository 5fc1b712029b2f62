"""The floor under `benchmarks.replication`: the same inserts and the same merge on chDB alone, without HTTP,
Keeper or a second copy of anything.

Run as a program it is one such process: it opens chDB on the directory given, says `ready`, and answers each
line `blocks inserts rows`, `single inserts 1` or `merge parts rows` on its input with the processor time and
the time on the clock of one insert, or of OPTIMIZE FINAL, in milliseconds.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._replicas import COLUMNS, block
from engine.env import SystemEnv
from engine.node.replicated.rows.inserts import ReplicatedInserts
from engine.storage.chdb_module import load_chdb
from engine.storage.layout import ChdbSettings, prepare

_PIECE_BYTES = 1 << 20


@asynccontextmanager
async def bare_process(directory: Path) -> AsyncIterator[Process]:
    """A process with a chDB of its own."""
    directory.mkdir(parents=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks._bare_inserts", str(directory), stdin=PIPE, stdout=PIPE
    )
    try:
        await _answer(process)
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


class Took(NamedTuple):
    """What something took, in milliseconds."""

    processor_ms: float
    clock_ms: float


async def took(process: Process, what: str, count: int, rows: int) -> Took:
    """What it took, see the module."""
    assert process.stdin is not None
    process.stdin.write(f"{what} {count} {rows}\n".encode())
    used_ms, clock_ms = (await _answer(process)).split()
    return Took(float(used_ms), float(clock_ms))


async def _answer(process: Process) -> str:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError("The process with chDB alone has ended")
    return line.decode().strip()


class _Bare:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._rng = random.Random(1)
        for name, value in ReplicatedInserts.streaming_settings.items():
            connection.query(f"SET {name} = '{value}'")

    def inserts(self, count: int, rows: int) -> Took:
        """Milliseconds of each, into a table that has had one before."""
        with _Table(self._connection):
            data = [block(n * rows, rows, self._rng) for n in range(count + 1)]
            self._insert(data[0])
            before = _now()
            for each in data[1:]:
                self._insert(each)
            after = _now()
            return Took(*((end - start) / count for start, end in zip(before, after, strict=True)))

    def merge(self, parts: int, rows: int) -> Took:
        with _Table(self._connection):
            for number in range(parts):
                self._insert(block(number * rows, rows, self._rng))
            before = _now()
            self._connection.query("OPTIMIZE TABLE default.b FINAL", "Null")
            after = _now()
            return Took(*(end - start for start, end in zip(before, after, strict=True)))

    def _insert(self, data: bytes) -> None:
        handle = self._connection.send_insert("INSERT INTO default.b", "TabSeparated")
        for at in range(0, len(data), _PIECE_BYTES):
            self._connection.insert_append(handle, data[at : at + _PIECE_BYTES])
        self._connection.insert_done(handle)


class _Table:
    """`default.b`, whose parts nobody merges unless told to; not forced to disk, as 18.16 does not."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.query(
            f"CREATE TABLE default.b {COLUMNS} ENGINE = MergeTree ORDER BY id"
            " SETTINGS fsync_after_insert = 0, max_bytes_to_merge_at_max_space_in_pool = 1,"
            " max_bytes_to_merge_at_min_space_in_pool = 1",
            "Null",
        )

    def __exit__(self, *_error: object) -> None:
        self._connection.query("DROP TABLE default.b SYNC", "Null")


def _now() -> Took:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Took((used.ru_utime + used.ru_stime) * 1000, SystemEnv().monotonic_s() * 1000)


def main(directory: str) -> None:
    chdb = load_chdb()
    chdb.set_signal_handlers_enabled(False)
    connection = chdb.connect(prepare(Path(directory), ChdbSettings(fsync=False), SystemEnv()))
    bare = _Bare(connection)
    print("ready", flush=True)
    for line in sys.stdin:
        what, count, rows = line.split()
        do = bare.merge if what == "merge" else bare.inserts
        print(*do(int(count), int(rows)), flush=True)
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
