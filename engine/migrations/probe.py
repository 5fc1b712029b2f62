"""Asking nodes over HTTP whether they are up, how large tables are, which databases are Replicated ones,
and what they were configured with; for plans and before runs. Reads only."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.client.node_client import NodeClient
from engine.errors import OnclusterError, SqlError
from engine.migrations.host_configuration import HostConfiguration
from engine.migrations.plan import TableFacts
from engine.migrations.replica_places import Place
from engine.names import HostId, TableName, quote_string

_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """`urls` maps host names of the cluster's configuration, or host:port where several have a name, to
    `http://host:port`; `tls` replaces the system's certificates."""

    urls: Mapping[str, str]
    user: str = "default"
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None

    async def is_up(self, host: HostId) -> bool | None:
        """None when no URL is known."""
        client = self._client(host)
        if client is None:
            return None
        async with client:
            try:
                await client.ping()
            except OnclusterError:
                return False
        return True

    async def table(self, host: HostId, table: TableName) -> TableFacts | None:
        """Raises SqlError, NodeUnavailable, ReplyLost."""
        client = self._client(host)
        if client is None:
            return None
        database, name = quote_string(table.database), quote_string(table.table)
        async with client:
            engine = await client.query_rows(
                f"SELECT engine FROM system.tables WHERE database = {database} AND name = {name}"
            )
            if not engine.rows:
                return None
            size = await client.query_rows(
                "SELECT sum(rows), sum(bytes_on_disk) FROM system.parts "
                f"WHERE active AND database = {database} AND table = {name}"
            )
        rows, size_bytes = size.rows[0]
        return TableFacts(str(engine.scalar), int(rows or 0), int(size_bytes or 0))

    async def replicated_databases(self, host: HostId) -> frozenset[str]:
        """Empty when no URL is known. Raises SqlError, NodeUnavailable, ReplyLost."""
        client = self._client(host)
        if client is None:
            return frozenset()
        async with client:
            found = await client.query_rows("SELECT name FROM system.databases WHERE engine = 'Replicated'")
        return frozenset(str(name) for (name,) in found.rows)

    async def configuration(self, host: HostId, cluster: str) -> HostConfiguration | None:
        """None when no URL is known. Raises SqlError, NodeUnavailable, ReplyLost."""
        client = self._client(host)
        if client is None:
            return None
        async with client:
            replicas = await client.query_rows(
                "SELECT shard_num, host_name, port FROM system.clusters "
                f"WHERE cluster = {quote_string(cluster)} ORDER BY shard_num, replica_num"
            )
            macros = await client.query_rows("SELECT macro, substitution FROM system.macros")
            default_place = await _default_place(client)
        shards: dict[int, tuple[HostId, ...]] = {}
        for number, name, port in replicas.rows:
            shards[int(number)] = (*shards.get(int(number), ()), HostId(str(name), int(port)))
        values = {str(name): str(value) for name, value in macros.rows}
        return HostConfiguration(shards, values, default_place)

    def _client(self, host: HostId) -> NodeClient | None:
        url = self.urls.get(host.readable) or self.urls.get(host.host)
        if url is None:
            return None
        return NodeClient(
            url,
            user=self.user,
            password=self.password,
            tls=self.tls,
            timeout_s=_PATIENCE_S,
            connect_timeout_s=_PATIENCE_S / 2,
        )


async def _default_place(client: NodeClient) -> Place | None:
    """None of servers that do not show it, as those before ClickHouse 24. Raises NodeUnavailable,
    ReplyLost."""
    try:
        defaults = await client.query_rows(
            "SELECT name, value FROM system.server_settings "
            "WHERE name IN ('default_replica_path', 'default_replica_name')"
        )
    except SqlError:
        return None
    texts = {str(name): str(value) for name, value in defaults.rows}
    if len(texts) < 2:
        return None
    return texts["default_replica_path"], texts["default_replica_name"]
