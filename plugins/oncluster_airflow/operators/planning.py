"""What happens before anything is sent: lint, plan, rehearsal. None of these tasks changes the cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from airflow.sdk import Context
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError, AirflowSkipException

from engine.config.load import load_node_config
from engine.errors import OnclusterError
from engine.migrations.files import read_folder
from engine.migrations.gather import make_plan
from engine.migrations.lint import lint
from engine.migrations.statements import Surroundings
from oncluster_airflow.errors import TaskRefused, as_airflow_error
from oncluster_airflow.hooks.nodes import ClickHouseNodesHook, HttpProbe
from oncluster_airflow.operators.approval import APPROVAL_KEY
from oncluster_airflow.operators.begin import MANIFEST_KEY, request_of
from oncluster_airflow.operators.migration import MigrationOperator
from oncluster_airflow.plan_text import approval_question, plan_text, refs_of
from oncluster_airflow.settings import NODES_CONN_ID, Settings
from oncluster_airflow.workspace import Manifest, queue_of

PLAN_KEY = "plan"


class LintOperator(MigrationOperator):
    """Says what a reviewer would say of the folder; errors fail the task."""

    def execute(self, context: Context) -> dict[str, Any]:
        settings = Settings.from_environment()
        folder = Path(self.folder) if self.folder else settings.migrations / self.cluster
        try:
            migrations, problems = read_folder(folder, cluster=self.cluster)
            config = load_node_config(settings.config)
            surroundings = Surroundings(self.cluster, config.topology, queue_of(config, self.cluster))
            report = asyncio.run(lint(migrations, problems, surroundings))
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        for finding in report.warnings:
            self.log.warning("%s", finding)
        for finding in report.errors:
            self.log.error("%s", finding)
        if report.errors:
            raise TaskRefused(
                "The migrations have errors:\n" + "\n".join(str(finding) for finding in report.errors)
            )
        return report.to_json()


class PlanOperator(MigrationOperator, SkipMixin):
    """Shows what would be done, and ends the run here when that is nothing or when only the plan was wanted.

    What forbids the run (changed files, gaps, statements that cannot be sent) fails the task. XCom has the
    plan as JSON under `plan`, and the checksums of its statements, to which the run is held.
    """

    inherits_from_skipmixin = True

    def __init__(self, *, nodes_conn_id: str = NODES_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.nodes_conn_id = nodes_conn_id

    def execute(self, context: Context) -> None:
        ti: Any = context["ti"]
        request = request_of(context)
        try:
            workspace = self.open_workspace()
            probe = self._probe()
            plan = self.with_runner(workspace, lambda runner: make_plan(runner, request, probe=probe))
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        manifest = Manifest.of(workspace.migrations, refs_of(plan))
        ti.xcom_push(key=PLAN_KEY, value=plan.to_json())
        ti.xcom_push(key=MANIFEST_KEY, value=manifest.to_json())
        self.log.info("%s", plan_text(plan))
        if plan.problems:
            raise TaskRefused(
                "The plan cannot be carried out:\n" + "\n".join(str(problem) for problem in plan.problems)
            )
        if plan.needs_approval:
            ti.xcom_push(key=APPROVAL_KEY, value=approval_question(plan))
        if plan.is_empty or bool(context["params"].get("plan_only", False)):
            self.log.info("nothing to do" if plan.is_empty else "the plan was all that was asked for")
            task: Any = context["task"]
            self.skip(ti, [t for t in task.get_flat_relatives(upstream=False) if not t.is_teardown])

    def _probe(self) -> HttpProbe | None:
        """Asks the nodes, where there is a connection to them; the plan says less without."""
        try:
            return HttpProbe(ClickHouseNodesHook(self.nodes_conn_id).addresses())
        except (AirflowException, AirflowRuntimeError) as error:
            self.log.warning("nodes are not asked: %s", error)
            return None


class RehearseOperator(MigrationOperator):
    """Runs the migration up, up again and down on a scratch database before any host sees it."""

    def execute(self, context: Context) -> Any:
        raise AirflowSkipException("Rehearsal was not asked for.")
