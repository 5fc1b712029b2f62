"""Which server has which replica, as the servers themselves say. Reads only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from engine.client.node_client import NodeClient
from engine.errors import Code, NodeUnavailable, OnclusterError, ReplyLost, SqlError
from engine.names import HostId, TableName
from engine.operations.cleanup.settings import GoneHost
from engine.operations.site import Site
from engine.replication.host import ReplicaHost

_CONNECT_S = 3.0
_USUAL_HTTP_PORT = 8123


@dataclass(frozen=True, slots=True)
class HostTables:
    """What one host said. `replicas` are (table's path, replica's name); `detached` is None where the server
    is too old to say which tables are detached."""

    replicas: frozenset[tuple[str, str]]
    detached: frozenset[TableName] | None


@dataclass(frozen=True, slots=True)
class Owners:
    """All answers, and who gave none and why."""

    hosts: Mapping[HostId, HostTables]
    silent: Mapping[HostId, OnclusterError]

    @property
    def paths(self) -> frozenset[str]:
        """Paths of all tables that some host has."""
        return frozenset(path for tables in self.hosts.values() for path, _ in tables.replicas)

    def of(self, table: str, replica: str) -> tuple[HostId, ...]:
        """Who has this replica, active or not."""
        return tuple(host for host, tables in self.hosts.items() if (table, replica) in tables.replicas)

    def not_asked(self, gone: tuple[GoneHost, ...]) -> list[str]:
        """Who gave no answer, but for those of whom a person says that they are gone."""
        return [host.readable for host in self.silent if word_about(gone, host) is None]

    def with_detached(self, name: TableName) -> tuple[HostId, ...]:
        """Who has a detached table of this name."""
        return tuple(host for host, tables in self.hosts.items() if name in (tables.detached or ()))

    @property
    def cannot_say_detached(self) -> tuple[HostId, ...]:
        """Servers that do not tell which tables are detached."""
        return tuple(host for host, tables in self.hosts.items() if tables.detached is None)


async def ask_owners(site: Site) -> Owners:
    """Every host of the cluster, all at once."""

    async def ask(host: HostId, client: NodeClient) -> HostTables:
        replicas = await client.query_rows("SELECT zookeeper_path, replica_name FROM system.replicas")
        return HostTables(
            frozenset((str(path).rstrip("/"), str(name)) for path, name in replicas.rows),
            await _detached(client),
        )

    answers = await site.ask_all(ask)
    return Owners(
        {host: answer for host, answer in answers.items() if isinstance(answer, HostTables)},
        {host: answer for host, answer in answers.items() if isinstance(answer, OnclusterError)},
    )


async def _detached(client: NodeClient) -> frozenset[TableName] | None:
    try:
        rows = await client.query_rows("SELECT database, table FROM system.detached_tables")
    except SqlError as error:
        if error.code == Code.UNKNOWN_TABLE:
            return None
        raise
    return frozenset(TableName(str(database), str(table)) for database, table in rows.rows)


def word_about(gone: tuple[GoneHost, ...], host: HostId | None, replica: str = "") -> GoneHost | None:
    """What a person said of this host, or of the host of this replica."""
    names = {replica} if replica else set()
    if host is not None:
        names |= {host.host, host.readable}
    return next((word for word in gone if word.name in names), None)


async def answers_anywhere(site: Site, address: ReplicaHost) -> bool:
    """Whether something still answers for a host that the configuration does not know: at its interserver
    port, or at the usual HTTP port. What accepts a connection counts as an answer."""
    found = await asyncio.gather(
        *(
            _accepts(address.host, port)
            for port in dict.fromkeys((address.port, address.tcp_port, _USUAL_HTTP_PORT))
            if port
        )
    )
    return any(found)


async def _accepts(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError, UnicodeError):
        return False
    writer.close()
    return True


def not_answering(error: OnclusterError) -> str:
    """Why a host gave no answer, in a few words."""
    match error:
        case NodeUnavailable():
            return "cannot be reached"
        case ReplyLost():
            return "gave no answer in time"
        case _:
            return f"cannot be asked: {error.message.rstrip('.')}"
