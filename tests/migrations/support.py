"""A cluster in one process for the tests of migrations: memory Keeper, hosts that carry out entries on a
model."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from engine.config.model import Cluster, DistributedDdl, Replica, Shard, Topology
from engine.ddl.entry import DDLLogEntry
from engine.ddl.initiator import without_token
from engine.ddl.status import ExecutionStatus
from engine.errors import MultiFailed, NodeExists
from engine.keeper.base import Create as CreateOp
from engine.keeper.base import CreateMode, Keeper
from engine.keeper.base import Remove as RemoveOp
from engine.keeper.memory import MemoryKeeperServer
from engine.migrations.files import Direction, load_folder
from engine.migrations.ledger import Ledger
from engine.migrations.lock import Binding
from engine.migrations.model import RunRequest
from engine.migrations.runner import MigrationRunner
from engine.names import HostId
from engine.sql import StatementKind, parse_statement, without_on_cluster
from engine.testing.simulation import SimulationEnv, run_simulation

T = TypeVar("T")

TIMEOUT_S = 60


def topology(*, shards: int = 1, replicas: int = 2, name: str = "shop") -> Topology:
    numbers = iter(range(1, shards * replicas + 1))
    cluster = Cluster(
        name,
        tuple(
            Shard(shard, tuple(Replica(f"node{next(numbers):02}", 9000) for _ in range(replicas)))
            for shard in range(1, shards + 1)
        ),
    )
    return Topology({name: cluster})


class Host:
    """Carries out entries in queue order on a set of names, as a node would on its tables."""

    def __init__(self, env: SimulationEnv, server: MemoryKeeperServer, host: HostId, queue: DistributedDdl):
        self.host = host
        self.objects: set[str] = set()
        self.effects: Counter[str] = Counter()
        self.executed: list[str] = []
        self.fails: dict[str, tuple[int, str]] = {}
        self.hold: dict[str, asyncio.Event] = {}
        self._env, self._server, self._paths = env, server, queue.paths
        self._task: asyncio.Task[None] | None = None
        self._keeper: Keeper | None = None

    async def start(self) -> None:
        self._keeper = await self._server.connect(client=str(self.host))
        for path in (self._paths.root, self._paths.replicas_root, self._paths.replica(self.host)):
            await _make(self._keeper, path)
        await self._keeper.create(self._paths.replica_active(self.host), mode=CreateMode.EPHEMERAL)
        self._task = asyncio.create_task(self._serve(self._keeper))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._keeper is not None:
            await self._keeper.close()
        self._task = self._keeper = None

    async def _serve(self, keeper: Keeper) -> None:
        done: set[str] = set()
        while True:
            changed = asyncio.Event()
            names = (await keeper.children(self._paths.root, watch=_setting(changed))).names
            for name in sorted(names):
                if name.startswith("query-") and name not in done:
                    await self._process(keeper, name)
                    done.add(name)
            await changed.wait()

    async def _process(self, keeper: Keeper, name: str) -> None:
        entry = DDLLogEntry.from_bytes((await keeper.get(self._paths.entry(name))).data, where=name)
        if self.host not in entry.hosts:
            return
        for path in (self._paths.active(name), self._paths.finished(name)):
            await _make(keeper, path)
        if await keeper.exists(self._paths.finished(name, self.host)) is not None:
            return
        await keeper.create(self._paths.active(name, self.host), mode=CreateMode.EPHEMERAL)
        sql = without_on_cluster(without_token(entry.query))
        for text, gate in self.hold.items():
            if text in sql:
                await gate.wait()
        status = self._execute(name, sql)
        try:
            await keeper.multi(
                [
                    RemoveOp(self._paths.active(name, self.host)),
                    CreateOp(self._paths.finished(name, self.host), status.to_bytes()),
                ]
            )
        except MultiFailed:
            return

    def _execute(self, name: str, sql: str) -> ExecutionStatus:
        for text, (code, message) in self.fails.items():
            if text in sql:
                return ExecutionStatus(code, message)
        parsed = parse_statement(sql)
        names = {str(table) for table in parsed.tables}
        match parsed.kind:
            case StatementKind.CREATE_TABLE:
                if names & self.objects and not parsed.if_not_exists:
                    return ExecutionStatus(57, f"Table {min(names)} already exists")
                self.objects |= names
            case StatementKind.DROP_TABLE:
                if not names <= self.objects and not parsed.if_exists:
                    return ExecutionStatus(60, f"Table {min(names)} does not exist")
                self.objects -= names
            case StatementKind.ALTER_TABLE:
                if not names <= self.objects:
                    return ExecutionStatus(60, f"Table {min(names)} does not exist")
                self.objects.add(sql)
            case _:
                self.objects.add(sql)
        self.effects[name] += 1
        self.executed.append(sql)
        return ExecutionStatus()


def _setting(event: asyncio.Event) -> Callable[[object], None]:
    return lambda _: event.set()


async def _make(keeper: Keeper, path: str) -> None:
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        with contextlib.suppress(NodeExists):
            await keeper.create("/" + "/".join(parts[:depth]))


class World:
    """Keeper, hosts, a folder of migrations and a ledger. `runner()` is one process that may die."""

    def __init__(self, env: SimulationEnv, folder: Path, ledger: Path | str, topology: Topology) -> None:
        self.env = env
        self.server = MemoryKeeperServer(env)
        self.topology = topology
        self.queue = DistributedDdl()
        self.folder = folder
        self.ledger_path = ledger
        (cluster,) = topology.clusters.values()
        self.hosts = {host: Host(env, self.server, host, self.queue) for host in cluster.host_ids}
        self._runs = 0

    async def start(self, *, without: frozenset[HostId] = frozenset()) -> None:
        for name, host in self.hosts.items():
            if name not in without:
                await host.start()

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.ledger_path, env=self.env)

    async def runner(self, *, client: str = "runner", session_timeout_s: float = 10.0) -> MigrationRunner:
        return MigrationRunner(
            keeper=await self.server.connect(client=client, session_timeout_s=session_timeout_s),
            migrations=load_folder(self.folder),
            ledger=self.ledger,
            topology=self.topology,
            queue=self.queue,
            env=self.env,
        )

    def request(self, **fields: Any) -> RunRequest:
        self._runs += 1
        defaults: dict[str, Any] = {
            "run_id": f"run-{self._runs}",
            "requested_by": "tester",
            "holder": "tester at here",
            "approved_by": "tester",
            "timeout_s": TIMEOUT_S,
        }
        return RunRequest(**{**defaults, **fields})

    def down(self, **fields: Any) -> RunRequest:
        return self.request(direction=Direction.DOWN, **fields)

    def by_tasks(self, **fields: Any) -> RunRequest:
        return self.request(binding=Binding.TTL, ttl_s=300.0, **fields)

    def states(self) -> dict[int, str]:
        return {v: r.state.value for v, r in self.ledger.records(self.cluster).items()}

    @property
    def cluster(self) -> str:
        return self.folder.name

    def entries(self) -> list[str]:
        """Query texts of the queue, in order."""
        nodes = self.server.tree.nodes
        prefix = self.queue.paths.entry_prefix
        names = sorted(p for p in nodes if p.startswith(prefix) and "/" not in p[len(prefix) :])
        return [without_token(DDLLogEntry.from_bytes(nodes[n].data, where=n).query) for n in names]

    def schemas(self) -> dict[HostId, frozenset[str]]:
        return {name: frozenset(host.objects) for name, host in self.hosts.items()}

    def check(self) -> None:
        """What holds at every moment: no effect twice on a host (M1), `applied` only with every host done
        (M6)."""
        for host in self.hosts.values():
            assert all(count == 1 for count in host.effects.values()), (host.host, host.effects)
        tokens = [text for text in self.server.tree.nodes if "/tokens/" in text]
        assert len(self.entries()) == len(tokens)
        for record in self.ledger.records(self.cluster).values():
            if record.state.value == "applied":
                assert record.rows or not record.statements
                assert all(row.state.value == "done" for row in record.rows), record


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


SHOP = {
    "1_tables.up.sql": "CREATE TABLE IF NOT EXISTS s.a (x Int8) ENGINE = Memory;\n"
    "CREATE TABLE IF NOT EXISTS s.b (x Int8) ENGINE = Memory;\n",
    "1_tables.down.sql": "DROP TABLE IF EXISTS s.b;\nDROP TABLE IF EXISTS s.a;\n",
    "2_column.up.sql": "ALTER TABLE s.a ADD COLUMN IF NOT EXISTS y Int8;\n",
    "2_column.down.sql": "ALTER TABLE s.a DROP COLUMN IF EXISTS y;\n",
    "3_more.up.sql": "CREATE TABLE IF NOT EXISTS s.c (x Int8) ENGINE = Memory;\n",
    "3_more.down.sql": "DROP TABLE IF EXISTS s.c;\n",
}


def in_world(
    tmp_path: Path,
    scenario: Callable[[World], Coroutine[Any, Any, T]],
    *,
    files: dict[str, str] = SHOP,
    seed: int = 1,
    replicas: int = 2,
    shards: int = 1,
    ledger: str = "",
) -> T:
    """Run a scenario in virtual time; the ledger is a new SQLite file unless an address is given."""
    folder = write(tmp_path / "shop", files)
    file = tmp_path / "ledger.sqlite"

    async def main(env: SimulationEnv) -> T:
        world = World(
            env,
            folder,
            ledger or file,
            topology(replicas=replicas, shards=shards, name="shop"),
        )
        try:
            return await scenario(world)
        finally:
            for host in world.hosts.values():
                await host.stop()

    with contextlib.closing(sqlite3.connect(file)) as other:
        # Of a file that only one process has open, each connection that is closed moves the log into it.
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("SELECT count(*) FROM sqlite_master").fetchall()
        return run_simulation(seed, main)
