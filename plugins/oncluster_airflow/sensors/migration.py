"""Waits until one statement of a migration is done on every required host, and records each host's outcome.

First on the worker for a moment, then in the triggerer. A timeout fails the task as DDLTimeout and changes
nothing about the statement: the hosts go on, and clearing the task attaches to it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from engine.env import Env, SystemEnv
from engine.errors import OnclusterError
from engine.migrations.model import Run, StatementRef
from oncluster_airflow.cleared import closed_behind
from oncluster_airflow.errors import as_airflow_error
from oncluster_airflow.migration_grace import FirstWait, late_wait_of, wait_a_moment
from oncluster_airflow.operators.begin import run_of
from oncluster_airflow.reporting import described, report, result_of
from oncluster_airflow.settings import GRACE_S, KEEPER_CONN_ID
from oncluster_airflow.triggers.migration import FAILING_STATES, MigrationStatementTrigger
from oncluster_airflow.waiting import backstop
from oncluster_airflow.workspace import Workspace


class MigrationStatementSensor(BaseSensorOperator):
    """One per statement of a migration DAG; reads the run from the task `begin`."""

    ui_color = "#d7e7f5"

    def __init__(
        self,
        *,
        cluster: str,
        version: int,
        direction: str,
        statement: int,
        folder: str | None = None,
        keeper_conn_id: str = KEEPER_CONN_ID,
        grace_s: float = GRACE_S,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self.version = version
        self.direction = direction
        self.statement = statement
        self.folder = folder
        self.keeper_conn_id = keeper_conn_id
        self.grace_s = grace_s
        self._env: Env = SystemEnv()

    @property
    def ref_json(self) -> dict[str, Any]:
        return {"version": self.version, "direction": self.direction, "statement": self.statement}

    def execute(self, context: Context) -> Any:
        begun = run_of(context)
        ref = StatementRef.from_json(self.ref_json)
        if begun is None or ref not in begun.run.refs:
            raise AirflowSkipException("Not part of this run.")
        try:
            workspace = Workspace.open(self.cluster, folder=self.folder)
            with closed_behind(
                context, workspace, begun.run, keeper_conn_id=self.keeper_conn_id
            ) as is_closed_here:
                first = wait_a_moment(
                    workspace, self.keeper_conn_id, begun.run, ref, grace_s=self.grace_s, env=self._env
                )
                if first.goes_on:
                    self._hand_over(context, begun.run, first, closes=is_closed_here)
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        return report(context, self.log, first.result, fails=first.result.state in FAILING_STATES)

    def _hand_over(self, context: Context, run: Run, first: FirstWait, *, closes: bool) -> None:
        """Raises TaskDeferred."""
        self.log.info("%s", described(first.result))
        self.log.info("waiting in the triggerer")
        self.defer(
            trigger=MigrationStatementTrigger(
                keeper_conn_id=self.keeper_conn_id,
                cluster=self.cluster,
                run=run.to_json(),
                ref=self.ref_json,
                deadline_s=first.deadline_s,
                folder=self.folder,
                late=late_wait_of(dict(context), env=self._env),
                closes=closes,
            ),
            method_name="execute_complete",
            timeout=backstop(first.timeout_s),
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any] | str | None = None) -> Any:
        """Resumed by the trigger after a bad end."""
        result = result_of(event)
        if result is None:
            return None
        return report(context, self.log, result, fails=result.state in FAILING_STATES)
