"""A small cluster on the memory Keeper in virtual time, for tests of the queue's parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar
from uuid import UUID

from engine.config.model import Cluster, DistributedDdl, Replica, Shard, Topology
from engine.ddl.client import DDLQueueClient, Submission
from engine.ddl.executor import Execution
from engine.ddl.identity import FixedResolver, NodeIdentity
from engine.ddl.initiator import PreparedStatement, prepare
from engine.ddl.outcome import EntryStatus
from engine.ddl.own_sessions import OwnSessions
from engine.ddl.status import ExecutionStatus
from engine.ddl.worker import DDLWorker
from engine.errors import NoNode
from engine.keeper.base import CreateMode, Keeper
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import create_ancestors
from engine.names import HostId
from engine.testing.ddl.model import ModelDatabase, ModelExecutor
from engine.testing.ddl.process import IntentDisk, ModelIntentStore, Process
from engine.testing.simulation import SimulationEnv, run_simulation

T = TypeVar("T")
PORT = 9000
QUEUE = DistributedDdl(cleanup_delay_period_s=1)
PATHS = QUEUE.paths


def cluster(*shards: str, name: str = "c", **more: object) -> Cluster:
    """`cluster("a b", "c")`: two shards, of two replicas and of one."""
    return Cluster(
        name,
        tuple(
            Shard(number + 1, tuple(Replica(host, PORT) for host in hosts.split()))
            for number, hosts in enumerate(shards)
        ),
        **more,  # type: ignore[arg-type]
    )


def topology(*shards: str) -> Topology:
    return Topology({"c": cluster(*shards)}, {})


def host(name: str) -> HostId:
    return HostId(name, PORT)


def run(main: Callable[[Bench], Awaitable[T]], *shards: str, seed: int = 1) -> T:
    """Run `main` in virtual time with a bench whose cluster `c` has these shards (default: `a b`)."""

    async def wrapped(env: SimulationEnv) -> T:
        bench = Bench(env, topology(*(shards or ("a b",))))
        try:
            return await main(bench)
        finally:
            await bench.stop()

    return run_simulation(seed, wrapped)


class Bench:
    """Keeper, a client, and workers that are started by name."""

    def __init__(self, env: SimulationEnv, clusters: Topology, queue: DistributedDdl = QUEUE) -> None:
        self.env = env
        self.server = MemoryKeeperServer(env)
        self.topology = clusters
        self.queue = queue
        self.databases: dict[str, ModelDatabase] = {}
        self.disks: dict[str, IntentDisk] = {}
        self.executors: dict[str, ModelExecutor] = {}
        self.workers: dict[str, DDLWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def keeper(self, client: str = "test") -> Keeper:
        return await self.server.connect(client=client, session_timeout_s=10)

    async def client(self) -> DDLQueueClient:
        return DDLQueueClient(await self.keeper("initiator"), self.env, self.queue.paths)

    def start(
        self,
        *names: str,
        resolver: FixedResolver | None = None,
        queue: DistributedDdl | None = None,
        own_sessions: OwnSessions | None = None,
        profile: Mapping[str, str] | None = None,
        users: Collection[str] | None = None,
        **identity: object,
    ) -> None:
        """Workers of these hosts, on whatever their disks hold. `names` are those of the hosts, unless
        `identity` says otherwise; `profile` are the settings of the queue's profile."""
        for number, name in enumerate(names):
            database = self.databases.setdefault(name, ModelDatabase(name))
            disk = self.disks.setdefault(name, IntentDisk())
            process = Process(name, on_kill=lambda: None)
            factory = self.server.factory(client=name, session_timeout_s=10)
            executor = ModelExecutor(database, self.env, keeper=_once(factory), shard="s")
            facts: dict[str, object] = {
                "host_name": name,
                "tcp_port": PORT,
                "server_uuid": UUID(int=len(self.databases) * 100 + number),
            }
            worker = DDLWorker(
                factory=factory,
                env=self.env,
                executor=executor,
                intents=ModelIntentStore(disk, process),
                identity=NodeIdentity(**(facts | identity)),  # type: ignore[arg-type]
                topology=lambda: self.topology,
                queue=queue or self.queue,
                resolver=resolver or FixedResolver({}),
                own_sessions=own_sessions,
                profile_settings=lambda: profile or {},
                users=users,
            )
            self.executors[name], self.workers[name] = executor, worker
            self._tasks[name] = asyncio.create_task(worker.run(), name=f"worker {name}")

    async def stop(self, *names: str) -> None:
        """Stop workers, all by default. Raises what ended one before."""
        for name in names or tuple(self._tasks):
            self.workers[name].stop()
            await self._tasks.pop(name)
            await self.workers[name].drain()

    def prepared(self, sql: str, token: str = "t", **more: object) -> PreparedStatement:
        return prepare(sql, topology=self.topology, queue=self.queue, token=token, **more)  # type: ignore[arg-type]

    async def ddl(self, sql: str, token: str = "t", **more: object) -> EntryStatus:
        """Submit and wait for every host."""
        client = await self.client()
        submission = await client.submit(self.prepared(sql, token, **more))
        return await self.last(client, submission.entry)

    async def submit(self, sql: str, token: str = "t", **more: object) -> Submission:
        return await (await self.client()).submit(self.prepared(sql, token, **more))

    async def last(self, client: DDLQueueClient, entry: str) -> EntryStatus:
        statuses = [status async for status in client.watch(entry)]
        return statuses[-1]

    async def put(self, data: bytes) -> str:
        """An entry of somebody else: the node alone."""
        keeper = await self.keeper()
        await create_ancestors(keeper, PATHS.entry("x"))
        path = await keeper.create(PATHS.entry_prefix, data, mode=CreateMode.PERSISTENT_SEQUENTIAL)
        return path.rpartition("/")[2]


async def kill(bench: Bench, name: str) -> None:
    """The process is gone, with all it was about to write; its session goes a moment later."""
    worker, task = bench.workers[name], bench._tasks.pop(name)
    doomed = [task, *worker._runner._runs.values()]
    for each in doomed:
        each.cancel()
    await asyncio.gather(*doomed, return_exceptions=True)


def _once(factory: Callable[[], Awaitable[Keeper]]) -> Callable[[], Awaitable[Keeper]]:
    opened: list[Keeper] = []

    async def session() -> Keeper:
        if not opened or opened[0].is_expired:
            opened[:] = [await factory()]
        return opened[0]

    return session


async def status_on(bench: Bench, entry: str, name: str) -> ExecutionStatus | None:
    try:
        node = await (await bench.keeper()).get(PATHS.finished(entry, host(name)))
    except NoNode:
        return None
    return ExecutionStatus.from_bytes(node.data)


def listen(bench: Bench, name: str) -> list[Execution]:
    """What reaches the local server of a host that has been started."""
    calls: list[Execution] = []
    executor = bench.executors[name]
    original = executor.execute

    async def execute(execution: Execution) -> None:
        calls.append(execution)
        await original(execution)

    executor.execute = execute  # type: ignore[method-assign]
    return calls
