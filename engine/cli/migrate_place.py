"""What the commands of `oncluster migrate` share: options, folders, the ledger, a runner on a session."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine.cli.options import (
    MIGRATIONS_VARIABLE,
    find_config,
    host_and_url,
    load_config,
    stack_home,
    user_at_host,
)
from engine.cli.sessions import keeper_session
from engine.config.model import NodeConfig, Topology
from engine.ddl.output import DEFAULT_TIMEOUT_S, OutputMode
from engine.env import SystemEnv
from engine.errors import ConfigError, SqlError
from engine.local.ledger_place import LEDGER_FILE, LEDGER_VARIABLE, ledger_url_of
from engine.local.state import stack_nodes
from engine.migrations.files import Direction, MigrationSet, cluster_folders, load_folder
from engine.migrations.ledger import Ledger
from engine.migrations.model import RunRequest
from engine.migrations.options import parse_duration_s
from engine.migrations.runner import MigrationRunner
from engine.migrations.selection import Leniency
from engine.migrations.statements import Surroundings

if TYPE_CHECKING:
    from engine.migrations.probe import HttpProbe

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_DIR = "migrations"


# --- options ----------------------------------------------------------------------------------------------


def folder_options(command: F) -> F:
    command = click.option("--cluster", default="", help="The cluster. Default: the folder's name.")(command)
    return click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path),
        default=lambda: Path(os.environ.get(MIGRATIONS_VARIABLE) or DEFAULT_DIR),
        help="The folder of migrations, or the folder that holds one for each cluster. "
        f"Default: ${MIGRATIONS_VARIABLE}, else {DEFAULT_DIR}.",
    )(command)


def ledger_option(command: F) -> F:
    return click.option(
        "--ledger-url",
        default="",
        help=f"SQLite path or postgresql://…; default ${LEDGER_VARIABLE}, else {LEDGER_FILE} of the stack.",
    )(command)


def run_options(command: F) -> F:
    for option in reversed(
        (
            click.option(
                "--timeout", default="", help="Wait for a statement: 300, 5m; 0 not at all; -1 for ever."
            ),
            click.option(
                "--output-mode",
                type=click.Choice([mode.value for mode in OutputMode]),
                default=OutputMode.THROW.value,
                help="What a timeout and an inactive host mean. Default: throw.",
            ),
            click.option("--database", default="default", help="Database of names that have none."),
            click.option(
                "--entry-version", type=int, help="Format of queue entries; 1 for ClickHouse 18.16."
            ),
            click.option("--retry-failed", is_flag=True, help="Send again what failed, where it failed."),
            click.option("--allow-gaps", is_flag=True, help="Versions may have gaps."),
            click.option(
                "--allow-out-of-order", is_flag=True, help="Apply what arrived below the last version."
            ),
            click.option("--adopt-ledger", is_flag=True, help="This ledger takes over from another."),
        )
    ):
        command = option(command)
    return command


def _parse_timeout(value: str) -> int:
    try:
        return parse_duration_s(value) if value else DEFAULT_TIMEOUT_S
    except SqlError as error:
        raise click.BadParameter(error.message, param_hint="--timeout") from error


def request_for(direction: Direction, target: int | None, options: dict[str, Any]) -> RunRequest:
    who = user_at_host()
    return RunRequest(
        run_id=f"cli-{SystemEnv().new_uuid()}",
        direction=direction,
        target=target,
        requested_by=who,
        holder=f"{who}, process {os.getpid()} (oncluster {' '.join(sys.argv[1:3])})",
        approved_by=who if options.get("approve") else "",
        timeout_s=_parse_timeout(options.get("timeout", "")),
        output_mode=OutputMode(options.get("output_mode", OutputMode.THROW.value)),
        database=options.get("database", "default"),
        entry_version=options.get("entry_version"),
        leniency=Leniency(
            gaps=options.get("allow_gaps", False),
            out_of_order=options.get("allow_out_of_order", False),
            retry_failed=options.get("retry_failed", False),
        ),
        adopt_ledger=options.get("adopt_ledger", False),
    )


# --- what commands work with ------------------------------------------------------------------------------


def find_folder(directory: Path, cluster: str) -> Path:
    """The folder with the files. Raises ConfigError that names the folders there are."""
    if cluster and (directory / cluster).is_dir():
        return directory / cluster
    if directory.is_dir() and any(directory.glob("*.sql")):
        return directory
    if not directory.is_dir():
        what = "is no folder" if directory.exists() else "is not there"
        raise ConfigError(
            f"The folder of migrations {directory.absolute()} {what}.",
            hint=f"Say where it is: --dir DIR, or {MIGRATIONS_VARIABLE}.",
        )
    inside = [path.name for path in cluster_folders(directory)]
    if not cluster and len(inside) == 1:
        return directory / inside[0]
    listed = f"There are: {', '.join(inside)}." if inside else f"{directory.absolute()} has no folders."
    wanted = f"no migrations of '{cluster}'" if cluster else "more than one cluster, or none,"
    raise ConfigError(f"There are {wanted} in {directory}.", hint=f"{listed} Name one with --cluster.")


def find_folders(directory: Path, cluster: str) -> list[Path]:
    """One folder, or without a cluster's name all there are. Raises ConfigError when there is none."""
    if cluster or not directory.is_dir() or any(directory.glob("*.sql")):
        return [find_folder(directory, cluster)]
    return cluster_folders(directory) or [find_folder(directory, "")]


def node_option(command: F) -> F:
    return click.option(
        "--node",
        "nodes",
        multiple=True,
        metavar="HOST=URL",
        help="Where to ask a host for its tables and databases, such as node01=http://10.0.0.1:8123. "
        "Default: the local stack's nodes, with its configuration.",
    )(command)


def _probe_of(nodes: tuple[str, ...], topology: Topology, config_file: Path) -> HttpProbe | None:
    """The named nodes, else those of the local stack if this is its configuration, else nobody is asked.

    Raises BadParameter for a host that no cluster has: it would not be asked, and nobody would notice.
    """
    from engine.migrations.probe import HttpProbe  # a third of the time of commands that ask no host

    urls = dict(map(host_and_url, nodes))
    replicas = [replica for cluster in topology.clusters.values() for replica in cluster.replicas]
    hosts = {replica.host for replica in replicas}
    if unknown := sorted(urls.keys() - hosts - {replica.host_id.readable for replica in replicas}):
        raise click.BadParameter(
            f"no cluster of the configuration has the host {', '.join(unknown)}; there are "
            f"{', '.join(sorted(hosts))}.",
            param_hint="--node",
        )
    urls = urls or stack_nodes(stack_home(), config_file)
    return HttpProbe(urls) if urls else None


def open_ledger(url: str) -> Ledger:
    return Ledger(url or ledger_url_of(stack_home(), os.environ), env=SystemEnv())


def no_ledger_yet(ledger: Ledger) -> str:
    """What is to be said where there is none: the first run makes it, or its address is mistyped."""
    return (
        "" if ledger.is_made else f"There is no ledger at {ledger.url} yet: nothing is recorded as applied."
    )


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, its cluster's configuration, and its ledger when one is needed."""

    migrations: MigrationSet
    config: NodeConfig
    config_file: Path

    @classmethod
    def of(cls, directory: Path, cluster: str, config: Path | None) -> Place:
        folder = find_folder(directory, cluster)
        file = find_config(config)
        return cls(load_folder(folder, cluster=cluster), load_config(file), file)

    @classmethod
    def known(cls, directory: Path, cluster: str, config: Path | None) -> Place:
        """As `of`, for what asks no statement for its cluster. Raises SqlError 701 that names the clusters
        there are: under a mistyped name nothing is open, nobody holds a lock, and marks would stay for ever.
        """
        place = cls.of(directory, cluster, config)
        place.config.topology.cluster(place.migrations.cluster)
        return place

    @property
    def surroundings(self) -> Surroundings:
        cluster = self.migrations.cluster
        return Surroundings(cluster, self.config.topology, self.config.queue_of(cluster))

    def probe(self, nodes: tuple[str, ...]) -> HttpProbe | None:
        """Who asks the hosts; `nodes` is `--node`. Raises BadParameter."""
        return _probe_of(nodes, self.config.topology, self.config_file)

    @contextlib.asynccontextmanager
    async def runner(
        self, ledger: Ledger, *, probe: HttpProbe | None = None
    ) -> AsyncIterator[MigrationRunner]:
        async with keeper_session(self.config) as keeper:
            yield MigrationRunner(
                keeper=keeper,
                migrations=self.migrations,
                ledger=ledger,
                topology=self.config.topology,
                queue=self.config.queue_of(self.migrations.cluster),
                env=SystemEnv(),
                probe=probe,
            )
