"""What can be known of the local stack before anything of it is started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from engine.env import Env
from engine.errors import Busy, ConfigError, Unavailable
from engine.local.ledger_place import LEDGER_VARIABLE, ledger_url_of
from engine.local.stack_options import StackOptions
from engine.local.stack_ports import StackPorts
from engine.local.state import read_state
from engine.testing.cluster_files import DEFAULT_CLUSTER_FILE, ClusterFiles

_NEEDED_BYTES = 300 * 1024 * 1024
_FULL_BYTES = 8 * 1024 * 1024


def check(
    options: StackOptions, *, environ: Mapping[str, str] = os.environ, env: Env | None = None
) -> tuple[tuple[str, ...], StackPorts]:
    """Everything that can be known before anything is started: the hosts, and the ports to be used.

    Raises ConfigError (no checkout, cluster file, ports, the ledger's URL), Busy (a stack runs in this
    directory; ports in use), Unavailable (the disk is nearly full).
    """
    home = options.home.absolute()
    require_checkout(options)
    require_stopped(home)
    require_space(home)
    known = ClusterFiles(home, options.cluster_file or DEFAULT_CLUSTER_FILE).hosts()
    hosts = options.hosts or known
    if strangers := [host for host in hosts if host not in known]:
        raise ConfigError(
            f"The cluster file names no host {', '.join(strangers)}.", hint=f"It names {', '.join(known)}."
        )
    if environ.get(LEDGER_VARIABLE):
        from engine.database import database_engine  # a quarter of a second, which `down` need not wait for

        database_engine(ledger_url_of(home, environ), what="ledger")
    ports = StackPorts.choose(nodes=len(hosts), port_base=options.port_base, environ=environ, env=env)
    ports.require_free()
    return hosts, ports


def require_checkout(options: StackOptions) -> None:
    """Raises ConfigError where only the packages are installed: DAG files and the demo's cluster are none."""
    if not DEFAULT_CLUSTER_FILE.is_file() and (options.with_airflow or options.cluster_file is None):
        raise ConfigError(
            "The local stack is started from a checkout of oncluster: pip installs neither dags/ nor "
            "migrations/ nor config/.",
            hint="Run it there; or nodes alone: oncluster up --no-airflow --cluster-file FILE.",
        )


def require_stopped(home: Path) -> None:
    """Raises Busy when the owner of the stack in this directory lives."""
    state = read_state(home)
    if state is not None and state.owner.id.is_alive:
        raise Busy(
            f"A stack is already running in {home} (process {state.owner.pid}, {state.phase}).",
            holder=f"process {state.owner.pid}",
            hint="`oncluster down` ends it; another ONCLUSTER_HOME keeps two apart.",
        )


def require_space(home: Path) -> None:
    """Raises Unavailable when the disk has too little room to start anything."""
    place = home
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < _NEEDED_BYTES:
        raise Unavailable(
            f"The disk of {home} has {free // 2**20} MiB left; the stack needs {_NEEDED_BYTES // 2**20} MiB.",
            hint="Make room, or set ONCLUSTER_HOME to a directory on another disk.",
        )


def is_full(home: Path) -> bool:
    """Whether a program that writes there has to fail about now."""
    return shutil.disk_usage(home).free < _FULL_BYTES
