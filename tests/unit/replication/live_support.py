"""Replicas that run by themselves (every loop of a term) on the memory Keeper, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar
from uuid import UUID

from engine.keeper.base import Keeper, Remove
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import SessionHolder
from engine.keeper.tree import Caller
from engine.names import TableName
from engine.replication.commands.create import create_replica
from engine.replication.commands.insert import Inserter, InsertOptions
from engine.replication.creation import NewReplica
from engine.replication.host import ReplicaHost
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import PartName
from engine.replication.part_store import PartStore
from engine.replication.paths import TablePaths
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue.queue import ReplicaQueue
from engine.replication.replicated_table import ReplicatedTable
from engine.replication.settings import ReplicatedSettings
from engine.testing.replication.disk import StoreDisk, model_definition
from engine.testing.replication.network import MemoryPartNetwork
from engine.testing.replication.rows import Value
from engine.testing.replication.store import MemoryPartStore
from engine.testing.simulation import SimulationEnv, run_simulation

T = TypeVar("T")
PATHS = TablePaths("/clickhouse/tables/01/d/t")
OTHER = TablePaths("/clickhouse/tables/01/d/other")
P = PartName.parse

NO_OWN_MERGES = ReplicatedSettings(max_bytes_to_merge_at_max_space_in_pool=1)
"""Only OPTIMIZE … FINAL merges."""


def run(main: Callable[[Live], Awaitable[T]], *, seed: int = 1) -> T:
    """Run `main` in virtual time; a failure names the seed."""

    async def wrapped(env: SimulationEnv) -> T:
        live = Live(env)
        try:
            return await main(live)
        finally:
            await live.stop()

    return run_simulation(seed, wrapped)


class LiveReplica:
    """One replica, its disk and its process."""

    def __init__(
        self,
        live: Live,
        name: str,
        paths: TablePaths,
        settings: ReplicatedSettings,
        make_store: Callable[[StoreDisk, SimulationEnv], MemoryPartStore],
    ) -> None:
        self.live = live
        self.name = name
        self.paths = paths
        self.settings = settings
        self.make_store = make_store
        self.disk = StoreDisk(model_definition())
        self.begin()

    def begin(self) -> None:
        """A process that knows nothing but its disk."""
        self.store = self.make_store(self.disk, self.live.env)
        self.holder = self.live.holder(self.name)
        self.ctx = ReplicaContext(
            name=TableName("d", self.paths.root.rpartition("/")[2]),
            paths=self.paths,
            me=self.paths.replica(self.name),
            env=self.live.env,
            holder=self.holder,
            store=self.store,
            fetcher=self.live.network.fetcher(self.name),
            host=ReplicaHost(self.name, 9009, 9000, "d", "t"),
            server_uuid=str(UUID(bytes=self.name.encode().ljust(16))),
            settings=self.settings,
            queue=ReplicaQueue(),
            other_table=self.live.other_table,
        )
        self.table = ReplicatedTable(self.ctx)

    async def start(self) -> None:
        self.live.network.attach(self.name, self.ctx.me, self.store)
        await self.table.start()
        assert await self.table.wait_until_active(timeout_s=60)

    async def stop(self) -> None:
        await self.table.stop()
        self.live.network.detach(self.ctx.me)

    async def insert(
        self, *values: int, partition: str = "all", token: str = "", options: InsertOptions | None = None
    ) -> str | None:
        """One part with a row per value; returns its name, None for a duplicate."""
        new = await self.store.write(partition, [{"k": value, "v": 0} for value in values])
        (done,) = await Inserter(self.ctx).commit([new], options or InsertOptions(token=token))
        return None if done.is_duplicate else str(done.name)

    def parts(self) -> list[str]:
        return [str(name) for name in sorted(self.disk.active)]

    def parts_in_keeper(self) -> list[str]:
        return [str(name) for name in sorted(map(P, self.live.children(self.ctx.me.parts)))]

    def rows(self) -> list[tuple[int, int]]:
        """(k, v) of all rows, sorted."""
        found = [dict(row) for row in self.store.rows().elements()]
        return sorted((int(row["k"]), int(row["v"])) for row in found)

    def keys(self) -> list[int]:
        return [key for key, _ in self.rows()]


class Live:
    """Keeper, the network, and replicas by name."""

    def __init__(self, env: SimulationEnv) -> None:
        self.env = env
        self.server = MemoryKeeperServer(env)
        self.network = MemoryPartNetwork(env)
        self.replicas: dict[str, LiveReplica] = {}
        self.others: dict[tuple[str, str], PartStore] = {}
        self._holders: dict[str, SessionHolder] = {}
        self._aside: dict[str, SessionHolder] = {}

    def holder(self, client: str) -> SessionHolder:
        """One for each node, as in a real one."""
        if client not in self._holders:
            opening = self.server.factory(session_timeout_s=10, client=client)
            self._holders[client] = SessionHolder(opening, self.env)
        return self._holders[client]

    def other_table(self, database: str, table: str) -> PartStore | None:
        return self.others.get((database, table))

    async def keeper(self) -> Keeper:
        return await self.server.connect(client="test", session_timeout_s=10)

    async def replica(
        self,
        name: str = "r1",
        *,
        paths: TablePaths = PATHS,
        settings: ReplicatedSettings = NO_OWN_MERGES,
        make_store: Callable[[StoreDisk, SimulationEnv], MemoryPartStore] = MemoryPartStore,
    ) -> LiveReplica:
        """Made, started and active."""
        replica = LiveReplica(self, name, paths, settings, make_store)
        definition = model_definition()
        new = NewReplica(
            definition.metadata.to_bytes(),
            definition.columns.to_bytes(),
            UUID(int=7),
            UUID(int=len(self.replicas) + 1),
        )
        await create_replica(await self.keeper(), paths, replica.ctx.me, new, definition)
        self.replicas[f"{name} {paths.root}"] = replica
        await replica.start()
        return replica

    async def cluster(self, count: int, settings: ReplicatedSettings = NO_OWN_MERGES) -> list[LiveReplica]:
        return [await self.replica(f"r{number}", settings=settings) for number in range(1, count + 1)]

    async def stop(self) -> None:
        for replica in self.replicas.values():
            await replica.table.stop()

    async def crash(self, name: str) -> None:
        """A node's process ends, in the middle of whatever it does, and another begins on its disks.

        What users have running there has to be cancelled before.
        """
        self.server.crash_client(name)
        self._holders.pop(name)
        mine = [replica for replica in self.replicas.values() if replica.name == name]
        for replica in mine:
            await replica.table.stop()
            replica.begin()
        for replica in mine:
            await replica.start()

    def with_another_keeper(self, replica: LiveReplica) -> None:
        """A process of the node's whose configuration names another Keeper, which is empty. It is to be
        started."""
        opening = MemoryKeeperServer(self.env).factory(session_timeout_s=10, client=replica.name)
        self._aside[replica.name] = self._holders[replica.name]
        self._holders[replica.name] = SessionHolder(opening, self.env)
        replica.begin()

    def with_its_keeper(self, replica: LiveReplica) -> None:
        """And the next one, with its own again."""
        self._holders[replica.name] = self._aside.pop(replica.name)
        replica.begin()

    def lose_table(self, paths: TablePaths) -> None:
        """Keeper forgets a table, sessions go on."""
        tree = self.server.tree
        gone = [path for path in tree.nodes if path == paths.root or path.startswith(f"{paths.root}/")]
        tree.multi(
            [Remove(path) for path in sorted(gone, reverse=True)],
            Caller(0, frozenset(), int(self.env.now_s() * 1000)),
        )
        self.server._fire()

    async def quiet(self, *replicas: LiveReplica) -> None:
        """Until queues are empty and everything in the log was copied; of all replicas, or of these."""
        async with asyncio.timeout(3600):
            while not all(self._is_quiet(replica) for replica in replicas or self.replicas.values()):
                await self.env.sleep(0.5)

    def _is_quiet(self, replica: LiveReplica) -> bool:
        numbers = [int(name[4:]) for name in self.children(replica.ctx.paths.log)]
        pointer = int(self.data(replica.ctx.me.log_pointer) or b"0")
        return not self.children(replica.ctx.me.queue) and pointer > max(numbers, default=-1)

    async def plain_table(
        self, name: str, *parts: tuple[str, Iterable[Mapping[str, Value]]]
    ) -> MemoryPartStore:
        """A table of the MergeTree family, `d.<name>`, with a part of each (partition, rows)."""
        store = MemoryPartStore(StoreDisk(model_definition()), self.env)
        for number, (partition, rows) in enumerate(parts, 1):
            part = PartName(partition, number, number, 0)
            await store.stage_inserted(await store.write(partition, rows), part)
            await store.publish([part])
        self.others["d", name] = store
        return store

    # -- Keeper, straight from the tree ----------------------------------------------------------------------

    def children(self, path: str) -> list[str]:
        return sorted(self.server.tree.nodes[path].children)

    def data(self, path: str) -> bytes:
        return self.server.tree.nodes[path].data

    def has(self, path: str) -> bool:
        return path in self.server.tree.nodes

    def log(self, paths: TablePaths = PATHS) -> list[LogEntry]:
        return [LogEntry.from_bytes(self.data(f"{paths.log}/{name}")) for name in self.children(paths.log)]

    def actions(self, kind: type, paths: TablePaths = PATHS) -> list[str]:
        """The log's entries of one kind, as text."""
        return [entry.action.text() for entry in self.log(paths) if isinstance(entry.action, kind)]

    def locks(self) -> list[str]:
        """Block numbers that are held now."""
        partitions = self.children(PATHS.block_numbers)
        return [f"{p}/{n}" for p in partitions for n in self.children(f"{PATHS.block_numbers}/{p}")]


async def two_tables(live: Live) -> tuple[list[LiveReplica], list[LiveReplica]]:
    """Two nodes, each with a replica of the table at PATHS and of the one at OTHER."""
    names = ("r1", "r2")
    return (
        [await live.replica(name) for name in names],
        [await live.replica(name, paths=OTHER) for name in names],
    )


def staged(*replicas: LiveReplica) -> list[str]:
    return [str(part) for replica in replicas for part in replica.disk.staged]


def check_equal(*replicas: LiveReplica) -> None:
    """Nothing is left over, and what readers see is what Keeper says."""
    assert not staged(*replicas)
    for replica in replicas:
        assert replica.parts() == replicas[0].parts() == replica.parts_in_keeper()
        assert replica.rows() == replicas[0].rows()
