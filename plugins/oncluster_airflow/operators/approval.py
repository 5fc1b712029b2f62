"""Asks a person before anything destructive is sent."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from oncluster_airflow.operators.begin import PLAN_TASK

APPROVAL_KEY = "approval"


class ApproveMigrationOperator(ApprovalOperator):
    """Waits for an answer in the UI when the plan destroys data; otherwise is skipped.

    The question shows the statements. Rejecting ends the run without sending anything. The approval holds
    for the plan as it was shown: `begin` refuses to send anything else.
    """

    def __init__(self, *, cluster: str, **kwargs: Any) -> None:
        super().__init__(
            subject=f"Approve the migration of {cluster}",
            # Rejected: nothing after this runs, whatever its trigger rule.
            ignore_downstream_trigger_rules=True,
            **kwargs,
        )
        self.cluster = cluster

    def execute(self, context: Context) -> Any:
        ti: Any = context["ti"]
        approval = ti.xcom_pull(task_ids=PLAN_TASK, key=APPROVAL_KEY)
        if not approval:
            raise AirflowSkipException("Nothing in the plan needs approval.")
        self.subject = approval["subject"]
        self.body = approval["body"]
        return super().execute(context)
