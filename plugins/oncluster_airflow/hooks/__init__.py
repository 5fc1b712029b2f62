"""Connections: Keeper and the nodes."""

from oncluster_airflow.hooks.keeper import KeeperHook
from oncluster_airflow.hooks.nodes import ClickHouseNodesHook

__all__ = ["ClickHouseNodesHook", "KeeperHook"]
