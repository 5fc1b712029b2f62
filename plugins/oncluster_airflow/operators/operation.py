"""The tasks that every operation has: which cluster, look, plan, and carry out what was approved.

Safety. What an operation may do and when is the engine's (`engine.operations.carrying_out`, whose safety
argument holds here); these tasks only carry its plan from the one that showed it to the one that acts.

1. `plan` changes nothing. Its plan goes to XCom with its checksum, which is made of its acts.
2. The question shows that plan, and its checksum stays with the question. The answer is Airflow's, with the
   person's name; a task that was marked as successful by hand is no answer.
3. `act` carries out the plan of XCom and no other: its acts must fit its checksum, and the checksum must be
   that of the question. A plan that was made anew after the answer is refused.
4. The run's id in the records is made of the DAG run and of the plan's checksum. A task that is killed
   between two acts, or whose outcome is not known, is tried again and goes on where it was: every act is
   recorded before it happens, and looks before it does anything.
Killing any task at any point leaves one of these steps to be repeated, and each may be repeated. Nothing here
acts without a plan, and nothing dangerous without an approver.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow.sdk import BaseOperator, Context
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowSkipException

from engine.config.load import load_client_config
from engine.errors import OnclusterError
from engine.operations.act import Act, ActResult, ActState, Plan
from engine.operations.carrying_out import Performer, Report, carry_out
from engine.operations.finding import Finding
from engine.operations.site import KeeperNeed, Site
from engine.sql import redact_prose
from oncluster_airflow.errors import ActsFailed, TaskRefused, TaskUnavailable, as_airflow_error
from oncluster_airflow.form import refuse_unknown_parameters
from oncluster_airflow.operation_plan import (
    Mode,
    first_lines,
    from_xcom,
    mode_of,
    only_safe,
    plan_text,
    question_of,
    report_text,
    report_to_xcom,
    to_xcom,
)
from oncluster_airflow.operation_site import Connections, site_of, tell_people
from oncluster_airflow.operators.approval import APPROVAL_KEY, ASKED_KEY, approver_of
from oncluster_airflow.settings import Settings

T = TypeVar("T")

ALL_CLUSTERS = "all"
CHOOSE_A_CLUSTER = ""
PLAN_KEY = "plan"
REPORT_KEY = "report"
FINDINGS_KEY = "findings"
_FINDINGS_IN_XCOM = 200

_COLOUR_LOOK, _COLOUR_ACT = "#e3f2e1", "#fdf3d8"


class ChooseClusterOperator(BaseOperator, SkipMixin):
    """Skips the tasks of the clusters that the run is not about; fails for a cluster that there is not.

    Clusters are looked up anew: the form was made when the DAG file was read.
    """

    inherits_from_skipmixin = True
    ui_color = _COLOUR_LOOK

    def __init__(self, *, groups: dict[str, str], **kwargs: Any) -> None:
        """`groups`: cluster to the id of its group of tasks."""
        super().__init__(**kwargs)
        self.groups = groups

    def execute(self, context: Context) -> str:
        refuse_unknown_parameters(context)
        params: Any = context["params"]
        wanted = str(params.get("cluster", ALL_CLUSTERS))
        config = Settings.from_environment().config
        try:
            known = sorted(load_client_config(config).topology.clusters)
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        if wanted == CHOOSE_A_CLUSTER:
            raise TaskRefused(f"Choose a cluster in the form. There are: {', '.join(known) or 'none'}.")
        if wanted != ALL_CLUSTERS and wanted not in known:
            raise TaskRefused(
                f"There is no cluster {wanted!r} in {config}. There are: {', '.join(known) or 'none'}."
            )
        if wanted != ALL_CLUSTERS and wanted not in self.groups:
            raise TaskRefused(
                f"Cluster {wanted!r} is new in {config}; its tasks come in a moment. Try again."
            )
        dag: Any = context["dag"]
        others = [group for cluster, group in self.groups.items() if wanted not in (ALL_CLUSTERS, cluster)]
        ti: Any = context["ti"]
        if others:
            self.skip(ti, [task for task in dag.tasks if task.task_id.partition(".")[0] in others])
        return wanted


class OperationOperator(BaseOperator):
    """A task of one cluster."""

    ui_color = _COLOUR_LOOK

    def __init__(self, *, cluster: str, connections: Connections | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self.connections = connections or Connections()

    def on_site(
        self,
        context: Context,
        work: Callable[[Site], Awaitable[T]],
        *,
        need: KeeperNeed = KeeperNeed.REQUIRED,
    ) -> T:
        """Run `work` on a site of its own. Raises TaskUnavailable (retried), TaskRefused."""

        async def run() -> T:
            async with site_of(self.cluster, dict(context), connections=self.connections, need=need) as site:
                return await work(site)

        try:
            return asyncio.run(run())
        except OnclusterError as error:
            raise as_airflow_error(error) from error


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look came to: `text` for the log, `value` is the task's, `findings` the worst first."""

    text: str
    value: dict[str, Any]
    findings: Sequence[Finding]


class CheckOperator(OperationOperator, SkipMixin):
    """Looks, records what it found, and tells people what is new.

    Succeeds whatever it finds: findings are told as alerts, and a task that fails means that nobody looked.
    XCom has them under `findings`. Ends the run here unless a repair is asked for.
    """

    inherits_from_skipmixin = True
    need: KeeperNeed = KeeperNeed.REQUIRED

    @abstractmethod
    async def look(self, site: Site, context: Context) -> Looked:
        """Looks, changes nothing, and records what it found."""

    def execute(self, context: Context) -> dict[str, Any]:
        ti: Any = context["ti"]
        repair = repair_of(context)

        async def work(site: Site) -> Looked:
            looked = await self.look(site, context)
            tell_people(site, dict(context))
            return looked

        looked = self.on_site(context, work, need=self.need)
        self.log.info("%s", redact_prose(looked.text))
        shown = [finding.to_json() for finding in looked.findings[:_FINDINGS_IN_XCOM]]
        ti.xcom_push(key=FINDINGS_KEY, value=shown)
        ti.xcom_push(key="return_value", value=looked.value)
        if repair is Mode.NONE:
            task: Any = context["task"]
            self.skip(ti, list(task.get_flat_relatives(upstream=False)))
        return looked.value


def repair_of(context: Context) -> Mode:
    """What the form asks to be done about findings. Raises TaskRefused."""
    params: Any = context["params"]
    return mode_of(params.get("repair", Mode.NONE))


class PlanOperationOperator(OperationOperator, SkipMixin):
    """Makes a plan and shows it; ends the run here when there is nothing to do, or only the plan was wanted.

    XCom has the plan under `plan`, and the question under `approval` where one is to be asked.
    """

    inherits_from_skipmixin = True

    @abstractmethod
    async def make_plan(self, site: Site, context: Context) -> Plan:
        """Looks, and changes nothing."""

    def mode(self, context: Context) -> Mode:
        """What is to be done with the plan."""
        params: Any = context["params"]
        return mode_of(params.get("mode", Mode.PLAN))

    def record(self, site: Site, plan: Plan, context: Context) -> None:
        """Keep the plan's findings in the records, where this operation has findings of its own. People are
        told of what is in the records afterwards."""

    def execute(self, context: Context) -> None:
        ti: Any = context["ti"]
        mode = self.mode(context)
        if mode is Mode.NONE:
            self._end(context, "no plan was asked for")
            return

        async def work(site: Site) -> Plan:
            plan = await self.make_plan(site, context)
            self.record(site, plan, context)
            tell_people(site, dict(context))
            return plan

        plan = self.on_site(context, work)
        if mode is Mode.SAFE:
            plan = only_safe(plan)
        ti.xcom_push(key=PLAN_KEY, value=to_xcom(plan))
        self.log.info("%s", plan_text(plan))
        if not plan.acts:
            self._end(context, "nothing to do")
        elif mode is Mode.PLAN:
            self._end(context, "the plan was all that was asked for")
        elif mode is Mode.ACT:
            ti.xcom_push(key=APPROVAL_KEY, value=question_of(plan))

    def _end(self, context: Context, why: str) -> None:
        self.log.info("%s", why)
        task: Any = context["task"]
        following: Iterable[Any] = task.get_flat_relatives(upstream=False)
        ti: Any = context["ti"]
        self.skip(ti, [other for other in following if not other.is_teardown])


class ActOperator(OperationOperator):
    """Carries out the plan that `plan_task` left and, where it was asked, a person approved.

    Raises ActsFailed when an act failed or was refused. What is not known to have happened, and somebody
    else's operation on the same cluster, is TaskUnavailable: the task is tried again and goes on.
    """

    ui_color = _COLOUR_ACT

    def __init__(self, *, plan_task: str, approve_task: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan_task = plan_task
        self.approve_task = approve_task

    @abstractmethod
    def performer(self, site: Site, context: Context) -> Performer:
        """What performs one act."""

    async def after(self, site: Site, report: Report, context: Context) -> None:
        """Called with the report before it is judged."""

    def execute(self, context: Context) -> None:
        ti: Any = context["ti"]
        left = ti.xcom_pull(task_ids=self.plan_task, key=PLAN_KEY)
        if not left:
            raise AirflowSkipException("There is no plan.")
        plan = from_xcom(left)
        approved_by = self._approver(context, plan)

        async def work(site: Site) -> Report:
            report = await carry_out(
                site,
                plan,
                self.performer(site, context),
                run_id=run_id_of(context, plan),
                approved_by=approved_by,
                progress=self._progress,
            )
            self.log.info("%s", report_text(report))
            ti.xcom_push(key=REPORT_KEY, value=report_to_xcom(report))
            await self.after(site, report, context)
            return report

        judge(self.on_site(context, work))

    def _approver(self, context: Context, plan: Plan) -> str:
        ti: Any = context["ti"]
        question = ti.xcom_pull(task_ids=self.plan_task, key=APPROVAL_KEY)
        if not question:
            return ""
        approved_by = approver_of(context, self.approve_task)
        if not approved_by:
            raise TaskRefused(
                "Nobody has approved the plan in Airflow; marking the task `approve` as successful is no "
                "answer. Clear it to be asked again."
            )
        asked = ti.xcom_pull(task_ids=self.approve_task, key=ASKED_KEY)
        if asked != plan.checksum:
            raise TaskRefused(
                f"{approved_by} approved plan {asked}, and this is plan {plan.checksum}: it was made anew. "
                "Clear the task `approve` to be asked again."
            )
        return approved_by

    def _progress(self, act: Act, result: ActResult, *, number: int, of: int) -> None:
        if result.state is not ActState.STARTED:
            detail = f": {redact_prose(result.detail)}" if result.detail else ""
            self.log.info("%d/%d %s %s %s%s", number, of, result.state.value, act.host, act.what, detail)


def judge(report: Report) -> None:
    """Raises TaskUnavailable for acts whose outcome is not known, ActsFailed for those that did not go
    well."""
    if unknown := report.count(ActState.STARTED):
        raise TaskUnavailable(
            f"Of {unknown} of {len(report.results)} acts it is not known what became; the next try looks.\n"
            + redact_prose(first_lines(report, [ActState.STARTED]))
        )
    if not report.is_good:
        bad = [ActState.FAILED, ActState.REFUSED]
        count = sum(report.count(state) for state in bad)
        raise ActsFailed(
            f"{count} of {len(report.results)} acts did not go well, the others are done. Run the DAG again "
            f"to plan anew.\n{redact_prose(first_lines(report, bad))}"
        )


def run_id_of(context: Context, plan: Plan) -> str:
    """The run's id in the records. `<DAG>/<run>/…` is what the cluster page makes links of."""
    ti: Any = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{plan.cluster}/{plan.checksum[:12]}"
