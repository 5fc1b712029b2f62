"""A few replicas on the memory Keeper in virtual time, for tests of inserts, quorums and cleanup.

Nothing runs in the background: a test does by hand what other replicas would do (`fetch`), and what a term
does (`activate`), so that it decides when.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

from engine.keeper.base import Create, CreateMode, Keeper, SetData
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import SessionHolder
from engine.names import TableName
from engine.replication.commands.create import create_replica
from engine.replication.creation import NewReplica
from engine.replication.host import ReplicaHost
from engine.replication.log_actions import GetPart
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import PartName
from engine.replication.part_store import NewPart
from engine.replication.paths import TablePaths
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue.queue import QueuedEntry, ReplicaQueue
from engine.replication.settings import ReplicatedSettings
from engine.testing.replication.disk import StoreDisk, model_definition
from engine.testing.replication.network import MemoryPartNetwork
from engine.testing.replication.store import MemoryPartStore
from engine.testing.simulation import SimulationEnv, run_simulation

T = TypeVar("T")
PATHS = TablePaths("/clickhouse/tables/01/d/t")
TABLE_UUID = UUID(int=7)


def new_replica(number: int = 1, *, table_uuid: UUID = TABLE_UUID) -> NewReplica:
    definition = model_definition()
    return NewReplica(
        definition.metadata.to_bytes(), definition.columns.to_bytes(), table_uuid, UUID(int=number)
    )


def run(main: Callable[[Bench], Awaitable[T]], *, seed: int = 1) -> T:
    """Run `main` in virtual time; a failure names the seed."""

    async def wrapped(env: SimulationEnv) -> T:
        return await main(Bench(env))

    return run_simulation(seed, wrapped)


class Replica:
    """A replica whose term is begun and ended by hand."""

    def __init__(self, bench: Bench, name: str, settings: ReplicatedSettings) -> None:
        self.bench = bench
        self.name = name
        self.disk = StoreDisk(model_definition())
        self.store = MemoryPartStore(self.disk, bench.env)
        self.holder = SessionHolder(bench.server.factory(session_timeout_s=10, client=name), bench.env)
        self.ctx = ReplicaContext(
            name=TableName("d", "t"),
            paths=PATHS,
            me=PATHS.replica(name),
            env=bench.env,
            holder=self.holder,
            store=self.store,
            fetcher=bench.network.fetcher(name),
            host=ReplicaHost(name, 9009, 9000, "d", "t"),
            server_uuid=f"server of {name}",
            settings=settings,
            queue=ReplicaQueue(),
            other_table=lambda database, table: None,
        )
        self.ctx.is_leader = True

    @property
    def session_id(self) -> int:
        return self.ctx.session().session_id

    async def activate(self) -> None:
        """Begin a term, on a new session if need be."""
        keeper = await self.holder.get()
        await keeper.multi(
            [
                Create(self.ctx.me.is_active, self.ctx.server_uuid.encode(), CreateMode.EPHEMERAL),
                SetData(self.ctx.me.host, self.ctx.host.to_bytes()),
            ]
        )
        self.ctx.keeper = keeper

    async def settle_staged(self) -> None:
        """As a start does it: what Keeper knows is published, the rest thrown away."""
        for part in self.store.staged:
            if self.bench.has(self.ctx.me.part(part)):
                await self.store.publish([part])
            else:
                await self.store.discard(part)

    async def expire(self) -> None:
        """End the session on the server's side; the replica is read-only then."""
        keeper = self.ctx.session()
        self.bench.server.expire_session(keeper.session_id)
        while not keeper.is_expired:
            await self.bench.env.sleep(0.1)

    async def write(self, value: int, partition: str = "all", rows: int = 1) -> NewPart:
        return await self.store.write(partition, [{"k": value, "v": row} for row in range(rows)])

    async def fetch(self, part: PartName, source: Replica) -> None:
        """Have a part of another replica, as executing its GET_PART does, without counting for a quorum."""
        async with source.store.send(part) as outgoing, self.store.receive(part) as incoming:
            for file in outgoing.files:
                await incoming.write(file, outgoing.read(file))
            fetched = await incoming.finish(outgoing.part.header)
        await self.ctx.session().create(self.ctx.me.part(part), fetched.header.to_bytes())
        await self.store.publish([part])

    def values(self) -> list[int]:
        """The keys that a SELECT finds, sorted, one for each row."""
        return sorted(int(dict(row)["k"]) for row in self.store.rows().elements())


class Bench:
    """Keeper, and replicas by name."""

    def __init__(self, env: SimulationEnv) -> None:
        self.env = env
        self.server = MemoryKeeperServer(env)
        self.network = MemoryPartNetwork(env)
        self.replicas: dict[str, Replica] = {}

    async def keeper(self, client: str = "test") -> Keeper:
        return await self.server.connect(client=client, session_timeout_s=10)

    async def replica(
        self, name: str = "r1", settings: ReplicatedSettings | None = None, *, active: bool = True
    ) -> Replica:
        """A replica that is in Keeper, and active."""
        replica = Replica(self, name, settings or ReplicatedSettings())
        number = len(self.replicas) + 1
        await create_replica(
            await self.keeper(), PATHS, replica.ctx.me, new_replica(number), model_definition()
        )
        self.replicas[name] = replica
        if active:
            await replica.activate()
        return replica

    def children(self, path: str) -> list[str]:
        """Straight from the tree."""
        return sorted(self.server.tree.nodes[path].children)

    def data(self, path: str) -> bytes:
        return self.server.tree.nodes[path].data

    def has(self, path: str) -> bool:
        return path in self.server.tree.nodes

    def log(self) -> list[LogEntry]:
        return [LogEntry.from_bytes(self.data(f"{PATHS.log}/{name}")) for name in self.children(PATHS.log)]

    def inserted(self) -> list[str]:
        """The parts that the log has for all to fetch."""
        return [str(entry.action.part) for entry in self.log() if isinstance(entry.action, GetPart)]

    def locks(self) -> list[str]:
        """Block numbers that are held now."""
        partitions = self.children(PATHS.block_numbers)
        return [f"{p}/{n}" for p in partitions for n in self.children(f"{PATHS.block_numbers}/{p}")]

    def queued(self, index: int = -1) -> QueuedEntry:
        """An entry of the log as it stands in a queue."""
        name = self.children(PATHS.log)[index]
        raw = self.data(f"{PATHS.log}/{name}")
        return QueuedEntry(name.replace("log", "queue"), LogEntry.from_bytes(raw), raw)
