"""Telling people of a wait that takes long, while it goes on.

A sensor's own limit ends the wait, and its failure is told (`oncluster_airflow.notifier`). A wait without a
limit, or with a long one, would say nothing for hours: after `alert_after_s` people hear once which hosts are
not done, since when, and what to do. Remembered per run and task, so that a restart of the triggerer does not
tell it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from engine.ddl.outcome import HostState
from engine.env import Env
from oncluster_airflow.notification import Notification
from oncluster_airflow.notifier import OnclusterNotifier
from oncluster_airflow.outcomes import WaitResult
from oncluster_airflow.settings import Settings

_RUNBOOK = "runbooks/stuck-ddl.md"


@dataclass(frozen=True, slots=True)
class LateWait:
    """When people are to be told of which task's wait. Plain values, which a trigger can carry."""

    at_s: float
    since_s: float
    dag_id: str
    run_id: str
    task_id: str
    link: str

    @classmethod
    def of_task(cls, context: Mapping[str, Any], *, after_s: float | None, now_s: float) -> LateWait | None:
        """None for a wait of which nobody is told."""
        if not after_s:
            return None
        ti: Any = context["ti"]
        return cls(
            at_s=now_s + after_s,
            since_s=now_s,
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            link=str(getattr(ti, "log_url", "") or ""),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> LateWait | None:
        return None if value is None else cls(**value)

    def notification(self, result: WaitResult, *, docs_url: str) -> Notification:
        """The message: `result` is what is known of the hosts by now."""
        unfinished = [host for host in result.hosts if not host.state.is_final]
        offline = [host.host.readable for host in unfinished if host.state is HostState.INACTIVE]
        names = ", ".join(host.host.readable for host in unfinished) or "hosts that are not known"
        advice = (
            "nothing is lost: the wait and the hosts go on. `oncluster ddl show` says how far each host is."
        )
        if offline:
            advice += f" Off line, and to be started first: {', '.join(offline)}."
        return Notification(
            kind="not over yet",
            what=f"{self.dag_id} · {self.task_id}",
            reason=f"{result.entry} is waited for on {names}",
            advice=advice,
            dag_id=self.dag_id,
            run_id=self.run_id,
            task_id=self.task_id,
            since=_iso(self.since_s),
            link=self.link,
            result=result,
            runbook=f"{docs_url.rstrip('/')}/{_RUNBOOK}",
        )


@contextlib.asynccontextmanager
async def told_when_late(
    late: LateWait | None, known: Callable[[], WaitResult], *, env: Env
) -> AsyncIterator[None]:
    """While the body runs, tell people at `late.at_s`. `known` is called in a thread and may block."""
    if late is None:
        yield
        return
    teller = asyncio.ensure_future(_tell(late, known, env))
    try:
        yield
    finally:
        teller.cancel()
        await asyncio.gather(teller, return_exceptions=True)


async def _tell(late: LateWait, known: Callable[[], WaitResult], env: Env) -> None:
    await env.sleep(max(0.0, late.at_s - env.now_s()))

    def send() -> None:
        told = late.notification(known(), docs_url=Settings.from_environment().docs_url)
        OnclusterNotifier().remind(told, about_run=True)

    await asyncio.to_thread(send)


def _iso(unix_s: float) -> str:
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).isoformat(timespec="seconds")
