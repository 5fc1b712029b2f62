"""The migrations of a long history that have no tasks of their own.

A DAG shows the newest migrations statement by statement. What is older has usually been applied everywhere
for long; where it has not, on a new cluster, this one task sends it in the same order and with the same
steps, one statement after the other.

Safety. The steps are those of `operators.migration` and may be repeated in the same way: killed at any
point, the retry finds in the ledger what was sent and attaches to it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from engine.errors import OnclusterError
from engine.migrations.files import Direction
from engine.migrations.model import StatementRef
from oncluster_airflow.errors import as_airflow_error
from oncluster_airflow.hooks.keeper import KeeperHook
from oncluster_airflow.migration_wait import wait_for_statement
from oncluster_airflow.operators.begin import Begun, run_of
from oncluster_airflow.operators.migration import MigrationOperator, submit_statement
from oncluster_airflow.outcomes import WaitResult
from oncluster_airflow.reporting import described, report
from oncluster_airflow.triggers.migration import FAILING_STATES
from oncluster_airflow.workspace import Workspace


class EarlierMigrationsOperator(MigrationOperator):
    """Sends, waits for and records every statement of the run whose version is below `below`.

    Holds its worker while it waits. Ends like a sensor: with DDLFailed or DDLTimeout of the statement at
    which the run stops, or skipped when nothing of the run is that old.
    """

    def __init__(self, *, direction: str, below: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.direction = direction
        self.below = below

    def execute(self, context: Context) -> Any:
        begun = run_of(context)
        wanted = Direction(self.direction)
        refs = [
            ref
            for ref in (begun.run.refs if begun else ())
            if ref.direction is wanted and ref.version < self.below
        ]
        if begun is None or not refs:
            raise AirflowSkipException("Nothing of this run is that old.")
        workspace = self.open_workspace()
        for ref in refs:
            try:
                result = self._apply(workspace, begun, ref)
            except OnclusterError as error:
                raise as_airflow_error(error) from error
            if result.state in FAILING_STATES:
                return report(context, self.log, result, fails=True)
            self.log.info("%s\n%s", ref, described(result))
        return len(refs)

    def _apply(self, workspace: Workspace, begun: Begun, ref: StatementRef) -> WaitResult:
        begun.manifest.require_unchanged(workspace.migrations, ref)
        self.with_runner(workspace, lambda runner: submit_statement(runner, begun.run, ref))
        session = KeeperHook(self.keeper_conn_id).session
        return asyncio.run(wait_for_statement(workspace, session, begun.run, ref, limit_s=None))
