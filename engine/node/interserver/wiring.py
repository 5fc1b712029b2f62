"""The interserver port and its client as a node's configuration wants them."""

from __future__ import annotations

import ipaddress
import logging
import ssl
from collections.abc import Callable

from engine.config.model import NodeConfig
from engine.errors import ConfigError
from engine.node.interserver.client import HttpPartFetcher
from engine.node.interserver.credentials import Credentials, InterserverCredentials
from engine.node.interserver.server import InterserverConfig, InterserverServer, SendingReplica
from engine.tls import authorities_on_demand

logger = logging.getLogger(__name__)


def server_of(
    config: NodeConfig, *, find: Callable[[str], SendingReplica | None], version: str
) -> InterserverServer:
    """`find` gives the replica with a path in Keeper (`<table>/replicas/<replica>`). Raises ConfigError."""
    tls = None
    if config.interserver_https_port:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            tls.load_cert_chain(config.certificate_file, config.private_key_file or None)
        except OSError as error:
            raise ConfigError(f"The certificate {config.certificate_file} cannot be used: {error}") from error
    access = config.interserver_access
    credentials = None
    if access is not None:
        credentials = InterserverCredentials(
            Credentials(access.user, access.password),
            tuple(Credentials(user, password) for user, password in access.old),
            access.allow_empty,
        )
    return InterserverServer(
        InterserverConfig(
            config.interserver_listen_host or config.listen_host,
            config.interserver_https_port or config.interserver_http_port,
            tls=tls,
            credentials=credentials,
        ),
        find=find,
        version=version,
    )


def warn_if_open(config: NodeConfig, port: int) -> None:
    """Say it in the log when others than this machine reach the port and need no password there."""
    access = config.interserver_access
    if listens_on_loopback(config) or (access is not None and not access.allow_empty):
        return
    logger.warning(
        "interserver.open address=%s:%d consequence='whoever reaches it can fetch all data of replicated "
        "tables' hint='%s'",
        config.interserver_listen_host or config.listen_host,
        port,
        "Set <interserver_http_credentials>, with the same <user> and <password> on all replicas, or let "
        "<interserver_listen_host> be an address that only they reach."
        if access is None
        else "Remove <allow_empty> from <interserver_http_credentials> when all replicas have the password.",
    )


def listens_on_loopback(config: NodeConfig) -> bool:
    """Only processes of this machine reach the interserver port."""
    host = config.interserver_listen_host or config.listen_host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def fetcher_of(config: NodeConfig) -> HttpPartFetcher:
    """Close it at the end. Raises ConfigError."""
    access = config.interserver_access
    return HttpPartFetcher(
        credentials=None if access is None else Credentials(access.user, access.password),
        tls=client_tls(config.ca_file),
    )


def client_tls(ca_file: str) -> ssl.SSLContext:
    """Peers have to show a certificate that names them, of an authority in `ca_file` (or of the system's)."""
    try:
        with authorities_on_demand():
            return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise ConfigError(f"The authorities in {ca_file} cannot be used: {error}") from error
