"""A replica that is ClickHouse 26.9 itself, beside a node: chDB with what `server_around_chdb` tells it.

It fetches parts, merges, mutates, alters, follows the log of Replicated databases and works the DDL queue as
a server does. What it lacks is the port by which others fetch its parts: one of ours sends them, straight
from its directory.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.config.model import ZooKeeper
from engine.env import SystemEnv
from engine.errors import Code, SqlError
from engine.names import QueuePaths
from engine.node.interserver.server import InterserverConfig, InterserverServer
from engine.ports import free_ports
from engine.replication.bandwidth import Bandwidth
from engine.replication.part_name import PartName
from engine.replication.part_store import PartFile
from engine.replication.replica.switches import Switches
from tests.unit.replicated.chdb import Clickhouse

HOST = "127.0.0.1"
QUEUE = QueuePaths()
_ROOT = Path(__file__).parents[2]
_UUID = re.compile(r"UUID '([0-9a-f-]{36})'")
_UNKNOWN = "another program: "
_BEFORE = f"""
sys.path.insert(0, {str(_ROOT)!r})
from tests.interop import ddl_worker_around_chdb, program_in_memory, server_around_chdb
try:
    server_around_chdb.put_around(_chdb.__file__, host={HOST!r}, port=%d)
    ddl_worker_around_chdb.put_around(
        _chdb.__file__, queue={QUEUE.root!r}, replicas={QUEUE.replicas_root!r}, keeps=%r
    )
except program_in_memory.Unknown as error:
    sys.stdin.readline()
    answers.write(json.dumps({{"error": "{_UNKNOWN}" + str(error)}}).encode() + b"\\n")
    sys.exit()
"""


class ReplicaInChdb(Clickhouse):
    """Statements run one after another, in one session."""

    def run(self, sql: str) -> tuple[int, str]:
        """Code and text of the answer."""
        answer = self.answer(sql)
        if "error" not in answer:
            return 0, answer["text"]
        self.query("SELECT 1 FORMAT Null")  # takes what it has said so far along
        return int(answer["error"].removeprefix("Code: ").partition(".")[0]), answer["error"]


@contextmanager
def replica_in_chdb(
    directory: Path, zookeeper: ZooKeeper, *, more: str = "", keeps: int | None = None
) -> Iterator[ReplicaInChdb]:
    """`more` stands in its configuration; `keeps`: see `ddl_worker_around_chdb`. Skips the test where chDB is
    another program than the known one."""
    [port] = free_ports(1)
    try:
        replica = ReplicaInChdb(directory, zookeeper, before=_BEFORE % (port, keeps), more=more)
    except AssertionError as error:
        if str(error).startswith(_UNKNOWN):
            pytest.skip(str(error))
        raise
    try:
        replica.query(
            "CREATE TABLE o.plain (a Int8) ENGINE = MergeTree ORDER BY a"
        )  # has threads for loading made
        with _sending(directory / "data", port):
            yield replica
    finally:
        replica.close()


class _Outgoing:
    """The files of one part, linked so that they stay."""

    def __init__(self, directory: Path, name: PartName) -> None:
        self.part = SimpleNamespace(name=name)
        self._directory = directory
        files = (path for path in sorted(directory.rglob("*")) if path.is_file())
        self.files = [PartFile(str(path.relative_to(directory)), path.stat().st_size) for path in files]

    async def read(self, file: PartFile) -> AsyncIterator[bytes]:
        yield (self._directory / file.name).read_bytes()


class _Parts:
    """What `InterserverServer` needs of a replica: the parts of one table, in its directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.store: Any = self
        self.active: dict[PartName, Any] = {}
        self.switches = Switches()
        self.send_bandwidth = Bandwidth(SystemEnv(), lambda: 0)

    @classmethod
    def of(cls, data: Path, replica: str) -> _Parts | None:
        """By the replica's path in Keeper: the table's definition has it, or its UUID is a part of it."""
        table = replica.partition("/replicas/")[0]
        for file in data.glob("store/*/*/*.sql"):
            text = file.read_text("utf-8", "replace")
            uuid = _UUID.search(text)
            if uuid is not None and (f"('{table}'" in text or uuid[1] in table):
                return cls(data / "store" / uuid[1][:3] / uuid[1])
        return None

    @asynccontextmanager
    async def send(self, name: PartName) -> AsyncIterator[_Outgoing]:
        part = self._directory / str(name)
        if not part.is_dir():
            raise SqlError(Code.NO_SUCH_DATA_PART, f"No part {name} in table")
        with tempfile.TemporaryDirectory(prefix="sent_", dir=self._directory.parent) as directory:
            shutil.copytree(part, f"{directory}/part", copy_function=os.link)
            yield _Outgoing(Path(directory, "part"), name)

    def check_later(self, part: PartName, *, delay_s: float = 0.0) -> None:
        raise AssertionError(f"part {part} of the replica in chDB is damaged")


@contextmanager
def _sending(data: Path, port: int) -> Iterator[None]:
    """The interserver port, on an event loop of its own."""
    config = InterserverConfig(HOST, port)
    server = InterserverServer(config, find=partial(_Parts.of, data), version="26.9")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result()
        yield
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
