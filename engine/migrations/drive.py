"""A whole run in one process: every step in order, as far as it goes.

Stops at the first statement that may not be passed (failed, or not finished in time); what was sent goes on
in the background, and the next `apply`, `rollback` or `status` takes it up. When the connection to Keeper is
lost for good the error is raised as it is and nothing is given back: the lock ends with the session. A run
that is interrupted, or ends with an error, is recorded as unfinished where the ledger can be reached.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Protocol

from engine.errors import OnclusterError
from engine.migrations.errors import TableNotMade
from engine.migrations.model import Progress, Run, RunRequest, RunSummary, Step
from engine.migrations.runner import MigrationRunner
from engine.migrations.states import MigrationRecord, RunState
from engine.sql import redact_prose


class Listener(Protocol):
    """Is told how a run goes; must not block."""

    def on_begin(self, run: Run) -> None: ...
    def on_statement(self, progress: Progress) -> None: ...
    def on_migration(self, step: Step, record: MigrationRecord) -> None: ...


@dataclass(frozen=True, slots=True)
class Silent:
    """Listens to nothing."""

    def on_begin(self, run: Run) -> None:
        return

    def on_statement(self, progress: Progress) -> None:
        return

    def on_migration(self, step: Step, record: MigrationRecord) -> None:
        return


async def drive(
    runner: MigrationRunner, request: RunRequest, *, listener: Listener | None = None
) -> RunSummary:
    """Begin, send and wait, finish. Raises what the steps raise; a refusal gives the lock back."""
    told: Listener = listener or Silent()
    run = await runner.begin(request)
    told.on_begin(run)
    try:
        for step in run.steps:
            if not await _drive_step(runner, run, step, told):
                break
            told.on_migration(step, await runner.finish_migration(run, step.version))
        return await runner.finish(run)
    except TableNotMade:
        await runner.finish(run)
        raise
    except OnclusterError as error:
        _leave(runner, run, error.message)
        await runner.abandon(run)
        raise
    except BaseException:  # a cancellation, or a listener whose reader has gone
        _leave(runner, run, "interrupted")
        raise


def _leave(runner: MigrationRunner, run: Run, why: str) -> None:
    """For the history only: whoever looks at the run later decides from what its hosts have done."""
    if run.lease is not None:
        with contextlib.suppress(OnclusterError):
            writer = runner.locked.writer(run.request.run_id, run.lease)
            writer.record_run_state(RunState.UNFINISHED, redact_prose(why))


async def _drive_step(runner: MigrationRunner, run: Run, step: Step, told: Listener) -> bool:
    """Whether the next migration may begin."""
    for ref in step.refs:
        told.on_statement(await runner.submit_statement(run, ref))
        progress = await runner.wait(run, ref, on_progress=told.on_statement)
        if not progress.verdict.goes_on:
            return False
    return True
