"""A cluster for tests of the cleanup: servers that answer the few questions it asks, tables in Keeper as
servers make them, and carrying out under virtual time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from engine.client.node_client import QueryRows
from engine.ddl.client import DDLQueueClient
from engine.ddl.initiator import prepare
from engine.errors import Code, NodeUnavailable, OnclusterError, ReplyLost, SqlError
from engine.keeper.base import Create, CreateMode, Keeper, SetData
from engine.keeper.faults import FaultPlan
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import create_ancestors
from engine.names import HostId
from engine.operations.act import ActState, Plan
from engine.operations.carrying_out import Report, carry_out
from engine.operations.cleanup import CleanupKind, CleanupSettings, cleanup_performer, plan_cleanup
from engine.operations.site import Site
from engine.replication.creation import NewReplica, replica_ops, table_ops
from engine.replication.host import ReplicaHost
from engine.replication.paths import ReplicaPaths, TablePaths
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.unit.operations.support import CLUSTER, HOSTS, site

T = TypeVar("T")
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
TABLE = "/clickhouse/tables/01/t"


@dataclass
class Server:
    """What one server says of itself. `versions_old`: no `system.detached_tables`, no age of parts."""

    replicas: set[tuple[str, str]] = field(default_factory=set)
    detached_tables: set[tuple[str, str]] | None = field(default_factory=set)
    detached_parts: dict[str, int] = field(default_factory=dict)
    """Name of a part of `d.t` to its age in seconds."""
    is_replicated: bool = True
    """Whether `d.t` is."""
    knows_ages: bool = True
    broken_files: int = 0
    restored: int = 0
    is_clickhouse: bool = False
    is_down: bool = False
    url: str = "http://there"
    is_talking_nonsense: bool = False
    hangs_s: float = 0.0
    error: OnclusterError | None = None
    loses_replies: int = 0
    commands: list[str] = field(default_factory=list)

    async def query_rows(self, sql: str, **_: object) -> QueryRows:
        self._check()
        await asyncio.sleep(self.hangs_s)
        if self.is_talking_nonsense:
            return _rows((1,), ("2", None, 3))
        if "FROM system.replicas" in sql and "detached_parts" not in sql:
            return _rows(*sorted(self.replicas))
        if "FROM system.detached_tables" in sql:
            if self.detached_tables is None:
                raise SqlError(Code.UNKNOWN_TABLE, "Table system.detached_tables doesn't exist")
            return _rows(*sorted(self.detached_tables))
        if "FROM system.columns" in sql:
            names = ["name", "bytes_on_disk", *(["modification_time"] if self.knows_ages else [])]
            return _rows(*((name,) for name in names))
        if "FROM system.detached_parts" in sql:
            parts = sorted(self.detached_parts.items())
            assert "FROM system.replicas" in sql
            return _rows(
                *(
                    ("d", "t", name, age if self.knows_ages else -1, 1000, int(self.is_replicated))
                    for name, age in parts
                )
            )
        if "FROM system.distribution_queue" in sql:
            rows = [("d", "dist", "/data/dist/shard1_replica1/", self.broken_files, 77, "Checksum")]
            return _rows(*(rows if self.broken_files else []))
        raise AssertionError(sql)

    async def command(self, sql: str, *, settings: Mapping[str, str] = {}, **_: object) -> str:
        self._check()
        self.commands.append(sql)
        if sql == "SYSTEM RESTORE BROKEN DISTRIBUTED FILES `d`.`dist`":
            self.broken_files, self.restored = 1, self.broken_files - 1
            return ""
        if sql == "SYSTEM DROP BROKEN DISTRIBUTED FILES `d`.`dist`":
            if self.is_clickhouse:
                raise SqlError(Code.SYNTAX_ERROR, "Syntax error: failed at position 13")
            self.broken_files = 0
            return ""
        match = re.fullmatch(r"ALTER TABLE `d`\.`t` DROP DETACHED PART '(.+)'", sql)
        assert match is not None and settings == {"allow_drop_detached": "1"}
        if self.detached_parts.pop(match.group(1), None) is None:
            raise SqlError(Code.NO_SUCH_DATA_PART, "No such part")
        if self.loses_replies:
            self.loses_replies -= 1
            raise ReplyLost("no answer in time")
        return ""

    async def version(self) -> tuple[int, ...]:
        self._check()
        return (26, 9)

    def _check(self) -> None:
        if self.is_down:
            raise NodeUnavailable("cannot be reached")
        if self.error is not None:
            raise self.error


def _rows(*rows: tuple[object, ...]) -> QueryRows:
    return QueryRows((), rows)


async def nobody_answers(_: Site, __: ReplicaHost) -> bool:
    return False


class Bench:
    """A site whose Keeper and servers a test arranges."""

    def __init__(self, folder: Path, env: SimulationEnv) -> None:
        self.folder = folder
        self.env = env
        self.faults = FaultPlan.rough(env.fork().rng, rate=0.03)
        self.faults.calm()
        self.server = MemoryKeeperServer(env.fork(), faults=self.faults)
        self.servers = {host: Server() for host in HOSTS}
        self.keeper: Keeper
        self.site: Site
        self.queue: dict[str, object] = {}

    async def open(self, **queue: object) -> Bench:
        self.queue = queue
        self.keeper = await self.server.connect(client="operator", session_timeout_s=30)
        self.site = self.new_site(self.keeper)
        return self

    def new_site(self, keeper: Keeper, operator: str = "ada@here") -> Site:
        return site(self.folder, self.env, keeper, clients=self.servers, operator=operator, **self.queue)

    # -- tables in Keeper --------------------------------------------------------------------------------

    async def table(self, path: str = TABLE, **replicas: HostId) -> TablePaths:
        """A table with these replicas, none of them active; their servers do not know of it."""
        paths = TablePaths(path)
        await create_ancestors(self.keeper, path)
        new = NewReplica(b"metadata format version: 1\n", b"columns format version: 1\n", UUID(int=1))
        for number, (name, host) in enumerate(replicas.items()):
            replica = paths.replica(name)
            if number == 0:
                await self.keeper.multi(table_ops(paths, replica, new))
            else:
                stat = await self.keeper.exists(paths.replicas)
                assert stat is not None
                await self.keeper.multi(
                    replica_ops(paths, replica, new, replica_count=number, replicas_version=stat.version)
                )
            await self.keeper.set(replica.host, address(host))
        return paths

    async def activate(self, replica: ReplicaPaths, host: HostId) -> Keeper:
        """As a server does it; its session ends the activity."""
        session = await self.server.connect(client=host.host, session_timeout_s=10)
        await session.multi(
            [
                Create(replica.is_active, b"", CreateMode.EPHEMERAL),
                SetData(replica.host, address(host)),
            ]
        )
        return session

    def has(self, host: HostId, path: str, replica: str) -> None:
        self.servers[host].replicas.add((path, replica))

    def nodes(self, below: str) -> set[str]:
        return {path for path in self.server.tree.nodes if path == below or path.startswith(below + "/")}

    # -- the queue ---------------------------------------------------------------------------------------

    async def submit(self, number: int, *, finished: tuple[HostId, ...] = HOSTS) -> list[str]:
        """So many entries, answered by these hosts."""
        client = DDLQueueClient(self.keeper, self.env, self.site.queue.paths)
        names = []
        for at in range(number):
            prepared = prepare(
                f"CREATE TABLE d.t{at} ON CLUSTER {CLUSTER} (a Int8) ENGINE = Memory",
                topology=self.site.config.topology,
                queue=self.site.queue,
                token=f"t{self.env.new_uuid()}",
            )
            names.append((await client.submit(prepared)).entry)
            for host in finished:
                await self.keeper.create(self.site.queue.paths.finished(names[-1], host), b"0\n")
        return names

    async def entries(self) -> list[str]:
        return list((await self.keeper.children(self.site.queue.paths.root)).names)

    # -- planning and doing ------------------------------------------------------------------------------

    async def plan(self, *kinds: CleanupKind, settings: CleanupSettings | None = None) -> Plan:
        return await plan_cleanup(self.site, settings, kinds, probe=nobody_answers)

    async def apply(
        self,
        plan: Plan,
        *,
        run_id: str = "run",
        on: Site | None = None,
    ) -> Report:
        where = on or self.site
        perform = cleanup_performer(where, probe=nobody_answers)
        return await carry_out(where, plan, perform, run_id=run_id, approved_by="boss")

    async def plan_twice(
        self, *kinds: CleanupKind, apart_s: float = 25 * HOUR_S, settings: CleanupSettings | None = None
    ) -> Plan:
        """The second of two looks, a day apart: now it is known how long replicas were not active."""
        await self.plan(*kinds, settings=settings)
        await self.env.sleep(apart_s)
        return await self.plan(*kinds, settings=settings)


def address(host: HostId, *, database: str = "d", table: str = "t") -> bytes:
    return ReplicaHost(host.host, 9009, host.port, database, table).to_bytes()


def states(report: Report) -> list[ActState]:
    return [result.state for _, result in report.results]


def run(folder: Path, main: Callable[[Bench], Awaitable[T]], *, seed: int = 1, **queue: object) -> T:
    async def wrapped(env: SimulationEnv) -> T:
        return await main(await Bench(folder, env).open(**queue))

    return run_simulation(seed, wrapped)
