"""Run ids that are used a second time. The ledger knows a run by its id, and takes what a run of that id has
done for done; Airflow lets an id be given again when its run was deleted, or the database is a new one."""

from __future__ import annotations

import datetime
from typing import Any

from airflow.sdk import Context

from engine.migrations.errors import MigrationRefused
from oncluster_airflow.workspace import Workspace

# A run is recorded after it was triggered, by clocks that may differ a little.
_CLOCKS_MS = 60_000


def require_new_id(context: Context, workspace: Workspace) -> None:
    """Raises MigrationRefused when the ledger has a run of this id from before this one was triggered. Tasks
    that are cleared leave the run's own time as it is."""
    dag_run: Any = context["dag_run"]
    triggered_ms = dag_run.run_after.timestamp() * 1000
    for run in workspace.ledger.runs(workspace.cluster):
        if run.run_id == dag_run.run_id and run.at_ms < triggered_ms - _CLOCKS_MS:
            at = datetime.datetime.fromtimestamp(run.at_ms / 1000, tz=datetime.UTC)
            raise MigrationRefused(
                f"The ledger has a run {run.run_id} of {at:%Y-%m-%d %H:%M} UTC already, from before this one "
                "was triggered: what that one has done would count as done by this one.",
                hint="Trigger it with another run id.",
            )
