"""Where the cluster page is tried: Airflow's API server with the plugin, a ZooKeeper, servers that answer.

Two clusters. `big` has 1,000 tasks in its queue, each for 100 hosts. `shop` has six hosts, and trouble: one
is down, one hangs, a task has failed on two. The servers are one small HTTP server that answers the page's
questions; what the page shows of the queue is what stands in ZooKeeper.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import aiohttp
from aiohttp import web

from engine.ddl.entry import DDLLogEntry
from engine.ddl.status import ExecutionStatus
from engine.env import Env, SystemEnv
from engine.errors import Unavailable
from engine.keeper import zookeeper
from engine.keeper.base import Create, CreateMode, Keeper, Op
from engine.keeper.embedded import EmbeddedZooKeeper
from engine.keeper.recipes import create_ancestors
from engine.local.airflow_environment import ADMIN, AirflowSettings, environment_of, home_of
from engine.local.airflow_processes import send_signal, with_children
from engine.names import HostId, QueuePaths, entry_name
from engine.operations.act import Act, ActResult, ActState, Plan
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.overview.lag import LAG_METRIC
from engine.operations.records import Records, Sample
from engine.ports import free_ports

ROOT = Path(__file__).resolve().parents[1]
PASSWORD = "page-test"
BIG_TASKS = 1000
BIG_HOSTS = tuple(f"ch-{shard:02}-{replica}" for shard in range(1, 51) for replica in "ab")
SHOP_HOSTS = tuple(f"node0{number}" for number in range(1, 7))
DOWN, HANGING = SHOP_HOSTS[2], SHOP_HOSTS[4]
BIG_QUEUE = QueuePaths("/clickhouse/task_queue/big", "/clickhouse/task_queue/big_replicas")
SHOP_QUEUE = QueuePaths("/clickhouse/task_queue/shop", "/clickhouse/task_queue/shop_replicas")
_FAILED = 33
"""The shop's task that fails on two hosts, and is not sent again."""
_SHOP_STATEMENTS = (
    "CREATE DATABASE IF NOT EXISTS shop ON CLUSTER shop",
    "CREATE TABLE IF NOT EXISTS shop.orders ON CLUSTER shop (id UInt64, total Decimal(18, 2)) ENGINE = Log",
    "CREATE TABLE IF NOT EXISTS shop.customers ON CLUSTER shop (id UInt64, name String) ENGINE = Log",
    "ALTER TABLE shop.orders ON CLUSTER shop ADD COLUMN IF NOT EXISTS coupon LowCardinality(String)",
    "CREATE VIEW IF NOT EXISTS shop.daily ON CLUSTER shop AS SELECT sum(total) FROM shop.orders",
)


@dataclass(slots=True)
class PageStage:
    """`async with PageStage(directory) as stage`; `stage.url` is Airflow's."""

    directory: Path
    env: Env = field(default_factory=SystemEnv)
    big_tasks: int = BIG_TASKS
    url: str = ""
    keeper_server: EmbeddedZooKeeper | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:  # also a cancellation: nothing may stay behind
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def settings(self) -> AirflowSettings:
        return AirflowSettings(
            run_dir=self.directory / "airflow",
            dags_folder=self.directory / "dags",
            plugins_folder=ROOT / "plugins",
            bytecode_dir=ROOT / ".run" / "pyc",
            environment={
                "ONCLUSTER_CONFIG": str(self.directory / "cluster.xml"),
                "ONCLUSTER_LEDGER_URL": f"sqlite:///{self.directory / 'records.db'}",
                "ONCLUSTER_HOME": str(self.directory),
            },
        )

    async def stop_keeper(self) -> None:
        if self.keeper_server is not None:
            await self.keeper_server.stop()

    # --- starting -------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        zookeeper_port, airflow_port, up_port, down_port = free_ports(4)
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "dags").mkdir(exist_ok=True)
        (self.directory / "cluster.xml").write_text(_configuration(zookeeper_port, up_port, down_port))
        self.url = f"http://127.0.0.1:{airflow_port}"
        self.keeper_server = EmbeddedZooKeeper(
            self.directory / "zookeeper", client_port=zookeeper_port, is_durable=False, env=self.env
        )
        self._stack.push_async_callback(self.keeper_server.stop)
        await self._serve(up_port)
        await asyncio.gather(self._start_airflow(airflow_port), self._start_keeper())
        seed_records(Records(self.directory / "records.db", env=self.env), self.env)

    async def _start_keeper(self) -> None:
        assert self.keeper_server is not None
        await self.keeper_server.start()
        keeper = await zookeeper.connect(self.keeper_server.config, self.env)
        # Hosts are on line as long as this session lives: their marks are its.
        self._stack.push_async_callback(keeper.close)
        await seed_shop(keeper)
        await seed_big(keeper, self.big_tasks)

    async def _serve(self, port: int) -> None:
        runner = web.AppRunner(_servers())
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", port).start()

    async def _start_airflow(self, port: int) -> None:
        """The API server alone: pages and logins need no other process."""
        home = home_of(self.settings)
        home.mkdir(parents=True, exist_ok=True)
        (home / "passwords.json").write_text(json.dumps({ADMIN: PASSWORD}))
        environment = environment_of(self.settings, port=port, tasks_port=port)
        with (self.directory / "airflow.log").open("wb") as output:
            migrated = await _airflow(("db", "migrate"), environment, output)
            if await migrated.wait() != 0:
                raise Unavailable("airflow db migrate failed.", hint=self._log())
            server = await _airflow(("api-server",), environment, output)
        self._stack.push_async_callback(_stop, server)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session:
            while True:
                if server.returncode is not None:
                    raise Unavailable("Airflow's API server ended.", hint=self._log())
                try:
                    async with session.get(f"{self.url}/api/v2/version") as answer:
                        if answer.status == 200:
                            return
                except (aiohttp.ClientError, TimeoutError):
                    pass
                await self.env.sleep(0.1)

    def _log(self) -> str:
        return (self.directory / "airflow.log").read_text(errors="replace")[-3000:]


async def _airflow(
    arguments: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "airflow",
        *arguments,
        env=dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


async def _stop(server: asyncio.subprocess.Process) -> None:
    import psutil

    try:
        family = with_children([psutil.Process(server.pid)])
    except psutil.NoSuchProcess:
        return
    for process in family:  # nothing of it is needed any more
        send_signal(process, kill=True)
    await server.wait()


def _configuration(zookeeper_port: int, up_port: int, down_port: int) -> str:
    def replica(host: str) -> str:
        port = down_port if host == DOWN else up_port
        address = f"<http_host>127.0.0.1</http_host><http_port>{port}</http_port>"
        return f"<replica><host>{host}</host><port>9000</port>{address}</replica>"

    def cluster(name: str, hosts: tuple[str, ...], replicas: int) -> str:
        shards = [hosts[at : at + replicas] for at in range(0, len(hosts), replicas)]
        inside = "".join(f"<shard>{''.join(map(replica, shard))}</shard>" for shard in shards)
        return f"<{name}>{inside}</{name}>"

    queues = "".join(
        f"<distributed_ddl><path>{paths.root}</path><replicas_path>{paths.replicas_root}</replicas_path>"
        f"<clusters><cluster>{name}</cluster></clusters></distributed_ddl>"
        for name, paths in (("big", BIG_QUEUE), ("shop", SHOP_QUEUE))
    )
    return (
        f"<clickhouse><remote_servers>{cluster('big', BIG_HOSTS, 2)}{cluster('shop', SHOP_HOSTS, 3)}"
        f"</remote_servers><zookeeper><node><host>127.0.0.1</host><port>{zookeeper_port}</port></node>"
        f"</zookeeper>{queues}</clickhouse>"
    )


# --- what there is to see ---------------------------------------------------------------------------------


async def seed_big(keeper: Keeper, tasks: int) -> None:
    """Tasks that are done everywhere, but for some failures, and the newest ten, which are under way."""
    hosts = tuple(HostId(host, 9000) for host in BIG_HOSTS)
    await create_ancestors(keeper, BIG_QUEUE.entry("x"))
    await _mark_active(keeper, BIG_QUEUE, hosts)
    running = asyncio.Semaphore(8)

    async def one(number: int) -> None:
        sql = f"CREATE TABLE IF NOT EXISTS big.events_{number} ON CLUSTER big (id UInt64) ENGINE = Log"
        name = entry_name(number)
        ops = _entry(BIG_QUEUE, name, sql, hosts)
        is_new = number >= tasks - 10
        for index, host in enumerate(hosts):
            if is_new and (index + number) % 3:
                continue
            ok = (number * 100 + index) % 937
            status = ExecutionStatus() if ok else ExecutionStatus(57, "Table big.events already exists")
            ops.append(Create(BIG_QUEUE.finished(name, host), status.to_bytes()))
        async with running:
            await keeper.multi(ops)

    await asyncio.gather(*(one(number) for number in range(tasks)))


async def seed_shop(keeper: Keeper) -> None:
    """Forty tasks; the newest ones hang on a host that is down and on one that is executing."""
    hosts = tuple(HostId(host, 9000) for host in SHOP_HOSTS)
    await create_ancestors(keeper, SHOP_QUEUE.entry("x"))
    await _mark_active(keeper, SHOP_QUEUE, tuple(host for host in hosts if host.host != DOWN))
    await create_ancestors(keeper, SHOP_QUEUE.replica_active(HostId(DOWN, 9000)))
    await keeper.create(SHOP_QUEUE.replica_active(HostId(DOWN, 9000)))
    await keeper.remove(SHOP_QUEUE.replica_active(HostId(DOWN, 9000)))
    for number in range(40):
        sql = _SHOP_STATEMENTS[number % len(_SHOP_STATEMENTS)]
        if number == _FAILED:
            sql = "CREATE TABLE shop.daily ON CLUSTER shop (day Date, items UInt64) ENGINE = Memory"
        name = entry_name(number)
        ops = _entry(SHOP_QUEUE, name, sql, hosts)
        for host in hosts:
            if number >= 36 and host.host == DOWN:
                continue
            if number >= 38 and host.host == HANGING:
                if number == 38:
                    ops.append(Create(SHOP_QUEUE.active(name, host), mode=CreateMode.EPHEMERAL))
                continue
            failed = number == _FAILED and host.host in SHOP_HOSTS[:2]
            status = ExecutionStatus(57, "Code: 57. DB::Exception: Table shop.daily already exists")
            ops.append(
                Create(SHOP_QUEUE.finished(name, host), (status if failed else ExecutionStatus()).to_bytes())
            )
        await keeper.multi(ops)


def _entry(paths: QueuePaths, name: str, sql: str, hosts: tuple[HostId, ...]) -> list[Op]:
    entry = DDLLogEntry(5, sql, hosts, str(hosts[0]))
    return [
        Create(paths.entry(name), entry.to_bytes()),
        Create(paths.active(name)),
        Create(paths.finished(name)),
    ]


async def _mark_active(keeper: Keeper, paths: QueuePaths, hosts: tuple[HostId, ...]) -> None:
    await create_ancestors(keeper, paths.replica("x"))
    for host in hosts:
        await keeper.multi(
            [Create(paths.replica(host)), Create(paths.replica_active(host), mode=CreateMode.EPHEMERAL)]
        )


def seed_records(records: Records, env: Env) -> None:
    """A day of lag, a finding, and a repair that was approved."""
    now_ms = int(env.now_s() * 1000)
    samples = []
    for host_number, host in enumerate(SHOP_HOSTS):
        for minute in range(0, 24 * 60, 6):
            wave = math.sin(minute / 90 + host_number) * 4 + 4
            peak = 180 * math.exp(-(((minute - 300) / 40) ** 2)) if host == DOWN else 0
            samples.append(
                Sample(LAG_METRIC, round(wave + peak, 1), f"{host}:9000", "", now_ms - minute * 60_000)
            )
    records.add_samples("shop", samples)
    finding = Finding(
        FindingKind.HOST_DOWN,
        Severity.CRITICAL,
        "shop",
        f"{DOWN}:9000 does not answer.",
        "Start the server; it fetches what it missed by itself.",
        f"{DOWN}:9000",
    )
    records.see_findings("shop", "health", [finding])
    act = Act("restart-replica", "shop.orders", "Restart the replica of shop.orders.", "Its session is over.")
    plan = Plan("repair", "shop", (act,))
    records.begin_run("replica_health/manual__1/shop", plan, requested_by="ada", approved_by="grace")
    records.record_act("replica_health/manual__1/shop", act.act_id, ActResult(ActState.DONE), operator="ada")


# --- servers that only answer -----------------------------------------------------------------------------


_SERVER = {"X-ClickHouse-Server-Display-Name": "stand-in"}


def _servers() -> web.Application:
    """The answers of a healthy server, to whoever asks."""

    async def answer(request: web.Request) -> web.Response:
        sql = await request.text()
        if "version()" in sql:
            return _rows({"version": ("String", "24.8.4.13"), "uptime": ("UInt32", 432_000)})
        if "system.replicas" in sql:
            facts: dict[str, tuple[str, Any]] = {
                "database": ("String", "shop"),
                "table": ("String", "orders"),
                "is_readonly": ("UInt8", 0),
                "is_session_expired": ("UInt8", 0),
                "queue_size": ("UInt32", 1),
                "inserts_in_queue": ("UInt32", 0),
                "absolute_delay": ("UInt64", 2),
            }
            return _rows(facts)
        return web.json_response({"meta": [], "data": []}, headers=_SERVER)

    application = web.Application()
    application.router.add_post("/", answer)
    return application


def _rows(row: dict[str, tuple[str, Any]]) -> web.Response:
    meta = [{"name": name, "type": type_} for name, (type_, _) in row.items()]
    data = [[value for _, value in row.values()]]
    return web.json_response({"meta": meta, "data": data}, headers=_SERVER)
