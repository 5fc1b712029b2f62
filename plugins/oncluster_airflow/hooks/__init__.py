"""Connections: Keeper and the nodes."""

from oncluster_airflow.hooks.keeper import KeeperHook

__all__ = ["KeeperHook"]
