"""What happens before anything is sent: lint, plan, rehearsal. None of these tasks changes the cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from airflow.sdk import Context
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowSkipException

from engine.config.load import load_node_config
from engine.errors import OnclusterError
from engine.migrations.errors import ApprovalRequired
from engine.migrations.files import read_folder
from engine.migrations.lint import lint
from engine.migrations.model import StatementRef
from engine.migrations.preflight import preflight
from engine.migrations.selection import select
from engine.migrations.statements import Surroundings
from oncluster_airflow.errors import TaskRefused, as_airflow_error
from oncluster_airflow.operators.approval import APPROVAL_KEY
from oncluster_airflow.operators.begin import MANIFEST_KEY, request_of
from oncluster_airflow.operators.migration import MigrationOperator
from oncluster_airflow.outcomes import table
from oncluster_airflow.settings import Settings
from oncluster_airflow.workspace import Manifest, queue_of


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
    """Shows what would be done, and ends the run here when that is nothing or when only the plan was
    wanted."""

    inherits_from_skipmixin = True

    def execute(self, context: Context) -> None:
        ti: Any = context["ti"]
        request = request_of(context)
        try:
            workspace = self.open_workspace()
            selected = select(
                workspace.migrations,
                workspace.ledger.records(self.cluster),
                direction=request.direction,
                target=request.target,
                leniency=request.leniency,
            )
            surroundings = Surroundings(self.cluster, workspace.topology, workspace.queue)
            unapproved: tuple[str, ...] = ()
            try:
                preflight(selected, request, surroundings)
            except ApprovalRequired as error:
                unapproved = error.statements
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        refs = [
            StatementRef(item.migration.version, request.direction, statement.index)
            for item in selected
            for statement in item.script.statements
        ]
        manifest = Manifest.of(workspace.migrations, refs)
        ti.xcom_push(key=MANIFEST_KEY, value=manifest.to_json())
        if unapproved:
            ti.xcom_push(
                key=APPROVAL_KEY,
                value={
                    "subject": f"Approve {len(unapproved)} destructive statements on {self.cluster}",
                    "body": "\n".join(f"- `{line}`" for line in unapproved),
                },
            )
        self.log.info("%s", table(("statement",), [(ref,) for ref in refs]))
        if not refs or bool(context["params"].get("plan_only", False)):
            task: Any = context["task"]
            self.skip(ti, [t for t in task.get_flat_relatives(upstream=False) if not t.is_teardown])


class RehearseOperator(MigrationOperator):
    """Runs the migration up, up again and down on a scratch database before any host sees it."""

    def execute(self, context: Context) -> Any:
        raise AirflowSkipException("Rehearsal was not asked for.")
