"""The whole queue in one process, in virtual time, under every fault, repeatable from one seed.

    report = simulate(42)
    assert not report.violations, report

One run: a few nodes in two shards, each a worker and a cleaner over a model database and an intent record
that survive them; initiators that submit by token, some twice, some through broken connections; initiators
of other makes; poison in the queue. Then a nemesis: lost requests and replies, expired sessions,
partitions, Keeper restarts, kills between any two steps, power cuts, slow hosts, a host that never comes,
clocks that jump, clusters that change. Then the faults stop, everything that shall live is started, and
the queue has time to settle. Last the checkers of `engine.testing.ddl_checkers` read the history.

`Scenario.of_seed` says what a seed stands for. A run takes some tens of milliseconds.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from engine.config.model import Cluster, DistributedDdl, Replica, Shard, Topology
from engine.ddl.cleaner import DDLCleaner
from engine.ddl.client import DDLQueueClient
from engine.ddl.entry import DDLLogEntry
from engine.ddl.identity import FixedResolver, NodeIdentity
from engine.ddl.initiator import PreparedStatement, prepare
from engine.ddl.worker import DDLWorker
from engine.errors import KeeperAnswer, OnclusterError, Refused
from engine.keeper.base import Create, CreateMode, Keeper, Op
from engine.keeper.faults import FaultPlan
from engine.keeper.memory import MemoryKeeperServer
from engine.names import HostId, TableName, entry_number
from engine.sql import StatementKind, runs_once_per_shard
from engine.testing.ddl_checkers import Violation, violations
from engine.testing.ddl_history import (
    Acknowledged,
    Created,
    Event,
    Expectation,
    History,
    ObservedTree,
    Removed,
    SeenEffect,
)
from engine.testing.ddl_model import Effect, ModelDatabase, ModelExecutor
from engine.testing.ddl_process import (
    GatedEnv,
    IntentDisk,
    ModelIntentStore,
    Process,
    gated_factory,
)
from engine.testing.simulation import SimulationEnv, run_simulation

PORT = 9000
CLUSTER = "c"
SESSION_TIMEOUT_S = 6.0
_SETTLING_S = 3 * 3600.0
_REPLICATED_EFFECT = "/model/replicated/"


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one seed stands for. Rates are per request to Keeper; kills are gates
    (`engine.testing.ddl_process`)."""

    seed: int
    nodes: int = 3
    statements: int = 5
    fault_rate: float = 0.0
    kill_gates: tuple[int, ...] = ()
    kill_initiator_at: int | None = None
    kill_in_shard_attempt: float = 0.0
    power_cuts: bool = False
    is_keeper_restarted: bool = False
    is_partitioned: bool = False
    is_stopped: bool = False
    has_dead_host: bool = False
    has_slow_host: bool = False
    has_foreign_entries: bool = False
    has_poison: bool = False
    has_small_queue: bool = False
    has_clock_jumps: bool = False
    is_membership_changed: bool = False
    flaky_rate: float = 0.0
    pool_size: int = 1
    replicated_share: float = 0.4

    @classmethod
    def of_seed(cls, seed: int) -> Scenario:
        """Faults in all mixtures; about one seed in eight has none."""
        rng = random.Random(f"scenario {seed}")
        calm = rng.random() < 0.12

        def sometimes(probability: float) -> bool:
            return not calm and rng.random() < probability

        reach = rng.choice([60, 120, 240])
        kills = () if calm else tuple(rng.randint(1, reach) for _ in range(rng.choice([0, 1, 1, 2, 3])))
        return cls(
            seed,
            nodes=rng.choice([2, 3, 3, 4]),
            statements=rng.randint(2, 6),
            fault_rate=rng.choice([0.0, 0.01, 0.03, 0.08]) if not calm else 0.0,
            kill_gates=kills,
            kill_initiator_at=rng.randint(1, 14) if sometimes(0.25) else None,
            kill_in_shard_attempt=0.5 if sometimes(0.15) else 0.0,
            power_cuts=sometimes(0.3),
            is_keeper_restarted=sometimes(0.1),
            is_partitioned=sometimes(0.2),
            is_stopped=sometimes(0.2),
            has_dead_host=sometimes(0.15),
            has_slow_host=sometimes(0.15),
            has_foreign_entries=sometimes(0.3),
            has_poison=sometimes(0.25),
            has_small_queue=sometimes(0.3),
            has_clock_jumps=sometimes(0.15),
            is_membership_changed=sometimes(0.15),
            flaky_rate=0.1 if sometimes(0.15) else 0.0,
            pool_size=rng.choice([1, 1, 1, 3]),
            replicated_share=rng.choice([0.0, 0.4, 1.0]),
        )


@dataclass(slots=True)
class Report:
    """What came of a run. `reached` counts the interesting states that it went through."""

    scenario: Scenario
    violations: list[Violation]
    reached: Counter[str]
    history: History
    virtual_s: float = 0.0

    def __str__(self) -> str:
        lines = [f"seed {self.scenario.seed}: {self.scenario}"]
        return "\n".join(lines + [f"  {violation}" for violation in self.violations])


def simulate(seed: int, scenario: Scenario | None = None) -> Report:
    """Run one seed to its end and check its history. The same seed gives the same run."""
    scenario = scenario or Scenario.of_seed(seed)
    with _counting_events() as reached:

        async def main(env: SimulationEnv) -> History:
            return await DdlSimulation(scenario, env, reached).run()

        history = run_simulation(seed, main, max_steps=400_000)
    return Report(scenario, violations(history), reached, history)


class _EventCounter(logging.Handler):
    """Counts log events by their id, and by the `step` or `reason` that decides."""

    def __init__(self, reached: Counter[str]) -> None:
        super().__init__()
        self._reached = reached

    def emit(self, record: logging.LogRecord) -> None:
        event = record.msg.split(" ", 1)[0]
        self._reached[event] += 1
        if event in ("ddl.recovered", "ddl.shard_takeover") and isinstance(record.args, tuple):
            self._reached[f"{event} {record.args[-1]}"] += 1


@contextmanager
def _counting_events() -> Iterator[Counter[str]]:
    reached: Counter[str] = Counter()
    logger = logging.getLogger("engine.ddl")
    handler = _EventCounter(reached)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    quiet = logging.getLogger("engine.keeper")
    quiet_level = quiet.level
    quiet.setLevel(logging.CRITICAL)
    try:
        yield reached
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
        quiet.setLevel(quiet_level)


@dataclass(slots=True)
class _Host:
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


class DdlSimulation:
    """One cluster and its history. `run` is one seed; a test that has its own script uses the other
    methods."""

    def __init__(self, scenario: Scenario, env: SimulationEnv, reached: Counter[str]) -> None:
        self._scenario = scenario
        self._env = env
        self._rng = random.Random(f"simulation {scenario.seed}")
        self._reached = reached
        self._actors: dict[int, str] = {}
        self._plan = FaultPlan.rough(random.Random(f"faults {scenario.seed}"), rate=scenario.fault_rate)
        self._queue = DistributedDdl(
            pool_size=scenario.pool_size,
            cleanup_delay_period_s=5,
            max_tasks_in_queue=2 if scenario.has_small_queue else 1000,
            task_max_lifetime_s=30 if scenario.has_small_queue else 7 * 86_400,
        )
        self._history = History(
            paths=self._queue.paths,
            lifetime_s=self._queue.task_max_lifetime_s,
            max_tasks=self._queue.max_tasks_in_queue,
        )
        self._server = MemoryKeeperServer(env, faults=self._plan, latency_s=(0.0, 0.0))
        self._server.tree = ObservedTree(
            self._history, env.now_s, self._on_event, lambda session: self._actors.get(session, "")
        )
        self._hosts: dict[str, _Host] = {}
        self._is_calm = False
        self._resolver_table: dict[str, str] = {}
        self._kills = list(scenario.kill_gates)
        self._initiators = 0
        self._zombies: list[asyncio.Task[Any]] = []

    # --- the run ------------------------------------------------------------------------------------------

    async def run(self) -> History:
        self._make_hosts()
        dead = f"n{self._scenario.nodes}" if self._scenario.has_dead_host else ""
        for host in self._hosts.values():
            if host.name != dead:
                self._start(host)
        nemesis = asyncio.create_task(self._nemesis())
        await self._workload()
        await self._env.sleep(self._rng.uniform(0.0, 20.0))
        nemesis.cancel()
        await asyncio.gather(nemesis, return_exceptions=True)
        self._calm_down(dead)
        await self._settle(dead)
        for host in self._hosts.values():
            self._stop(host)
        self._collect_replicated_effects()
        self._history.live_hosts = frozenset(h.name for h in self._hosts.values() if h.name != dead)
        return self._history

    def _make_hosts(self) -> None:
        names = [f"n{number}" for number in range(1, self._scenario.nodes + 1)]
        for number, name in enumerate(names):
            self._resolver_table[name] = f"10.0.0.{number + 1}"
        topology = _topology(names)
        for number, name in enumerate(names):
            database = ModelDatabase(name, on_effect=self._on_effect)
            self._history.shard_of[name] = str(number % 2)
            self._hosts[name] = _Host(name, number % 2, self._env.fork(), database, topology=topology)

    def _on_event(self, event: Event) -> None:
        """A replica has announced its attempt for the shard: a good moment to kill it, some gates on."""
        if not event.path.endswith("/attempt") or isinstance(event, Removed) or self._is_calm:
            return
        host = self._hosts.get(json.loads(event.data)["host"].rpartition(":")[0])
        if host is None or host.process is None or self._rng.random() >= self._scenario.kill_in_shard_attempt:
            return
        host.process.kill_at = host.process.gates + self._rng.randint(1, 12)

    def _on_effect(self, effect: Effect) -> None:
        self._history.effects.append(SeenEffect(self._history.tick(), effect))

    # --- processes ----------------------------------------------------------------------------------------

    def _start(self, host: _Host) -> None:
        """A new process on the host; perhaps one that will be killed at some gate."""
        host.incarnation += 1
        kill_at = self._kills.pop() if self._kills and not self._is_calm else None
        client = f"{host.name}/{host.incarnation}"
        process = Process(client, kill_at=kill_at, on_kill=lambda: self._on_kill(host))
        env = GatedEnv(host.env, process)
        opening = self._server.factory(session_timeout_s=SESSION_TIMEOUT_S, client=client)

        async def open_session() -> Keeper:
            keeper = await opening()
            self._actors[keeper.session_id] = host.name
            return keeper

        factory = gated_factory(open_session, process)
        host.process = process
        host.executor = ModelExecutor(
            host.database,
            env,
            duration_s=self._duration(host),
            keeper=_lasting_session(factory),
            shard=str(host.shard),
            gate=process.gate,
        )
        host.executor.flaky_rate = 0.0 if self._is_calm else self._scenario.flaky_rate
        host.worker = DDLWorker(
            factory=factory,
            env=env,
            executor=host.executor,
            intents=ModelIntentStore(host.disk, process),
            identity=NodeIdentity(host.name, PORT, UUID(int=self._index(host))),
            topology=lambda: host.topology,
            queue=self._queue,
            resolver=FixedResolver(self._resolver_table, local=frozenset({self._resolver_table[host.name]})),
            on_round=lambda _: cleaner.wake(),
        )
        cleaner = DDLCleaner(
            _Sessions(factory),
            env,
            self._queue,
            max_entry=lambda: host.worker.max_entry if host.worker else -1,
            on_present=host.worker.forget_intents,
        )
        host.tasks = [
            asyncio.create_task(host.worker.run(), name=f"worker {client}"),
            asyncio.create_task(cleaner.run(), name=f"cleaner {client}"),
        ]

    def _index(self, host: _Host) -> int:
        return list(self._hosts).index(host.name) + 1

    def _duration(self, host: _Host) -> tuple[float, float]:
        if self._scenario.has_slow_host and host.name == "n1" and not self._is_calm:
            return (0.0, 120.0)
        return (0.0, 0.05)

    def _on_kill(self, host: _Host) -> None:
        """kill −9, or the power goes. The host starts again some time later."""
        self._reached["killed"] += 1
        assert host.process is not None
        # Nobody holds what waits for a dead session, and a task that is collected while it waits is an error.
        self._zombies += self._env.loop.unfinished_tasks()
        self._server.crash_client(host.process.name)
        for task in host.tasks:
            task.cancel()
        if self._scenario.power_cuts and self._rng.random() < 0.5:
            host.disk.cut_power()
            self._reached["power cut"] += 1
        if not self._is_calm:
            asyncio.get_running_loop().call_later(self._rng.uniform(0.1, 20.0), self._restart, host)

    def _restart(self, host: _Host) -> None:
        if host.process is not None and not host.process.is_alive:
            self._start(host)

    def _stop(self, host: _Host) -> None:
        for task in host.tasks:
            task.cancel()
        if host.process is not None:
            host.process.is_alive = False

    # --- what goes wrong ----------------------------------------------------------------------------------

    async def _nemesis(self) -> None:
        scenario, rng = self._scenario, self._rng
        if scenario.is_membership_changed:
            asyncio.get_running_loop().call_later(rng.uniform(0.0, 5.0), self._change_membership)
        while True:
            await self._env.sleep(rng.uniform(0.2, 4.0))
            host = rng.choice(list(self._hosts.values()))
            if scenario.is_partitioned and rng.random() < 0.3 and host.process is not None:
                client = host.process.name
                self._server.partition(client)
                self._reached["partition"] += 1
                asyncio.get_running_loop().call_later(rng.uniform(0.5, 15.0), self._server.heal, client)
            if scenario.is_stopped and rng.random() < 0.3 and host.process is not None:
                self._stop_for_a_while(host.process, rng.uniform(0.5, 20.0))
            if scenario.is_keeper_restarted and rng.random() < 0.15:
                self._reached["keeper restart"] += 1
                await self._server.restart(down_s=rng.uniform(0.1, 8.0))
            if scenario.has_clock_jumps and rng.random() < 0.3:
                host.env.jump_clock(rng.choice([-3600.0, 3600.0]))
            for table in host.database.tables.values():
                if rng.random() < 0.5:
                    table.insert()
                if rng.random() < 0.3:
                    table.merge()

    def _stop_for_a_while(self, process: Process, for_s: float) -> None:
        """SIGSTOP, and SIGCONT later: its sessions may be over by then, and it does not know."""
        self._reached["stopped"] += 1
        process.stop()
        self._server.partition(process.name)

        def go_on() -> None:
            self._server.heal(process.name)
            process.go_on()

        asyncio.get_running_loop().call_later(for_s, go_on)

    def _change_membership(self) -> None:
        """The last node leaves the cluster, in the eyes of some of the nodes at first, then of all."""
        names = list(self._hosts)[:-1] or list(self._hosts)
        for host in self._hosts.values():
            if self._rng.random() < 0.7:
                host.topology = _topology(names)
                if host.worker is not None:
                    host.worker.topology_changed()

    def _calm_down(self, dead: str) -> None:
        self._is_calm = True
        self._plan.calm()
        if not self._server.is_up:
            self._server.start()
        for host in self._hosts.values():
            if host.name == dead:
                continue
            if host.process is not None:
                self._server.heal(host.process.name)
                host.process.go_on()
                host.process.kill_at = None
            if host.executor is not None:
                host.executor.flaky_rate = 0.0
                host.executor.duration_s = (0.0, 0.05)
            self._restart(host)

    async def _settle(self, dead: str) -> None:
        """Until every living host has reported on every entry there is, or time is up."""
        waited_s = 0.0
        pause_s = 0.5
        while waited_s < _SETTLING_S and not self._is_settled(dead):
            await self._env.sleep(pause_s)
            waited_s += pause_s
            pause_s = min(pause_s * 1.5, 60.0)

    def _is_settled(self, dead: str) -> bool:
        nodes = self._server.tree.nodes
        paths = self._queue.paths
        for name, expected in self._history.expectations.items():
            if paths.entry(name) not in nodes:
                continue
            for host in expected.hosts:
                lives = host.rpartition(":")[0] in self._hosts and host != f"{dead}:{PORT}"
                if lives and paths.finished(name, host) not in nodes:
                    return False
        return True

    # --- who submits --------------------------------------------------------------------------------------

    async def _workload(self) -> None:
        """Initiators one after another and side by side, foreign ones and poison in between."""
        running: list[asyncio.Task[None]] = []
        for number, sql in enumerate(self._statements()):
            if self._scenario.has_foreign_entries and self._rng.random() < 0.4:
                await self._foreign_entry(number)
            if self._scenario.has_poison and self._rng.random() < 0.5:
                await self._poison(number)
            copies = 2 if self._rng.random() < 0.3 else 1
            tasks = [
                asyncio.create_task(self._initiate(sql, f"token-{number}"), name=f"initiator {number}")
                for _ in range(copies)
            ]
            running += tasks
            if self._rng.random() < 0.6:
                await asyncio.wait(tasks, timeout=self._rng.uniform(0.0, 6.0))
        await asyncio.wait(running, timeout=120.0)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _statements(self) -> list[str]:
        """A plausible life of two or three tables; some statements fail, by themselves or on purpose."""
        rng = self._rng
        on = f"ON CLUSTER {CLUSTER}"
        statements = []
        replicated = rng.random() < self._scenario.replicated_share
        table = "r" if replicated else "t"
        engine = "ReplicatedMergeTree" if replicated else "MergeTree"
        statements.append(f"CREATE TABLE d.{table} {on} (a Int8) ENGINE = {engine}")
        choices = [
            f"ALTER TABLE d.{table} {on} ADD COLUMN b String",
            f"ALTER TABLE d.{table} {on} UPDATE a = a + 1 WHERE 1",
            f"ALTER TABLE d.{table} {on} ADD COLUMN c String DEFAULT 'FAIL 44'",
            f"TRUNCATE TABLE d.{table} {on}",
            f"CREATE TABLE IF NOT EXISTS d.{table} {on} (a Int8) ENGINE = {engine}",
            f"CREATE TABLE d.other {on} (a Int8) ENGINE = MergeTree",
            f"RENAME TABLE d.other TO d.another {on}",
            f"DROP TABLE d.other {on}",
            f"ALTER TABLE d.other {on} ADD COLUMN b String",
            f"DROP TABLE IF EXISTS d.another {on}",
        ]
        for _ in range(self._scenario.statements - 1):
            statements.append(rng.choice(choices))
        return statements

    async def _initiate(self, sql: str, token: str) -> None:
        """Submit until it is known to stand; an initiator that is killed is followed by another one."""
        names = list(self._hosts)
        prepared = prepare(
            sql,
            topology=_topology(names),
            queue=self._queue,
            token=token,
            entry_version=self._rng.choice([1, 2, 5, 6, 8]) if False else 5,
        )
        kill_at = self._scenario.kill_initiator_at
        while True:
            self._initiators += 1
            client = f"initiator/{self._initiators}"
            crash = functools.partial(self._crash_initiator, client)
            process = Process(client, kill_at=kill_at, on_kill=crash)
            factory = gated_factory(
                self._server.factory(session_timeout_s=SESSION_TIMEOUT_S, client=client), process
            )
            kill_at = None
            env = GatedEnv(self._env, process)
            attempt = asyncio.create_task(self._submit(factory, env, prepared), name=f"submit {client}")
            try:
                done = (await asyncio.gather(attempt, return_exceptions=True))[0]
            finally:
                attempt.cancel()
            if done is True or self._is_calm:
                return
            self._reached["initiator tries again"] += 1
            await self._env.sleep(self._rng.uniform(0.0, 1.0))

    def _crash_initiator(self, client: str) -> None:
        self._zombies += self._env.loop.unfinished_tasks()
        self._server.crash_client(client)

    async def _submit(
        self, factory: Callable[[], Awaitable[Keeper]], env: GatedEnv, prepared: PreparedStatement
    ) -> bool:
        try:
            keeper = await factory()
            client = DDLQueueClient(keeper, env, self._queue.paths)
            submission = await client.submit(prepared)
        except Refused:
            raise
        except OnclusterError:
            return False
        self._reached[f"submission {submission.outcome}"] += 1
        if submission.is_gone:
            self._reached["submission of a removed entry"] += 1
        self._history.acknowledged.append(Acknowledged(prepared.token, submission.entry))
        if submission.entry:
            self._expect(submission.entry, prepared)
        try:
            await keeper.close()
        except OnclusterError:
            return True
        return True

    def _expect(self, entry: str, prepared: PreparedStatement) -> None:
        statement = prepared.statement
        is_conditional = statement.if_exists or statement.if_not_exists
        empties = statement.kind is StatementKind.TRUNCATE_TABLE
        tables = [TableName(t.database or "default", t.table) for t in statement.tables]
        self._history.expectations[entry] = Expectation(
            hosts=tuple(str(host) for host in prepared.hosts),
            objects=tuple(str(table) for table in tables),
            is_certain=not is_conditional and not empties,
            runs_once_per_shard=runs_once_per_shard(statement) and "d.r" in map(str, tables),
        )

    # --- other people's entries ---------------------------------------------------------------------------

    async def _foreign_entry(self, number: int) -> None:
        """What another make of initiator leaves: entries without directories, or with one of them only."""
        hosts = tuple(host.host_id for host in self._hosts.values())
        if self._rng.random() < 0.3:
            hosts = (*hosts, HostId("nowhere", PORT))
        if self._rng.random() < 0.3:
            hosts = (*hosts, HostId("10.9.9.9", PORT))
        query = f"CREATE TABLE d.foreign{number} ON CLUSTER {CLUSTER} (a UInt8) ENGINE = Memory"
        data = DDLLogEntry(self._rng.choice([1, 2, 4, 7]), query, hosts, "foreign:1234").to_bytes()
        name = await self._put(data)
        self._history.foreign.add(name)
        paths = self._queue.paths
        extra: list[Op] = self._rng.choice(
            [[], [Create(paths.active(name)), Create(paths.finished(name))], [Create(paths.active(name))]]
        )
        for op in extra:
            if isinstance(op, Create):
                self._as_observer(op)
        self._history.expectations[name] = Expectation(
            hosts=tuple(str(host) for host in hosts), objects=(f"d.foreign{number}",)
        )

    async def _poison(self, number: int) -> None:
        kind = self._rng.choice(["garbage", "version", "large", "odd child", "cluster", "select"])
        self._reached[f"poison {kind}"] += 1
        hosts = tuple(host.host_id for host in self._hosts.values())
        listed = tuple(str(host) for host in hosts)
        match kind:
            case "garbage":
                name = await self._put(b"\0\xff garbage")
            case "version":
                name = await self._put(b"version: 9\nquery: SELECT 1\nhosts: []\n")
            case "large":
                query = f"CREATE TABLE d.large{number} ON CLUSTER {CLUSTER} (a UInt8) /* {'x' * 900_000} */"
                name = await self._put(DDLLogEntry(1, query, hosts).to_bytes())
            case "cluster":
                name = await self._put(
                    DDLLogEntry(1, "CREATE TABLE d.x ON CLUSTER nope (a UInt8)", hosts).to_bytes()
                )
            case "select":
                name = await self._put(DDLLogEntry(1, "SELECT 1", hosts).to_bytes())
            case _:
                if self._queue.path not in self._server.tree.nodes:
                    self._make_root()
                self._as_observer(
                    Create(f"{self._queue.path}/{self._rng.choice(['query-', 'x', 'query-1'])}{number}")
                )
                return
        self._history.expectations[name] = Expectation(hosts=listed, is_certain=False)

    async def _put(self, data: bytes) -> str:
        if self._queue.path not in self._server.tree.nodes:
            self._make_root()
        path = self._as_observer(
            Create(self._queue.paths.entry_prefix, data, CreateMode.PERSISTENT_SEQUENTIAL)
        )
        return path.rpartition("/")[2]

    def _make_root(self) -> None:
        parts = self._queue.path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            self._as_observer(Create("/" + "/".join(parts[:depth])))

    def _as_observer(self, op: Create) -> str:
        """Straight into the tree, by nobody's session; watches fire as for every write."""
        from engine.keeper.tree import Caller

        caller = Caller(0, frozenset(), int(self._env.now_s() * 1000))
        try:
            return str(self._server.tree.write(op, caller))
        except KeeperAnswer:
            return op.path
        finally:
            self._server._fire()

    # --- afterwards ---------------------------------------------------------------------------------------

    def _collect_replicated_effects(self) -> None:
        """Effects on replicated tables are transactions; they join the effects on disks in order."""
        for transaction, event in self._history.events():
            if isinstance(event, Created) and event.path.startswith(_REPLICATED_ROOT_PREFIX):
                parts = event.path.split("/")
                if len(parts) == 7 and parts[5] == "effects" and event.data:
                    host, entry, what = json.loads(event.data)
                    self._history.effects.append(
                        SeenEffect(transaction.at, Effect(host, entry, parts[4], what), shard=parts[3])
                    )


_REPLICATED_ROOT_PREFIX = _REPLICATED_EFFECT


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


def _topology(names: list[str]) -> Topology:
    """Two shards, dealt in turn."""
    shards = []
    for number in range(2):
        replicas = tuple(Replica(name, PORT) for at, name in enumerate(names) if at % 2 == number)
        if replicas:
            shards.append(Shard(number + 1, replicas, internal_replication=True))
    return Topology({CLUSTER: Cluster(CLUSTER, tuple(shards))}, {})


__all__ = ["Report", "Scenario", "entry_number", "simulate"]
