"""Everything real, as `oncluster up` starts it: Airflow's five processes, ZooKeeper, two nodes; a person at
Airflow's API."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from engine.client import NodeClient
from engine.config.load import load_node_config
from engine.ddl.client import DDLQueueClient
from engine.env import SystemEnv
from engine.errors import Busy
from engine.keeper import zookeeper
from engine.keeper.base import Keeper
from engine.keeper.recipes import remove_recursive
from engine.local.airflow_api import AirflowApi, TaskInstance
from engine.local.airflow_environment import AirflowSettings
from engine.local.airflow_processes import with_children
from engine.local.airflow_stack import AirflowStack
from engine.local.state import StackState
from engine.migrations.ledger import Ledger
from engine.migrations.states import MigrationState
from engine.operations.finding import FindingKind
from engine.operations.records import Records
from engine.processes import is_alive
from engine.testing.warm import is_possible
from tests.process.support import Home, home_in

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).resolve().parents[2]
DAG = "migrate_shop_cluster"
HEALTH_DAG = "replica_health"
CLUSTER_FILE = """<clickhouse>
    <remote_servers><shop_cluster><shard>
        <replica><host>node01</host><port>9000</port></replica>
        <replica><host>node02</host><port>9000</port></replica>
    </shard></shop_cluster></remote_servers>
    <zookeeper><node><host>127.0.0.1</host><port>2181</port></node></zookeeper>
    <distributed_ddl><path>/clickhouse/task_queue/ddl</path></distributed_ddl>
    <oncluster><health><readonly_s>0</readonly_s></health></oncluster>
</clickhouse>"""
COLUMNS = "(id UInt64) ENGINE = MergeTree ORDER BY id"
FILES = {
    "0001_shop.up.sql": "CREATE DATABASE IF NOT EXISTS shop;",
    "0001_shop.down.sql": "DROP DATABASE IF EXISTS shop;",
    "0002_orders.up.sql": f"CREATE TABLE IF NOT EXISTS shop.orders {COLUMNS};\n"
    f"CREATE TABLE IF NOT EXISTS shop.old {COLUMNS};",
    "0002_orders.down.sql": "DROP TABLE IF EXISTS shop.old;\nDROP TABLE IF EXISTS shop.orders;",
    "0003_drop_old.up.sql": "DROP TABLE IF EXISTS shop.old;",
    "0003_drop_old.down.sql": f"CREATE TABLE IF NOT EXISTS shop.old {COLUMNS};",
}


@dataclass(frozen=True, slots=True)
class Place:
    """What the tests work with: a stack as `oncluster up` left it running."""

    home: Home
    given: Path
    api: AirflowApi
    started: subprocess.CompletedProcess[str]

    @property
    def state(self) -> StackState:
        state = self.home.state()
        assert state is not None
        return state

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.state.ledger_url, env=SystemEnv())

    def kill9(self, node: str) -> None:
        (pid,) = (entry.pid for entry in self.state.processes if entry.name == node)
        os.kill(pid, signal.SIGKILL)

    @asynccontextmanager
    async def keeper(self) -> AsyncIterator[Keeper]:
        config = load_node_config(Path(self.state.config_file)).zookeeper
        assert config is not None
        session = await zookeeper.connect(config, SystemEnv())
        try:
            yield session
        finally:
            await session.close()

    def write(self, files: dict[str, str]) -> None:
        write_migrations(self.given, files)

    async def tables(self, node: str) -> list[str]:
        async with NodeClient(self.state.nodes[node]) as client:
            found = await client.query_rows(
                "SELECT name FROM system.tables WHERE database = 'shop' ORDER BY 1"
            )
        return [row[0] for row in found.rows]

    async def entries(self) -> int:
        paths = load_node_config(Path(self.state.config_file)).queue_of("shop_cluster").paths
        async with self.keeper() as keeper:
            return len(await DDLQueueClient(keeper, SystemEnv(), paths).list())

    @property
    def records(self) -> Records:
        return Records(self.state.ledger_url, env=SystemEnv())

    async def command(self, node: str, sql: str) -> str:
        async with NodeClient(self.state.nodes[node]) as client:
            return await client.command(sql)

    async def until(
        self, run_id: str, task_id: str, states: Sequence[str], *, dag_id: str = DAG
    ) -> TaskInstance:
        """The task once it is in one of these states."""
        while True:
            for instance in await self.api.task_instances(dag_id, run_id):
                if instance.task_id == task_id and instance.state in states:
                    return instance
            await asyncio.sleep(0.2)


def write_migrations(given: Path, files: dict[str, str]) -> None:
    folder = given / "migrations" / "shop_cluster"
    folder.mkdir(parents=True, exist_ok=True)
    for name, sql in files.items():
        (folder / name).write_text(sql)


def up(home: Home, given: Path, *more: str) -> subprocess.CompletedProcess[str]:
    files = ("--cluster-file", str(given / "cluster.xml"), "--migrations", str(given / "migrations"))
    done = home.run("up", "--port-base", "0", "--json", *files, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    given = tmp_path_factory.mktemp("given")
    (given / "cluster.xml").write_text(CLUSTER_FILE)
    write_migrations(given, FILES)
    with home_in(tmp_path_factory.mktemp("place") / "home") as home:
        started = up(home, given)
        airflow = json.loads(started.stdout)["airflow"]
        async with AirflowApi(airflow["url"], airflow["user"], airflow["password"]) as api:
            await api.wait_for_dag(DAG)
            yield Place(home, given, api, started)
        down = home.run("down")
        assert down.returncode == 0, down.stdout + down.stderr
        assert home.left() == []


async def test_all_that_is_imported_once_for_airflows_processes_is_there(place: Place) -> None:
    """What another version of Airflow has elsewhere would cost time only, and nobody would notice."""
    if not is_possible():
        pytest.skip("each imports for itself here")
    assert "Error" not in (place.home.path / "logs" / "airflow-imports.log").read_text()


async def test_a_migration_goes_through_airflow_with_approval_outage_timeout_and_reattachment(
    place: Place,
) -> None:
    api = place.api
    assert await api.import_errors() == {}

    # 1. A run that drops a table: it waits for a person, and nothing has been sent by then.
    run_id = await api.trigger(DAG, {"timeout": 60})
    await place.until(run_id, "approve", ["awaiting_input"])
    (question,) = await api.questions(DAG, run_id)
    assert "DROP TABLE IF EXISTS shop.old" in question.body
    assert await place.entries() == 0
    await api.answer(question, "Approve")
    assert await api.wait(DAG, run_id, timeout_s=600) == "success"
    assert await place.tables("node01") == await place.tables("node02") == ["orders"]
    assert {v: r.state for v, r in place.ledger.records("shop_cluster").items()} == {
        1: MigrationState.APPLIED,
        2: MigrationState.APPLIED,
        3: MigrationState.APPLIED,
    }
    assert place.ledger.runs("shop_cluster")[-1].approved_by == "admin"
    assert await place.entries() == 4

    # 2. A new migration while one node is away: the sensor defers, times out, and says which host it is.
    place.kill9("node02")
    place.write(
        {
            "0004_note.up.sql": "ALTER TABLE shop.orders ADD COLUMN IF NOT EXISTS note String;",
            "0004_note.down.sql": "ALTER TABLE shop.orders DROP COLUMN IF EXISTS note;",
        }
    )
    wait_id = "up.v0004_note.wait_1"
    await _until_known(api, "up.v0004_note.submit_1")
    run_id = await api.trigger(DAG, {"timeout": 4, "rehearse": False})
    check_id = await api.trigger(HEALTH_DAG, {"cluster": "shop_cluster"})
    assert await api.wait(DAG, run_id, timeout_s=600) == "failed"
    failed = await place.until(run_id, wait_id, ["failed"])
    assert failed.try_number == 1
    assert await api.xcom(DAG, run_id, wait_id, key="ddl_state") == "timeout"
    hosts = {host["host"]: host["state"] for host in await api.xcom(DAG, run_id, wait_id, key="ddl_hosts")}
    assert hosts["node01"] == "done"
    assert hosts["node02"] in ("waiting", "inactive")
    log = await api.task_log(DAG, run_id, wait_id)
    assert "waiting in the triggerer" in log
    assert "DDLTimeout" in log
    assert "What to do" in log

    # Meanwhile the health check has said so, too; it succeeds whatever it finds.
    assert await api.wait(HEALTH_DAG, check_id, timeout_s=600) == "success"
    findings = place.records.open_findings("shop_cluster")
    found = {(record.finding.kind, record.finding.host) for record in findings}
    assert (FindingKind.HOST_DOWN, "node02:9000") in found

    # 3. The node comes back, the task is cleared: it attaches to the same entry, and the run ends well.
    up(place.home, place.given)
    await api.clear(DAG, run_id, [wait_id])
    assert await api.wait(DAG, run_id, timeout_s=600) == "success"
    assert await place.entries() == 5
    record = place.ledger.records("shop_cluster")[4]
    assert record.state is MigrationState.APPLIED
    assert {(row.host.host, str(row.state)) for row in record.rows} == {
        ("node01", "done"),
        ("node02", "done"),
    }

    # 4. Rejecting ends a run without sending anything.
    run_id = await api.trigger(DAG, {"direction": "down", "rehearse": False})
    await place.until(run_id, "approve", ["awaiting_input"])
    (question,) = await api.questions(DAG, run_id)
    await api.answer(question, "Reject")
    assert await api.wait(DAG, run_id, timeout_s=600) == "success"
    states = {item.task_id: item.state for item in await api.task_instances(DAG, run_id)}
    assert states["begin"] == states["down.v0004_note.submit_1"] == "skipped"
    assert await place.entries() == 5

    # 5. `up --demo`, which is `make up`, on the stack that runs: what is new is applied, and the demo
    # answers for the person. All of it goes on running.
    place.write(
        {
            "0005_no_note.up.sql": "ALTER TABLE shop.orders DROP COLUMN IF EXISTS note;",
            "0005_no_note.down.sql": "ALTER TABLE shop.orders ADD COLUMN IF NOT EXISTS note String;",
        }
    )
    await _until_known(api, "up.v0005_no_note.submit_1")
    facts = json.loads(up(place.home, place.given, "--demo").stdout)
    demo = facts["demo"]
    assert (facts["complete"], demo["succeeded"], demo["same_schema"]) == (True, True, True)
    assert len(demo["approved_by_the_demo"]) == 1
    rows = [(row["host"], row["state"]) for row in demo["ledger"]["shop_cluster"] if row["version"] == 5]
    assert sorted(rows) == [("node01", "done"), ("node02", "done")]
    assert demo["seconds"] > 0
    assert place.home.status()["complete"] is True
    assert await place.entries() == 6


async def test_a_replica_that_keeper_forgot_is_restored_after_approval(place: Place) -> None:
    api = place.api
    znode = "/tables/kept/replicas/node02"
    # 1. A replicated table, and Keeper loses what it knows of one replica.
    await place.command(
        "node01",
        "CREATE TABLE default.kept ON CLUSTER shop_cluster (id UInt64) "
        "ENGINE = ReplicatedMergeTree('/tables/kept', '{replica}') ORDER BY id",
    )
    await place.command("node01", "INSERT INTO default.kept SELECT number FROM numbers(1000)")
    await place.command("node02", "SYSTEM SYNC REPLICA default.kept")
    async with place.keeper() as keeper:
        await remove_recursive(keeper, znode)
    noticed = "SELECT is_readonly FROM system.replicas WHERE table = 'kept'"
    while await place.command("node02", noticed) != "1\n":
        await asyncio.sleep(0.1)

    # 2. The repair is shown to a person, and nothing has been done by then.
    run_id = await api.trigger(HEALTH_DAG, {"cluster": "shop_cluster", "repair": "act"})
    await place.until(run_id, "shop_cluster.approve", ["awaiting_input"], dag_id=HEALTH_DAG)
    (question,) = await api.questions(HEALTH_DAG, run_id)
    assert (
        "Make node02 of default.kept on node02:9000 anew in Keeper (SYSTEM RESTORE REPLICA)" in question.body
    )
    findings = [record.finding for record in place.records.open_findings("shop_cluster")]
    assert (FindingKind.KEEPER_METADATA_LOST, "node02:9000") in [(f.kind, f.host) for f in findings]
    async with place.keeper() as keeper:
        assert await keeper.exists(znode) is None

    # 3. Approved, it is made, proven and recorded.
    await api.answer(question, "Approve")
    assert await api.wait(HEALTH_DAG, run_id, timeout_s=600) == "success"
    report = await api.xcom(HEALTH_DAG, run_id, "shop_cluster.act", key="report")
    assert report["states"] == {"done": 1}
    (run,) = [run for run in place.records.runs("shop_cluster") if run_id in run.run_id]
    assert run.approved_by == "admin"
    (result,) = place.records.acts_of(run.run_id).values()
    assert "equal" in result.detail
    async with place.keeper() as keeper:
        assert await keeper.exists(znode) is not None
    assert await place.command("node02", noticed) == "0\n"
    assert await place.command("node02", "SELECT count() FROM default.kept") == "1000\n"


async def test_the_stack_is_there_once_for_this_machine_only_and_another_object_stops_all_of_it(
    place: Place,
) -> None:
    """A scheduler that is killed leaves its workers behind, which nobody's child list leads to."""
    api = place.api
    given = AirflowSettings(
        run_dir=place.home.path, dags_folder=ROOT / "dags", plugins_folder=ROOT / "plugins", port=0
    )
    assert "✓ Airflow" in place.started.stderr
    check = {"cluster": "shop_cluster"}
    run_id = await api.trigger(HEALTH_DAG, check, run_id="once")
    assert await api.trigger(HEALTH_DAG, check, run_id="once") == run_id == "once"
    assert await api.wait(HEALTH_DAG, run_id, timeout_s=600) == "success"
    (done,) = [
        item.task_id
        for item in await api.task_instances(HEALTH_DAG, run_id)
        if item.task_id.endswith("check") and item.state == "success"
    ]
    assert (await api.xcom(HEALTH_DAG, run_id, done)).keys() == {"worst", "findings"}
    assert "shop_cluster" in await api.task_log(HEALTH_DAG, run_id, done)
    with pytest.raises(Busy, match="already running"):
        await AirflowStack(given).start()
    family = with_children(psutil.Process(pid) for pid in AirflowStack(given).pids.values())
    family_pids = {process.pid for process in family}
    listening = {
        connection.laddr.ip
        for connection in psutil.net_connections("tcp")
        if connection.pid in family_pids and connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}

    psutil.Process(AirflowStack(given).pids["scheduler"]).kill()
    await AirflowStack(given).stop()
    assert [process for process in family if is_alive(process)] == []
    assert AirflowStack(given).pids == {}


async def _until_known(api: AirflowApi, task_id: str) -> None:
    """Airflow reads changed files every few seconds."""
    while task_id not in await api.task_ids(DAG):
        await asyncio.sleep(0.3)
