"""Parts between our interserver port and real ClickHouse servers: byte for byte in both directions."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.env import SystemEnv
from engine.errors import SqlError
from engine.keeper.base import Create, CreateMode
from engine.node.interserver import HttpPartFetcher, InterserverConfig, InterserverServer
from engine.replication.bandwidth import Bandwidth
from engine.replication.fetching import PartUnavailable
from engine.replication.host import ReplicaHost
from engine.replication.part_checksums import PartDigest
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.part_store import IncomingPart, OutgoingPart, Part, PartFile
from engine.replication.paths import ReplicaPaths, TablePaths
from engine.replication.replica.switches import Activity, Switches
from tests.interop.cluster import RealQueue
from tests.interop.conftest import StartReal

ENV = SystemEnv()
PART = PartName.parse("all_0_0_0")


class Directory:
    """Parts as files in a directory: a store that is only good for sending and receiving."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.switches = Switches()
        self.send_bandwidth = Bandwidth(ENV, lambda: 0)

    @property
    def active(self) -> dict[PartName, Part]:
        return {}

    def check_later(self, part: PartName, *, delay_s: float = 0.0) -> None:
        raise AssertionError(f"{part} is damaged")

    @property
    def store(self) -> Directory:
        return self

    @asynccontextmanager
    async def receive(self, name: PartName) -> AsyncIterator[IncomingPart]:
        directory = self.path / f"tmp_{name}"
        directory.mkdir(parents=True)
        try:
            yield _Incoming(self, name, directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    @asynccontextmanager
    async def send(self, name: PartName) -> AsyncIterator[OutgoingPart]:
        if not (self.path / str(name)).exists():
            raise SqlError(232, f"No part {name} in table")
        yield _Outgoing(self.part(name), self.path / str(name))

    def part(self, name: PartName) -> Part:
        directory = self.path / str(name)
        digest = PartDigest.from_bytes((directory / "checksums.txt").read_bytes())
        size = sum(file.stat().st_size for file in directory.iterdir())
        return Part(name, digest, (directory / "columns.txt").read_bytes(), 0, size, 0.0)


class _Incoming:
    def __init__(self, store: Directory, name: PartName, directory: Path) -> None:
        self._store, self._name, self._directory = store, name, directory

    def have_room(self, size_bytes: int) -> None: ...

    async def write(self, file: PartFile, content: AsyncIterator[bytes]) -> None:
        (self._directory / file.name).write_bytes(b"".join([piece async for piece in content]))

    async def finish(self, expected: PartHeader | None) -> Part:
        self._directory.rename(self._store.path / str(self._name))
        return self._store.part(self._name)


class _Outgoing:
    def __init__(self, part: Part, directory: Path) -> None:
        self.part = part
        self._directory = directory

    @property
    def files(self) -> Sequence[PartFile]:
        return [PartFile(file.name, file.stat().st_size) for file in self._directory.iterdir()]

    async def read(self, file: PartFile) -> AsyncIterator[bytes]:
        yield (self._directory / file.name).read_bytes()


async def a_table_with_a_part(real: RealQueue) -> tuple[TablePaths, ReplicaHost]:
    """A replicated table on the real server with one part of 10,000 rows; its path and its replica's host."""
    paths = TablePaths(f"/parts/{ENV.new_uuid()}/t")
    await real.first.query(
        "CREATE TABLE t (id UInt64, v String) "
        f"ENGINE = ReplicatedMergeTree('{paths.root}', 'real') ORDER BY id"
    )
    await real.first.query("INSERT INTO t SELECT number, toString(number * 7) FROM numbers(10000)")
    host = ReplicaHost.from_bytes((await real.keeper.get(paths.replica("real").host)).data)
    return paths, host


def in_data_directory(real: RealQueue) -> Path:
    return real.first.directory / "data" / "data" / "default" / "t" / str(PART)


async def test_a_part_of_a_real_server_arrives_byte_for_byte(start_real: StartReal, tmp_path: Path) -> None:
    real = await start_real(1)
    paths, host = await a_table_with_a_part(real)
    store = Directory(tmp_path / "ours")
    async with HttpPartFetcher() as fetcher:
        await fetcher.fetch(host, paths.replica("real"), PART, into=store, expected=None)
        # To these 18.16 answers with 200 and nothing.
        with pytest.raises(PartUnavailable):
            await fetcher.fetch(
                host, paths.replica("real"), PartName.parse("all_9_9_0"), into=store, expected=None
            )
        with pytest.raises(PartUnavailable):
            await fetcher.fetch(host, ReplicaPaths("/nowhere/replicas/r"), PART, into=store, expected=None)
    theirs = {file.name: file.read_bytes() for file in in_data_directory(real).iterdir()}
    assert {file.name: file.read_bytes() for file in (store.path / str(PART)).iterdir()} == theirs
    assert [file.name for file in store.path.iterdir()] == [str(PART)]


async def test_a_real_server_fetches_a_part_from_our_port(start_real: StartReal, tmp_path: Path) -> None:
    """1. We fetch a part of a real server's table. 2. We pose as the only replica of another table, which has
    that part. 3. The server, for a table without parts, fetches it from us and attaches it."""
    real = await start_real(1)
    paths, host = await a_table_with_a_part(real)
    store = Directory(tmp_path / "ours")
    async with HttpPartFetcher() as fetcher:
        await fetcher.fetch(host, paths.replica("real"), PART, into=store, expected=None)
    for table in ("empty", "other"):
        await real.first.query(
            f"CREATE TABLE {table} (id UInt64, v String) "
            f"ENGINE = ReplicatedMergeTree('{paths.root}_{table}', 'real') ORDER BY id"
        )
    posed = TablePaths(f"/parts/{ENV.new_uuid()}/posed")
    me = posed.replica("ours")
    server = InterserverServer(
        InterserverConfig("127.0.0.1", 0), find={me.root: store}.get, version="26.9.1.1"
    )
    await server.start()
    try:
        await pose_as_replica(real, posed, server.port, like=paths.replica("real"))
        fetch = f"ALTER TABLE empty FETCH PARTITION ID 'all' FROM '{posed.root}'"
        await real.first.query(fetch)
        fetched = in_data_directory(real).parents[1] / "empty" / "detached" / str(PART)
        ours = {file.name: file.read_bytes() for file in (store.path / str(PART)).iterdir()}
        assert {file.name: file.read_bytes() for file in fetched.iterdir()} == ours
        await real.first.query("ALTER TABLE empty ATTACH PARTITION ID 'all'")
        assert await real.first.query("SELECT count(), sum(id) FROM empty") == "10000\t49995000\n"
        store.switches.stop(Activity.SENDS)
        # Into a table that never had the part: a server passes over one that it has still to delete.
        with pytest.raises(SqlError, match="Too many retries"):
            await real.first.query(fetch.replace("empty", "other"))
    finally:
        await server.stop()


async def pose_as_replica(real: RealQueue, paths: TablePaths, port: int, *, like: ReplicaPaths) -> None:
    """As much of a table in Keeper as FETCH PARTITION looks at; its part is that of the replica `like`."""
    me = paths.replica("ours")
    about_part = {
        name: (await real.keeper.get(f"{like.part(PART)}/{name}")).data for name in ("columns", "checksums")
    }
    host = ReplicaHost("127.0.0.1", port, 9000, "default", "posed", "")
    parent = ""
    for step in paths.root.split("/")[1:-1]:
        parent += f"/{step}"
        if await real.keeper.exists(parent) is None:
            await real.keeper.create(parent)
    await real.keeper.multi(
        [
            Create(paths.root),
            Create(paths.replicas),
            Create(paths.log),
            Create(me.root),
            Create(me.host, host.to_bytes()),
            Create(me.log_pointer, b"0"),
            Create(me.queue),
            Create(me.parts),
            Create(me.part(PART)),
            *(Create(f"{me.part(PART)}/{name}", data) for name, data in about_part.items()),
            Create(me.is_active, mode=CreateMode.EPHEMERAL),
        ]
    )
