"""What Airflow's processes have in common, imported once: the four, and whatever sets up the database, are
forked from a process that has done it (`engine.testing.warm`), in a third of the processor's time.

Named here are modules and functions of Airflow 3.3; one that is not there costs time and nothing else. None
of them opens a connection or starts a thread. On other systems than Linux each process imports for itself.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path

from engine.testing.warm import WarmPython, is_possible

_PREPARED = (
    f"{__name__}:collect_seldom",
    "engine.local.airflow_patience:wait_as_fits",
    "engine.local.airflow_audit:write_in_threads",  # before any route is imported
    "airflow.cli.cli_parser",
    # Writes airflow.cfg, with its secrets: nobody races for it then.
    "airflow.configuration:write_default_airflow_configuration_if_needed",
    "airflow.models:import_all_models",
    "sqlalchemy.orm:configure_mappers",
    "airflow.cli.commands.db_command",
    "airflow.cli.commands.scheduler_command",
    "airflow.cli.commands.dag_processor_command",
    "airflow.cli.commands.triggerer_command",
    "airflow.cli.commands.api_server_command",
    "airflow.jobs.scheduler_job_runner",
    "airflow.jobs.triggerer_job_runner",
    "airflow.executors.local_executor",
    "airflow.dag_processing.manager",
    "airflow.sdk.execution_time.task_runner",
    "airflow.sdk.execution_time.supervisor",
    # The interface for tasks: three of the four have it inside them.
    "airflow.api_fastapi.app",
    "airflow.api_fastapi.execution_api.routes",
    "airflow.plugins_manager:ensure_plugins_loaded",
    # What each task, or each reading of a DAG's file, would otherwise import again.
    "oncluster_airflow.etl_dag",
    "airflow.version",
    "airflow.providers.common.io.version_compat",
    "airflow.providers.standard.operators.empty",
    "airflow.providers.standard.operators.trigger_dagrun",
    "airflow.providers.standard.sensors.external_task",
    "encodings.utf_8_sig",
    "jinja2.ext",
)


def collect_seldom() -> None:
    """Airflow makes its interface of many small objects that stay: looking for garbage among them, as often
    as Python does by itself, takes a third of that time."""
    gc.set_threshold(20_000, 20, 20)


def forking(environment: Mapping[str, str], *, log_file: Path) -> WarmPython | None:
    """The process that Airflow's are forked from; None where each has to import for itself."""
    if not is_possible():
        return None
    return WarmPython(*_PREPARED, environ=environment, log_file=log_file)
