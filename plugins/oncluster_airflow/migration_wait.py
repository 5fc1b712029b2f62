"""Waiting for one statement of a migration, and recording what is seen as soon as it is seen.

The steps are the runner's, which records each host's outcome in the ledger and renews the run's lease
while it waits. Here is only what a task adds: a limit, sessions that may end, and the end of the migration
after its last statement. Every part may be repeated; nothing is ever sent from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from engine.ddl.outcome import HostOutcome, HostState
from engine.env import Env
from engine.errors import OnclusterError, Unavailable, UnknownOutcome
from engine.keeper.base import Keeper
from engine.migrations.errors import MigrationRefused
from engine.migrations.model import Progress, Run, StatementRef
from engine.migrations.runner import MigrationRunner
from engine.migrations.states import CellState, LedgerRow
from engine.migrations.verdict import Verdict, judge
from oncluster_airflow.outcomes import WaitResult, WaitState, error_text
from oncluster_airflow.workspace import Workspace

log = logging.getLogger(__name__)

OpenSession = Callable[[], AbstractAsyncContextManager[Keeper]]

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 5.0
_LAST_LOOK_S = 5.0


async def wait_for_statement(
    workspace: Workspace, open_session: OpenSession, run: Run, ref: StatementRef, *, limit_s: float | None
) -> WaitResult:
    """Wait at most `limit_s` (None: as long as the statement's own timeout says). At the limit the state
    is TIMEOUT, or what the statement's output mode makes of it. Raises Refused and Corrupt."""
    trouble: OnclusterError | None = None
    delay_s = _FIRST_DELAY_S
    try:
        async with asyncio.timeout(limit_s):
            while True:
                try:
                    async with open_session() as keeper:
                        runner = workspace.runner(keeper)
                        held = await runner.reenter(run)
                        trouble, delay_s = None, _FIRST_DELAY_S
                        progress = await runner.wait(held, ref)
                        return await _finish(workspace, runner, held, progress, at_limit=False)
                except (Unavailable, UnknownOutcome) as error:
                    if trouble is None:
                        log.warning("migration.wait_interrupted statement=%s reason=%s", ref, error)
                    trouble = error
                await workspace.env.sleep(delay_s * (0.5 + workspace.env.rng.random()))
                delay_s = min(delay_s * 2, _LONGEST_DELAY_S)
    except TimeoutError:
        return await _last_look(workspace, open_session, run, ref, trouble)


async def workspace_in_time(
    open_workspace: Callable[[], Workspace], ref: StatementRef, *, limit_s: float | None, env: Env
) -> Workspace | WaitResult:
    """The workspace as soon as the ledger can be reached; at the limit a TIMEOUT that says why. Raises
    Refused and Corrupt."""
    trouble: OnclusterError | None = None
    delay_s = _FIRST_DELAY_S
    try:
        async with asyncio.timeout(limit_s):
            while True:
                try:
                    return await asyncio.to_thread(open_workspace)
                except Unavailable as error:
                    if trouble is None:
                        log.warning("migration.wait_interrupted statement=%s reason=%s", ref, error)
                    trouble = error
                await env.sleep(delay_s * (0.5 + env.rng.random()))
                delay_s = min(delay_s * 2, _LONGEST_DELAY_S)
    except TimeoutError:
        note = f"The ledger cannot be reached: {trouble}." if trouble else ""
        return WaitResult(WaitState.TIMEOUT, str(ref), note=note, at_limit=True)


async def _last_look(
    workspace: Workspace,
    open_session: OpenSession,
    run: Run,
    ref: StatementRef,
    trouble: OnclusterError | None,
) -> WaitResult:
    with contextlib.suppress(Unavailable, UnknownOutcome, TimeoutError):
        async with asyncio.timeout(_LAST_LOOK_S), open_session() as keeper:
            runner = workspace.runner(keeper)
            held = await runner.reenter(run)
            progress = await runner.collect(held, ref)
            return await _finish(workspace, runner, held, progress, at_limit=True)
    note = f"Keeper or the ledger cannot be reached: {trouble}." if trouble else ""
    return WaitResult(WaitState.TIMEOUT, str(ref), note=note, at_limit=True)


async def _finish(
    workspace: Workspace, runner: MigrationRunner, run: Run, progress: Progress, *, at_limit: bool
) -> WaitResult:
    ref = progress.ref
    verdict = progress.verdict
    if not progress.rows and verdict is not Verdict.DONE:
        raise MigrationRefused(
            f"{ref} was not sent by this run, or another run has rolled it back since.",
            hint="Clear its `submit` task, or begin a new run.",
        )
    if at_limit and verdict is Verdict.WAIT:
        verdict = judge(progress.rows, workspace.patience(run, ref), is_time_over=True)
    else:
        # A verdict that does not depend on the limit is final, even if it was seen at the last moment.
        at_limit = False
    step = run.step(ref.version)
    if verdict.goes_on and step is not None and ref.statement == step.statements:
        await runner.finish_migration(run, ref.version)
    return result_of(progress, verdict, at_limit=at_limit)


def result_of(progress: Progress, verdict: Verdict, *, at_limit: bool = False) -> WaitResult:
    """How it ended, in Airflow's words; GONE where no host failed, and what became of some is not known."""
    state = _STATES[verdict]
    bad = {row.state for row in progress.rows if row.state.is_failure}
    if state is WaitState.FAILED and CellState.FAILED not in bad:
        state = WaitState.ABANDONED if bad == {CellState.ABANDONED} else WaitState.GONE
    unknown = [row for row in progress.rows if row.state is CellState.UNKNOWN]
    lost = ", ".join(row.host.readable for row in unknown)
    return WaitResult(
        state,
        ", ".join(sorted({row.entry for row in progress.rows if row.entry})) or str(progress.ref),
        tuple(outcome_of(row) for row in progress.rows),
        note=f"Whether it was done on {lost} is not known. {error_text(outcome_of(unknown[0]))}".strip()
        if unknown
        else "",
        at_limit=at_limit,
    )


_STATES = {
    Verdict.DONE: WaitState.DONE,
    Verdict.PARTIAL: WaitState.PARTIAL,
    Verdict.WAIT: WaitState.TIMEOUT,
    Verdict.UNFINISHED: WaitState.TIMEOUT,
    Verdict.FAILED: WaitState.FAILED,
}


def outcome_of(row: LedgerRow) -> HostOutcome:
    """A row of the ledger as the queue's outcome, for tables and XCom."""
    state = HostState.WAITING if row.state is CellState.RECORDED else HostState(row.state.value)
    return HostOutcome(row.host, state, row.code, row.error, row.started_ms, row.finished_ms, row.duration_ms)
