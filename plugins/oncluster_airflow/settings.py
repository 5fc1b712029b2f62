"""Where Airflow finds the project's files: the only module of this package that reads the environment.

    ONCLUSTER_CONFIG         ClickHouse-style configuration (XML or YAML) with the clusters and queues;
                             default: `cluster.xml` in $ONCLUSTER_HOME (`.run`), else `config/cluster.xml`
    ONCLUSTER_MIGRATIONS     folder with one folder of migrations per cluster; default `migrations`
    ONCLUSTER_LEDGER_URL     SQLAlchemy URL of the ledger; default: SQLite, `ledger.db` in $ONCLUSTER_HOME
    ONCLUSTER_RECORDS_URL    the same of the operations' records; default: where the ledger is

    ONCLUSTER_NOTIFY_EMAIL_CONN, ONCLUSTER_NOTIFY_EMAIL_TO       SMTP connection id, and receivers by commas
    ONCLUSTER_NOTIFY_WEBHOOK_CONN, ONCLUSTER_NOTIFY_SLACK_CONN   HTTP connection ids
    ONCLUSTER_NOTIFY_LEAST   info, warning (default) or critical: of what is less bad people are not told
    ONCLUSTER_NOTIFY_REMIND_H, ONCLUSTER_NOTIFY_SETTLE_S         told again after; gone for (4 hours, 600 s)
    ONCLUSTER_DOCS_URL       where the runbooks can be read; default: the folder `docs/` by its name

    ONCLUSTER_HEALTH_SCHEDULE, …_CLEANUP_SCHEDULE, …_DRIFT_SCHEDULE, …_BACKUP_SCHEDULE
                             cron expressions of the operations' DAGs; default: none, by hand only
    ONCLUSTER_CLEANUP_MODE   what a scheduled cleanup does: `plan` (default), or `safe`: what needs nobody
    ONCLUSTER_BACKUP_FOLDER, ONCLUSTER_BACKUP_KEEP               `keeper-backups` in $ONCLUSTER_HOME, 7
    ONCLUSTER_DEADLINE_S, ONCLUSTER_HEALTH_DEADLINE_S            after which people are told that a run is not
                             over yet; 0: never. Defaults: 4 hours, 15 minutes
    ONCLUSTER_WAIT_ALERT_S   the same for one statement of a migration; default: 1 hour

Relative paths are relative to the project, that is to the folder above this package's `plugins`, or to the
working directory where the package is installed. Reading is cheap and happens when a task or a DAG file
asks, never at import.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.errors import ConfigError
from engine.operations.alerts.decide import Policy
from engine.operations.finding import Severity

KEEPER_CONN_ID = "zookeeper_default"
NODES_CONN_ID = "clickhouse_default"
SPARK_CONN_ID = "spark_default"

# Long enough for a usual DDL statement, short enough that no worker slot is held by a slow one. Deferring
# costs about a second, so that most statements end sooner when nobody defers.
GRACE_S = 1.5

# The same for the one task that sends a long history, statement by statement. It has to be resumed after each
# that it deferred for, and not before its old slot is free, which Airflow may hold for its
# `min_heartbeat_interval` (5 s by default): so it waits longer before it does.
EARLIER_GRACE_S = 10.0
RESUME_AFTER_S = 10.0

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
    records_url: str = field(default="", repr=False)
    slack_conn_id: str = ""
    docs_url: str = "docs/"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """A variable that is empty counts as one that is not set. Raises ConfigError that names the
        variable."""
        root = project_root()
        home = root / (environment.get("ONCLUSTER_HOME") or ".run")
        configured = environment.get("ONCLUSTER_CONFIG")
        candidates = (
            [root / configured] if configured else [home / "cluster.xml", root / "config/cluster.xml"]
        )
        ledger_url = environment.get("ONCLUSTER_LEDGER_URL") or f"sqlite:///{home / 'ledger.db'}"
        return cls(
            config=next((path for path in candidates if path.is_file()), candidates[-1]),
            migrations=root / (environment.get("ONCLUSTER_MIGRATIONS") or "migrations"),
            ledger_url=ledger_url,
            own_tasks=max(1, int(_number(environment, "ONCLUSTER_DAG_MIGRATIONS", DEFAULT_OWN_TASKS))),
            email_conn_id=environment.get("ONCLUSTER_NOTIFY_EMAIL_CONN", ""),
            email_to=receivers(environment.get("ONCLUSTER_NOTIFY_EMAIL_TO", "")),
            webhook_conn_id=environment.get("ONCLUSTER_NOTIFY_WEBHOOK_CONN", ""),
            home=home,
            records_url=environment.get("ONCLUSTER_RECORDS_URL") or ledger_url,
            slack_conn_id=environment.get("ONCLUSTER_NOTIFY_SLACK_CONN", ""),
            docs_url=environment.get("ONCLUSTER_DOCS_URL") or "docs/",
        )

    def config_path(self, override: str | None = None) -> Path:
        """`override`, relative to the project, else `config`."""
        return project_root() / override if override else self.config


@dataclass(frozen=True, slots=True)
class OperationSettings:
    """What the environment says of the operations' DAGs. Schedules are None where there is none."""

    health_schedule: str | None = None
    cleanup_schedule: str | None = None
    drift_schedule: str | None = None
    backup_schedule: str | None = None
    cleanup_mode: str = "plan"
    backup_folder: Path = Path(".run/keeper-backups")
    backup_keep: int = 7
    deadline_s: int = 4 * 3600
    health_deadline_s: int = 15 * 60
    wait_alert_s: int = 3600
    policy: Policy = field(default_factory=Policy)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> OperationSettings:
        """Raises ConfigError that names the variable."""
        home = project_root() / (environment.get("ONCLUSTER_HOME") or ".run")
        folder = environment.get("ONCLUSTER_BACKUP_FOLDER")
        return cls(
            health_schedule=environment.get("ONCLUSTER_HEALTH_SCHEDULE") or None,
            cleanup_schedule=environment.get("ONCLUSTER_CLEANUP_SCHEDULE") or None,
            drift_schedule=environment.get("ONCLUSTER_DRIFT_SCHEDULE") or None,
            backup_schedule=environment.get("ONCLUSTER_BACKUP_SCHEDULE") or None,
            cleanup_mode=_one_of(environment, "ONCLUSTER_CLEANUP_MODE", ("plan", "safe")),
            backup_folder=project_root() / folder if folder else home / "keeper-backups",
            backup_keep=int(_number(environment, "ONCLUSTER_BACKUP_KEEP", 7)),
            deadline_s=int(_number(environment, "ONCLUSTER_DEADLINE_S", 4 * 3600)),
            health_deadline_s=int(_number(environment, "ONCLUSTER_HEALTH_DEADLINE_S", 15 * 60)),
            wait_alert_s=int(_number(environment, "ONCLUSTER_WAIT_ALERT_S", 3600)),
            policy=Policy(
                remind_after_s=_number(environment, "ONCLUSTER_NOTIFY_REMIND_H", 4.0) * 3600,
                settle_s=_number(environment, "ONCLUSTER_NOTIFY_SETTLE_S", 600.0),
                least=Severity[
                    _one_of(environment, "ONCLUSTER_NOTIFY_LEAST", ("warning", "info", "critical")).upper()
                ],
            ),
        )


def receivers(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """Of mail: a text that has them by commas, or several of those."""
    texts = (addresses,) if isinstance(addresses, str) else addresses
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name) or str(default)
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ConfigError(f"{name} is {text!r}.", hint="Write a number that is not negative.")
    return number


def _one_of(environment: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """The first is the default."""
    word = (environment.get(name) or words[0]).lower()
    if word not in words:
        raise ConfigError(f"{name} is {word!r}.", hint=f"Write one of {', '.join(words)}.")
    return word


def project_root() -> Path:
    """The folder that holds `plugins/oncluster_airflow`, or the working directory where there is no
    `plugins`."""
    parent = Path(__file__).resolve().parents[1]
    return parent.parent if parent.name == "plugins" else Path.cwd()
