"""Deadlines of DAG runs: who has not ended by then is told of, and goes on.

A deadline is Airflow's (`DeadlineAlert`); the triggerer calls `deadline_missed` once for each run that misses
it. Nothing is stopped: a statement in the queue cannot be called back, and a repair that is cut off is worse
than a slow one. Single waits have limits of their own, the sensors' (`oncluster_airflow.sensors`).
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from airflow.sdk.configuration import conf
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from engine.env import SystemEnv
from engine.errors import OnclusterError
from engine.migrations.files import Direction
from engine.migrations.ledger import Ledger
from engine.migrations.states import LedgerRow
from oncluster_airflow.channels import Channels, send_over
from oncluster_airflow.migration_wait import outcome_of
from oncluster_airflow.notification import Notification
from oncluster_airflow.outcomes import WaitResult, WaitState
from oncluster_airflow.settings import Settings

log = logging.getLogger(__name__)

_OVER = ("success", "failed")
_RUNBOOK = "runbooks/run-too-long.md"


def deadline_of(after_s: int, *, cluster: str = "") -> list[DeadlineAlert]:
    """For the `deadline` of a DAG: tell people when a run is not over `after_s` seconds after it was queued.

    With `cluster`, whose migrations the DAG runs, the message names the hosts that are not done. 0: none.
    """
    if after_s <= 0:
        return []
    # A bare number, which Airflow reads as seconds: with a timedelta, tasks of a run whose deadline is still
    # to come cannot be cleared (apache/airflow issue 70368), and clearing is how a wait is taken up again.
    interval: Any = float(after_s)
    return [
        DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT,
            interval=interval,
            callback=AsyncCallback(deadline_missed, kwargs={"after_s": after_s, "cluster": cluster}),
            name=f"not over after {datetime.timedelta(seconds=after_s)}",
        )
    ]


async def deadline_missed(*, after_s: int, cluster: str = "", context: Mapping[str, Any]) -> str:
    """Called by the triggerer. Returns which channels took the message.

    Airflow forgets the deadlines of runs that went well, not those of runs that failed, of which people were
    told then: of a run that is over nobody is told.
    """
    run: Mapping[str, Any] = context.get("dag_run") or {}
    if str(run.get("state")) in _OVER:
        log.info("deadline.run_is_over dag=%s run=%s", run.get("dag_id"), run.get("dag_run_id"))
        return ""
    # Mail servers and databases answer slowly, and the triggerer's loop belongs to all triggers.
    return await asyncio.to_thread(_tell, after_s, cluster, dict(context))


def late(
    context: Mapping[str, Any], *, after_s: int, result: WaitResult | None, docs_url: str
) -> Notification:
    """The message. `context` is what Airflow gives a deadline's callback."""
    run: Mapping[str, Any] = context.get("dag_run") or {}
    dag_id, run_id = str(run.get("dag_id", "")), str(run.get("dag_run_id", ""))
    base = str(conf.get("api", "base_url", fallback="") or "").rstrip("/")
    hosts = ""
    if result:
        names = ", ".join(dict.fromkeys(host.host.readable for host in result.hosts))
        hosts = f" Not done yet: {names} ({result.entry})."
    return Notification(
        kind="not over yet",
        what=dag_id,
        reason=f"the run is not over after {datetime.timedelta(seconds=after_s)}; it goes on.{hosts}",
        advice="open the run: the task that is at work, or that waits for an answer, says what it waits for. "
        "Nothing was stopped.",
        dag_id=dag_id,
        run_id=run_id,
        task_id="",
        since=str(run.get("queued_at") or run.get("start_date") or ""),
        link=f"{base}/dags/{quote(dag_id)}/runs/{quote(run_id, safe='')}" if base else "",
        result=result,
        runbook=f"{docs_url.rstrip('/')}/{_RUNBOOK}",
    )


def _tell(after_s: int, cluster: str, context: Mapping[str, Any]) -> str:
    settings = Settings.from_environment()
    result = None
    if cluster:
        run: Mapping[str, Any] = context.get("dag_run") or {}
        run_id = str(run.get("dag_run_id", ""))
        result = unfinished_hosts(settings, cluster, lambda ledger: _rows_of_run(ledger, cluster, run_id))
    worked = send_over(
        Channels().open(), late(context, after_s=after_s, result=result, docs_url=settings.docs_url)
    )
    return ", ".join(worked)


def _rows_of_run(ledger: Ledger, cluster: str, run_id: str) -> list[LedgerRow]:
    """What a run is at, whichever run has sent it: a run attaches to what an earlier one began."""
    run = next((each for each in ledger.runs(cluster) if each.run_id == run_id), None)
    if run is None:
        return []
    rows: list[LedgerRow] = []
    for version, record in ledger.records(cluster).items():
        is_within = run.target is None or (version <= run.target) is (run.direction is Direction.UP)
        if record.state.is_open and record.direction is run.direction and is_within:
            rows += record.rows
    return rows


def unfinished_hosts(
    settings: Settings, cluster: str, rows_of: Callable[[Ledger], Iterable[LedgerRow]]
) -> WaitResult | None:
    """The hosts that are not done, by the rows of the ledger that are meant; None where it cannot say."""
    try:
        ledger = Ledger(settings.ledger_url, env=SystemEnv())
        rows = [row for row in rows_of(ledger) if not row.state.is_final]
    except OnclusterError as error:
        log.warning("deadline.no_hosts cluster=%s: %s", cluster, error)
        return None
    if not rows:
        return None
    entries = ", ".join(sorted({row.entry for row in rows if row.entry}))
    return WaitResult(WaitState.TIMEOUT, entries or cluster, tuple(outcome_of(row) for row in rows))
