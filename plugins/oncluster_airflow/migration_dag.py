"""One migration DAG per cluster folder.

    lint → plan → rehearse → approve → begin → up:   v0001: submit_1 → wait_1 → submit_2 → wait_2 → …
                                             ↘ down: … → v0002: … → v0001: …
                                               … → applied (an Asset) → close (always; gives the lock back)
                                                                      → verdict (always; is it a success?)

The statements are tasks of their own, made from the files when the DAG file is read, so that the UI shows
each by name. They are one chain per direction: a statement is sent only when all before it are done. Tasks
of statements that a run does not concern are skipped. Nothing but file reads happens here; Keeper, ledger
and nodes are asked by tasks.

A folder that cannot be read becomes a DAG that says why, so that the other clusters' DAGs are not lost
with it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, BaseOperator, Param, TaskGroup, TriggerRule, get_parsing_context
from airflow.sdk.definitions.deadline import DeadlineAlert

from engine.ddl.output import DEFAULT_TIMEOUT_S, OutputMode
from engine.errors import OnclusterError
from engine.migrations.errors import MigrationFilesError
from engine.migrations.files import (
    MAX_VERSION,
    Direction,
    Migration,
    MigrationSet,
    Script,
    ScriptStatement,
    cluster_folders,
    load_folder,
)
from engine.sql import parse_statement
from oncluster_airflow.deadlines import deadline_of
from oncluster_airflow.form import with_form
from oncluster_airflow.ids import as_id, asset_uri
from oncluster_airflow.notifier import ApprovalWantedNotifier, OnclusterNotifier
from oncluster_airflow.operators.approval import ApproveMigrationOperator
from oncluster_airflow.operators.begin import APPROVE_TASK, BEGIN_TASK, PLAN_TASK
from oncluster_airflow.operators.earlier import EarlierMigrationsOperator
from oncluster_airflow.operators.migration import (
    AppliedOperator,
    BeginOperator,
    CloseOperator,
    SubmitMigrationStatementOperator,
)
from oncluster_airflow.operators.planning import LintOperator, PlanOperator, RehearseOperator
from oncluster_airflow.operators.verdict import VerdictOperator
from oncluster_airflow.sensors.migration import MigrationStatementSensor
from oncluster_airflow.settings import KEEPER_CONN_ID, OperationSettings, Settings
from oncluster_airflow.waiting import LONGEST_LIMIT_S

log = logging.getLogger(__name__)

_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_.-]+")
# A statement's, in its direction and migration.
_STATEMENT_TASK = re.compile(r"(up|down)\.[^.]+\.(submit|wait)_\d+")
# One try more for what a moment may cure; refusals and failures of the migration itself are never retried.
_RETRIES = 2
_RETRY_DELAY_S = 5.0


def migration_dags(folder: Path | None = None) -> Iterator[DAG]:
    """A DAG for each folder in the migrations folder, by name. No folders: no DAGs, and a warning in the log.

    When Airflow reads the file to run one task, only that task's DAG is made, and of the migrations in it
    only the task's own.
    """
    root = folder or Settings.from_environment().migrations
    folders = cluster_folders(root)
    if not folders:
        log.warning("migrations.none folder=%s: make a folder there, named like a cluster", root)
    wanted = get_parsing_context()
    for path in folders:
        if wanted.dag_id in (None, dag_id_of(path.name)):
            try:
                yield migration_dag(path, for_task=wanted.task_id)
            except Exception:  # whatever it is, it must not take the other clusters' DAGs with it
                log.exception("migrations.no_dag folder=%s", path)


def migration_dag(folder: Path, *, keeper_conn_id: str = KEEPER_CONN_ID, for_task: str | None = None) -> DAG:
    """The DAG of one cluster's folder; the folder's name is the cluster's.

    For the task of a statement, other migrations are left out: every statement has two tasks, and each of
    them would make those of all others.
    """
    try:
        # The name as it stands here, also of a link: by it the file is read again for one DAG only.
        migrations = load_folder(folder, cluster=folder.name)
    except MigrationFilesError as error:
        log.error("migrations.unusable folder=%s\n%s", folder, error)
        return _broken_dag(folder, error)
    return _Builder(migrations, keeper_conn_id, for_task).build()


def dag_id_of(cluster: str) -> str:
    return f"migrate_{as_id(cluster)}"


def schema_asset(cluster: str) -> Asset:
    """Updated when migrations of the cluster were applied or rolled back on every host; DAGs that load
    data can be scheduled on it."""
    return Asset(name=f"schema_{as_id(cluster)}", uri=asset_uri(cluster, "schema"))


def parameters() -> dict[str, Param]:
    """The form."""
    return {
        "target_version": Param(
            None,
            type=["null", "integer"],
            minimum=-1,
            maximum=MAX_VERSION,
            title="Target version",
            description="Up: apply everything up to this version; empty: all. "
            "Down: undo everything above it; empty: only the last migration; -1: everything.",
        ),
        "direction": Param("up", type="string", enum=[item.value for item in Direction], title="Direction"),
        "plan_only": Param(
            False, type="boolean", title="Plan only", description="Show what would be done and stop."
        ),
        "timeout": Param(
            DEFAULT_TIMEOUT_S,
            type="integer",
            minimum=-LONGEST_LIMIT_S,
            maximum=LONGEST_LIMIT_S,
            title="Timeout (seconds)",
            description="How long each statement is waited for (distributed_ddl_task_timeout). "
            "0: not at all; negative: for ever. A timeout stops the run, not the statement. "
            "A file's own option goes first.",
        ),
        "output_mode": Param(
            OutputMode.THROW.value,
            type="string",
            enum=[mode.value for mode in OutputMode],
            title="Output mode",
            description="distributed_ddl_output_mode. With *_only_active the run goes on without hosts "
            "that are off line; they catch up by themselves. A host that fails stops the run in every mode.",
        ),
        "retry_failed": Param(
            False,
            type="boolean",
            title="Retry failed",
            description="Send statements that failed once more, to the hosts where they failed.",
            section="More",
        ),
        "rehearse": Param(
            True,
            type="boolean",
            title="Rehearse",
            description="First run the migration up, up again and down on a scratch database of this "
            "machine.",
            section="More",
        ),
        "allow_gaps": Param(False, type="boolean", title="Allow gaps in the versions", section="More"),
        "allow_out_of_order": Param(
            False, type="boolean", title="Allow versions below the newest applied one", section="More"
        ),
    }


class _Builder:
    def __init__(self, migrations: MigrationSet, keeper_conn_id: str, for_task: str | None) -> None:
        self._migrations = migrations
        # Other tasks name those that they skip, and need all of them.
        is_statement = for_task is not None and _STATEMENT_TASK.fullmatch(for_task) is not None
        self._for_task = for_task if is_statement else None
        self._cluster = migrations.cluster
        self._own = migrations.migrations[-Settings.from_environment().own_tasks :]
        self._earlier = migrations.migrations[: -len(self._own)]
        self._width = max(4, *(len(str(version)) for version in migrations.versions))
        self._common: dict[str, Any] = {
            "cluster": migrations.cluster,
            "folder": str(migrations.folder),
            "keeper_conn_id": keeper_conn_id,
        }

    def build(self) -> DAG:
        with _dag(self._cluster, doc=self._doc()) as dag:
            lint = LintOperator(task_id="lint", **self._common)
            plan = PlanOperator(task_id=PLAN_TASK, **self._common)
            rehearse = RehearseOperator(task_id="rehearse", **self._common)
            approve = ApproveMigrationOperator(
                task_id=APPROVE_TASK,
                cluster=self._cluster,
                trigger_rule=TriggerRule.NONE_FAILED,
                notifiers=[ApprovalWantedNotifier()],
            )
            begin = BeginOperator(task_id=BEGIN_TASK, trigger_rule=TriggerRule.NONE_FAILED, **self._common)
            applied = AppliedOperator(
                task_id="applied",
                trigger_rule=TriggerRule.NONE_FAILED,
                outlets=[schema_asset(self._cluster)],
                **self._common,
            )
            close = CloseOperator(task_id="close", **self._common)
            # Who ended the run, and was told how it stands, is told nothing by another failure.
            verdict = VerdictOperator(task_id="verdict", close_task=close.task_id, on_failure_callback=[])
            lint >> plan >> rehearse >> approve >> begin >> applied >> close >> verdict
            for direction in Direction:
                self._lane(direction, begin, applied)
            # A teardown: it runs whatever happened and does not decide how the run ends. Not
            # bound to `begin` as its setup, since Airflow wants a setup's successors to have
            # the trigger rule all_success.
            close.as_teardown()
            # Behind `close` and not beside it: `applied` still decides, too.
            verdict.as_teardown(on_failure_fail_dagrun=True)
        return with_form(dag, parameters())

    def _lane(self, direction: Direction, begin: BaseOperator, applied: BaseOperator) -> None:
        """All statements of one direction in their order. Each migration is an upstream of `applied`,
        because the tasks at the end may be skipped before those in the middle are done."""
        ordered: Iterable[Migration] = self._own
        if direction is Direction.DOWN:
            ordered = reversed(self._own)
        before = begin
        with TaskGroup(group_id=direction.value, tooltip=f"Migrations {direction}"):
            if direction is Direction.UP:
                before = self._earlier_ones(direction, before)
            for migration in ordered:
                script = migration.script(direction)
                if script is None or not script.statements:
                    continue
                if not self._is_needed(direction, migration):
                    continue
                before = self._migration(migration, script, before)
                before >> applied
            if direction is Direction.DOWN:
                before = self._earlier_ones(direction, before)
            if before is not begin:
                before >> applied

    def _earlier_ones(self, direction: Direction, before: BaseOperator) -> BaseOperator:
        """One task for all migrations that are too old to be shown; none where there are none."""
        if not self._earlier:
            return before
        count = len(self._earlier)
        earlier = EarlierMigrationsOperator(
            task_id="earlier",
            task_display_name=f"{count} earlier migrations",
            trigger_rule=TriggerRule.NONE_FAILED,
            direction=direction.value,
            below=self._own[0].version,
            **self._common,
        )
        before >> earlier
        return earlier

    def _is_needed(self, direction: Direction, migration: Migration) -> bool:
        group = f"{direction.value}.{self._group_id(migration)}"
        return self._for_task is None or self._for_task.rpartition(".")[0] == group

    def _group_id(self, migration: Migration) -> str:
        title = _NOT_IN_IDS.sub("_", migration.title)[:80] or "untitled"
        return f"v{migration.version:0{self._width}d}_{title.replace('.', '_')}"

    def _migration(self, migration: Migration, script: Script, before: BaseOperator) -> BaseOperator:
        with TaskGroup(group_id=self._group_id(migration), tooltip=script.path.name):
            for statement in script.statements:
                before = self._statement(migration, script, statement, before)
        return before

    def _statement(
        self, migration: Migration, script: Script, statement: ScriptStatement, before: BaseOperator
    ) -> BaseOperator:
        what = describe(statement)
        where: dict[str, Any] = {
            **self._common,
            "version": migration.version,
            "direction": script.direction.value,
            "statement": statement.index,
        }
        submit = SubmitMigrationStatementOperator(
            task_id=f"submit_{statement.index}",
            task_display_name=what,
            trigger_rule=TriggerRule.NONE_FAILED,
            doc_md=f"`{script.path.name}`, line {statement.line}",
            **where,
        )
        wait = MigrationStatementSensor(
            task_id=f"wait_{statement.index}", task_display_name=f"wait: {what}", **where
        )
        before >> submit >> wait
        return wait

    def _doc(self) -> str:
        versions = self._migrations.versions
        return (
            f"Applies the migrations of `{self._cluster}` ({len(versions)} versions, the newest is "
            f"{versions[-1]}) with ON CLUSTER statements, one after another, each on every host.\n\n"
            "Trigger it and fill in the form. `plan` shows per host what would be done. Clearing a failed "
            "`wait` task is safe: it attaches to the statement that is already in the queue."
        )


def describe(statement: ScriptStatement) -> str:
    """A name for people: the kind and the object, such as `ALTER flights.flights`."""
    parsed = parse_statement(statement.sql)
    kind = str(parsed.kind.value).replace("_", " ").upper()
    objects = ", ".join(str(name) for name in parsed.tables[:2]) or (parsed.database or "")
    return f"{kind} {objects}".strip()[:100]


def _dag(cluster: str, *, doc: str, tags: Sequence[str] = ()) -> DAG:
    return DAG(
        dag_id=dag_id_of(cluster),
        description=f"Schema migrations of {cluster}",
        doc_md=doc,
        schedule=None,
        catchup=False,
        max_active_runs=1,
        deadline=_deadline(cluster),
        tags=["oncluster", "migration", *tags],
        render_template_as_native_obj=False,
        default_args={
            "retries": _RETRIES,
            "retry_delay": _RETRY_DELAY_S,
            "on_failure_callback": [OnclusterNotifier()],
        },
    )


def _deadline(cluster: str) -> list[DeadlineAlert]:
    try:
        after_s = OperationSettings.from_environment().deadline_s
    except OnclusterError as error:
        # Somebody's typing error in a setting of operations is no reason to have no migrations.
        log.error("migrations.no_deadline %s", error)
        return []
    return deadline_of(after_s, cluster=cluster)


def _broken_dag(folder: Path, error: MigrationFilesError) -> DAG:
    """A DAG whose only task fails with what is wrong with the folder.

    No good DAG has a task of that name: a run that is under way when its folder becomes unusable loses all
    its other tasks, and would end as a success if this one had been done.
    """
    problems = "\n".join(f"- {problem}" for problem in error.problems)
    with _dag(
        folder.name,
        doc=f"**These migrations cannot be used:**\n\n{problems}\n\nRepair the files; the DAG follows by "
        "itself.",
        tags=["broken"],
    ) as dag:
        LintOperator(task_id="unusable", cluster=folder.name, folder=str(folder))
    return dag
