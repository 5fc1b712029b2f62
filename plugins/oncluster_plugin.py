"""Airflow's entry into oncluster: everything is in the package `oncluster_airflow` beside this file.

Airflow imports every other module below `plugins` under its bare name, hence the package stands in
`.airflowignore`. Importing its parts here loads them once in the scheduler, so that each task, forked from
it, starts with them in memory.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

import oncluster_airflow.migration_dag
import oncluster_airflow.operators
import oncluster_airflow.sensors
import oncluster_airflow.triggers  # noqa: F401


class OnclusterPlugin(AirflowPlugin):
    """ON CLUSTER migrations for clusters that speak ClickHouse."""

    name = "oncluster"
