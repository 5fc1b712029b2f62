"""The tasks of the Keeper backup DAG and of the restore. How a backup is made, checked and restored is the
engine's business (`engine.operations.keeper_backup`).

A dump that is interrupted is continued by the next try. Backups stand in one folder, that of the settings; a
restore takes a file from there and from nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

from airflow.sdk import BaseOperator, Context

from engine.env import SystemEnv
from engine.errors import ConfigError, Corrupt, OnclusterError
from engine.operations.act import Plan
from engine.operations.carrying_out import Performer
from engine.operations.keeper_backup import BackupFacts, Phase, dump_tree, open_backup
from engine.operations.keeper_backup.acts import plan_restore, restore_performer
from engine.operations.keeper_backup.keeping import (
    backup_name,
    backups_in,
    label_of,
    prune_backups,
    unfinished_in,
)
from engine.operations.keeper_backup.zookeeper_source import name_of, patient_keeper
from engine.operations.site import Site
from oncluster_airflow.errors import as_airflow_error
from oncluster_airflow.form import refuse_unknown_parameters
from oncluster_airflow.hooks.keeper import KeeperHook
from oncluster_airflow.operators.operation import ActOperator, PlanOperationOperator
from oncluster_airflow.settings import KEEPER_CONN_ID, OperationSettings

T = TypeVar("T")

DUMP_TASK = "dump"
_LOG_EVERY = 20_000


class BackupOperator(BaseOperator):
    """A task of the backup DAG."""

    ui_color = "#e3f2e1"

    def __init__(self, *, keeper_conn_id: str = KEEPER_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.keeper_conn_id = keeper_conn_id

    def run_engine(self, work: Awaitable[T]) -> T:
        """Raises TaskUnavailable (retried), TaskRefused."""

        async def run() -> T:
            return await work

        try:
            return asyncio.run(run())
        except OnclusterError as error:
            raise as_airflow_error(error) from error


class DumpKeeperOperator(BackupOperator):
    """Writes the tree below the form's root into a file; continues one that was begun. Returns its name and
    what the file says about itself."""

    def execute(self, context: Context) -> dict[str, Any]:
        refuse_unknown_parameters(context)
        params: Any = context["params"]
        root = str(params.get("root") or "/")
        folder = OperationSettings.from_environment().backup_folder
        folder.mkdir(parents=True, exist_ok=True)
        dag_run: Any = context["dag_run"]
        begun = unfinished_in(folder, label_of(root))
        # The name follows from the run, so that a task that died after its last step finds its file.
        path = begun or folder / backup_name(label_of(root), dag_run.run_after.timestamp())
        facts = self.run_engine(self._dump(path, root))
        self.log.info(
            "%s: %d nodes, %d of them ephemeral; %s",
            path,
            facts.nodes,
            facts.ephemeral,
            "of one instant"
            if facts.is_of_one_instant
            else f"{facts.changing_count} nodes changed meanwhile and are of a later moment",
        )
        if facts.unreadable:
            self.log.warning("%d nodes could not be read; they are named without value", facts.unreadable)
        return {"file": path.name, "root": root, "digest": facts.digest, "nodes": facts.nodes}

    async def _dump(self, path: Path, root: str) -> BackupFacts:
        if path.exists():
            return open_backup(path).facts
        env = SystemEnv()
        section = await KeeperHook(self.keeper_conn_id).aconfig()
        async with patient_keeper(section, env) as source:
            return await dump_tree(
                source, path, root=root, source_name=name_of(section), env=env, progress=self._progress
            )

    def _progress(self, phase: Phase, done: int, total: int) -> None:
        if done % _LOG_EVERY == 0 or done == total:
            self.log.info("%s: %d%s", phase.value, done, f" of {total}" if total else "")


class VerifyBackupOperator(BackupOperator):
    """Reads every byte of the file again and checks it."""

    def execute(self, context: Context) -> int:
        dumped = _dumped(context)
        path = OperationSettings.from_environment().backup_folder / dumped["file"]
        facts = self.run_engine(self._open(path))
        if facts.digest != dumped["digest"]:
            error = Corrupt(
                f"{path} is another file than the one that was written.", hint="Make a new backup."
            )
            raise as_airflow_error(error)
        self.log.info("%s is whole: %d nodes, digest %s", path, facts.nodes, facts.digest)
        return facts.nodes

    async def _open(self, path: Path) -> BackupFacts:
        return open_backup(path).facts


class PruneBackupsOperator(BackupOperator):
    """Removes the oldest finished backups of this root; nothing, when one that stays is damaged."""

    def execute(self, context: Context) -> list[str]:
        params: Any = context["params"]
        settings = OperationSettings.from_environment()
        wanted = params.get("keep")
        keep = settings.backup_keep if wanted is None else int(wanted)
        removed = self.run_engine(
            self._prune(settings.backup_folder, keep, label_of(str(_dumped(context)["root"])))
        )
        self.log.info("removed: %s", ", ".join(removed) or "none")
        return removed

    async def _prune(self, folder: Path, keep: int, label: str) -> list[str]:
        return [path.name for path in prune_backups(folder, keep=keep, label=label)]


class PlanRestoreOperator(PlanOperationOperator):
    """Checks the file and says what would be made where."""

    async def make_plan(self, site: Site, context: Context) -> Plan:
        params: Any = context["params"]
        folder = OperationSettings.from_environment().backup_folder
        path = backup_in(folder, str(params.get("file") or ""))
        root = str(params.get("root") or "")
        if not root.startswith("/"):
            raise ConfigError(
                "The form does not say below which node to restore.",
                hint="Give a path such as /restored; it must not hold anything else.",
            )
        return plan_restore(site, path, root=root)


class ActRestoreOperator(ActOperator):
    """Makes the nodes, and compares with the backup."""

    def performer(self, site: Site, context: Context) -> Performer:
        return restore_performer(site)


def backup_in(folder: Path, name: str) -> Path:
    """A finished backup of the folder by its name. Raises ConfigError that names the newest."""
    found = {path.name: path for path in (backups_in(folder) if folder.is_dir() else [])}
    if name in found:
        return found[name]
    newest = ", ".join(list(found)[-5:]) or "none"
    raise ConfigError(
        f"There is no backup {name!r} in {folder}." if name else "The form names no backup.",
        hint=f"The newest are: {newest}.",
    )


def _dumped(context: Context) -> dict[str, Any]:
    ti: Any = context["ti"]
    dumped: dict[str, Any] = ti.xcom_pull(task_ids=DUMP_TASK)
    return dumped
