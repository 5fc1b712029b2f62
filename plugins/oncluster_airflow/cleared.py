"""Tasks that a person clears alone when their run is over.

Each task of a run takes up the run's lock, and `close` gives it back. A task that is cleared without those
after it, when `close` is done, would hold the lock until it runs out, and keep other runs waiting for a
quarter of an hour. Such a task closes the run again itself. Cleared with those after it, it leaves that to
`close`, which then has no state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import TaskDeferred

from engine.errors import OnclusterError
from engine.migrations.model import Run
from engine.migrations.states import RunState
from oncluster_airflow.hooks.keeper import KeeperHook
from oncluster_airflow.migration_wait import OpenSession
from oncluster_airflow.workspace import Workspace

log = logging.getLogger(__name__)

CLOSE_TASK = "close"
_OVER = ("success", "failed", "skipped", "upstream_failed")


def is_alone(context: Context, workspace: Workspace) -> bool:
    """Whether the run was closed before, and will not be after this task."""
    ti: Any = context["ti"]
    state = workspace.ledger.run_state(workspace.cluster, ti.run_id)
    if state is None or state is RunState.RUNNING:
        return False
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[CLOSE_TASK], run_ids=[ti.run_id])
    return str(states.get(ti.run_id, {}).get(CLOSE_TASK)) in _OVER


@contextlib.contextmanager
def closed_behind(context: Context, workspace: Workspace, run: Run, *, keeper_conn_id: str) -> Iterator[bool]:
    """Closes the run at the end of a task that is alone, good or bad; not where it goes on elsewhere. Gives
    whether it is alone."""
    alone = is_alone(context, workspace)
    try:
        yield alone
    except TaskDeferred:
        alone = False
        raise
    finally:
        if alone:
            asyncio.run(close_again(workspace, KeeperHook(keeper_conn_id).session, run))


async def close_again(workspace: Workspace, open_session: OpenSession, run: Run) -> None:
    """Record how the run stands and give its lock back. Where that cannot be done now, the lock runs out."""
    try:
        async with open_session() as keeper:
            runner = workspace.runner(keeper)
            await runner.finish(await runner.reenter(run))
    except OnclusterError as error:
        log.warning("migration.not_closed run=%s reason=%s", run.request.run_id, error)
