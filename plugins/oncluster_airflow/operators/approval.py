"""Asks a person before anything is done that cannot be undone."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException, DownstreamTasksSkipped

from oncluster_airflow.operators.begin import PLAN_TASK

APPROVAL_KEY = "approval"
ASKED_KEY = "asked"
REJECTED_KEY = "rejected"


class ApprovePlanOperator(ApprovalOperator):
    """Waits for an answer in the UI when the task `plan_task` left a question in XCom; otherwise is skipped.

    The question is a subject and a Markdown body, and where it has a checksum, that of the plan: it stays in
    XCom under `asked`, so that who acts can tell which plan was approved. Rejecting ends the run.
    """

    def __init__(self, *, plan_task: str, subject: str, **kwargs: Any) -> None:
        super().__init__(
            subject=subject,
            # Rejected: nothing after this runs, whatever its trigger rule.
            ignore_downstream_trigger_rules=True,
            **kwargs,
        )
        self.plan_task = plan_task

    def execute(self, context: Context) -> Any:
        ti: Any = context["ti"]
        approval = ti.xcom_pull(task_ids=self.plan_task, key=APPROVAL_KEY)
        if not approval:
            raise AirflowSkipException("Nothing in the plan needs approval.")
        self.subject = approval["subject"]
        self.body = approval["body"]
        if checksum := approval.get("checksum"):
            ti.xcom_push(key=ASKED_KEY, value=checksum)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        try:
            return super().execute_complete(context, event)
        except DownstreamTasksSkipped:
            # A task that ends so returns nothing.
            context["ti"].xcom_push(key=REJECTED_KEY, value=True)
            raise


class ApproveMigrationOperator(ApprovePlanOperator):
    """Asks when the plan of a migration destroys data.

    The question shows the statements. The approval holds for the plan as it was shown: `begin` refuses to
    send anything else.
    """

    def __init__(self, *, cluster: str, **kwargs: Any) -> None:
        super().__init__(plan_task=PLAN_TASK, subject=f"Approve the migration of {cluster}", **kwargs)
        self.cluster = cluster


def approver_of(context: Context, approve_task: str) -> str:
    """Who approved; empty when nobody was asked, and when the task was marked as successful by hand."""
    ti: Any = context["ti"]
    answer = ti.xcom_pull(task_ids=approve_task, key="return_value") or {}
    user = answer.get("responded_by_user") or {}
    if answer.get("chosen_options") != [ApprovalOperator.APPROVE]:
        return ""
    return str(user.get("name") or user.get("id") or "somebody")


def is_rejected(context: Context, approve_task: str) -> bool:
    """Whether somebody was asked and said no."""
    ti: Any = context["ti"]
    return bool(ti.xcom_pull(task_ids=approve_task, key=REJECTED_KEY))
