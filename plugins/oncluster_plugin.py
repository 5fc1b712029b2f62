"""Airflow's entry into oncluster where the project is not installed: everything is in the package
`oncluster_airflow` beside this file.

Airflow imports every other module below `plugins` under its bare name, hence the package stands in
`.airflowignore`. A plugin that is found twice is an error to Airflow, so where the project is installed it is
left to the entry point.
"""

from __future__ import annotations

from importlib.metadata import entry_points

if not entry_points(group="airflow.plugins", name="oncluster"):
    from oncluster_airflow.plugin import OnclusterPlugin  # noqa: F401
