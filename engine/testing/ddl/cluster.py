"""A simulated cluster of the queue: machines that survive their processes, Keeper, and an observer of both.

Whoever writes a script starts hosts, has things go wrong, submits (`engine.testing.ddl.workload`), and calls
`finish`, which ends the faults, waits until the queue has settled and returns the history for the checkers.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from engine.config.model import Cluster, DistributedDdl, Replica, Shard, Topology
from engine.ddl.cleaner import DDLCleaner
from engine.ddl.identity import FixedResolver, NodeIdentity
from engine.ddl.worker import DDLWorker
from engine.errors import KeeperAnswer
from engine.keeper.base import Create, CreateMode, Keeper
from engine.keeper.faults import FaultPlan
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.tree import Caller
from engine.names import HostId
from engine.testing.ddl.history import Created, Event, History, ObservedTree, Removed, SeenEffect
from engine.testing.ddl.model import Effect, ModelDatabase, ModelExecutor, RecordingModelExecutor
from engine.testing.ddl.process import GatedEnv, IntentDisk, ModelIntentStore, Process, gated_factory
from engine.testing.ddl.scenario import Scenario
from engine.testing.simulation import SimulationEnv

PORT = 9000
CLUSTER = "c"
SESSION_TIMEOUT_S = 6.0
_SETTLING_S = 3 * 3600.0
_REPLICATED_EFFECTS = "/model/replicated/"


@dataclass(slots=True)
class SimulatedHost:
    """A machine: what is on its disks, and the process that runs now, if any."""

    name: str
    shard: int
    env: SimulationEnv
    database: ModelDatabase
    disk: IntentDisk = field(default_factory=IntentDisk)
    process: Process | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    incarnation: int = 0
    worker: DDLWorker | None = None
    executor: ModelExecutor | None = None
    topology: Topology = field(default_factory=Topology)

    @property
    def host_id(self) -> HostId:
        return HostId(self.name, PORT)


class SimulatedCluster:
    """Hosts `n1`, `n2`, … in two shards, dealt in turn, each with a worker and a cleaner."""

    def __init__(self, scenario: Scenario, env: SimulationEnv, reached: Counter[str]) -> None:
        self.scenario = scenario
        self.env = env
        self.rng = random.Random(f"simulation {scenario.seed}")
        self.reached = reached
        self._actors: dict[int, str] = {}
        self.plan = FaultPlan.rough(random.Random(f"faults {scenario.seed}"), rate=scenario.fault_rate)
        self.queue = DistributedDdl(
            pool_size=scenario.pool_size,
            cleanup_delay_period_s=5,
            max_tasks_in_queue=2 if scenario.has_small_queue else 1000,
            task_max_lifetime_s=30 if scenario.has_small_queue else 7 * 86_400,
        )
        self.history = History(
            paths=self.queue.paths,
            lifetime_s=self.queue.task_max_lifetime_s,
            max_tasks=self.queue.max_tasks_in_queue,
        )
        self.server = MemoryKeeperServer(env, faults=self.plan, latency_s=(0.0, 0.0))
        self.server.tree = ObservedTree(
            self.history, env.now_s, self._on_event, lambda session: self._actors.get(session, "")
        )
        self.hosts: dict[str, SimulatedHost] = {}
        self.is_calm = False
        self._resolver_table: dict[str, str] = {}
        self.kills = list(scenario.kill_gates)
        self.zombies: list[asyncio.Task[Any]] = []
        self._make_hosts()

    @property
    def dead_host(self) -> str:
        """The one that never comes, if the scenario has one."""
        return f"n{self.scenario.nodes}" if self.scenario.has_dead_host else ""

    def start_all(self) -> None:
        """Every host but the dead one."""
        for host in self.hosts.values():
            if host.name != self.dead_host:
                self.start(host)

    async def finish(self) -> History:
        """End the faults, start what shall live, wait until the queue has settled, and stop everything."""
        self._calm_down()
        await self._settle()
        for host in self.hosts.values():
            self.stop(host)
        self._collect_replicated_effects()
        self.history.live_hosts = frozenset(n for n in self.hosts if n != self.dead_host)
        return self.history

    def _make_hosts(self) -> None:
        names = [f"n{number}" for number in range(1, self.scenario.nodes + 1)]
        for number, name in enumerate(names):
            self._resolver_table[name] = f"10.0.0.{number + 1}"
        topology = topology_of(names)
        for number, name in enumerate(names):
            database = ModelDatabase(name, on_effect=self._on_effect)
            self.history.shard_of[name] = str(number % 2)
            self.hosts[name] = SimulatedHost(name, number % 2, self.env.fork(), database, topology=topology)

    def _on_event(self, event: Event) -> None:
        """A replica has announced its attempt for the shard: a good moment to kill it, some gates on."""
        if not event.path.endswith("/attempt") or isinstance(event, Removed) or self.is_calm:
            return
        host = self.hosts.get(json.loads(event.data)["host"].rpartition(":")[0])
        if host is None or host.process is None or self.rng.random() >= self.scenario.kill_in_shard_attempt:
            return
        host.process.kill_at = host.process.gates + self.rng.randint(1, 12)

    def _on_effect(self, effect: Effect) -> None:
        self.history.effects.append(SeenEffect(self.history.tick(), effect))

    # --- processes ----------------------------------------------------------------------------------------

    def start(self, host: SimulatedHost) -> None:
        """A new process on the host; perhaps one that will be killed at some gate."""
        host.incarnation += 1
        kill_at = self.kills.pop() if self.kills and not self.is_calm else None
        client = f"{host.name}/{host.incarnation}"
        process = Process(client, kill_at=kill_at, on_kill=lambda: self._on_kill(host))
        env = GatedEnv(host.env, process)
        opening = self.server.factory(session_timeout_s=SESSION_TIMEOUT_S, client=client)

        async def open_session() -> Keeper:
            keeper = await opening()
            self._actors[keeper.session_id] = host.name
            return keeper

        factory = gated_factory(open_session, process)
        host.process = process
        # Both ways to begin a statement, on different hosts of one cluster.
        is_recording = (self.scenario.seed + self._index(host)) % 2
        host.executor = (RecordingModelExecutor if is_recording else ModelExecutor)(
            host.database,
            env,
            duration_s=self._duration(host),
            keeper=_lasting_session(factory),
            shard=str(host.shard),
            gate=process.gate,
        )
        host.executor.flaky_rate = 0.0 if self.is_calm else self.scenario.flaky_rate
        host.worker = DDLWorker(
            factory=factory,
            env=env,
            executor=host.executor,
            intents=ModelIntentStore(host.disk, process),
            identity=NodeIdentity(host.name, PORT, UUID(int=self._index(host))),
            topology=lambda: host.topology,
            queue=self.queue,
            resolver=FixedResolver(self._resolver_table, local=frozenset({self._resolver_table[host.name]})),
            on_round=lambda _: cleaner.wake(),
        )
        cleaner = DDLCleaner(
            _Sessions(factory),
            env,
            self.queue,
            max_entry=lambda: host.worker.max_entry if host.worker else -1,
            on_present=host.worker.forget_intents,
        )
        host.tasks = [
            asyncio.create_task(host.worker.run(), name=f"worker {client}"),
            asyncio.create_task(cleaner.run(), name=f"cleaner {client}"),
        ]

    def _index(self, host: SimulatedHost) -> int:
        return list(self.hosts).index(host.name) + 1

    def _duration(self, host: SimulatedHost) -> tuple[float, float]:
        if self.scenario.has_slow_host and host.name == "n1" and not self.is_calm:
            return (0.0, 120.0)
        return (0.0, 0.05)

    def _on_kill(self, host: SimulatedHost) -> None:
        """kill −9, or the power goes. The host starts again some time later."""
        self.reached["killed"] += 1
        assert host.process is not None
        # Nobody holds what waits for a dead session, and a task that is collected while it waits is an error.
        self.zombies += self.env.loop.unfinished_tasks()
        self.server.crash_client(host.process.name)
        for task in host.tasks:
            task.cancel()
        if self.scenario.power_cuts and self.rng.random() < 0.5:
            host.disk.cut_power()
            self.reached["power cut"] += 1
        if not self.is_calm:
            asyncio.get_running_loop().call_later(self.rng.uniform(0.1, 20.0), self.restart, host)

    def restart(self, host: SimulatedHost) -> None:
        if host.process is not None and not host.process.is_alive:
            self.start(host)

    def stop(self, host: SimulatedHost) -> None:
        for task in host.tasks:
            task.cancel()
        if host.process is not None:
            host.process.is_alive = False

    # --- what goes wrong ----------------------------------------------------------------------------------

    def stop_for_a_while(self, process: Process, for_s: float) -> None:
        """SIGSTOP, and SIGCONT later: its sessions may be over by then, and it does not know."""
        self.reached["stopped"] += 1
        process.stop()
        self.server.partition(process.name)

        def go_on() -> None:
            self.server.heal(process.name)
            process.go_on()

        asyncio.get_running_loop().call_later(for_s, go_on)

    def change_membership(self) -> None:
        """The last node leaves the cluster, in the eyes of some of the nodes at first, then of all."""
        names = list(self.hosts)[:-1] or list(self.hosts)
        for host in self.hosts.values():
            if self.rng.random() < 0.7:
                host.topology = topology_of(names)
                if host.worker is not None:
                    host.worker.topology_changed()

    # --- the end ------------------------------------------------------------------------------------------

    def _calm_down(self) -> None:
        self.is_calm = True
        self.plan.calm()
        if not self.server.is_up:
            self.server.start()
        for host in self.hosts.values():
            if host.name == self.dead_host:
                continue
            if host.process is not None:
                self.server.heal(host.process.name)
                host.process.go_on()
                host.process.kill_at = None
            if host.executor is not None:
                host.executor.flaky_rate = 0.0
                host.executor.duration_s = (0.0, 0.05)
            self.restart(host)

    async def _settle(self) -> None:
        """Until every living host has reported on every entry there is, or time is up."""
        waited_s = 0.0
        pause_s = 0.5
        while waited_s < _SETTLING_S and not self._is_settled():
            await self.env.sleep(pause_s)
            waited_s += pause_s
            pause_s = min(pause_s * 1.5, 60.0)

    def _is_settled(self) -> bool:
        nodes = self.server.tree.nodes
        paths = self.queue.paths
        for name, expected in self.history.expectations.items():
            if paths.entry(name) not in nodes:
                continue
            for host in expected.hosts:
                lives = host.rpartition(":")[0] in self.hosts and host != f"{self.dead_host}:{PORT}"
                if lives and paths.finished(name, host) not in nodes:
                    return False
        return True

    def _collect_replicated_effects(self) -> None:
        """Effects on replicated tables are transactions; they join the effects on disks in order."""
        for transaction, event in self.history.events():
            if isinstance(event, Created) and event.path.startswith(_REPLICATED_EFFECTS):
                parts = event.path.split("/")
                if len(parts) == 7 and parts[5] == "effects" and event.data:
                    host, entry, what = json.loads(event.data)
                    self.history.effects.append(
                        SeenEffect(transaction.at, Effect(host, entry, parts[4], what), shard=parts[3])
                    )

    # --- by the hand of the test --------------------------------------------------------------------------

    async def put(self, data: bytes) -> str:
        self.make_root()
        path = self.write(Create(self.queue.paths.entry_prefix, data, CreateMode.PERSISTENT_SEQUENTIAL))
        return path.rpartition("/")[2]

    def make_root(self) -> None:
        """The queue's directory, if nobody has made it yet."""
        if self.queue.path in self.server.tree.nodes:
            return
        parts = self.queue.path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            self.write(Create("/" + "/".join(parts[:depth])))

    def write(self, op: Create) -> str:
        """Straight into the tree, by nobody's session; watches fire as for every write."""
        caller = Caller(0, frozenset(), int(self.env.now_s() * 1000))
        try:
            return str(self.server.tree.write(op, caller))
        except KeeperAnswer:
            return op.path
        finally:
            self.server._fire()


class _Sessions:
    """A cleaner's sessions: one until it is over, then another."""

    def __init__(self, factory: Callable[[], Awaitable[Keeper]]) -> None:
        self._factory = factory
        self._keeper: Keeper | None = None

    async def session(self) -> Keeper:
        if self._keeper is None or self._keeper.is_expired:
            self._keeper = await self._factory()
        return self._keeper


def _lasting_session(factory: Callable[[], Awaitable[Keeper]]) -> Callable[[], Awaitable[Keeper]]:
    return _Sessions(factory).session


def topology_of(names: list[str]) -> Topology:
    """Two shards, dealt in turn."""
    shards = []
    for number in range(2):
        replicas = tuple(Replica(name, PORT) for at, name in enumerate(names) if at % 2 == number)
        if replicas:
            shards.append(Shard(number + 1, replicas, internal_replication=True))
    return Topology({CLUSTER: Cluster(CLUSTER, tuple(shards))}, {})
