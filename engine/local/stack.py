"""The whole platform on one machine: ZooKeeper, the nodes of a cluster file, and Airflow, in one directory.

Safety argument. The object is the owner of every process that it starts.
1. Before the first process it starts a guard (`engine.testing.guard`), which ends everything with this
   stack's mark when the owner is killed.
2. Ports are looked at, and the free space of the disk, before anything is started: an error then leaves
   nothing.
3. `stop()` ends Airflow first (so that no task runs into a half-stopped cluster), then nodes, then
   ZooKeeper, and last sweeps whatever carries the mark: a task of Airflow that left its family, for one.
4. Nothing is deleted: data, logs and ledger stay in the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from engine.env import Env, SystemEnv
from engine.local.airflow_environment import AirflowSettings
from engine.local.airflow_stack import COMPONENTS, AirflowStack
from engine.local.guarding import ProcessDied, guarded
from engine.local.ledger_place import LEDGER_VARIABLE, ledger_url_of
from engine.local.preflight import check
from engine.local.progress import Steps
from engine.local.stack_options import StackOptions
from engine.local.state import Phase, ProcessEntry, StackState, write_state
from engine.processes import ProcessId
from engine.testing.guard import Guard
from engine.testing.local_cluster import ClusterPorts, LocalCluster, StartFailed
from engine.testing.processes import MARK, sweep
from engine.testing.warm import WarmPython

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
# What nodes import, once for all of them.
_IMPORTS_LOG = "nodes-imports.log"
_NODES = ("engine.cli.node", "engine.node.wiring", "engine.storage.chdb_module:load_chdb")
# Airflow's triggerer sleeps up to ten seconds after SIGTERM with nothing to do; what it waits for is in
# Keeper and in the database, so that killing it loses nothing.
_AIRFLOW_GRACE_S = 2.5


class Stack:
    """`start`, `guarded`, `revive`, `stop`; `state` says what there is."""

    def __init__(
        self, options: StackOptions, *, environ: Mapping[str, str] = os.environ, env: Env | None = None
    ) -> None:
        """Raises what `check` raises."""
        self.options = options
        self._env = env or SystemEnv()
        self.home = options.home.absolute()
        self.ledger_url = ledger_url_of(self.home, environ)
        self._guard = Guard(str(self._env.new_uuid()))
        hosts, self.ports = check(options, environ=environ, env=self._env)
        self.home.mkdir(parents=True, exist_ok=True)
        self._nodes = WarmPython(
            *_NODES,
            environ=os.environ | {MARK: self._guard.mark},
            log_file=self.home / "logs" / _IMPORTS_LOG,
        )
        self.cluster = LocalCluster(
            self.home,
            hosts=hosts,
            cluster_file=options.cluster_file,
            ports=ClusterPorts(
                zookeeper=self.ports.zookeeper, nodes=dict(zip(hosts, self.ports.nodes, strict=True))
            ),
            guard=self._guard,
            is_durable=True,
            launch=self._nodes.launch,
            env=self._env,
        )
        self.airflow = (
            AirflowStack(self._airflow_settings(), ends_with_us=True, env=self._env)
            if options.with_airflow
            else None
        )
        self._phase = Phase.STARTING
        self._up: set[str] = set()
        self._error = ""
        self._error_hint = ""

    @property
    def migrations(self) -> Path:
        return (self.options.migrations or ROOT / "migrations").absolute()

    def _airflow_settings(self) -> AirflowSettings:
        first_node = self.ports.nodes[0]
        return AirflowSettings(
            run_dir=self.home,
            dags_folder=ROOT / "dags",
            plugins_folder=ROOT / "plugins",
            port=self.ports.airflow,
            tasks_port=self.ports.airflow_tasks,
            dags_read_every_s=self.options.dags_read_every_s,
            admin_password=self.options.airflow_password,
            connections={
                "zookeeper_default": self._zookeeper_connection(),
                "clickhouse_default": {
                    "conn_type": "clickhouse",
                    "host": HOST,
                    "port": first_node,
                    "login": "default",
                    # The names in the cluster file resolve nowhere.
                    "extra": {"nodes": {node.name: node.url for node in self.cluster.nodes.values()}},
                },
            },
            environment={
                MARK: self._guard.mark,
                "ONCLUSTER_HOME": str(self.home),
                "ONCLUSTER_CONFIG": str(self.cluster.config_file),
                "ONCLUSTER_MIGRATIONS": str(self.migrations),
                LEDGER_VARIABLE: self.ledger_url,
                # The sample data is loaded before Java's optimizing compiler would have paid.
                "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            },
        )

    def _zookeeper_connection(self) -> dict[str, object]:
        config = self.cluster.zookeeper_config
        login, _, password = config.identity.partition(":")
        return {
            "conn_type": "zookeeper",
            "host": HOST,
            "port": self.ports.zookeeper,
            "login": login,
            "password": password,
            "extra": {"root": config.root} if config.root else {},
        }

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self, steps: Steps) -> None:
        """Start everything at once; return when all of it answers. On any error nothing is left running."""
        self._guard.start()
        self._save()
        try:
            await self.guarded(self._start_all(steps))
        except BaseException as error:  # also a cancellation: nothing is left running
            self._phase = Phase.FAILED
            self._error = getattr(error, "message", str(error)) or f"interrupted ({type(error).__name__})"
            self._error_hint = getattr(error, "hint", "")
            await self._stop_all(steps)
            raise
        self._phase = Phase.READY
        self._save()

    async def _start_all(self, steps: Steps) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._start_cluster(steps))
                if self.airflow is not None:
                    group.create_task(self._start_airflow(self.airflow, steps))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _start_cluster(self, steps: Steps) -> None:
        steps.running("ZooKeeper", "starting")
        importing = asyncio.create_task(self._import_for_nodes())
        try:
            await self.cluster.start_zookeeper()
            await importing
        finally:
            importing.cancel()
            await asyncio.gather(importing, return_exceptions=True)
        self._up.add("ZooKeeper")
        self._save()
        steps.done("ZooKeeper", f"{HOST}:{self.ports.zookeeper}")
        hosts = self.cluster.hosts
        title = f"{len(hosts)} nodes"
        ready: list[str] = []
        steps.running(title, "starting")

        def on_node(text: str) -> None:
            ready.append(text)
            steps.running(title, f"{len(ready)} of {len(hosts)} answer")

        await self.cluster.start_nodes(progress=on_node)
        steps.done(title, f"{hosts[0]} … {hosts[-1]} at {HOST}:{self.ports.nodes[0]}–{self.ports.nodes[-1]}")
        self._save()

    async def _import_for_nodes(self) -> None:
        try:
            await asyncio.to_thread(self._nodes.prepare)
        except OSError as error:
            log_file = self.home / "logs" / _IMPORTS_LOG
            raise StartFailed("What nodes need cannot be imported.", hint=f"See {log_file}.") from error

    async def _start_airflow(self, airflow: AirflowStack, steps: Steps) -> None:
        def told(text: str) -> None:
            steps.running("Airflow", text.removeprefix("Airflow: "))
            self._save()

        steps.running("Airflow", "starting")
        if airflow.pids:
            await airflow.restart_ended(progress=told)
        else:
            await airflow.start(progress=told)
        self._up.add("Airflow")
        self._save()
        steps.done("Airflow", airflow.url)

    async def stop(self, steps: Steps) -> None:
        """End everything in order; nothing is left running when it returns. May be called twice."""
        if self._phase is not Phase.FAILED:
            self._phase = Phase.STOPPING
            self._save_if_there_is_room()
        await self._stop_all(steps)

    async def _stop_all(self, steps: Steps) -> None:
        self._up.clear()
        # From the last to the first, each whatever becomes of those before it. What nobody reads any more, or
        # what goes to a full disk, cannot be told; a second Ctrl-C ends the step that it meets.
        async with contextlib.AsyncExitStack() as to_end:
            to_end.push_async_callback(self._sweep, steps)
            to_end.push_async_callback(self.cluster.stop)
            to_end.callback(steps.running, "stopping", "nodes and ZooKeeper")
            if self.airflow is not None:
                to_end.push_async_callback(self.airflow.stop, grace_s=_AIRFLOW_GRACE_S)
                to_end.callback(steps.running, "stopping", "Airflow")
            to_end.callback(steps.interrupted)

    async def _sweep(self, steps: Steps) -> None:
        self._nodes.close()
        left = await sweep(self._guard.mark, env=self._env)
        if self.cluster.zookeeper.pid is not None:  # it carries no mark: the guard ends it when we are gone
            return
        self._guard.close()
        if self._phase is not Phase.FAILED:
            self._phase = Phase.STOPPED
        self._save_if_there_is_room()
        steps.done("stopping", "nothing is left running" + (f" ({left} stragglers ended)" if left else ""))

    # -- watching ------------------------------------------------------------------------------------------

    async def guarded(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end, or until a process of the stack has ended. Raises ProcessDied then.

        A full disk raises DiskFull, whatever failed for it first: each program says it in its own words.
        """
        return await guarded(work, look=self.require_alive, home=self.home, env=self._env)

    def require_alive(self) -> None:
        """Raises ProcessDied when a process has ended that nobody asked to end."""
        for name, (how, last_words) in self.dead().items():
            raise ProcessDied(f"{name} has ended unexpectedly{how}.", hint=last_words)

    def dead(self) -> dict[str, tuple[str, str]]:
        """Processes that should run and do not: name → (how it ended, the end of its log)."""
        found: dict[str, tuple[str, str]] = {}
        for node in self.cluster.nodes.values():
            process = node.process
            if process.pid is not None and not process.is_running and not process.expected_to_end:
                found[node.name] = (
                    f" (exit code {process.return_code})",
                    f"The end of {process.log_file}:\n{process.log_tail(8)}",
                )
        if "ZooKeeper" in self._up and self.cluster.zookeeper.pid is None:
            found["ZooKeeper"] = ("", f"Its log: {self.cluster.zookeeper.log_path}.")
        if self.airflow is not None:
            for name in self._dead_airflow():
                log_file = self.airflow.logs / f"airflow-{name}.log"
                found[f"Airflow's {name}"] = ("", f"Its log is {log_file}.")
        return found

    def _dead_airflow(self) -> list[str]:
        if self.airflow is None or "Airflow" not in self._up:
            return []
        alive = self.airflow.pids
        return [name for name in COMPONENTS if name not in alive]

    async def revive(self, steps: Steps) -> None:
        """Start again what has ended. Raises StartFailed, AirflowDown."""
        if self.cluster.zookeeper.pid is None:
            steps.running("ZooKeeper", "starting again")
            await self.cluster.start_zookeeper()
            steps.done("ZooKeeper", f"{HOST}:{self.ports.zookeeper}")
        for node in self.cluster.nodes.values():
            if not node.is_running:
                steps.running(node.name, "starting again")
                await node.start()
                steps.done(node.name, node.url)
        if self.airflow is not None and self._dead_airflow():
            await self._start_airflow(self.airflow, steps)
        self._save()

    # -- state ---------------------------------------------------------------------------------------------

    def state(self) -> StackState:
        me = ProcessId.of(os.getpid())
        assert me is not None
        entries: list[ProcessEntry] = []

        def add(name: str, identity: ProcessId | None, address: str) -> None:
            if identity is not None:
                entries.append(ProcessEntry(name, identity.pid, identity.started, address))

        pid = self.cluster.zookeeper.pid
        add("ZooKeeper", ProcessId.of(pid) if pid else None, f"{HOST}:{self.ports.zookeeper}")
        for node in self.cluster.nodes.values():
            add(node.name, node.process.id, node.url)
        if self.airflow is not None:
            for name, number in self.airflow.pids.items():
                add(f"Airflow {name}", ProcessId.of(number), self.airflow.url if name == "api-server" else "")
        return StackState(
            mark=self._guard.mark,
            owner=ProcessEntry("owner", me.pid, me.started),
            phase=self._phase,
            error=self._error,
            error_hint=self._error_hint,
            zookeeper=f"{HOST}:{self.ports.zookeeper}",
            config_file=str(self.cluster.config_file),
            migrations=str(self.migrations),
            ledger_url=self.ledger_url,
            nodes={node.name: node.url for node in self.cluster.nodes.values()},
            airflow_url=self.airflow.url if self.airflow else "",
            airflow_user=self.airflow.user if self.airflow else "",
            airflow_password=self.airflow.password if self.airflow else "",
            processes=tuple(entries),
        )

    def _save(self) -> None:
        write_state(self.home, self.state())

    def _save_if_there_is_room(self) -> None:
        """A full disk shall neither keep us from stopping nor hide why we stop."""
        with contextlib.suppress(OSError):
            self._save()
