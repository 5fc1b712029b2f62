"""How Airflow is run on this machine: what the caller may choose, and the environment of its processes.

Source of the settings: what Airflow 3.3 was observed to do; each one that surprises says why it is there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.errors import Unavailable

HOST = "127.0.0.1"
ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowSettings:
    """How to run Airflow. `tasks_port` is of the interface that its tasks use. Port 0 means: ask the
    operating system for a free one.

    `environment` is added last and wins. `connections` become `AIRFLOW_CONN_<ID>` (JSON), which spares the
    triggerer its slow first look into the metadata database. `parallelism` is the number of worker processes.
    Somebody who edits migrations sees the new DAG within `dags_read_every_s`.
    """

    run_dir: Path
    dags_folder: Path
    plugins_folder: Path
    port: int = 8080
    tasks_port: int = 0
    parallelism: int = 8
    dags_read_every_s: int = 5
    connections: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    admin_password: str = field(default="", repr=False)
    database_url: str = field(default="", repr=False)
    bytecode_dir: Path | None = None


def home_of(settings: AirflowSettings) -> Path:
    """AIRFLOW_HOME."""
    return settings.run_dir / "airflow"


def environment_of(settings: AirflowSettings, *, port: int, tasks_port: int) -> dict[str, str]:
    """The environment of every Airflow process."""
    environment = {
        name: value
        for name, value in os.environ.items()
        # Inherited settings of another Airflow would point ours at a foreign database.
        if not name.startswith(("AIRFLOW__", "AIRFLOW_")) and name != "PYTHONDONTWRITEBYTECODE"
    }
    package_root = Path(__file__).resolve().parents[2]
    environment |= {
        "AIRFLOW_HOME": str(home_of(settings)),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join(
            part for part in (str(package_root), environment.get("PYTHONPATH", "")) if part
        ),
        "PYTHONWARNINGS": "ignore",
        "PYTHONUNBUFFERED": "1",
        # Airflow gives its processes long titles, for which setproctitle takes the place of the environment
        # as others see it: without this, whoever looks for what they inherited does not find them.
        "SPT_NOENV": "1",
        "AIRFLOW__CORE__DAGS_FOLDER": str(settings.dags_folder),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(settings.plugins_folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": str(settings.parallelism),
        # A worker whose task has ended may sleep for this long before it notices; a task that was resumed
        # meanwhile is failed by the scheduler (apache/airflow #72716). One second makes the window small.
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        # A task fails when its worker cannot reach the API server. With these it goes on trying for a minute
        # or two, which is what an API server that was started again may take; the defaults give up after ten
        # seconds, and twice as quickly on an answer that takes five.
        "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "9",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "30",
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://{HOST}:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://{HOST}:{tasks_port}/execution/",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{ADMIN}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home_of(settings) / "passwords.json"),
        # They were made just now. Each process would read every migration that Airflow has.
        "AIRFLOW__DATABASE__CHECK_MIGRATIONS": "False",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        # For what a killed scheduler ran: its successor looks when it starts, and takes that one for alive
        # then, for 30 s. The time-out above is for a scheduler's own tasks.
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "2",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": str(settings.dags_read_every_s),
        "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "2",
        "AIRFLOW__DAG_PROCESSOR__PRINT_STATS_INTERVAL": "0",
        "AIRFLOW__LOGGING__NAMESPACE_LEVELS": "http.access=WARNING kazoo=WARNING airflow.jobs=WARNING "
        "airflow.serialization=WARNING airflow.models=WARNING",
    }
    if sys.platform == "linux":
        # The default from Python 3.14 on is a worker of the executor that imports all of Airflow once more.
        environment["AIRFLOW__CORE__MP_START_METHOD"] = "fork"
    if settings.database_url:
        environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = settings.database_url
    if not _airflow_is_compiled():
        # Each of the processes would compile all of Airflow at every start: seconds apiece.
        bytecode = settings.bytecode_dir or settings.run_dir / "pyc"
        environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    # Tasks ask the API server on this machine, and do so by way of the proxy where the environment names one.
    direct = [environment.get("no_proxy") or environment.get("NO_PROXY", ""), HOST, "localhost"]
    environment["no_proxy"] = environment["NO_PROXY"] = ",".join(filter(None, direct))
    for conn_id, connection in settings.connections.items():
        environment[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(connection)
    environment.update(settings.environment)
    return environment


def _airflow_is_compiled() -> bool:
    """True when Airflow's installation carries bytecode for this Python (pip compiles, uv does not)."""
    spec = importlib.util.find_spec("airflow")
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable("Airflow is not installed.", hint="Install the project's requirements.")
    sample = Path(spec.submodule_search_locations[0]) / "settings.py"
    return Path(importlib.util.cache_from_source(str(sample))).exists()
