"""The demo: start everything, apply every cluster's migrations through Airflow, wait for the load that
follows them, show what happened, stop.

What it does is what a person would do: it triggers the migration DAGs through Airflow's API, answers the
question before a destructive migration (and says that it was the demo that answered), reads the ledger, and
watches the ETL DAG, which Airflow starts because the schema has changed.
Any process that ends on the way ends the demo with that process's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from engine.config.load import load_node_config
from engine.env import Env, SystemEnv
from engine.errors import ConfigError, NoNode, OnclusterError
from engine.keeper.base import Keeper
from engine.local.airflow_api import AirflowApi, Question, TaskInstance, in_words
from engine.local.demo_etl import (
    EtlResult,
    earlier_runs,
    has_targets,
    load_with_spark,
    run_that_follows,
    run_that_is_asked_for,
)
from engine.local.demo_flights import CLUSTER, TABLE, ReplicaContent, contents_of, load_flights
from engine.local.demo_result import DemoResult, read_ledger, read_schemas
from engine.local.ledger_place import LEDGER_VARIABLE
from engine.local.preflight import require_stopped
from engine.local.progress import Sink, Steps
from engine.local.stack import Stack
from engine.local.stack_options import StackOptions
from engine.local.state import StackState
from engine.migrations.files import cluster_folders
from engine.names import HostId, entry_number

_POLL_S = 0.3
# Nothing waits for us when a migration has ended: Airflow itself starts the load.
_LOOK_AT_RUN_S = 1.0
# Nobody edits the migrations meanwhile. A file that could not be read at once is read again before they end.
_DAGS_READ_EVERY_S = 20
_RUN_TIMEOUT_S = 600.0
_ASKED_AGAIN_S = 5.0
_APPLIED, _ASKS = "applied", "awaiting_input"

Interference = Callable[[Steps], Coroutine[None, None, None]]
"""Runs beside the migrations; the demo waits for its end too."""


class MigrationRunFailed(OnclusterError):
    """A run of a migration DAG failed; the hint has what its failed tasks said last."""


def dag_id(cluster: str) -> str:
    """The migration DAG of a cluster's folder."""
    return f"migrate_{cluster}"


async def run_demo(
    options: StackOptions, sink: Sink, *, with_outage: bool = False, env: Env | None = None
) -> DemoResult:
    """The whole demo, in a directory that is emptied first. Nothing is left running, whatever happens.

    Raises what starting raises, ProcessDied, MigrationRunFailed.
    """
    env = env or SystemEnv()
    started_s = env.monotonic_s()
    steps = Steps(sink, env=env)
    home = options.home.absolute()
    require_stopped(home)
    shutil.rmtree(home, ignore_errors=True)
    # The directory was emptied: a ledger elsewhere would know migrations of a cluster that is gone.
    environ = {name: value for name, value in os.environ.items() if name != LEDGER_VARIABLE}
    stack = Stack(replace(options, dags_read_every_s=_DAGS_READ_EVERY_S), environ=environ, env=env)
    with _logged_to(home / "logs" / "demo.log"):
        result = await _run(stack, steps, with_outage=with_outage, env=env)
    return result.taking(env.monotonic_s() - started_s)


class _QuietHandler(logging.FileHandler):
    """Does not print a trace when the disk is full; the demo itself says that."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


@contextlib.contextmanager
def _logged_to(path: Path) -> Iterator[None]:
    """The engine's own log, which would get between the steps on the terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _QuietHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger("engine")
    root.addHandler(handler)
    level = root.level
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        with contextlib.suppress(OSError):  # a full disk
            handler.close()


async def _run(stack: Stack, steps: Steps, *, with_outage: bool, env: Env) -> DemoResult:
    async def outage(steps: Steps) -> None:
        await stop_a_node_for_a_while(stack, steps, env=env)

    try:
        await stack.start(steps)
        result = await stack.guarded(
            migrate_all(stack.state(), steps, beside=outage if with_outage else None, env=env)
        )
    finally:
        await stack.stop(steps)
    return result


async def migrate_all(
    state: StackState, steps: Steps, *, beside: Interference | None = None, env: Env | None = None
) -> DemoResult:
    """Run the migration DAG of every cluster folder, all at the same time, then insert the demo's rows;
    returns what the ledger says and what the replicas have.

    Raises MigrationRunFailed.
    """
    env = env or SystemEnv()
    started_s = env.monotonic_s()
    folders = cluster_folders(Path(state.migrations))
    answered: list[str] = []
    async with AirflowApi(state.airflow_url, state.airflow_user, state.airflow_password, env=env) as api:
        try:
            async with asyncio.TaskGroup() as group:
                earlier = await earlier_runs(api)
                runs = [
                    group.create_task(_migrate(api, folder.name, steps, answered, env=env))
                    for folder in folders
                ]
                if beside is not None:
                    interference = group.create_task(beside(steps))
                    await asyncio.wait(runs)
                    if not interference.done():
                        interference.cancel()
                        steps.failed("outage", "came too late: everything was applied")
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        steps.running("reading the ledger")
        clusters = tuple([read_ledger(state.ledger_url, folder.name, env=env) for folder in folders])
        schemas = await read_schemas(state, clusters)
        steps.done("reading the ledger", f"{sum(len(cluster.rows) for cluster in clusters)} rows")
        changed = any(
            run.result() for run, folder in zip(runs, folders, strict=True) if folder.name == CLUSTER
        )
        etl, data = await _load(api, state, steps, earlier=earlier, changed=changed, env=env)
    return DemoResult(
        clusters=clusters,
        schemas=schemas,
        answered=tuple(answered),
        seconds=env.monotonic_s() - started_s,
        data=data,
        etl=etl,
    )


async def _load(
    api: AirflowApi,
    state: StackState,
    steps: Steps,
    *,
    earlier: Collection[str],
    changed: bool,
    env: Env,
) -> tuple[EtlResult | None, tuple[ReplicaContent, ...]]:
    """With Spark, where the migrations have made the tables for that; else by plain inserts."""
    if not await has_targets(state):
        return None, await load_flights(state, steps, env=env)
    run = run_that_follows(api, earlier, env=env) if changed else run_that_is_asked_for(api, env=env)
    etl = await load_with_spark(api, state, steps, run=run)
    counts = [table.rows_per_shard for table in etl.report.tables if table.local == TABLE]
    if not counts:
        return etl, ()
    steps.running("comparing replicas", TABLE)
    contents = await contents_of(state, counts[0], env=env)
    steps.done("comparing replicas", f"{len(contents)} replicas of {TABLE}")
    return etl, contents


async def _migrate(api: AirflowApi, cluster: str, steps: Steps, answered: list[str], *, env: Env) -> bool:
    """Returns whether the run has updated the cluster's asset, which it does when it had something to do."""
    step = f"migrating {cluster}"
    steps.running(step, "waiting for Airflow to find the DAG")
    await api.wait_for_dag(dag_id(cluster))
    run_id = await api.trigger(dag_id(cluster), run_id=f"demo__{env.new_uuid()}")
    steps.running(step, f"run {run_id} started")

    asked = asyncio.Event()

    def on_change(instances: Sequence[TaskInstance]) -> None:
        steps.running(step, in_words(instances))
        if any(item.state == _ASKS for item in instances):
            asked.set()
        else:
            asked.clear()

    answering = asyncio.create_task(_answer(api, cluster, run_id, steps, answered, asked=asked, env=env))
    try:
        outcome = await api.wait(
            dag_id(cluster), run_id, timeout_s=_RUN_TIMEOUT_S, on_change=on_change, interval_s=_LOOK_AT_RUN_S
        )
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
    instances = await api.task_instances(dag_id(cluster), run_id)
    if outcome != "success":
        steps.failed(step, f"the run {run_id} ended as {outcome}")
        raise MigrationRunFailed(
            f"Migrating {cluster} failed: the run {run_id} ended as {outcome}.",
            hint=await _last_words(api, cluster, run_id, instances),
        )
    steps.done(step, f"{len(instances)} tasks")
    return any(item.task_id == _APPLIED and item.state == "success" for item in instances)


async def _answer(
    api: AirflowApi,
    cluster: str,
    run_id: str,
    steps: Steps,
    answered: list[str],
    *,
    asked: asyncio.Event,
    env: Env,
) -> None:
    """Say yes to every question of the run. Questions are looked for while `asked` is set.

    A question that is still open some time after it was answered is asked by another try of the task: on a
    slow machine Airflow may end the one that got the answer.
    """
    answered_s: dict[tuple[str, int], float] = {}
    while True:
        await asked.wait()
        for question in await api.questions(dag_id(cluster), run_id):
            key = (question.task_id, question.map_index)
            if key in answered_s and env.monotonic_s() < answered_s[key] + _ASKED_AGAIN_S:
                continue
            await api.answer(question, _yes(question))
            if key not in answered_s:
                answered.append(question.subject)
                steps.done("approval", f"answered {_yes(question)!r} for you: {question.subject}")
            answered_s[key] = env.monotonic_s()
        await env.sleep(_POLL_S)


def _yes(question: Question) -> str:
    return "Approve" if "Approve" in question.options else question.options[0]


async def _last_words(api: AirflowApi, cluster: str, run_id: str, instances: Sequence[TaskInstance]) -> str:
    """The end of the log of each failed task."""
    words = []
    for item in instances:
        if item.state == "failed":
            text = await api.task_log(
                dag_id(cluster), run_id, item.task_id, try_number=item.try_number, map_index=item.map_index
            )
            words.append(f"{item.task_id}:\n" + "\n".join(text.splitlines()[-15:]))
    return "\n".join(words)


async def stop_a_node_for_a_while(stack: Stack, steps: Steps, *, env: Env) -> None:
    """Stop a node once it has finished a statement; start it when another has finished one that it missed.

    Raises ConfigError when there are fewer than three hosts.
    """
    if len(stack.cluster.hosts) < 3:
        raise ConfigError("An outage needs a cluster of three hosts or more.")
    witness, node = (stack.cluster.node(name) for name in stack.cluster.hosts[1:3])
    steps.running("outage", f"{node.name} will be stopped in the middle")
    async with stack.cluster.keeper() as keeper:
        while await _finished(stack, keeper, node.name) < 1:
            await env.sleep(_POLL_S)
        await node.stop()
        steps.running("outage", f"{node.name} is stopped; the others go on")
        done = await _finished(stack, keeper, node.name)
        while await _finished(stack, keeper, witness.name) <= done:
            await env.sleep(_POLL_S)
    await node.start()
    steps.done("outage", f"{node.name} was away while {witness.name} went on, and is back")


async def _finished(stack: Stack, keeper: Keeper, host: str) -> int:
    """How many entries of the queue this host has finished."""
    config = load_node_config(stack.cluster.node(host).config_file)
    paths, host_id = config.queues[0].paths, HostId(host, config.tcp_port)
    try:
        names = (await keeper.children(paths.root)).names
    except NoNode:
        return 0
    entries = [name for name in names if entry_number(name) is not None]
    found = await keeper.exists_many([paths.finished(entry, host_id) for entry in entries])
    return sum(stat is not None for stat in found)
