"""One replica of a Replicated database: what it is, and what it goes by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.databases.paths import DatabasePaths, ReplicaName
from engine.databases.schema import LocalSchema
from engine.databases.settings import DatabaseSettings
from engine.env import Env
from engine.keeper.recipes import SessionHolder


@dataclass(frozen=True, slots=True)
class DatabaseReplica:
    """The same for as long as the replica runs; how far it has come is `Progress`."""

    env: Env
    holder: SessionHolder
    paths: DatabasePaths
    me: ReplicaName
    host: str
    """Its value in Keeper: `escaped_host:port:database_uuid`."""
    server_uuid: str
    schema: LocalSchema
    settings: DatabaseSettings
    database_name: Callable[[], str]
    """It may be renamed."""
    group: str = ""
    """The replica group, of which `cluster` shows the replicas."""

    @property
    def name(self) -> str:
        """The database's present name."""
        return self.database_name()
