"""Replicas of one table on the memory Keeper, in virtual time: disks that outlive their process, no chDB."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from engine.keeper.base import CreateMode, Keeper
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import SessionHolder, create_ancestors
from engine.names import TableName
from engine.replication.commands.create import create_replica
from engine.replication.commands.insert import Inserted, Inserter, InsertOptions
from engine.replication.creation import NewReplica
from engine.replication.host import ReplicaHost
from engine.replication.log_actions import Action
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import PartName
from engine.replication.paths import TablePaths
from engine.replication.replica import log_puller, part_check
from engine.replication.replica.cleanup import staged_sweep
from engine.replication.replica.cleanup import turns as cleanup
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.execution import runner
from engine.replication.replica.merging import mutation_tracker
from engine.replication.replica.queue.queue import ReplicaQueue
from engine.replication.replica.term import Loop
from engine.replication.replicated_table import ReplicatedTable
from engine.replication.settings import ReplicatedSettings
from engine.replication.text import time_text
from engine.testing.replication.disk import StoreDisk, model_definition
from engine.testing.replication.network import MemoryPartNetwork
from engine.testing.replication.store import MemoryPartStore
from engine.testing.simulation import SimulationEnv, run_simulation

TABLE = TableName("d", "t")
PATHS = TablePaths("/clickhouse/tables/t")
SESSION_TIMEOUT_S = 6.0
P = PartName.parse
WITHOUT_MERGES: Sequence[Loop] = (
    log_puller.run,
    runner.run,
    part_check.run,
    staged_sweep.run,
    cleanup.run,
    mutation_tracker.run,
)
"""Nothing is merged but what a test asks for."""


@dataclass
class Replica:
    """A node: its disk, and the process that runs now."""

    name: str
    disk: StoreDisk
    store: MemoryPartStore
    ctx: ReplicaContext
    table: ReplicatedTable
    holder: SessionHolder

    @property
    def active(self) -> list[str]:
        return [str(part) for part in sorted(self.disk.active)]

    @property
    def staged(self) -> list[str]:
        return [str(part) for part in sorted(self.disk.staged)]

    @property
    def detached(self) -> list[str]:
        return sorted(self.disk.detached)

    @property
    def values(self) -> list[int]:
        """The column `k` of all rows that readers see."""
        return sorted(int(dict(row)["k"]) for row in self.store.rows().elements())

    async def insert(self, *keys: int, partition: str = "all", quorum: int = 0) -> PartName:
        new = await self.store.write(partition, [{"k": key, "v": 0} for key in keys])
        options = InsertOptions(quorum=quorum)
        (inserted,) = await Inserter(self.ctx).commit([new], options)
        assert isinstance(inserted, Inserted)
        return inserted.name

    async def stop(self) -> None:
        """As kill −9 would, except that the session ends at once: memory is lost, the disk is not."""
        await self.table.stop()
        await self.holder.close()


class Bench:
    """Keeper, the network, and replicas by name. `admin` is a session of nobody's."""

    def __init__(self, env: SimulationEnv, server: MemoryKeeperServer, admin: Keeper) -> None:
        self.env = env
        self.server = server
        self.admin = admin
        self.network = MemoryPartNetwork(env)
        self.settings = ReplicatedSettings()
        self.tables: list[ReplicatedTable] = []

    async def create(self, name: str) -> None:
        """CREATE TABLE on that node: its znodes, nothing on disk."""
        definition = model_definition(partition_key="")
        number = int(name[1:])
        new = NewReplica(
            definition.metadata.to_bytes(), definition.columns.to_bytes(), UUID(int=7), UUID(int=number)
        )
        await create_ancestors(self.admin, PATHS.root)
        await create_replica(self.admin, PATHS, PATHS.replica(name), new, definition)

    async def start(
        self,
        name: str,
        disk: StoreDisk | None = None,
        *,
        loops: Sequence[Loop] = WITHOUT_MERGES,
        is_awaited: bool = True,
        server_uuid: int | None = None,
        settings: Mapping[str, float] | None = None,
        create: bool = True,
        node: str = "",
        address: str = "",
    ) -> Replica:
        """A process with this replica, by default on a new disk of a replica just made."""
        if disk is None:
            disk = StoreDisk(model_definition(partition_key=""))
            if create:
                await self.create(name)
        node = node or name
        env = self.env.fork()
        holder = SessionHolder(self.server.factory(session_timeout_s=SESSION_TIMEOUT_S, client=node), env)
        store = MemoryPartStore(disk, env)
        me = PATHS.replica(name)
        ctx = ReplicaContext(
            name=TABLE,
            paths=PATHS,
            me=me,
            env=env,
            holder=holder,
            store=store,
            fetcher=self.network.fetcher(node),
            host=ReplicaHost(address or node, 9009, 9000, "d", "t"),
            server_uuid=str(UUID(int=server_uuid or int(name[1:]))),
            settings=replace(self.settings, **(settings or {})),  # type: ignore[arg-type]
            queue=ReplicaQueue(),
            other_table=lambda database, table: None,
        )
        self.network.attach(node, me, store)
        table = ReplicatedTable(ctx, loops=loops)
        self.tables.append(table)
        await table.start()
        if is_awaited:
            assert await table.wait_until_active(timeout_s=60), ctx.readonly_reason
        return Replica(name, disk, store, ctx, table, holder)

    async def crash(self, replica: Replica) -> None:
        """kill −9: its session goes on until it times out."""
        self.server.crash_client(replica.name)
        await replica.table.stop()

    async def cluster(self, count: int, **options: object) -> list[Replica]:
        return [await self.start(f"r{n + 1}", **options) for n in range(count)]  # type: ignore[arg-type]

    async def log(self, action: Action, *, source: str = "r1", quorum: int = 0) -> str:
        """Put an entry into the table's log; returns its name."""
        entry = LogEntry(action, source, time_text(self.env.now_s()), quorum=quorum)
        path = await self.admin.create(
            PATHS.log_prefix, entry.to_bytes(), mode=CreateMode.PERSISTENT_SEQUENTIAL
        )
        return path.rpartition("/")[2]

    async def children(self, path: str) -> list[str]:
        return list((await self.admin.children(path)).names)

    async def parts(self, replica: str) -> list[str]:
        return await self.children(PATHS.replica(replica).parts)

    async def queue(self, replica: str) -> list[LogEntry]:
        me = PATHS.replica(replica)
        names = await self.children(me.queue)
        return [LogEntry.from_bytes((await self.admin.get(me.queue_entry(name))).data) for name in names]

    async def until(self, what: Callable[[], bool | Awaitable[bool]], *, timeout_s: float = 120.0) -> None:
        """Wait in virtual time."""
        deadline_s = self.env.monotonic_s() + timeout_s
        while True:
            held = what()
            if await held if isinstance(held, Awaitable) else held:
                return
            assert self.env.monotonic_s() < deadline_s, "it did not come to that"
            await asyncio.sleep(0.05)

    async def quiet(self, *replicas: Replica) -> None:
        """Until every queue is empty and every pointer at the end of the log."""

        async def is_quiet() -> bool:
            log = await self.children(PATHS.log)
            for replica in replicas:
                pointer = (await self.admin.get(replica.ctx.me.log_pointer)).data
                if await self.children(replica.ctx.me.queue) or replica.ctx.is_readonly:
                    return False
                if log and int(pointer or b"0") <= int(log[-1][-10:]):
                    return False
            return True

        await self.until(is_quiet)


Story = Callable[[Bench], Awaitable[None]]


def simulated(story: Story) -> Callable[[], None]:
    """A test that runs `story` under a few seeds; a failure names its seed."""

    def test() -> None:
        async def main(env: SimulationEnv) -> None:
            server = MemoryKeeperServer(env.fork())
            admin = await server.connect(client="admin", session_timeout_s=30)
            bench = Bench(env, server, admin)
            await story(bench)
            assert not [error for table in bench.tables for error in table.program_errors]

        for seed in range(3):
            run_simulation(seed, main)

    test.__name__ = story.__name__
    test.__doc__ = story.__doc__
    return test
