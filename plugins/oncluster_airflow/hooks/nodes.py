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

import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk import BaseHook, Connection

from engine.client import NodeClient
from engine.client.address import server_address
from engine.errors import ConfigError
from engine.migrations.probe import HttpProbe
from engine.names import HostId, http_url
from oncluster_airflow.hooks.extra import extra_of, flag, port_number, text
from oncluster_airflow.hooks.missing import find_connection
from oncluster_airflow.settings import NODES_CONN_ID

_DEFAULT_PORT = 8123


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
        extra = extra_of(connection)
        nodes: Any = extra.get("nodes", {})
        if not isinstance(nodes, dict):
            raise ConfigError(
                f"Airflow connection {connection.conn_id!r}: `nodes` in extra is no object.",
                hint='Write {"nodes": {"node01": "http://10.0.0.1:8123"}}.',
            )
        try:
            secure, verify = flag(extra, "secure"), flag(extra, "verify", default=True)
            port = port_number(connection.port, _DEFAULT_PORT)
            host = connection.host or "localhost"
            if "://" in host:
                raise ValueError("Host has a scheme; it is a name alone, and `secure` in extra means https")
            urls = {str(name): text(nodes, name) for name in nodes}
            for url in urls.values():
                server_address(url)
        except ValueError as error:
            raise ConfigError(f"Airflow connection {connection.conn_id!r}: {error}.") from error
        except ConfigError as error:
            raise ConfigError(
                f"Airflow connection {connection.conn_id!r}, `nodes` in extra: {error.message}",
                hint=error.hint,
            ) from error
        return cls(
            scheme="https" if secure else "http",
            host=host,
            port=port,
            user=connection.login or "default",
            password=connection.password or "",
            database=connection.schema or "",
            verify=verify,
            nodes=urls,
        )

    def url_of(self, host: HostId) -> str:
        """`nodes` may name a host, or a host with its port as the configuration writes it."""
        known = self.nodes.get(host.readable) or self.nodes.get(host.host)
        return known or http_url(self.scheme, host.host, self.port)

    def probe(self, hosts: Iterable[HostId]) -> HttpProbe:
        """Asks these hosts for a plan. Blocks while names are looked up.

        A host is left out when `nodes` does not name it and its name does not resolve here: that is no
        sign that it is down.
        """
        urls = {
            host.readable: self.url_of(host)
            for host in hosts
            if host.readable in self.nodes or host.host in self.nodes or _resolves(host.host)
        }
        return HttpProbe(urls, user=self.user, password=self.password, tls=self._tls)

    @property
    def _tls(self) -> ssl.SSLContext | None:
        return None if self.verify else _unverified()

    def client(self, url: str | None = None, *, timeout_s: float = 300.0) -> NodeClient:
        """A client for one node; without `url` for the connection's own."""
        return NodeClient(
            url or http_url(self.scheme, self.host, self.port),
            user=self.user,
            password=self.password,
            database=self.database,
            timeout_s=timeout_s,
            tls=self._tls,
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
        """Raises ConfigError, ConnectionMissing for an unknown id, and Unavailable where Airflow cannot say
        it now."""
        return NodeAddresses.of(find_connection(self.clickhouse_conn_id))

    def client(self) -> NodeClient:
        """A client for the connection's own node, to be closed by the caller."""
        return self.addresses().client()


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _resolves(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True
