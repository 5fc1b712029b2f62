"""Seconds per statement in the migration DAG, beside the ClickHouse provider's own operator.

    python -m benchmarks.airflow --statements 20 --json airflow.json

Measured, on a real Airflow (five processes, SQLite), a real ZooKeeper and six nodes:

- from the start of a statement's submit task to the moment when its last host's outcome stands in the ledger;
- per statement in the chain: from the first task's start to the last one's end, divided by the statements.
  The same statements as a chain of SQLExecuteQueryOperator on a `clickhouse` connection are the peer (one
  task each, which blocks a worker until all hosts have answered, keeps no record, and repeats the
  statement when it is retried); so is a chain of pairs of tasks that do nothing, which shows what Airflow
  itself costs;
- the start of the stack.

The runs alternate, so that what else the machine does hits all of them. A busy machine may take as long as
it likes: a run is given up when none of its tasks has moved for ten minutes, and what whole rounds have
measured is shown whatever ends the next one.
"""

from __future__ import annotations

import asyncio
import datetime
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.progress import Progress

from benchmarks._running import run_benchmark
from benchmarks._table import Better, Report, Row, json_option, median
from engine.env import SystemEnv
from engine.errors import OnclusterError
from engine.local.airflow_api import AirflowApi, TaskInstance
from engine.local.airflow_environment import AirflowSettings
from engine.local.airflow_stack import AirflowStack
from engine.migrations.ledger import Ledger
from engine.testing.local_cluster import LocalCluster

ROOT = Path(__file__).resolve().parents[1]
CLUSTER = "order_cluster"
AIM_S = 1.5
PATIENCE_S = 600.0
PEER = "SQLExecuteQueryOperator"
EMPTY = "two empty tasks"
PEERS_DAG = """
from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG


def nothing():
    return None


for number in range({rounds}):
    with DAG(dag_id=f"provider_{{number}}", schedule=None):
        before = None
        for at in range({statements}):
            task = SQLExecuteQueryOperator(
                task_id=f"s{{at:03d}}",
                conn_id="clickhouse_default",
                sql=f"CREATE TABLE IF NOT EXISTS peer.r{{number}}_{{at}} ON CLUSTER order_cluster "
                "(id UInt64) ENGINE = MergeTree ORDER BY id",
            )
            if before is not None:
                before >> task
            before = task

with DAG(dag_id="empty", schedule=None):
    before = None
    for at in range({statements}):
        first = PythonOperator(task_id=f"a{{at:03d}}", python_callable=nothing)
        second = PythonOperator(task_id=f"b{{at:03d}}", python_callable=nothing)
        if before is not None:
            before >> first
        first >> second
        before = second
"""


async def run(*, statements: int, rounds: int, directory: Path) -> Report:
    report = Report("airflow")
    cluster = LocalCluster(directory / "cluster", is_durable=True)
    dags = directory / "dags"
    dags.mkdir()
    (dags / "migrate.py").write_text((ROOT / "dags" / "migrate.py").read_text())
    (dags / "peers.py").write_text(PEERS_DAG.format(statements=statements, rounds=rounds))
    airflow = AirflowStack(_settings(directory, dags, cluster))
    try:
        await cluster.start()
        started_s = time.monotonic()
        await airflow.start()
        report.add(Row("start of the stack, until tasks can run", "s", ours=time.monotonic() - started_s))
        async with airflow.api() as api:
            await _measure(api, cluster, directory, report, statements=statements, rounds=rounds)
    finally:
        await asyncio.gather(airflow.stop(), cluster.stop())
    return report


async def _measure(
    api: AirflowApi, cluster: LocalCluster, directory: Path, report: Report, *, statements: int, rounds: int
) -> None:
    await cluster_query(cluster, f"CREATE DATABASE IF NOT EXISTS peer ON CLUSTER {CLUSTER}")
    await cluster_query(cluster, f"CREATE DATABASE IF NOT EXISTS ours ON CLUSTER {CLUSTER}")
    recorded: list[float] = []
    chains: dict[str, list[float]] = {"ours": [], PEER: [], EMPTY: []}
    with Progress(transient=True) as progress:
        step = progress.add_task("rounds", total=3 * rounds)
        for number in range(rounds):
            try:
                tasks = await _migrate(api, directory, number, statements)
                progress.advance(step)
                peer = await _run(api, f"provider_{number}", {})
                progress.advance(step)
                empty = await _run(api, "empty", {})
                progress.advance(step)
            except (RuntimeError, TimeoutError, OnclusterError) as error:
                if number == 0:
                    raise
                report.note(f"Round {number + 1} was given up: {error}")
                break
            recorded += _recorded_s(directory, tasks, number)
            for chain, of_chain in (("ours", tasks), (PEER, peer), (EMPTY, empty)):
                chains[chain].append(_chain_s(of_chain) / statements)
    name = "submit to recorded outcome of the last host"
    middle_s = median(recorded)
    report.add(Row(f"{name}, median", "s", ours=middle_s))
    report.add(Row(f"{name}, slowest of {len(recorded)}", "s", ours=max(recorded)))
    for other in (PEER, EMPTY):
        report.add(
            Row(
                "per statement in the chain, median",
                "s",
                ours=median(chains["ours"]),
                peer=median(chains[other]),
                peer_name=other,
                better=Better.LOWER,
            )
        )
    report.aim(
        f"submit to recorded outcome within {AIM_S} s", met=None if middle_s is None else middle_s <= AIM_S
    )
    report.note(
        f"{len(chains['ours'])} runs of {statements} CREATE TABLE on six nodes each. The provider's operator "
        "is one task where ours are two, and holds a worker while it waits."
    )


def write_migrations(directory: Path, number: int, statements: int) -> None:
    """One migration with all statements of a round."""
    folder = directory / "migrations" / CLUSTER
    folder.mkdir(parents=True, exist_ok=True)
    sql = [
        f"CREATE TABLE IF NOT EXISTS ours.r{number}_{at} (id UInt64) ENGINE = MergeTree ORDER BY id;"
        for at in range(statements)
    ]
    (folder / f"{number + 1:04d}_round.up.sql").write_text("\n".join(sql))


async def cluster_query(cluster: LocalCluster, sql: str) -> None:
    from engine.client import NodeClient

    async with NodeClient(cluster.node(cluster.hosts[0]).url) as client:
        await client.command(sql)


async def _migrate(api: AirflowApi, directory: Path, number: int, statements: int) -> list[TaskInstance]:
    """Apply the migration of a round; its tasks."""
    write_migrations(directory, number, statements)
    dag_id, last = f"migrate_{CLUSTER}", f"up.v{number + 1:04d}_round.submit_{statements}"
    await api.wait_for_dag(dag_id, timeout_s=PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        while last not in await api.task_ids(dag_id):
            await asyncio.sleep(0.3)
    return [task for task in await _run(api, dag_id, {"rehearse": False}) if _is_of_round(task, number)]


async def _run(api: AirflowApi, dag_id: str, conf: dict[str, object]) -> list[TaskInstance]:
    """Run a DAG to its end; its tasks. Raises RuntimeError if it fails or stands still."""
    await api.wait_for_dag(dag_id, timeout_s=PATIENCE_S)
    run_id = await api.trigger(dag_id, conf)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE_S) as patience:
            state = await api.wait(
                dag_id,
                run_id,
                on_change=lambda _: patience.reschedule(loop.time() + PATIENCE_S),
                interval_s=2.0,  # each look is work for Airflow
            )
    except TimeoutError:
        state = f"not ended, and nothing has moved for {PATIENCE_S:.0f} s"
    tasks = await api.task_instances(dag_id, run_id)
    if state != "success":
        failed = [task.task_id for task in tasks if task.state == "failed"]
        words = [await api.task_log(dag_id, run_id, task_id) for task_id in failed[:1]]
        raise RuntimeError(f"The run {run_id} of {dag_id}: {state}, {failed}\n{''.join(words)[-3000:]}")
    return tasks


def _is_of_round(task: TaskInstance, number: int) -> bool:
    return task.task_id.startswith(f"up.v{number + 1:04d}_") and task.state == "success"


def _chain_s(tasks: Sequence[TaskInstance]) -> float:
    """From the first start to the last end."""
    starts = [_seconds(task.start_date) for task in tasks if task.start_date]
    ends = [_seconds(task.end_date) for task in tasks if task.end_date]
    return max(ends) - min(starts)


def _recorded_s(directory: Path, tasks: Sequence[TaskInstance], number: int) -> list[float]:
    """Of each statement, the ledger's time of its last outcome less the start of its submit task."""
    ledger = Ledger(f"sqlite:///{directory / 'ledger.db'}", env=SystemEnv())
    last: dict[int, float] = {}
    for row in ledger.rows(CLUSTER):
        if row.version == number + 1 and row.observed_ms is not None:
            last[row.statement] = max(last.get(row.statement, 0.0), row.observed_ms / 1000)
    starts = {
        int(task.task_id.rpartition("submit_")[2]): _seconds(task.start_date)
        for task in tasks
        if "submit_" in task.task_id and task.start_date
    }
    return [last[statement] - start for statement, start in starts.items()]


def _seconds(moment: str | None) -> float:
    return datetime.datetime.fromisoformat(moment or "").timestamp()


def _settings(directory: Path, dags: Path, cluster: LocalCluster) -> AirflowSettings:
    first = cluster.node(cluster.hosts[0])
    return AirflowSettings(
        run_dir=directory / "airflow",
        dags_folder=dags,
        plugins_folder=ROOT / "plugins",
        port=0,
        bytecode_dir=ROOT / ".run" / "pyc",
        connections={
            "zookeeper_default": {
                "conn_type": "zookeeper",
                "host": "127.0.0.1",
                "port": cluster.ports.zookeeper,
            },
            "clickhouse_default": {
                "conn_type": "clickhouse",
                "host": "127.0.0.1",
                "port": first.http_port,
                "login": "default",
                "extra": {"nodes": {node.name: node.url for node in cluster.nodes.values()}},
            },
        },
        environment={
            "ONCLUSTER_CONFIG": str(cluster.config_file),
            "ONCLUSTER_MIGRATIONS": str(directory / "migrations"),
            "ONCLUSTER_LEDGER_URL": f"sqlite:///{directory / 'ledger.db'}",
        },
    )


@click.command(help=(__doc__ or "").split("\n", maxsplit=1)[0])
@click.option("--statements", default=20, show_default=True, help="Statements in a run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each kind.")
@json_option
def main(statements: int, rounds: int, json_file: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="oncluster-benchmark-") as directory:
        report = run_benchmark(run(statements=statements, rounds=rounds, directory=Path(directory)))
    report.finish(json_file)


if __name__ == "__main__":
    sys.exit(main())
