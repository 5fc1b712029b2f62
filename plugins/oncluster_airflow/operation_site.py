"""Where an operation's task stands: the cluster by the configuration, the rest by Airflow's connections.

Keeper is that of the connection, as for migrations. Nodes are asked where the connection's `nodes` say they
are, else where the configuration does; without a connection the configuration's users are taken.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.config.load import load_client_config
from engine.env import SystemEnv
from engine.names import HostId
from engine.operations.alerts import Links, deliver
from engine.operations.site import KeeperNeed, Site, open_site
from oncluster_airflow.channels import Channels
from oncluster_airflow.hooks.keeper import KeeperHook
from oncluster_airflow.hooks.missing import ConnectionMissing, find_connection
from oncluster_airflow.hooks.nodes import NodeAddresses
from oncluster_airflow.settings import KEEPER_CONN_ID, NODES_CONN_ID, OperationSettings, Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Connections:
    """Ids of Airflow connections."""

    keeper: str = KEEPER_CONN_ID
    nodes: str = NODES_CONN_ID


@contextlib.asynccontextmanager
async def site_of(
    cluster: str, context: Mapping[str, Any], *, connections: Connections, need: KeeperNeed
) -> AsyncIterator[Site]:
    """The site of a task; closed at the end. Raises as `engine.operations.site.open_site`, and
    ConnectionMissing for a Keeper connection that is not there."""
    settings = Settings.from_environment()
    config = replace(
        load_client_config(settings.config), zookeeper=await KeeperHook(connections.keeper).aconfig()
    )
    replicas = config.topology.cluster(cluster).replicas
    urls, user, password = await named_nodes(connections.nodes, {replica.host_id for replica in replicas})
    async with open_site(
        cluster,
        config,
        database_url=settings.records_url,
        ledger_url=settings.ledger_url,
        operator=operator_of(context),
        urls=urls,
        user=user,
        password=password,
        need=need,
        env=SystemEnv(),
    ) as site:
        yield site


def is_scheduled(context: Mapping[str, Any]) -> bool:
    """Whether nobody has asked for this run."""
    run_type: Any = getattr(context.get("dag_run"), "run_type", "")
    return str(getattr(run_type, "value", run_type)) == "scheduled"


def operator_of(context: Mapping[str, Any]) -> str:
    """Who acts, for records and locks: who asked for the run, and the run."""
    ti: Any = context["ti"]
    asked_by = getattr(context.get("dag_run"), "triggering_user_name", None) or "airflow"
    return f"{asked_by} (Airflow, DAG {ti.dag_id}, run {ti.run_id})"


def tell_people(site: Site, context: Mapping[str, Any]) -> None:
    """Alerts about the cluster's recorded findings, over every channel. Raises RecordsUnavailable, and
    ConfigError for a policy that cannot be read."""
    settings = Settings.from_environment()
    ti: Any = context["ti"]
    deliver(
        site.records,
        Channels().open(),
        site.cluster,
        links=Links(run=str(getattr(ti, "log_url", "") or ""), docs=settings.docs_url),
        policy=OperationSettings.from_environment().policy,
    )


async def named_nodes(conn_id: str, hosts: set[HostId]) -> tuple[dict[str, str], str, str]:
    """Addresses by host:port, user and password. Several nodes may have one name. Raises Unavailable where
    Airflow cannot say whether there is a connection: other nodes and another user are not meant then."""
    try:
        connection = find_connection(conn_id)
    except ConnectionMissing as error:
        log.info("nodes are asked where the configuration says: %s", error)
        return {}, "", ""
    addresses, login = NodeAddresses.of(connection), connection.login or ""
    named = {
        host.readable: url
        for host in hosts
        if (url := addresses.nodes.get(host.readable) or addresses.nodes.get(host.host))
    }
    return named, login, addresses.password if login else ""
