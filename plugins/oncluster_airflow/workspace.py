"""What a migration task works with: the cluster's folder, its configuration, the ledger, and a runner on a
session.

Everything is read anew by each task. A run is held to what it began with by checksums (`Manifest`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config.load import load_client_config
from engine.config.model import DistributedDdl, NodeConfig, Topology
from engine.env import Env, SystemEnv
from engine.keeper.base import Keeper
from engine.migrations.decide import patience_of
from engine.migrations.errors import MigrationRefused
from engine.migrations.files import MigrationSet, load_folder
from engine.migrations.ledger import Ledger
from engine.migrations.model import Run, StatementRef
from engine.migrations.runner import MigrationRunner
from engine.migrations.verdict import Patience
from engine.names import QueuePaths
from oncluster_airflow.settings import Settings


@dataclass(frozen=True, slots=True)
class Workspace:
    """One cluster's migrations and where they are recorded."""

    cluster: str
    migrations: MigrationSet
    config: NodeConfig
    ledger: Ledger
    env: Env

    @classmethod
    def open(cls, cluster: str, *, folder: str | None = None) -> Workspace:
        """Raises MigrationFilesError, ConfigError, LedgerUnavailable."""
        settings = Settings.from_environment()
        env = SystemEnv()
        return cls(
            cluster,
            load_folder(Path(folder) if folder else settings.migrations / cluster, cluster=cluster),
            load_client_config(settings.config),
            Ledger(settings.ledger_url, env=env),
            env,
        )

    @property
    def topology(self) -> Topology:
        return self.config.topology

    @property
    def queue(self) -> DistributedDdl:
        """The queue that serves the cluster. Raises ConfigError."""
        return self.config.queue_of(self.cluster)

    @property
    def paths(self) -> QueuePaths:
        return self.queue.paths

    def patience(self, run: Run, ref: StatementRef) -> Patience:
        """How long a statement is waited for: the options in its file go before the run's."""
        return patience_of(self.migrations, run.request, ref)

    def runner(self, keeper: Keeper) -> MigrationRunner:
        return MigrationRunner(
            keeper=keeper,
            migrations=self.migrations,
            ledger=self.ledger,
            topology=self.topology,
            queue=self.queue,
            env=self.env,
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """The statements of a run and their checksums, in order: what was planned, approved, and may be sent."""

    statements: tuple[tuple[StatementRef, str], ...]

    @classmethod
    def of(cls, migrations: MigrationSet, refs: Sequence[StatementRef]) -> Manifest:
        """From the files as they are now; a statement that is not there any more has an empty checksum."""
        return cls(tuple((ref, checksum_of(migrations, ref)) for ref in refs))

    @property
    def refs(self) -> tuple[StatementRef, ...]:
        return tuple(ref for ref, _ in self.statements)

    @property
    def checksum(self) -> str:
        """Of all of them, in order."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()

    def require_unchanged(self, migrations: MigrationSet, ref: StatementRef) -> None:
        """Raises MigrationRefused when the file now says something else than the run began with."""
        if checksum_of(migrations, ref) != dict(self.statements).get(ref):
            raise _not_as_planned([ref])

    def require_same_as(self, planned: Manifest) -> None:
        """Raises MigrationRefused when this run would send anything else than was planned."""
        if self != planned:
            differing = set(self.statements) ^ set(planned.statements)
            raise _not_as_planned(sorted({ref for ref, _ in differing}))

    def without(self, versions: Collection[int]) -> Manifest:
        """The rest, without these migrations."""
        return Manifest(tuple((ref, text) for ref, text in self.statements if ref.version not in versions))

    def to_json(self) -> list[dict[str, Any]]:
        return [{**ref.to_json(), "checksum": checksum} for ref, checksum in self.statements]

    @classmethod
    def from_json(cls, data: Sequence[Mapping[str, Any]]) -> Manifest:
        return cls(tuple((StatementRef.from_json(item), item["checksum"]) for item in data))


def checksum_of(migrations: MigrationSet, ref: StatementRef) -> str:
    script = migrations.script(ref.version, ref.direction)
    if script is None or ref.statement > len(script.statements):
        return ""
    return script.statements[ref.statement - 1].checksum


def _not_as_planned(refs: Sequence[StatementRef]) -> MigrationRefused:
    return MigrationRefused(
        "; ".join(f"{ref} is not what was planned" for ref in refs)
        + ": a file, or what is applied, has changed since.",
        hint="Start a new run, which plans anew.",
    )
