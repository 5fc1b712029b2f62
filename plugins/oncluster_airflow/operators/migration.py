"""The tasks of a migration DAG around the statements: begin, submit, close, and the mark that it is applied.

Safety. A run is the migration runner's (`engine.migrations.runner`, whose safety argument holds here);
each task is one of its steps in a process of its own and may run any number of times:

1. `begin` takes the cluster's migration lock as a lease that belongs to the run's id, checks that what it
   would send is exactly what `plan` showed and, where needed, what was approved. Killed in between: the retry
   re-enters.
2. `submit` sends one statement once, by a token that follows from the ledger. It checks the file against the
   checksum that `begin` recorded, and the hosts against those that were shown to who approved, since both may
   change while a run is under way.
3. `close` records how the run ended and gives the lock back. Killed before: the lease runs out by itself.
   A task that a person clears alone, when `close` is over, takes the lock and gives it back itself.
Nothing here goes on to a statement while one before it is unfinished: that is the order of the tasks. Where a
person marks a wait as successful the next one is sent, and hosts take both in the queue's order; the runner
refuses only what comes after a statement that was not sent or has failed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from airflow.sdk import BaseOperator, Context
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowSkipException

from engine.errors import Busy, OnclusterError
from engine.migrations.files import Direction
from engine.migrations.model import Progress, Run, RunSummary, StatementRef
from engine.migrations.runner import MigrationRunner
from engine.migrations.states import Event, RunState
from engine.wording import count
from oncluster_airflow.cleared import closed_behind, is_alone
from oncluster_airflow.errors import TaskRefused, as_airflow_error
from oncluster_airflow.hooks.keeper import KeeperHook
from oncluster_airflow.migration_wait import outcome_of
from oncluster_airflow.operators.approval import ASKED_KEY, approver_of
from oncluster_airflow.operators.begin import (
    APPROVE_TASK,
    MANIFEST_KEY,
    PLAN_KEY,
    PLAN_TASK,
    RUN_KEY,
    Begun,
    request_of,
    run_of,
)
from oncluster_airflow.outcomes import hosts_table, table
from oncluster_airflow.settings import KEEPER_CONN_ID
from oncluster_airflow.shown import Shown
from oncluster_airflow.workspace import Manifest, Workspace

T = TypeVar("T")

SUMMARY_KEY = "summary"


class MigrationOperator(BaseOperator):
    """A task of one cluster's migration DAG."""

    ui_color = "#fdf3d8"

    def __init__(
        self, *, cluster: str, folder: str | None = None, keeper_conn_id: str = KEEPER_CONN_ID, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self.folder = folder
        self.keeper_conn_id = keeper_conn_id

    def open_workspace(self) -> Workspace:
        return Workspace.open(self.cluster, folder=self.folder)

    def with_runner(self, workspace: Workspace, work: Callable[[MigrationRunner], Awaitable[T]]) -> T:
        """Run `work` with a runner on a session of its own."""

        async def run() -> T:
            async with KeeperHook(self.keeper_conn_id).session() as keeper:
                return await work(workspace.runner(keeper))

        return asyncio.run(run())

    def closed_behind(
        self, context: Context, workspace: Workspace, run: Run
    ) -> contextlib.AbstractContextManager[bool]:
        return closed_behind(context, workspace, run, keeper_conn_id=self.keeper_conn_id)

    def at_end(
        self, context: Context, work: Callable[[MigrationRunner, Begun], Awaitable[RunSummary]]
    ) -> tuple[Begun, RunSummary]:
        """What `work` makes of the run that `begin` has left. Raises AirflowSkipException if it left none."""
        begun = run_of(context)
        if begun is None:
            raise AirflowSkipException("The run did not begin.")
        try:
            workspace = self.open_workspace()
            with self.closed_behind(context, workspace, begun.run):
                return begun, self.with_runner(workspace, lambda runner: work(runner, begun))
        except OnclusterError as error:
            raise as_airflow_error(error) from error


class BeginOperator(MigrationOperator, SkipMixin):
    """Takes the lock, decides what is to be done, and skips the tasks of statements that are not.

    A second run while one is at work is refused with the name of the first.
    """

    inherits_from_skipmixin = True

    def execute(self, context: Context) -> None:
        ti: Any = context["ti"]
        planned = Manifest.from_json(ti.xcom_pull(task_ids=PLAN_TASK, key=MANIFEST_KEY) or [])
        request = request_of(context, approved_by=approver_of(context, APPROVE_TASK))
        if request.approved_by and ti.xcom_pull(task_ids=APPROVE_TASK, key=ASKED_KEY) != planned.checksum:
            # `plan` was run again after the answer.
            raise TaskRefused(
                f"{request.approved_by} approved another plan than this one. Clear `{APPROVE_TASK}` and what "
                "comes after it, to be asked about this one."
            )
        try:
            workspace = self.open_workspace()
            shown = Shown()
            if request.approved_by:
                shown = Shown.of_plan(ti.xcom_pull(task_ids=PLAN_TASK, key=PLAN_KEY))
                for ref in shown.statements:
                    shown.require_none_joined(workspace.topology, ref)
            alone = is_alone(context, workspace)
            run = self.with_runner(workspace, lambda runner: runner.begin(request))
            manifest = Manifest.of(workspace.migrations, run.refs)
            try:
                manifest.require_same_as(planned.without(finished_by(request.run_id, workspace)))
            except OnclusterError:
                alone = True
                raise
            finally:
                if alone:
                    self.with_runner(workspace, lambda runner: _end(runner, run))
        except Busy as error:
            # Not retried: the other run may take hours, and which of the two is wanted is for a
            # person to say.
            raise TaskRefused(str(error)) from error
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        ti.xcom_push(key=RUN_KEY, value=Begun(run, manifest, shown).to_json())
        statements, migrations = count(len(run.refs), "statement"), count(len(run.steps), "migration")
        self.log.info("begun: %s of %s", statements, migrations)
        self.skip(ti, tasks_outside(context["dag"], run))


def finished_by(run_id: str, workspace: Workspace) -> set[int]:
    """What the run itself has brought to its end already: `begin` was cleared in the middle of it."""
    return {
        event.version
        for event in workspace.ledger.events(workspace.cluster)
        if event.run_id == run_id and event.event in (Event.APPLIED, Event.ROLLED_BACK)
    }


def tasks_outside(dag: Any, run: Run) -> list[BaseOperator]:
    """Tasks to be skipped at once: the other direction, and what comes before the run's first statement or
    after its last.

    Tasks in between, of migrations that were applied out of order, are left to skip themselves when it is
    their turn: a task that is skipped at once would let its successor start too early.
    """
    outside = []
    refs = frozenset(run.refs)
    for direction in Direction:
        lane = [
            (task, ref)
            for task in dag.topological_sort()
            if (ref := statement_of(task)) is not None and ref.direction is direction
        ]
        wanted = [at for at, (_, ref) in enumerate(lane) if ref in refs]
        first, last = (wanted[0], wanted[-1]) if wanted else (len(lane), len(lane))
        shown = {ref for _, ref in lane}
        if wanted and any(ref.direction is direction and ref not in shown for ref in refs):
            # One task sends the older ones (`operators.earlier`); the chain between it and ours must hold.
            first, last = 0, len(lane)
        outside += [task for at, (task, _) in enumerate(lane) if not first <= at <= last]
    return outside


class SubmitMigrationStatementOperator(MigrationOperator):
    """Sends one statement of the run, or attaches to it when it was sent before."""

    def __init__(self, *, version: int, direction: str, statement: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.version = version
        self.direction = direction
        self.statement = statement

    @property
    def ref_json(self) -> dict[str, Any]:
        return {"version": self.version, "direction": self.direction, "statement": self.statement}

    def execute(self, context: Context) -> list[str]:
        ref = StatementRef.from_json(self.ref_json)
        begun = run_of(context)
        if begun is None or ref not in begun.run.refs:
            raise AirflowSkipException("Not part of this run.")
        try:
            workspace = self.open_workspace()
            begun.require_as_begun(workspace, ref)
            with self.closed_behind(context, workspace, begun.run):
                progress = self.with_runner(
                    workspace, lambda runner: submit_statement(runner, begun.run, ref)
                )
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        entries = sorted({row.entry for row in progress.rows if row.entry})
        self.log.info(
            "%s is in the queue as %s\n%s",
            ref,
            ", ".join(entries) or "nothing (done before)",
            hosts_table([outcome_of(row) for row in progress.rows]),
        )
        return entries


class AppliedOperator(MigrationOperator):
    """Updates the cluster's schema asset, once every host has everything.

    Skipped when hosts are missing that will catch up later; the run that finds them done updates the asset
    then.
    """

    def execute(self, context: Context) -> Any:
        begun, summary = self.at_end(context, _settle)
        if summary.state is not RunState.DONE or not summary.steps:
            raise AirflowSkipException(f"{summary.state}: {summary.note or 'nothing was left to do'}")
        extra = {
            "run_id": summary.run_id,
            "direction": begun.run.request.direction.value,
            "versions": [step.version for step in begun.run.steps],
        }
        events: Any = context["outlet_events"]
        for asset in self.outlets:
            events[asset].extra = extra
        return extra


class CloseOperator(MigrationOperator):
    """Records how the run ended, whatever happened, shows every host, and gives the lock back."""

    def execute(self, context: Context) -> Any:
        _, summary = self.at_end(context, _close)
        self.log.info(
            "run %s: %s %s\n%s", summary.run_id, summary.state, summary.note, summary_table(summary)
        )
        context["ti"].xcom_push(key=SUMMARY_KEY, value=summary.to_json())
        return str(summary.state)


def statement_of(task: object) -> StatementRef | None:
    """The statement a task is about; None for the other tasks of the DAG."""
    data = getattr(task, "ref_json", None)
    return None if data is None else StatementRef.from_json(data)


def summary_table(summary: RunSummary) -> str:
    """Migration × host, for the log."""
    return table(
        ("migration", "statement", "host", "state", "code", "ms", "error"),
        [
            (
                f"{row.version}_{row.title} {row.direction}",
                row.statement,
                row.host.readable,
                row.state,
                row.code or "",
                row.duration_ms,
                row.error[:200],
            )
            for row in summary.rows
        ],
    )


async def _end(runner: MigrationRunner, run: Run) -> None:
    """`close` knows nothing of a run that was refused here."""
    await runner.finish(await runner.reenter(run))


async def submit_statement(runner: MigrationRunner, run: Run, ref: StatementRef) -> Progress:
    """Send it, or attach to it, in this process."""
    return await runner.submit_statement(await runner.reenter(run), ref)


async def _settle(runner: MigrationRunner, begun: Begun) -> RunSummary:
    """Record what became known after a sensor gave up, and what is complete thereby."""
    run = await runner.reenter(begun.run)
    for ref in run.refs:
        await runner.collect(run, ref)
    for step in run.steps:
        await runner.finish_migration(run, step.version)
    return runner.summarise(run)


async def _close(runner: MigrationRunner, begun: Begun) -> RunSummary:
    await _settle(runner, begun)
    return await runner.finish(await runner.reenter(begun.run))
