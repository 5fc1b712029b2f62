"""Waits in the triggerer for one statement of a migration and records its outcomes in the ledger.

Arguments: the run, the statement, the id of the Keeper connection. The ledger's address comes from the
environment of the triggerer, so no secret stands in Airflow's database. A restarted triggerer re-enters
the run and goes on. Nothing is sent and nothing is cancelled from here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from engine.env import Env, SystemEnv
from engine.errors import Corrupt, Refused, Unavailable
from engine.keeper.base import Keeper
from engine.migrations.model import Run, StatementRef
from engine.migrations.states import LedgerRow
from oncluster_airflow.cleared import close_again
from oncluster_airflow.deadlines import unfinished_hosts
from oncluster_airflow.hooks.keeper import KeeperHook, open_session
from oncluster_airflow.late_wait import LateWait, told_when_late
from oncluster_airflow.migration_wait import wait_for_statement, workspace_in_time
from oncluster_airflow.outcomes import WaitResult, WaitState
from oncluster_airflow.own_loop import on_own_loop
from oncluster_airflow.reporting import event_of, refusal_of
from oncluster_airflow.settings import Settings
from oncluster_airflow.workspace import Workspace

# A triggerer that was down over the deadline looks all the same, once.
_LEAST_S = 5.0

FAILING_STATES = frozenset({WaitState.FAILED, WaitState.ABANDONED, WaitState.TIMEOUT, WaitState.GONE})


class MigrationStatementTrigger(BaseTrigger):
    """Fires when the statement needs no more waiting, or at `deadline_s` (Unix seconds; None: never).

    `closes`: the task was cleared alone when its run was over (`oncluster_airflow.cleared`)."""

    def __init__(
        self,
        *,
        keeper_conn_id: str,
        cluster: str,
        run: dict[str, Any],
        ref: dict[str, Any],
        deadline_s: float | None,
        folder: str | None = None,
        late: dict[str, Any] | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keeper_conn_id = keeper_conn_id
        self.cluster = cluster
        self.run_json = run
        self.ref_json = ref
        self.deadline_s = deadline_s
        self.folder = folder
        self.late = late
        self.closes = closes
        self._env: Env = SystemEnv()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "keeper_conn_id": self.keeper_conn_id,
                "cluster": self.cluster,
                "run": self.run_json,
                "ref": self.ref_json,
                "deadline_s": self.deadline_s,
                "folder": self.folder,
                "late": self.late,
                "closes": self.closes,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            async with told_when_late(LateWait.from_json(self.late), self._known, env=self._env):
                result = await self._wait()
        except (Refused, Corrupt) as error:
            yield refusal_of(error)
            return
        yield await self.ending(result)

    def ends_task(self, result: WaitResult) -> bool:
        """Whether the task does no more work after this."""
        return True

    async def ending(self, result: WaitResult) -> TriggerEvent:
        """What is fired when the wait is over."""
        return event_of(result, self.log, fails=result.state in FAILING_STATES)

    def _known(self) -> WaitResult:
        ref = StatementRef.from_json(self.ref_json)
        step = Run.from_json(self.run_json).step(ref.version)

        def is_waited_for(row: LedgerRow) -> bool:
            """Whichever run has sent it."""
            return (row.version, row.direction, row.statement) == (
                ref.version,
                ref.direction,
                ref.statement,
            ) and (step is None or row.generation == step.generation)

        found = unfinished_hosts(
            Settings.from_environment(),
            self.cluster,
            lambda ledger: filter(is_waited_for, ledger.rows(self.cluster)),
        )
        return found or WaitResult(WaitState.TIMEOUT, str(ref))

    async def _wait(self) -> WaitResult:
        hook, here = KeeperHook(self.keeper_conn_id), asyncio.get_running_loop()
        with contextlib.suppress(Unavailable):
            await hook.latest_config()  # refused at once where there is none
        run, ref = Run.from_json(self.run_json), StatementRef.from_json(self.ref_json)

        def limit_s() -> float | None:
            return None if self.deadline_s is None else max(0.0, self.deadline_s - self._env.now_s())

        @contextlib.asynccontextmanager
        async def session() -> AsyncIterator[Keeper]:
            """With the connection as it is by now. Only the triggerer's own loop has the way to it."""
            asked = asyncio.run_coroutine_threadsafe(hook.latest_config(), here)
            async with open_session(await asyncio.wrap_future(asked)) as keeper:
                yield keeper

        def open_workspace() -> Workspace:
            return Workspace.open(self.cluster, folder=self.folder)

        async def wait() -> WaitResult:
            found = await workspace_in_time(
                open_workspace,
                ref,
                limit_s=None if (left := limit_s()) is None else max(left, _LEAST_S),
                env=self._env,
            )
            if isinstance(found, WaitResult):
                return found
            try:
                result = await wait_for_statement(found, session, run, ref, limit_s=limit_s())
            except (Refused, Corrupt):
                if self.closes:
                    await close_again(found, session, run)
                raise
            if self.closes and self.ends_task(result):
                await close_again(found, session, run)
            return result

        return await on_own_loop(wait, name=f"oncluster-wait-{self.cluster}")


class EarlierStatementTrigger(MigrationStatementTrigger):
    """For a task that has further statements to send: a good end resumes it, too.

    Not before `resume_at_s` (Unix seconds), when the worker's slot of the task that deferred is free for
    sure: Airflow fails a task that is resumed sooner and has work to do (apache/airflow issue 72716).
    """

    def __init__(self, *, resume_at_s: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.resume_at_s = resume_at_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path, arguments = super().serialize()
        return path, {**arguments, "resume_at_s": self.resume_at_s}

    def ends_task(self, result: WaitResult) -> bool:
        return result.state in FAILING_STATES

    async def ending(self, result: WaitResult) -> TriggerEvent:
        await self._env.sleep(max(0.0, self.resume_at_s - self._env.now_s()))
        return TriggerEvent(result.to_json())  # type: ignore[no-untyped-call]
