"""The port by which others fetch parts of a replica in chDB: one of ours, straight from its directory."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from engine.env import SystemEnv
from engine.errors import Code, SqlError
from engine.node.interserver.server import InterserverConfig, InterserverServer
from engine.replication.bandwidth import Bandwidth
from engine.replication.part_name import PartName
from engine.replication.part_store import PartFile
from engine.replication.replica.switches import Switches

HOST = "127.0.0.1"
_UUID = re.compile(r"UUID '([0-9a-f-]{36})'")


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
    def of(cls, data: Path, macros: Mapping[str, str], replica: str) -> _Parts | None:
        """By the replica's path in Keeper: the table's definition has it, or its UUID is a part of it."""
        table = replica.partition("/replicas/")[0]
        for file in data.glob("store/*/*/*.sql"):
            text = file.read_text("utf-8", "replace")
            for name, value in macros.items():
                text = text.replace(f"{{{name}}}", value)
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
def sending(data: Path, port: int, macros: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Of the tables in `data`, chDB's directory; on an event loop of its own."""
    config = InterserverConfig(HOST, port)
    server = InterserverServer(config, find=partial(_Parts.of, data, macros), version="26.9")
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
