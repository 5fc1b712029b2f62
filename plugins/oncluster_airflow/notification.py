"""What people are told of a task: what, which hosts, since when, what to do, and where to look.

Pure: facts in, text out. `oncluster_airflow.notifier` sends it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowTaskTimeout, TaskDeferralTimeout

from engine.ddl.outcome import HostState
from engine.operations.alerts import Alert
from engine.operations.alerts.message import attachment, mrkdwn
from engine.operations.finding import Severity, digest
from engine.sql import redact_prose
from oncluster_airflow.errors import (
    ActsFailed,
    DDLAbandoned,
    DDLGone,
    DDLTimeout,
    DDLWaitError,
    TaskRefused,
    TaskUnavailable,
)
from oncluster_airflow.outcomes import WaitResult, host_to_json, hosts_table

_RUNBOOK = "runbooks/task-failed.md"
_COLOUR = "#c0392b"
_COLOUR_OF = {"approval wanted": "#2e86c1", "not over yet": "#d68910", "works again": "#239b56"}


@dataclass(frozen=True, slots=True)
class Notification:
    """One message. `since` is ISO 8601 in UTC, empty when unknown; `result` is there when hosts are
    concerned."""

    kind: str
    what: str
    reason: str
    advice: str
    dag_id: str
    run_id: str
    task_id: str
    since: str
    link: str
    result: WaitResult | None = None
    runbook: str = ""

    @property
    def subject(self) -> str:
        return f"[oncluster] {self.kind}: {self.what}"

    @property
    def text(self) -> str:
        lines = [
            f"{self.what}: {self.kind}",
            f"reason: {self.reason}",
            f"since:  {self.since or 'unknown'}",
            f"run:    {self.run_id} of {self.dag_id}{f', task {self.task_id}' if self.task_id else ''}",
        ]
        if self.result is not None and self.result.hosts:
            lines += ["", hosts_table(self.result.hosts)]
        lines += ["", f"What to do: {self.advice}"]
        lines += [f"{name}: {link}" for name, link in self._links]
        return "\n".join(lines)

    @property
    def _links(self) -> list[tuple[str, str]]:
        return [(n, link) for n, link in (("Look here", self.link), ("Runbook", self.runbook)) if link]

    def to_slack(self) -> dict[str, Any]:
        """`text` for notifications and programs that know nothing else, and one coloured attachment."""
        facts = self.text.partition("What to do: ")[0].rstrip()
        # Slack knows no longer fence: what others wrote must not end this one.
        shown = mrkdwn(facts[:2000]).replace("`", "ˋ")
        parts = [f"```{shown}```", mrkdwn(f"What to do: {self.advice}")]
        # Only addresses can be links; a runbook may be a file's name.
        parts += [f"<{link}|{name}>" if "://" in link else f"{name}: {link}" for name, link in self._links]
        return {
            "text": mrkdwn(self.subject),
            "attachments": [attachment("\n".join(parts), _COLOUR_OF.get(self.kind, _COLOUR))],
        }

    def as_alert(self, *, run_id: str = "") -> Alert:
        """The same as a trouble of the task, whichever run it is seen in; with `run_id`, of that run."""
        hosts = self.result.hosts if self.result else ()
        return Alert(
            trouble=digest(["task", self.dag_id, self.task_id, run_id]),
            kind=f"task-{self.kind}",
            severity=Severity.CRITICAL,
            cluster=f"dag:{self.dag_id}",
            what=f"{self.what}: {self.kind}: {self.reason}",
            advice=self.advice,
            host=", ".join(host.host.readable for host in hosts if host.state is not HostState.DONE),
            runbook=_RUNBOOK,
        )

    def to_json(self) -> dict[str, Any]:
        """The body of a webhook; `text` is what chat programs show."""
        return {
            "text": self.text,
            "kind": self.kind,
            "what": self.what,
            "reason": self.reason,
            "advice": self.advice,
            "dag_id": self.dag_id,
            "run_id": self.run_id,
            "task_id": self.task_id,
            "since": self.since,
            "link": self.link,
            "runbook": self.runbook,
            "entry": self.result.entry if self.result else "",
            "hosts": [host_to_json(host) for host in self.result.hosts] if self.result else [],
        }


def from_context(context: Mapping[str, Any], *, docs_url: str = "docs/") -> Notification:
    """The message for a failure callback's context. Takes the context of a task or of a whole run."""
    ti: Any = context.get("ti") or context.get("task_instance")
    run: Any = context.get("dag_run")
    error = context.get("exception")
    reason = str(error or context.get("reason") or "unknown; see the log")
    kind, advice = kind_and_advice(error)
    started = getattr(ti, "start_date", None) or getattr(run, "start_date", None)
    dag_id = str(getattr(ti, "dag_id", None) or getattr(run, "dag_id", ""))
    task_id = str(getattr(ti, "task_id", ""))
    return Notification(
        kind=kind,
        what=f"{dag_id} · {task_id}" if task_id else dag_id,
        reason=redact_prose(reason),
        advice=advice,
        dag_id=dag_id,
        run_id=str(getattr(ti, "run_id", None) or getattr(run, "run_id", "")),
        task_id=task_id,
        since=started.astimezone(datetime.UTC).isoformat(timespec="seconds") if started else "",
        link=getattr(ti, "log_url", ""),
        result=error.result if isinstance(error, DDLWaitError) else None,
        runbook=f"{docs_url.rstrip('/')}/{_RUNBOOK}",
    )


def approval_wanted(context: Mapping[str, Any], *, docs_url: str = "docs/") -> Notification:
    """The message of a task that waits for a person."""
    asked = from_context(context, docs_url=docs_url)
    task: Any = context.get("task")
    return replace(
        asked,
        kind="approval wanted",
        reason=str(getattr(task, "subject", "")),
        advice="open the run in Airflow, read the plan, and approve or reject it.",
        result=None,
        runbook="",
    )


def kind_and_advice(error: object) -> tuple[str, str]:
    """What it is in one word, and what a person can do."""
    match error:
        case DDLTimeout():
            return "timeout", _timeout_advice(error.result)
        case DDLAbandoned():
            return "abandoned", (
                "the hosts in the table that are abandoned will not do this statement; who said so and why "
                "stands beside them. All others have done it. Take them out of the configuration or "
                "rebuild them; then send what comes next. A migration goes on after `oncluster migrate "
                "mark VERSION applied`: what it had not sent yet goes into a new one."
            )
        case DDLGone():
            return "gone", (
                "the queue's cleaner removed the entry, Keeper has lost it, or a host does not know what "
                "became of it. `oncluster migrate status` shows what each host was seen to do: `expired` has "
                "not done it, of `unknown` nobody can say. Compare the schema of those hosts, then run the "
                "DAG again with `retry_failed`."
            )
        case DDLWaitError():
            return "failed", (
                "repair the cause on the hosts in the table that failed; the others have done it and are not "
                "asked again. Then run the DAG again with `retry_failed`."
            )
        case AirflowSensorTimeout() | AirflowTaskTimeout() | TaskDeferralTimeout():
            return "timeout", (
                "Airflow's own limit ended the task; the cluster goes on with what it was told. Look whether "
                "the triggerer and the scheduler are well, then clear the task: it attaches to what is there."
            )
        case ActsFailed():
            return "failed", (
                "the acts that are named did not go well, and the log says why; the others are done. Repair "
                "the cause and run the DAG again: it plans anew, from what is there then."
            )
        case TaskRefused():
            return "refused", (
                "the reason says what to change; as it is it would end so again. Then run the DAG anew."
            )
        case TaskUnavailable():
            return "unavailable", (
                "bring back what could not be reached and clear the task: it finds out what has happened "
                "and goes on."
            )
        case _:
            return "failed", "read the task's log; clearing the task is safe, nothing is submitted twice."


def _timeout_advice(result: WaitResult) -> str:
    offline = [host.host.readable for host in result.hosts if host.state is HostState.INACTIVE]
    advice = (
        "nothing is lost: the hosts go on by themselves. Clear the task (or run the DAG again) to wait "
        "for the same "
        f"entry, {result.entry}; it is not submitted again."
    )
    if offline:
        advice += f" Off line, and to be started first: {', '.join(offline)}."
    return advice
