"""The plugin as Airflow registers it: by an entry point where this project is installed, else by the file in
the plugins folder.

Importing its parts here loads them once in the scheduler, so that each task, forked from it, starts with them
in memory.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

import oncluster_airflow.migration_dag
import oncluster_airflow.operation_dags
import oncluster_airflow.operators
import oncluster_airflow.sensors
import oncluster_airflow.triggers  # noqa: F401
from oncluster_airflow.web import plugin as page


class OnclusterPlugin(AirflowPlugin):
    """ON CLUSTER migrations for clusters that speak ClickHouse, and a page that shows the clusters."""

    name = "oncluster"

    # Asked for by the API server only, and made when it asks.
    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return page.fastapi_apps()

    @property
    def external_views(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return page.external_views()
