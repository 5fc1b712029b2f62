"""Where Airflow finds the project's files: the only module of this package that reads the environment.

    ONCLUSTER_CONFIG         ClickHouse-style configuration (XML or YAML) with the clusters and queues;
                             default: `cluster.xml` in $ONCLUSTER_HOME (`.run`), else `config/cluster.xml`
    ONCLUSTER_MIGRATIONS     folder with one folder of migrations per cluster; default `migrations`
    ONCLUSTER_LEDGER_URL     SQLAlchemy URL of the ledger; default: a SQLite file `ledger.db` in
    $ONCLUSTER_HOME ONCLUSTER_NOTIFY_EMAIL_CONN, ONCLUSTER_NOTIFY_EMAIL_TO      SMTP connection id, and
    receivers by commas ONCLUSTER_NOTIFY_WEBHOOK_CONN                               HTTP connection id

Relative paths are relative to the project, that is to the folder above this package's `plugins`, or to the
working directory where the package is installed. Reading is cheap and happens when a task or a DAG file
asks, never at import.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

KEEPER_CONN_ID = "zookeeper_default"
NODES_CONN_ID = "clickhouse_default"
SPARK_CONN_ID = "spark_default"

# Long enough for a usual DDL statement, short enough that no worker slot is held by a slow one. Deferring
# costs about a second, so that most statements end sooner when nobody defers.
GRACE_S = 1.5

# A trigger looks again after this time even if no watch has fired: a host that goes off line changes
# nothing in the entry.
LOOK_AGAIN_S = 30.0

# Airflow reads the DAG file at every task's start, and each task costs it about half a millisecond.
DEFAULT_OWN_TASKS = 30


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says. `ledger_url` may hold a password and is not shown."""

    config: Path
    migrations: Path
    ledger_url: str = field(repr=False)
    own_tasks: int = DEFAULT_OWN_TASKS
    email_conn_id: str = ""
    email_to: tuple[str, ...] = ()
    webhook_conn_id: str = ""
    home: Path = Path(".run")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        root = project_root()
        home = root / environment.get("ONCLUSTER_HOME", ".run")
        configured = environment.get("ONCLUSTER_CONFIG")
        candidates = (
            [root / configured] if configured else [home / "cluster.xml", root / "config/cluster.xml"]
        )
        receivers = environment.get("ONCLUSTER_NOTIFY_EMAIL_TO", "")
        return cls(
            config=next((path for path in candidates if path.is_file()), candidates[-1]),
            migrations=root / environment.get("ONCLUSTER_MIGRATIONS", "migrations"),
            ledger_url=environment.get("ONCLUSTER_LEDGER_URL", f"sqlite:///{home / 'ledger.db'}"),
            own_tasks=max(1, int(environment.get("ONCLUSTER_DAG_MIGRATIONS", DEFAULT_OWN_TASKS))),
            email_conn_id=environment.get("ONCLUSTER_NOTIFY_EMAIL_CONN", ""),
            email_to=tuple(name.strip() for name in receivers.split(",") if name.strip()),
            webhook_conn_id=environment.get("ONCLUSTER_NOTIFY_WEBHOOK_CONN", ""),
            home=home,
        )

    def config_path(self, override: str | None = None) -> Path:
        """`override`, relative to the project, else `config`."""
        return project_root() / override if override else self.config


def project_root() -> Path:
    """The folder that holds `plugins/oncluster_airflow`, or the working directory where there is no
    `plugins`."""
    parent = Path(__file__).resolve().parents[1]
    return parent.parent if parent.name == "plugins" else Path.cwd()
