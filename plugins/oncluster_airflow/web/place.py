"""Where the page finds its clusters: the project's settings, and Airflow's connections if there are any."""

from __future__ import annotations

import logging

from engine.config.model import KeeperSection
from engine.errors import ConfigError, Unavailable
from oncluster_airflow.hooks.keeper import KeeperHook
from oncluster_airflow.hooks.missing import ConnectionMissing
from oncluster_airflow.hooks.nodes import ClickHouseNodesHook
from oncluster_airflow.settings import Settings
from oncluster_airflow.web.watch import Place

log = logging.getLogger(__name__)

_NO_CONNECTION = (ConnectionMissing, Unavailable)


def place_of_airflow() -> Place:
    """Blocks: connections may be in Airflow's database. Raises ConfigError."""
    settings = Settings.from_environment()
    urls: dict[str, str] = {}
    user = password = ""
    try:
        addresses = ClickHouseNodesHook().addresses()
        urls = addresses.nodes
        if addresses.password or addresses.user != "default":
            user, password = addresses.user, addresses.password
    except _NO_CONNECTION:
        log.debug("page.no_nodes_connection")
    return Place(
        config=settings.config,
        records_url=settings.records_url,
        ledger_url=settings.ledger_url,
        keeper=_keeper(),
        urls=urls,
        user=user,
        password=password,
    )


def _keeper() -> KeeperSection | None:
    try:
        return KeeperHook().config()
    except (*_NO_CONNECTION, ConfigError) as error:
        log.debug("page.no_keeper_connection error=%s", error)
        return None
