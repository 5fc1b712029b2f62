"""What the DAGs of operations have in common.

    choose → [order_cluster]  plan → approve → act
           ↘ [log_cluster]    plan → approve → act

One DAG for each operation, with a group of tasks for each cluster of the configuration. A run is about the
cluster of the form, or about all of them, which is what a scheduled run does. Nothing but the configuration
is read when the DAG file is; a configuration that cannot be read makes DAGs that say why.

Runs may overlap: one that waits for an answer must not hold up the next check. Two that act on one cluster at
once do not: the second is refused with the name of the first, and tries again a few times.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk import DAG, BaseOperator, Context, Param, TaskGroup, TriggerRule
from airflow.sdk.exceptions import AirflowTimetableInvalid

from engine.config.load import load_topology
from engine.errors import OnclusterError
from oncluster_airflow.deadlines import deadline_of
from oncluster_airflow.errors import TaskRefused
from oncluster_airflow.form import with_form
from oncluster_airflow.ids import as_group_id
from oncluster_airflow.notifier import (
    ApprovalWantedNotifier,
    OnclusterNotifier,
    Repeats,
    WorksAgainNotifier,
)
from oncluster_airflow.operation_plan import Mode
from oncluster_airflow.operators.approval import ApprovePlanOperator
from oncluster_airflow.operators.operation import (
    ALL_CLUSTERS,
    CHOOSE_A_CLUSTER,
    ActOperator,
    CheckOperator,
    ChooseClusterOperator,
    PlanOperationOperator,
)
from oncluster_airflow.settings import OperationSettings, Settings

log = logging.getLogger(__name__)

_RETRIES = 3
_RETRY_DELAY_S = 20.0
_RUNS_AT_ONCE = 8

FillGroup = Callable[[str], BaseOperator]
"""Makes a cluster's tasks inside its group; returns the first."""


class Covers(enum.Enum):
    """What a run is about when the form's cluster is left as it is."""

    ALL = "all"
    """Every cluster; one can be chosen."""

    ONE = "one"
    """One cluster, which has to be chosen where there are several: nobody means all of them."""

    KEEPER = "keeper"
    """No cluster, but the Keeper of the connection: there is one group of tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One DAG. `fill` is called for each cluster, or once with an empty name; `params` come after the form's
    cluster."""

    dag_id: str
    title: str
    doc: str
    fill: FillGroup
    covers: Covers = Covers.ALL
    params: Mapping[str, Param] = field(default_factory=dict)
    schedule: str | None = None
    deadline_s: int = 0
    retries: int = _RETRIES


def operation_dag(dag_id: str, make: Callable[[OperationSettings], Operation]) -> DAG:
    """The DAG; where settings or configuration cannot be used, one that says why. Needs no connection."""
    try:
        operation = make(OperationSettings.from_environment())
        clusters = tuple(load_topology(Settings.from_environment().config).clusters)
        if not clusters:
            raise TaskRefused(f"{Settings.from_environment().config} has no clusters in <remote_servers>.")
        return _build(operation, clusters)
    except (OnclusterError, TaskRefused, AirflowTimetableInvalid, ValueError) as error:
        log.error("operations.unusable dag=%s: %s", dag_id, error)
        return broken_dag(dag_id, str(error))


def tasks(
    plan: type[PlanOperationOperator],
    act: type[ActOperator],
    *,
    check: type[CheckOperator] | None = None,
) -> FillGroup:
    """Each cluster's tasks in a row: plan, approve and act, behind a look where there is one."""

    def fill(cluster: str) -> BaseOperator:
        first = plan(task_id="plan", cluster=cluster)
        approve = ApprovePlanOperator(
            task_id="approve",
            plan_task=first.task_id,
            subject=f"Approve the plan for {cluster}",
            trigger_rule=TriggerRule.NONE_FAILED,
            notifiers=[ApprovalWantedNotifier()],
        )
        last = act(
            task_id="act",
            cluster=cluster,
            plan_task=first.task_id,
            approve_task=approve.task_id,
            trigger_rule=TriggerRule.NONE_FAILED,
        )
        first >> approve >> last
        if check is None:
            return first
        look = check(task_id="check", cluster=cluster)
        look >> first
        return look

    return fill


def mode_param(*modes: Mode) -> Param:
    """What is to be done with the plan; the first is what happens when nobody chooses."""
    return _choice("What to do", modes)


def repair_param() -> Param:
    """What is to be done about what a look finds."""
    return _choice("Repair", (Mode.NONE, Mode.PLAN, Mode.ACT))


def lines_param(title: str, description: str, *, section: str | None = None) -> Param:
    """Any number of texts, one a line in the form."""
    where: dict[str, Any] = {} if section is None else {"section": section}
    return Param([], type="array", items={"type": "string"}, title=title, description=description, **where)


_WHAT = {
    Mode.NONE: "only look.",
    Mode.PLAN: "show what would be done.",
    Mode.SAFE: "do what needs nobody's approval.",
    Mode.ACT: "show it, ask, then do it.",
}


def _choice(title: str, modes: Sequence[Mode]) -> Param:
    return Param(
        modes[0].value,
        type="string",
        enum=[mode.value for mode in modes],
        title=title,
        description=" ".join(f"{mode.value}: {_WHAT[mode]}" for mode in modes),
    )


def broken_dag(dag_id: str, why: str) -> DAG:
    """A DAG whose only task fails and says why."""
    with DAG(
        dag_id=dag_id,
        description="cannot be used; see its documentation",
        doc_md=f"**This DAG cannot be used:**\n\n{why}\n\nRepair it; the DAG follows by itself.",
        schedule=None,
        tags=["oncluster", "operation", "broken"],
    ) as dag:
        _SayWhy(task_id="choose", why=why)
    return dag


class _SayWhy(BaseOperator):
    def __init__(self, *, why: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.why = why

    def execute(self, context: Context) -> None:
        raise TaskRefused(self.why)


def _build(operation: Operation, clusters: Sequence[str]) -> DAG:
    groups = {cluster: as_group_id(cluster) for cluster in clusters}
    about_clusters = operation.covers is not Covers.KEEPER
    with DAG(
        dag_id=operation.dag_id,
        description=operation.title,
        doc_md=operation.doc,
        schedule=operation.schedule,
        catchup=False,
        max_active_runs=_RUNS_AT_ONCE,
        tags=["oncluster", "operation"],
        render_template_as_native_obj=False,
        deadline=deadline_of(operation.deadline_s),
        default_args={
            "retries": operation.retries,
            "retry_delay": _RETRY_DELAY_S,
            "on_failure_callback": [OnclusterNotifier(repeats=Repeats.REMIND)],
            "on_success_callback": [WorksAgainNotifier()],
        },
    ) as dag:
        if about_clusters:
            choose = ChooseClusterOperator(task_id="choose", groups=groups)
            for cluster, group_id in groups.items():
                with TaskGroup(group_id=group_id, tooltip=f"Cluster {cluster}"):
                    choose >> operation.fill(cluster)
        else:
            operation.fill("")
    choice = {"cluster": _cluster_param(clusters, operation.covers)} if about_clusters else {}
    with_form(dag, {**choice, **operation.params})
    try:
        dag.validate()  # type: ignore[no-untyped-call]
    except AirflowTimetableInvalid as error:
        raise AirflowTimetableInvalid(
            f"The schedule {operation.schedule!r} (ONCLUSTER_…_SCHEDULE) is no cron expression: {error}"
        ) from error
    return dag


def _cluster_param(clusters: Sequence[str], covers: Covers) -> Param:
    if covers is Covers.ALL:
        choice, what = [ALL_CLUSTERS, *clusters], "One cluster of the configuration, or all of them."
    elif len(clusters) == 1:
        choice, what = [*clusters], "The cluster of the configuration."
    else:
        choice, what = [CHOOSE_A_CLUSTER, *clusters], "A cluster of the configuration."
    return Param(choice[0], type="string", enum=choice, title="Cluster", description=what)
