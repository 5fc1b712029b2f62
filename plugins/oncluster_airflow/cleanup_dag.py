"""The DAG that takes away what nobody needs any more, and the one that gives a host up.

    cleanup         choose → [cluster]  plan → approve → act
    abandon_tasks   choose → [cluster]  plan → approve → act

Run by hand, `cleanup` only shows its plan, unless the form says otherwise. On a schedule it does what the
settings allow: show, or take away what needs nobody's approval.
"""

from __future__ import annotations

from airflow.sdk import Param

from engine.operations.cleanup import BrokenFilesFate, CleanupKind
from oncluster_airflow.operation_dag import Covers, Operation, lines_param, mode_param, tasks
from oncluster_airflow.operation_plan import Mode
from oncluster_airflow.operators.cleanup import (
    ActAbandonOperator,
    ActCleanupOperator,
    PlanAbandonOperator,
    PlanCleanupOperator,
)
from oncluster_airflow.settings import OperationSettings

CLEANUP_DAG = "cleanup"
ABANDON_DAG = "abandon_tasks"

_CLEANUP_DOC = """
Takes away old entries of the DDL queue, replicas and tables that are gone, and parts that servers set aside.

* **plan** what would go, and on which proof. Entries with an active or unfinished task never go; what expired
  unfinished is recorded for each host, and people are told.
* **approve** waits for an answer (*What to do*: `act`)
* **act** looks at each proof again, and records each act before it happens

The same from a terminal: `oncluster cleanup plan`, `oncluster cleanup apply`.
"""

_ABANDON_DOC = """
Says of a host that it will never do what waits for it, so that nobody waits any more.

It is an outcome of its own, with your name and your reason: not done, not failed. Of a host that answers or
is active it takes only what expired for it, as dealt with. Nothing is written where the host itself reports.

The same from a terminal: `oncluster cleanup abandon`.
"""


def cleanup(settings: OperationSettings) -> Operation:
    return Operation(
        dag_id=CLEANUP_DAG,
        title="Takes away queue entries, replicas, tables and detached parts that nobody needs",
        doc=_CLEANUP_DOC,
        fill=tasks(PlanCleanupOperator, ActCleanupOperator),
        params={
            "mode": mode_param(Mode.PLAN, Mode.SAFE, Mode.ACT),
            "kinds": Param(
                [],
                type="array",
                items={"type": "string", "enum": [kind.value for kind in CleanupKind]},
                examples=[kind.value for kind in CleanupKind],
                title="Kinds",
                description="None means all of them.",
            ),
            "gone": lines_param(
                "Hosts that are gone for good",
                "One a line, with the reason: `node05 = sold`. Nobody waits for them.",
            ),
            "gone_after_hours": Param(
                24,
                type="number",
                minimum=0,
                title="Replicas go after (hours)",
                description="Inactive for so long, without one activation between.",
                section="More",
            ),
            "detached_after_days": Param(
                7, type="number", minimum=0, title="Detached parts go after (days)", section="More"
            ),
            "broken_files": Param(
                BrokenFilesFate.STAY.value,
                type="string",
                enum=[fate.value for fate in BrokenFilesFate],
                title="Broken files of Distributed tables",
                description="restore: those that are whole are sent again. drop: they go, with their rows.",
                section="More",
            ),
            "ddl_keep_entries": Param(
                None,
                type=["null", "integer"],
                minimum=0,
                title="Entries to keep in the queue",
                description="Finished ones go earlier than the queue's own limits say. Empty: as they say.",
                section="More",
            ),
        },
        schedule=settings.cleanup_schedule,
        deadline_s=settings.deadline_s,
    )


def abandon(settings: OperationSettings) -> Operation:
    return Operation(
        dag_id=ABANDON_DAG,
        title="Gives up on the tasks of a host that will not come back",
        doc=_ABANDON_DOC,
        fill=tasks(PlanAbandonOperator, ActAbandonOperator),
        covers=Covers.ONE,
        params={
            "host": Param("", type="string", title="Host", description="`node05`, or `node05:9000`."),
            "reason": Param("", type="string", title="Reason", description="It stays with the tasks."),
            "entries": lines_param(
                "Entries",
                "`query-0000000007`, one a line. None: all that wait for the host.",
                section="More",
            ),
            "mode": mode_param(Mode.PLAN, Mode.ACT),
        },
        deadline_s=settings.deadline_s,
    )
