"""The migrations of a long history that have no tasks of their own.

A DAG shows the newest migrations statement by statement. What is older has usually been applied everywhere
for long; where it has not, on a new cluster, this one task sends it in the same order and with the same
steps, one statement after the other.

Safety. The steps are those of `operators.migration` and may be repeated in the same way: killed at any
point, the retry finds in the ledger what was sent and attaches to it.
1. A statement is sent, or attached to by its token, and waited for on the worker for a moment.
2. What takes longer is waited for in the triggerer, and the worker is free. The trigger sends nothing.
3. After its end the task is resumed and goes on behind that statement. A retry, or a run that was begun anew
   meanwhile, goes through all of them again, which attaches and sends nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from engine.env import Env, SystemEnv
from engine.errors import OnclusterError
from engine.migrations.files import Direction
from engine.migrations.model import StatementRef
from oncluster_airflow.errors import as_airflow_error
from oncluster_airflow.migration_grace import FirstWait, late_wait_of, wait_a_moment
from oncluster_airflow.operators.begin import Begun, run_of
from oncluster_airflow.operators.migration import MigrationOperator, submit_statement
from oncluster_airflow.outcomes import WaitResult
from oncluster_airflow.reporting import described, report, result_of
from oncluster_airflow.settings import EARLIER_GRACE_S, RESUME_AFTER_S
from oncluster_airflow.triggers.migration import FAILING_STATES, EarlierStatementTrigger
from oncluster_airflow.waiting import backstop
from oncluster_airflow.workspace import Workspace


class EarlierMigrationsOperator(MigrationOperator):
    """Sends, waits for and records every statement of the run whose version is below `below`.

    Returns how many there are. Ends like a sensor: with DDLFailed or DDLTimeout of the statement at which the
    run stops, or skipped when nothing of the run is that old.
    """

    def __init__(
        self, *, direction: str, below: int, grace_s: float = EARLIER_GRACE_S, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.direction = direction
        self.below = below
        self.grace_s = grace_s
        self._env: Env = SystemEnv()

    def execute(self, context: Context) -> Any:
        return self._go_on(context, behind=None)

    def execute_complete(
        self, context: Context, event: Mapping[str, Any] | str | None = None, *, ref: Mapping[str, Any]
    ) -> Any:
        """Resumed by the trigger after the end of the statement `ref`, good or bad."""
        statement = StatementRef.from_json(ref)
        result = result_of(event)
        if result is not None:
            if result.state in FAILING_STATES:
                return report(context, self.log, result, fails=True)
            self._tell(statement, result)
        return self._go_on(context, behind=statement)

    def _go_on(self, context: Context, *, behind: StatementRef | None) -> Any:
        begun = run_of(context)
        refs = self._refs(begun)
        if begun is None or not refs:
            raise AirflowSkipException("Nothing of this run is that old.")
        left = refs[refs.index(behind) + 1 :] if behind in refs else refs
        try:
            workspace = self.open_workspace()
            with self.closed_behind(context, workspace, begun.run) as is_closed_here:
                for ref in left:
                    first = self._apply(workspace, begun, ref)
                    if first.goes_on:
                        self._hand_over(context, begun, ref, first, closes=is_closed_here)
                    if first.result.state in FAILING_STATES:
                        return report(context, self.log, first.result, fails=True)
                    self._tell(ref, first.result)
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        return len(refs)

    def _refs(self, begun: Begun | None) -> Sequence[StatementRef]:
        wanted = Direction(self.direction)
        return [
            ref
            for ref in (begun.run.refs if begun else ())
            if ref.direction is wanted and ref.version < self.below
        ]

    def _apply(self, workspace: Workspace, begun: Begun, ref: StatementRef) -> FirstWait:
        begun.require_as_begun(workspace, ref)
        self.with_runner(workspace, lambda runner: submit_statement(runner, begun.run, ref))
        return wait_a_moment(
            workspace, self.keeper_conn_id, begun.run, ref, grace_s=self.grace_s, env=self._env
        )

    def _hand_over(
        self, context: Context, begun: Begun, ref: StatementRef, first: FirstWait, *, closes: bool
    ) -> None:
        """Raises TaskDeferred."""
        self._tell(ref, first.result)
        self.log.info("waiting in the triggerer")
        self.defer(
            trigger=EarlierStatementTrigger(
                keeper_conn_id=self.keeper_conn_id,
                cluster=self.cluster,
                run=begun.run.to_json(),
                ref=ref.to_json(),
                deadline_s=first.deadline_s,
                folder=self.folder,
                late=late_wait_of(dict(context), env=self._env),
                closes=closes,
                resume_at_s=self._env.now_s() + RESUME_AFTER_S,
            ),
            method_name="execute_complete",
            kwargs={"ref": ref.to_json()},
            timeout=backstop(first.timeout_s),
        )

    def _tell(self, ref: StatementRef, result: WaitResult) -> None:
        self.log.info("%s\n%s", ref, described(result))
