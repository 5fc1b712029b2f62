"""What happens before anything is sent: lint, plan, rehearsal. None of these tasks changes the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import Context
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowSkipException

from engine.config.graphite import sections_xml
from engine.config.load import load_client_config
from engine.errors import OnclusterError
from engine.migrations.errors import Problem
from engine.migrations.files import GAP_RULE, MigrationSet, read_folder
from engine.migrations.gather import make_plan
from engine.migrations.lint import LintReport, lint
from engine.migrations.model import RunRequest
from engine.migrations.probe import HttpProbe
from engine.migrations.rehearsal import Rehearsal
from engine.migrations.rehearse import rehearse
from engine.migrations.selection import ground_of
from engine.migrations.statements import Surroundings
from engine.storage.scratch import ScratchChdb
from oncluster_airflow.errors import TaskRefused, as_airflow_error
from oncluster_airflow.form import refuse_unknown_parameters
from oncluster_airflow.hooks.missing import ConnectionMissing
from oncluster_airflow.hooks.nodes import ClickHouseNodesHook
from oncluster_airflow.operators.approval import APPROVAL_KEY
from oncluster_airflow.operators.begin import (
    MANIFEST_KEY,
    PLAN_KEY,
    PLAN_TASK,
    request_of,
)
from oncluster_airflow.operators.migration import MigrationOperator
from oncluster_airflow.plan_text import approval_question, plan_text, refs_of, rehearsal_text
from oncluster_airflow.run_ids import require_new_id
from oncluster_airflow.settings import NODES_CONN_ID, Settings
from oncluster_airflow.workspace import Manifest, Workspace


class LintOperator(MigrationOperator):
    """Says what a reviewer would say of the folder; errors fail the task."""

    def execute(self, context: Context) -> dict[str, Any]:
        settings = Settings.from_environment()
        folder = Path(self.folder) if self.folder else settings.migrations / self.cluster
        try:
            migrations, problems = read_folder(folder, cluster=self.cluster)
            config = load_client_config(settings.config)
            surroundings = Surroundings(self.cluster, config.topology, config.queue_of(self.cluster))
            report = asyncio.run(_lint(migrations, problems, surroundings))
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        for finding in report.warnings:
            self.log.warning("%s", finding)
        allowed = {GAP_RULE} if context["params"].get("allow_gaps", False) else set()
        errors = [finding for finding in report.errors if finding.rule not in allowed]
        for finding in errors:
            self.log.error("%s", finding)
        if errors:
            raise TaskRefused("The migrations have errors:\n" + "\n".join(map(str, errors)))
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
        refuse_unknown_parameters(context)
        request = request_of(context)
        try:
            workspace = self.open_workspace()
            require_new_id(context, workspace)
            probe = self._probe(workspace)
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
            ti.xcom_push(key=APPROVAL_KEY, value=approval_question(plan) | {"checksum": manifest.checksum})
        if plan.is_empty or bool(context["params"].get("plan_only", False)):
            self.log.info("nothing to do" if plan.is_empty else "the plan was all that was asked for")
            task: Any = context["task"]
            self.skip(ti, [t for t in task.get_flat_relatives(upstream=False) if not t.is_teardown])

    def _probe(self, workspace: Workspace) -> HttpProbe | None:
        """Asks the nodes, where there is a connection to them; the plan says less without."""
        cluster = workspace.topology.clusters.get(self.cluster)
        try:
            addresses = ClickHouseNodesHook(self.nodes_conn_id).addresses()
        except ConnectionMissing as error:
            self.log.warning("nodes are not asked: %s", error)
            return None
        return addresses.probe(cluster.host_ids if cluster else ())


class RehearseOperator(MigrationOperator):
    """Runs what was planned up, up again and down on a scratch database, before any host sees it."""

    def execute(self, context: Context) -> dict[str, Any]:
        if not bool(context["params"].get("rehearse", True)):
            raise AirflowSkipException("Not asked for.")
        request = request_of(context)
        try:
            planned = context["ti"].xcom_pull(task_ids=PLAN_TASK, key=PLAN_KEY)
            versions = [migration["version"] for migration in planned["migrations"]] if planned else None
            rehearsal = asyncio.run(_rehearse(self.open_workspace(), request, versions))
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        self.log.info("%s", rehearsal_text(rehearsal))
        if not rehearsal.is_ok:
            failures = [f"{s.path}:{s.line}: {s.phase}: {s.error}" for s in rehearsal.failures]
            reasons = failures + [str(difference) for difference in rehearsal.differences]
            advice = f"{rehearsal.advice} Without a rehearsal: untick Rehearse in the run's form."
            raise TaskRefused("\n".join(["The rehearsal failed; nothing was sent.", *reasons, advice]))
        return {"rehearsed": len(rehearsal.statements), "not_rehearsed": len(rehearsal.not_rehearsed)}


async def _rehearse(workspace: Workspace, request: RunRequest, versions: Sequence[int] | None) -> Rehearsal:
    records = workspace.ledger.records(workspace.cluster) if versions is not None else {}
    surroundings = Surroundings(workspace.cluster, workspace.topology, workspace.queue)
    graphite = sections_xml(workspace.config.graphite)
    async with ScratchChdb(macros=surroundings.macros, graphite=graphite) as scratch:
        return await rehearse(
            workspace.migrations,
            surroundings,
            request,
            scratch,
            env=workspace.env,
            ground=ground_of(records, versions or ()),
            versions=versions,
        )


async def _lint(
    migrations: MigrationSet, problems: Sequence[Problem], surroundings: Surroundings
) -> LintReport:
    async with ScratchChdb() as scratch:
        return await lint(migrations, problems, surroundings, validator=scratch.validate)
