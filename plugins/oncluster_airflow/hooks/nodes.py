"""The nodes of a cluster, asked over HTTP with the Airflow connection of the official ClickHouse provider.

    Connection type   clickhouse
    Host, Port        one node, or any address that reaches one (HTTP, 8123)
    Login, Password   the user, the same on every node
    Schema            default database
    Extra             the provider's `secure` and `verify`; and, of ours, `nodes`: {"node01": "http://10.0.0.1:8123"}
                      where the names in the cluster's configuration are not the addresses to use

Without `nodes` a replica is asked at its own host name and the connection's port.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk import BaseHook, Connection

from engine.client import NodeClient
from engine.errors import ConfigError, NodeUnavailable, OnclusterError, ReplyLost
from engine.migrations.plan import TableFacts
from engine.names import HostId, TableName, quote_string
from oncluster_airflow.settings import NODES_CONN_ID

_DEFAULT_PORT = 8123
_ASK_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class NodeAddresses:
    """What the connection says: where each node is, and as whom to come. The password is not shown."""

    scheme: str
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    verify: bool
    nodes: dict[str, str]

    @classmethod
    def of(cls, connection: Connection) -> NodeAddresses:
        """Raises ConfigError that names the field."""
        extra = connection.extra_dejson
        nodes: Any = extra.get("nodes", {})
        if not isinstance(nodes, dict):
            raise ConfigError(
                f"Airflow connection {connection.conn_id!r}: `nodes` in extra is no object.",
                hint='Write {"nodes": {"node01": "http://10.0.0.1:8123"}}.',
            )
        return cls(
            scheme="https" if extra.get("secure") else "http",
            host=connection.host or "localhost",
            port=int(connection.port or _DEFAULT_PORT),
            user=connection.login or "default",
            password=connection.password or "",
            database=connection.schema or "",
            verify=bool(extra.get("verify", True)),
            nodes={str(name): str(url) for name, url in nodes.items()},
        )

    def url_of(self, host: HostId) -> str:
        """`nodes` may name a host, or a host with its port as the configuration writes it."""
        known = self.nodes.get(host.readable) or self.nodes.get(host.host)
        return known or f"{self.scheme}://{host.host}:{self.port}"

    def has(self, host: HostId) -> bool:
        """Whether `nodes` names the host."""
        return host.readable in self.nodes or host.host in self.nodes

    def client(self, url: str | None = None, *, timeout_s: float = 300.0) -> NodeClient:
        """A client for one node; without `url` for the connection's own."""
        return NodeClient(
            url or f"{self.scheme}://{self.host}:{self.port}",
            user=self.user,
            password=self.password,
            database=self.database,
            timeout_s=timeout_s,
            tls=None if self.verify else _unverified(),
        )


class ClickHouseNodesHook(BaseHook):
    """Clients for the nodes behind one Airflow connection."""

    conn_name_attr = "clickhouse_conn_id"
    default_conn_name = NODES_CONN_ID
    conn_type = "clickhouse"
    hook_name = "ClickHouse"

    def __init__(self, clickhouse_conn_id: str = NODES_CONN_ID) -> None:
        super().__init__()
        self.clickhouse_conn_id = clickhouse_conn_id

    def addresses(self) -> NodeAddresses:
        """Raises ConfigError; Airflow raises for an unknown id."""
        return NodeAddresses.of(self.get_connection(self.clickhouse_conn_id))

    def client(self) -> NodeClient:
        """A client for the connection's own node, to be closed by the caller."""
        return self.addresses().client()


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """Asks nodes for a plan (`engine.migrations.gather.NodeProbe`)."""

    addresses: NodeAddresses

    async def is_up(self, host: HostId) -> bool | None:
        if not await self._is_known(host):
            return None
        async with self.addresses.client(self.addresses.url_of(host), timeout_s=_ASK_TIMEOUT_S) as client:
            try:
                await client.ping()
            except (NodeUnavailable, ReplyLost):
                return False
            except OnclusterError:
                # It answers, if not as wished: that is up.
                return True
        return True

    async def table(self, host: HostId, table: TableName) -> TableFacts | None:
        """Raises OnclusterError when the node does not answer."""
        if not await self._is_known(host):
            return None
        where = f"database = {quote_string(table.database)} AND "
        async with self.addresses.client(self.addresses.url_of(host), timeout_s=_ASK_TIMEOUT_S) as client:
            engines = await client.query_rows(
                f"SELECT engine FROM system.tables WHERE {where} name = {quote_string(table.table)}"
            )
            if not engines.rows:
                return None
            parts = await client.query_rows(
                "SELECT sum(rows), sum(bytes) FROM system.parts "
                f"WHERE active AND {where} table = {quote_string(table.table)}"
            )
        rows, size_bytes = parts.rows[0]
        return TableFacts(str(engines.scalar), int(rows), int(size_bytes))

    async def _is_known(self, host: HostId) -> bool:
        """Whether anybody can say where the host is. A name that does not resolve here may do so elsewhere:
        that is no sign that the host is down."""
        if self.addresses.has(host):
            return True
        try:
            await asyncio.get_running_loop().getaddrinfo(host.host, self.addresses.port)
        except OSError:
            return False
        return True


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
