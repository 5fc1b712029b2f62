"""A tiny operation for tests, which removes things from a shelf; and a run of its DAG by hand."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import Context

from engine.client import NodeClient
from engine.config.load import load_node_config
from engine.env import SystemEnv
from engine.errors import ConnectionLoss, Refused
from engine.keeper.memory import MemoryKeeperServer
from engine.operations.act import Act, ActResult, ActState, Danger, Plan
from engine.operations.carrying_out import Performer
from engine.operations.finding import Finding
from engine.operations.records import Records
from engine.operations.site import Site
from oncluster_airflow.operation_dag import Operation, operation_dag, tasks
from oncluster_airflow.operation_plan import Mode
from oncluster_airflow.operation_site import operator_of
from oncluster_airflow.operators.operation import ActOperator, PlanOperationOperator
from oncluster_airflow.settings import OperationSettings, Settings
from tests.airflow.dag_run import DagRun

CLUSTER = "order_cluster"
APPROVE = f"{CLUSTER}.approve"


class World:
    """What a tiny operation works on, and its Keeper; lives through the processes of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shelf = {"a", "b", "c"}
        self.dangers: dict[str, Danger] = {}
        self.findings: tuple[Finding, ...] = ()
        self.failing: set[str] = set()
        self.lost_answers: set[str] = set()
        self.keeper_error: Exception | None = None
        self.keepers = MemoryKeeperServer(SystemEnv())

    @property
    def records(self) -> Records:
        return Records(Settings.from_environment().records_url, env=SystemEnv())

    @contextlib.asynccontextmanager
    async def site(self, cluster: str, operator: str) -> AsyncIterator[Site]:
        if self.keeper_error is not None:
            raise self.keeper_error
        config = load_node_config(Settings.from_environment().config)
        keeper = await self.keepers.connect()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(keeper.close)
            # Nobody listens there: to this site all hosts are down.
            clients = {
                host: await stack.enter_async_context(NodeClient("http://127.0.0.1:1"))
                for host in config.topology.cluster(cluster).host_ids
            }
            yield Site(
                cluster,
                config,
                self.records,
                SystemEnv(),
                operator,
                keeper_or_none=keeper,
                clients=clients,
            )

    def site_of(self, cluster: str, context: Mapping[str, Any], **_: object) -> Any:
        """In the place of `oncluster_airflow.operation_site.site_of`."""
        return self.site(cluster, operator_of(context))


class PlanTiny(PlanOperationOperator):
    world: World

    async def make_plan(self, site: Site, context: Context) -> Plan:
        acts = [
            Act("remove", name, f"Remove {name}.", "It is on the shelf.", danger=self._danger(name))
            for name in sorted(self.world.shelf)
        ]
        return Plan("tidy", site.cluster, tuple(acts), self.world.findings)

    def _danger(self, name: str) -> Danger:
        return self.world.dangers.get(name, Danger.DESTROYS)

    def record(self, site: Site, plan: Plan, context: Context) -> None:
        site.records.see_findings(site.cluster, "tidy", plan.findings)


class ActTiny(ActOperator):
    world: World

    def performer(self, site: Site, context: Context) -> Performer:
        async def perform(act: Act) -> ActResult:
            if act.subject not in self.world.shelf:
                return ActResult(ActState.NOT_NEEDED, "it is gone")
            if act.subject in self.world.failing:
                raise Refused(f"{act.subject} is nailed down")
            self.world.shelf.remove(act.subject)
            if act.subject in self.world.lost_answers:
                self.world.lost_answers.remove(act.subject)
                raise ConnectionLoss("the answer is lost")
            return ActResult(ActState.DONE)

        return perform


def tiny_dag(world: World) -> Any:
    def fill(cluster: str) -> Any:
        first = tasks(PlanTiny, ActTiny)(cluster)
        for task in [first, *first.get_flat_relatives(upstream=False)]:
            object.__setattr__(task, "world", world)
        return first

    def make(_: OperationSettings) -> Operation:
        return Operation(dag_id="tidy", title="Tidies", doc="doc", fill=fill)

    return operation_dag("tidy", make)


class Run(DagRun):
    """One run of an operation's DAG, by hand."""

    def __init__(self, dag: Any, run_id: str = "manual__1", run_type: str = "manual", **form: object) -> None:
        usual = {"cluster": CLUSTER, "mode": Mode.ACT.value}
        super().__init__(dag, dag.params.dump() | usual | form, run_id=run_id, run_type=run_type)
        self.conf = form

    def ask(self, task_id: str = APPROVE) -> dict[str, str]:
        """Run the approval up to where it waits; returns its question."""
        from airflow.sdk.exceptions import AirflowSkipException

        task = self.dag.get_task(task_id)
        context = self.context(task_id)
        context["task_instance"].id = "7"
        try:
            task.execute(context)
        except AirflowSkipException:
            return {}
        except BaseException as waiting:
            if type(waiting).__name__ != "TaskAwaitingInput":
                raise
        return {"subject": str(task.subject), "body": str(task.body)}
