"""Parts between servers: the interserver HTTP port, its client, and ClickHouse's DataPartsExchange on both
ends."""

from engine.node.interserver.client import HttpPartFetcher
from engine.node.interserver.credentials import Credentials, InterserverCredentials
from engine.node.interserver.receiving import FetchLimits
from engine.node.interserver.server import InterserverConfig, InterserverServer, SendingReplica
from engine.node.interserver.wiring import fetcher_of, listens_on_loopback, server_of, warn_if_open

__all__ = [
    "Credentials",
    "FetchLimits",
    "HttpPartFetcher",
    "InterserverConfig",
    "InterserverCredentials",
    "InterserverServer",
    "SendingReplica",
    "fetcher_of",
    "listens_on_loopback",
    "server_of",
    "warn_if_open",
]
