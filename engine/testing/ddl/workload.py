"""Who submits in a simulation: initiators with tokens, initiators of other makes, and people who write
poison."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable

from engine.ddl.client import DDLQueueClient
from engine.ddl.entry import DDLLogEntry
from engine.ddl.initiator import PreparedStatement, prepare
from engine.errors import OnclusterError, Refused
from engine.keeper.base import Create, Keeper
from engine.names import HostId
from engine.sql import StatementKind, runs_once_per_shard
from engine.testing.ddl.cluster import CLUSTER, PORT, SESSION_TIMEOUT_S, SimulatedCluster, topology_of
from engine.testing.ddl.history import Acknowledged, Expectation
from engine.testing.ddl.process import GatedEnv, Process, gated_factory

VERSIONS = (1, 2, 3, 4, 5, 5, 6, 7, 8)


class Workload:
    """Submits the scenario's statements to a cluster."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._scenario = cluster.scenario
        self._history = cluster.history
        self._reached = cluster.reached
        self._rng = random.Random(f"workload {cluster.scenario.seed}")
        self._initiators = 0

    async def run(self) -> None:
        """Initiators one after another and side by side, foreign ones and poison in between."""
        running: list[asyncio.Task[None]] = []
        for number, sql in enumerate(self._statements()):
            if self._scenario.has_foreign_entries and self._rng.random() < 0.4:
                await self._foreign_entry(number)
            if self._scenario.has_poison and self._rng.random() < 0.5:
                await self._poison(number)
            copies = 2 if self._rng.random() < 0.3 else 1
            tasks = [
                asyncio.create_task(self.initiate(sql, f"token-{number}"), name=f"initiator {number}")
                for _ in range(copies)
            ]
            running += tasks
            if not self._scenario.is_burst and self._rng.random() < 0.6:
                await asyncio.wait(tasks, timeout=self._rng.uniform(0.0, 6.0))
        await asyncio.wait(running, timeout=120.0)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _statements(self) -> list[str]:
        """A plausible life of two or three tables; some statements fail, by themselves or on purpose."""
        rng = self._rng
        on = f"ON CLUSTER {CLUSTER}"
        if self._scenario.is_burst:
            return self._burst(on)
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

    def _burst(self, on: str) -> list[str]:
        """Tables made and dropped, again and again; a few statements fail, and a few are of another kind."""
        rng = self._rng
        choices = [
            *(f"CREATE TABLE d.{table} {on} (a Int8) ENGINE = MergeTree" for table in ("t", "u", "v", "w")),
            *(f"DROP TABLE d.{table} {on}" for table in ("t", "u", "v", "w")),
            f"CREATE TABLE d.t {on} (a Int8 DEFAULT 'FAIL 44') ENGINE = MergeTree",
            f"ALTER TABLE d.u {on} ADD COLUMN b String",
        ]
        return [rng.choice(choices) for _ in range(3 * self._scenario.statements)]

    async def initiate(self, sql: str, token: str) -> None:
        """Submit until it is known to stand; an initiator that is killed is followed by another one."""
        names = list(self._cluster.hosts)
        prepared = prepare(
            sql,
            topology=topology_of(names),
            queue=self._cluster.queue,
            token=token,
            entry_version=self._rng.choice(VERSIONS),
        )
        kill_at = self._scenario.kill_initiator_at
        while True:
            self._initiators += 1
            client = f"initiator/{self._initiators}"
            crash = functools.partial(self._crash_initiator, client)
            process = Process(client, kill_at=kill_at, on_kill=crash)
            factory = gated_factory(
                self._cluster.server.factory(session_timeout_s=SESSION_TIMEOUT_S, client=client), process
            )
            kill_at = None
            env = GatedEnv(self._cluster.env, process)
            attempt = asyncio.create_task(self._submit(factory, env, prepared), name=f"submit {client}")
            try:
                done = (await asyncio.gather(attempt, return_exceptions=True))[0]
            finally:
                attempt.cancel()
            if done is True or self._cluster.is_calm:
                return
            self._reached["initiator tries again"] += 1
            await self._cluster.env.sleep(self._rng.uniform(0.0, 1.0))

    def _crash_initiator(self, client: str) -> None:
        self._cluster.zombies += self._cluster.env.loop.unfinished_tasks()
        self._cluster.server.crash_client(client)

    async def _submit(
        self, factory: Callable[[], Awaitable[Keeper]], env: GatedEnv, prepared: PreparedStatement
    ) -> bool:
        try:
            keeper = await factory()
            client = DDLQueueClient(keeper, env, self._cluster.queue.paths)
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
        tables = [t.within("default") for t in statement.tables]
        self._history.expectations[entry] = Expectation(
            hosts=tuple(str(host) for host in prepared.hosts),
            objects=tuple(str(table) for table in tables),
            is_certain=not is_conditional and not empties,
            runs_once_per_shard=runs_once_per_shard(statement) and "d.r" in map(str, tables),
        )

    # --- other people's entries ---------------------------------------------------------------------------

    async def _foreign_entry(self, number: int) -> None:
        """What another make of initiator leaves: entries without directories, or with one of them only."""
        hosts = tuple(host.host_id for host in self._cluster.hosts.values())
        if self._rng.random() < 0.3:
            hosts = (*hosts, HostId("nowhere", PORT))
        if self._rng.random() < 0.3:
            hosts = (*hosts, HostId("10.9.9.9", PORT))
        query = f"CREATE TABLE d.foreign{number} ON CLUSTER {CLUSTER} (a UInt8) ENGINE = Memory"
        data = DDLLogEntry(self._rng.choice([1, 2, 4, 7]), query, hosts, "foreign:1234").to_bytes()
        name = await self._cluster.put(data)
        self._history.foreign.add(name)
        paths = self._cluster.queue.paths
        extra: list[Create] = self._rng.choice(
            [[], [Create(paths.active(name)), Create(paths.finished(name))], [Create(paths.active(name))]]
        )
        for op in extra:
            self._cluster.write(op)
        self._history.expectations[name] = Expectation(
            hosts=tuple(str(host) for host in hosts), objects=(f"d.foreign{number}",)
        )

    async def _poison(self, number: int) -> None:
        kind = self._rng.choice(["garbage", "version", "large", "odd child", "cluster", "select"])
        self._reached[f"poison {kind}"] += 1
        hosts = tuple(host.host_id for host in self._cluster.hosts.values())
        listed = tuple(str(host) for host in hosts)
        match kind:
            case "garbage":
                name = await self._cluster.put(b"\0\xff garbage")
            case "version":
                name = await self._cluster.put(b"version: 9\nquery: SELECT 1\nhosts: []\n")
            case "large":
                query = f"CREATE TABLE d.large{number} ON CLUSTER {CLUSTER} (a UInt8) /* {'x' * 900_000} */"
                name = await self._cluster.put(DDLLogEntry(1, query, hosts).to_bytes())
            case "cluster":
                name = await self._cluster.put(
                    DDLLogEntry(1, "CREATE TABLE d.x ON CLUSTER nope (a UInt8)", hosts).to_bytes()
                )
            case "select":
                name = await self._cluster.put(DDLLogEntry(1, "SELECT 1", hosts).to_bytes())
            case _:
                self._cluster.make_root()
                self._cluster.write(
                    Create(
                        f"{self._cluster.queue.path}/{self._rng.choice(['query-', 'x', 'query-1'])}{number}"
                    )
                )
                return
        self._history.expectations[name] = Expectation(hosts=listed, is_certain=False)
