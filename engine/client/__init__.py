"""Talking to a ClickHouse server or a node over HTTP."""

from engine.client.node_client import NodeClient, QueryRows, Silence

__all__ = ["NodeClient", "QueryRows", "Silence"]
