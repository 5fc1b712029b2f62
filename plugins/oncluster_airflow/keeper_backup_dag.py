"""The DAG that backs Keeper up, and the one that restores a backup.

    keeper_backup    dump → verify → prune
    keeper_restore   choose → [cluster]  plan → approve → act

A restore is only ever started by hand, and approved.
"""

from __future__ import annotations

from airflow.sdk import BaseOperator, Param

from oncluster_airflow.operation_dag import Covers, Operation, mode_param, tasks
from oncluster_airflow.operation_plan import Mode
from oncluster_airflow.operators.keeper_backup import (
    DUMP_TASK,
    ActRestoreOperator,
    DumpKeeperOperator,
    PlanRestoreOperator,
    PruneBackupsOperator,
    VerifyBackupOperator,
)
from oncluster_airflow.settings import OperationSettings

BACKUP_DAG = "keeper_backup"
RESTORE_DAG = "keeper_restore"

_BACKUP_DOC = """
Writes Keeper's tree into one file, checks it, and removes the oldest files.

* **dump** what is interrupted is continued by the next try
* **verify** reads every byte again
* **prune** keeps the newest files; none goes as long as one that stays is damaged

The files stand in the folder that `ONCLUSTER_BACKUP_FOLDER` names on the machine where tasks run.
"""

_RESTORE_DOC = """
Makes the nodes of a backup below another, empty node of Keeper, and compares.

* **plan** checks the file and says what would be made
* **approve** waits for an answer
* **act** makes the nodes; ephemeral ones are left out, since they belong to sessions. Killed half-way it goes
  on where it was.

Restoring to where a cluster works needs a quiet cluster, and is for the command line.
"""


def backup(settings: OperationSettings) -> Operation:
    return Operation(
        dag_id=BACKUP_DAG,
        title="Backs Keeper's tree up into a file, and checks it",
        doc=_BACKUP_DOC,
        fill=_fill_backup,
        covers=Covers.KEEPER,
        params={
            "root": Param("/", type="string", title="Root", description="The node below which all is saved."),
            "keep": Param(
                None,
                type=["null", "integer"],
                minimum=1,
                title="Files to keep",
                description=f"Empty: as the settings say, {settings.backup_keep}.",
            ),
        },
        schedule=settings.backup_schedule,
        deadline_s=settings.deadline_s,
    )


def _fill_backup(_: str) -> BaseOperator:
    dump = DumpKeeperOperator(task_id=DUMP_TASK)
    dump >> VerifyBackupOperator(task_id="verify") >> PruneBackupsOperator(task_id="prune")
    return dump


def restore(settings: OperationSettings) -> Operation:
    return Operation(
        dag_id=RESTORE_DAG,
        title="Restores a backup of Keeper below an empty node",
        doc=_RESTORE_DOC,
        fill=tasks(PlanRestoreOperator, ActRestoreOperator),
        covers=Covers.ONE,
        params={
            "file": Param(
                "",
                type="string",
                title="File",
                description="The name of a backup in the folder, as the DAG keeper_backup returned it.",
            ),
            "root": Param(
                "",
                type="string",
                title="Restore below",
                description="A path such as /restored; nothing is there.",
            ),
            "mode": mode_param(Mode.PLAN, Mode.ACT),
        },
        deadline_s=settings.deadline_s,
    )
