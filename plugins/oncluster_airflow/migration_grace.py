"""The first moments of a wait for a migration's statement, on the worker, and what a trigger needs to go on.

Most statements end within them; deferring costs a second more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.env import Env
from engine.errors import ConfigError
from engine.migrations.model import Run, StatementRef
from oncluster_airflow.hooks.keeper import KeeperHook
from oncluster_airflow.late_wait import LateWait
from oncluster_airflow.migration_wait import wait_for_statement
from oncluster_airflow.outcomes import WaitResult
from oncluster_airflow.settings import OperationSettings
from oncluster_airflow.workspace import Workspace

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FirstWait:
    """What is known when the moments are over. `deadline_s` is in Unix seconds; None: never."""

    result: WaitResult
    timeout_s: int
    deadline_s: float | None
    goes_on: bool


def wait_a_moment(
    workspace: Workspace, keeper_conn_id: str, run: Run, ref: StatementRef, *, grace_s: float, env: Env
) -> FirstWait:
    """Wait for the statement at most `grace_s`, and no longer than its own timeout. Raises OnclusterError."""
    timeout_s = workspace.patience(run, ref).timeout_s
    deadline_s = None if timeout_s < 0 else env.now_s() + timeout_s
    limit_s = grace_s if timeout_s < 0 else min(grace_s, timeout_s)
    session = KeeperHook(keeper_conn_id).session
    result = asyncio.run(wait_for_statement(workspace, session, run, ref, limit_s=limit_s))
    goes_on = result.at_limit and (deadline_s is None or env.now_s() < deadline_s)
    return FirstWait(result, timeout_s, deadline_s, goes_on)


def late_wait_of(context: Mapping[str, Any], *, env: Env) -> dict[str, Any] | None:
    """When people are to be told of the wait, for a trigger's arguments."""
    late = LateWait.of_task(context, after_s=_alert_after_s(), now_s=env.now_s())
    return late.to_json() if late else None


def _alert_after_s() -> float | None:
    try:
        return OperationSettings.from_environment().wait_alert_s
    except ConfigError as error:
        # A typing error in a setting of alerts does not stop a migration.
        log.error("migration.no_alert %s", error)
        return None
