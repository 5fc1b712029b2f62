"""Waits until an ON CLUSTER statement is done on every host.

The sensor first waits on the worker for a moment (`grace_s`), which is enough for most statements, then
hands the wait to the triggerer and frees the worker. It never submits and never cancels anything, so that
it can be retried, cleared and run twice at will.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseSensorOperator, Context

from engine.ddl.outcome import EntryStatus
from engine.ddl.output import DEFAULT_TIMEOUT_S, OutputMode
from engine.env import Env, SystemEnv
from engine.errors import OnclusterError
from oncluster_airflow.asked import output_mode_of, timeout_of
from oncluster_airflow.errors import as_airflow_error
from oncluster_airflow.hooks.keeper import KeeperHook
from oncluster_airflow.late_wait import LateWait
from oncluster_airflow.outcomes import WaitResult, WaitState, hosts_table, is_failure
from oncluster_airflow.reporting import report, result_of
from oncluster_airflow.settings import GRACE_S, KEEPER_CONN_ID
from oncluster_airflow.submission import Submission
from oncluster_airflow.triggers.ddl import DDLFinishedTrigger
from oncluster_airflow.waiting import backstop, wait_for_hosts


class DDLFinishedSensor(BaseSensorOperator):
    """Succeeds when the submitted statement is done on its hosts.

    `submission` is what SubmitStatementOperator returned. `task_timeout_s` is ClickHouse's
    `distributed_ddl_task_timeout`: 180 by default, 0 does not wait, negative waits for ever; each try of
    the task counts anew. `output_mode` is `distributed_ddl_output_mode`. Both may be templates. After
    `alert_after_s` people are told that the wait goes on, and for which hosts.

    Returns the state and every host (`oncluster_airflow.outcomes`). When it fails they are in XCom under
    `ddl_state` and `ddl_hosts`.
    Raises DDLFailed, DDLTimeout, DDLGone; see `oncluster_airflow.errors`.
    """

    template_fields: Sequence[str] = ("submission", "task_timeout_s", "output_mode")
    ui_color = "#d7e7f5"

    def __init__(
        self,
        *,
        submission: Any,
        task_timeout_s: int | str = DEFAULT_TIMEOUT_S,
        output_mode: str = OutputMode.THROW,
        keeper_conn_id: str = KEEPER_CONN_ID,
        grace_s: float = GRACE_S,
        deferrable: bool = True,
        alert_after_s: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.submission = submission
        self.task_timeout_s = task_timeout_s
        self.output_mode = output_mode
        self.keeper_conn_id = keeper_conn_id
        self.grace_s = grace_s
        self.deferrable = deferrable
        self.alert_after_s = alert_after_s
        self._env: Env = SystemEnv()

    # --- for subclasses -------------------------------------------------------------------------------------

    async def seen(self, status: EntryStatus) -> None:
        """Called with every look on the worker."""

    def fails(self, result: WaitResult) -> bool:
        """Whether the task fails."""
        return is_failure(result.state, OutputMode(self.output_mode))

    def make_trigger(
        self, submission: Submission, deadline_s: float | None, late: LateWait | None
    ) -> DDLFinishedTrigger:
        """The trigger that goes on waiting."""
        return DDLFinishedTrigger(
            keeper_conn_id=self.keeper_conn_id,
            queue=submission.paths.root,
            replicas=submission.paths.replicas_root,
            entry=submission.entry,
            token=submission.token,
            output_mode=self.output_mode,
            deadline_s=deadline_s,
            late=late.to_json() if late else None,
        )

    # --- the task -------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        timeout_s = timeout_of(self.task_timeout_s, name="task_timeout_s")
        output_mode_of(self.output_mode, name="output_mode")
        try:
            submission = Submission.from_json(self.submission)
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        if timeout_s == 0:
            return self._finish(context, WaitResult(WaitState.NOT_WAITED, submission.entry))
        deadline_s = None if timeout_s < 0 else self._env.now_s() + timeout_s
        limit_s = None if timeout_s < 0 else float(timeout_s)
        late = LateWait.of_task(
            dict(context), after_s=self.alert_after_s if self.deferrable else None, now_s=self._env.now_s()
        )
        if self.deferrable:
            limit_s = self.grace_s if limit_s is None else min(self.grace_s, limit_s)
        try:
            result = asyncio.run(self._wait(submission, limit_s))
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        time_is_over = deadline_s is not None and self._env.now_s() >= deadline_s
        if self.deferrable and result.at_limit and not time_is_over:
            self.log.info("%s; waiting in the triggerer\n%s", result.summary, hosts_table(result.hosts))
            self.defer(
                trigger=self.make_trigger(submission, deadline_s, late),
                method_name="execute_complete",
                timeout=backstop(timeout_s),
            )
        return self._finish(context, result)

    async def _wait(self, submission: Submission, limit_s: float | None) -> WaitResult:
        return await wait_for_hosts(
            KeeperHook(self.keeper_conn_id).session,
            submission.entry,
            token=submission.token,
            paths=submission.paths,
            mode=OutputMode(self.output_mode),
            limit_s=limit_s,
            env=self._env,
            seen=self.seen,
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any] | str | None = None) -> Any:
        """Resumed by the trigger after a bad end; see `reporting.result_of`."""
        result = result_of(event)
        return None if result is None else self._finish(context, result)

    def _finish(self, context: Context, result: WaitResult) -> Any:
        return report(context, self.log, result, fails=self.fails(result))
