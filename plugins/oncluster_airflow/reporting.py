"""How the end of a wait is told: to the log as a table, to XCom as values, to Airflow as success or an
exception."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from airflow.sdk import Context
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from engine.errors import OnclusterError
from oncluster_airflow.errors import TaskRefused, error_of
from oncluster_airflow.outcomes import HOSTS_KEY, STATE_KEY, WaitResult, hosts_table

_REFUSED = "refused"


class Log(Protocol):
    """What operators and triggers log with."""

    def info(self, message: str, /, *values: object) -> Any: ...
    def error(self, message: str, /, *values: object) -> Any: ...


def report(context: Context, log: Log, result: WaitResult, *, fails: bool) -> dict[str, Any]:
    """End a task with this result: returns its value, or raises DDLFailed, DDLTimeout or DDLGone.

    XCom has the state and every host in both cases: in the value, or, since a task that fails has none, under
    `ddl_state` and `ddl_hosts`.
    """
    value = result.to_json()
    text = described(result)
    if fails:
        ti: Any = context["ti"]
        ti.xcom_push(key=STATE_KEY, value=value["state"])
        ti.xcom_push(key=HOSTS_KEY, value=value["hosts"])
        log.error("%s", text)
        raise error_of(result)
    log.info("%s", text)
    return value


def described(result: WaitResult) -> str:
    """The summary, the note and the table of hosts."""
    parts = [result.summary, result.note, hosts_table(result.hosts) if result.hosts else ""]
    return "\n".join(part for part in parts if part)


def event_of(result: WaitResult, log: Log, *, fails: bool) -> TriggerEvent:
    """What a trigger fires.

    A good end finishes the task in the triggerer, without a worker: no resumed task can collide with the
    worker slot of the one that deferred. A bad end resumes the task, which fails with every host in its
    log.
    """
    value = result.to_json()
    if fails:
        return TriggerEvent(value)  # type: ignore[no-untyped-call]
    log.info("%s", described(result))
    return TaskSuccessEvent(xcoms={"return_value": value})


def refusal_of(error: OnclusterError) -> TriggerEvent:
    """What a trigger fires when waiting will never work."""
    return TriggerEvent({_REFUSED: str(error)})  # type: ignore[no-untyped-call]


def result_of(event: Mapping[str, Any] | str | None) -> WaitResult | None:
    """The result that a trigger fired, on the worker; None for a good end, which arrives here as the bare
    word `success` when a task is tested in one process. Raises TaskRefused."""
    if not isinstance(event, Mapping):
        return None
    if _REFUSED in event:
        raise TaskRefused(event[_REFUSED])
    return WaitResult.from_json(event)
