"""Where an operation stands: one cluster with its configuration, Keeper, servers and records.

Servers are asked over HTTP, nodes and ClickHouse alike. Who does not answer, or answers nonsense, is an error
in that host's place and never stops the look at the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from engine.client.node_client import NodeClient
from engine.config.model import Cluster, DistributedDdl, NodeConfig, Replica
from engine.env import Env, SystemEnv
from engine.errors import ConfigError, KeeperUnavailable, NodeUnavailable, OnclusterError, ReplyLost
from engine.keeper import opening
from engine.keeper.base import Keeper
from engine.names import HostId, http_url
from engine.operations.records import Records

T = TypeVar("T")

PATIENCE_S = 10.0
"""How long one host's answer is waited for while looking."""


class KeeperNeed(enum.Enum):
    """Whether an operation can do without Keeper."""

    REQUIRED = "required"
    OPTIONAL = "optional"


@dataclass(slots=True)
class Site:
    """One cluster as an operation sees it. Made by `open_site`, or by tests from their own parts.

    `operator` is who acts, for records and locks: "ada@host7, process 12 (oncluster cleanup)". `ledger_url`
    is empty where migrations are not recorded.
    """

    cluster: str
    config: NodeConfig
    records: Records
    env: Env
    operator: str
    ledger_url: str = field(default="", repr=False)
    keeper_or_none: Keeper | None = None
    keeper_error: OnclusterError | None = None
    clients: Mapping[HostId, NodeClient] = field(default_factory=dict)
    patience_s: float = PATIENCE_S

    @property
    def keeper(self) -> Keeper:
        """The session. Raises KeeperUnavailable when there was none to be had."""
        if self.keeper_or_none is None:
            raise self.keeper_error or KeeperUnavailable("There is no session with Keeper.")
        return self.keeper_or_none

    @property
    def topology_cluster(self) -> Cluster:
        """The cluster's shards and replicas. Raises SqlError 701 that names the clusters there are."""
        return self.config.topology.cluster(self.cluster)

    @property
    def queue(self) -> DistributedDdl:
        """The DDL queue of the cluster. Raises ConfigError."""
        return self.config.queue_of(self.cluster)

    @property
    def hosts(self) -> tuple[HostId, ...]:
        """Each host once, in the order of the configuration."""
        return tuple(dict.fromkeys(self.topology_cluster.host_ids))

    def client(self, host: HostId) -> NodeClient:
        """Raises ConfigError for a host that the cluster does not have."""
        try:
            return self.clients[host]
        except KeyError:
            known = ", ".join(other.readable for other in self.clients)
            raise ConfigError(
                f"{host.readable} is no host of cluster {self.cluster}.", hint=f"There are: {known}."
            ) from None

    async def ask(self, host: HostId, question: Callable[[NodeClient], Awaitable[T]]) -> T | OnclusterError:
        """One host's answer, or the error in its place: never more than `patience_s` seconds."""
        client = self.client(host)
        try:
            async with asyncio.timeout(self.patience_s):
                return await question(client)
        except TimeoutError:
            return ReplyLost(
                f"{host.readable} ({client.url}) did not answer within {self.patience_s:g} s.",
                hint="Look at its load and its log.",
            )
        except OnclusterError as error:
            return error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            return NodeUnavailable(
                f"{host.readable} ({client.url}) answered something that is not ClickHouse's: {error!r}.",
                hint="Look at what listens on that port.",
            )

    async def ask_all(
        self, question: Callable[[HostId, NodeClient], Awaitable[T]]
    ) -> dict[HostId, T | OnclusterError]:
        """All hosts at once, in the order of the configuration. Errors are values, see `ask`."""
        hosts = self.hosts
        answers = await asyncio.gather(
            *(self.ask(host, lambda client, host=host: question(host, client)) for host in hosts)  # type: ignore[misc]  # of the default
        )
        return dict(zip(hosts, answers, strict=True))


@contextlib.asynccontextmanager
async def open_site(
    cluster: str,
    config: NodeConfig,
    *,
    database_url: str | Path,
    operator: str,
    ledger_url: str = "",
    urls: Mapping[str, str] | None = None,
    user: str = "",
    password: str = "",
    need: KeeperNeed = KeeperNeed.REQUIRED,
    env: Env | None = None,
    patience_s: float = PATIENCE_S,
) -> AsyncIterator[Site]:
    """Open a session with Keeper, the records, and a client for each host; close all of them at the end.

    `urls` says by host name, or by host:port, where a server is when that is not what the configuration says;
    `user` and `password` replace those of the configuration. Raises SqlError 701 for an unknown cluster,
    ConfigError, and KeeperUnavailable where Keeper is needed.
    """
    env = env or SystemEnv()
    replicas = config.topology.cluster(cluster).replicas
    given = urls or {}
    records = Records(database_url, env=env)
    async with contextlib.AsyncExitStack() as stack:
        site = Site(
            cluster,
            config,
            records,
            env,
            operator,
            ledger_url,
            clients={
                replica.host_id: await stack.enter_async_context(
                    NodeClient(
                        given.get(replica.host_id.readable) or given.get(replica.host) or url_of(replica),
                        user=user or replica.user,
                        password=password if user else replica.password,
                        timeout_s=max(patience_s, PATIENCE_S) * 6,
                        connect_timeout_s=min(patience_s, PATIENCE_S) / 2,
                        env=env,
                    )
                )
                for replica in replicas
            },
            patience_s=patience_s,
        )
        try:
            if config.zookeeper is None:
                raise ConfigError(
                    "The configuration has no <zookeeper> section.",
                    hint="Add <zookeeper><node><host>…</host><port>2181</port></node></zookeeper>.",
                )
            connect_s = PATIENCE_S if need is KeeperNeed.REQUIRED else min(patience_s, PATIENCE_S)
            site.keeper_or_none = await opening.connect(config.zookeeper, env, connect_timeout_s=connect_s)
            stack.push_async_callback(site.keeper_or_none.close)
        except KeeperUnavailable as error:
            if need is KeeperNeed.REQUIRED:
                raise
            site.keeper_error = error
        yield site


def url_of(replica: Replica) -> str:
    """Where the replica's HTTP interface is."""
    return http_url("https" if replica.secure else "http", *replica.http_address)
