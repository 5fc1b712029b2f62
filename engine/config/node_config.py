"""From the tree of a configuration to values: what one node needs, and what somebody needs who is no node."""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import replace
from pathlib import Path

from engine.config import reading
from engine.config.clusters import read_topology
from engine.config.element import Element
from engine.config.graphite import read_graphite
from engine.config.health import read_health
from engine.config.model import KeeperSection, NodeConfig
from engine.config.profiles import read_profiles
from engine.config.sections import (
    note_without_effect,
    read_ca_file,
    read_interserver_access,
    read_keeper,
    read_queues,
    read_tls_files,
    read_trusted_backups,
)
from engine.config.users import read_users
from engine.errors import ConfigError

logger = logging.getLogger(__name__)


def node_config(root: Element, path: Path) -> NodeConfig:
    """Everything one node needs; `path` is the file. Raises ConfigError."""
    defaults = NodeConfig(path="")
    note_without_effect(root)
    queues = read_queues(root)
    profiles = read_profiles(root)
    certificate, key = read_tls_files(root)
    https_port = reading.port(root, "https_port", 0)
    interserver_https_port = reading.port(root, "interserver_https_port", 0)
    for name, secure_port in (("https_port", https_port), ("interserver_https_port", interserver_https_port)):
        if secure_port and not certificate:
            raise ConfigError(
                f"{path}: <{name}> needs a certificate",
                hint="Add <openSSL><server><certificateFile>…</certificateFile><privateKeyFile>…"
                "</privateKeyFile></server></openSSL>.",
            )
    for queue in queues:
        if queue.profile and queue.profile not in profiles.settings:
            raise ConfigError(
                f"{path}: the queue '{queue.name}' has the profile '{queue.profile}', which does not exist",
                hint=f"Profiles are: {', '.join(sorted(profiles.settings)) or 'none'}.",
            )
    host_name = (
        reading.text(root, "host_name")
        or next((queue.host_name for queue in queues if queue.host_name), "")
        or reading.text(root, "interserver_http_host")
        or socket.gethostname()
    )
    return NodeConfig(
        path=_path(root, path),
        host_name=host_name,
        listen_host=_listen_host(root, defaults.listen_host),
        http_port=reading.port(root, "http_port", defaults.http_port),
        https_port=https_port,
        tcp_port=reading.port(root, "tcp_port", defaults.tcp_port, at_least=1),
        tcp_port_secure=reading.port(root, "tcp_port_secure", defaults.tcp_port_secure),
        interserver_http_host=reading.text(root, "interserver_http_host") or host_name,
        interserver_http_port=reading.port(root, "interserver_http_port", defaults.interserver_http_port),
        interserver_https_port=interserver_https_port,
        interserver_listen_host=reading.text(root, "interserver_listen_host"),
        interserver_access=read_interserver_access(root),
        default_replica_path=reading.text(root, "default_replica_path") or defaults.default_replica_path,
        default_replica_name=reading.text(root, "default_replica_name") or defaults.default_replica_name,
        topology=read_topology(root),
        zookeeper=_keeper(root, path),
        queues=queues,
        users=read_users(root, profiles),
        profiles=profiles.settings,
        default_profile=profiles.default,
        constraints=profiles.constraints,
        graphite=read_graphite(root),
        uses_initial_user=reading.boolean(
            root, "distributed_ddl_use_initial_user_and_roles", defaults.uses_initial_user
        ),
        max_connections=reading.integer(root, "max_connections", defaults.max_connections, at_least=1),
        max_concurrent_queries=reading.integer(
            root, "max_concurrent_queries", defaults.max_concurrent_queries, at_least=0
        ),
        certificate_file=_beside(path, certificate),
        private_key_file=_beside(path, key),
        ca_file=_beside(path, read_ca_file(root)),
        umask=reading.file_mode(root, "umask", defaults.umask),
        trusted_backups=read_trusted_backups(root),
        health=read_health(root),
    )


def client_config(root: Element, path: Path) -> NodeConfig:
    """Everything that only a node has is at its default; `path` is the file. Raises ConfigError."""
    defaults = NodeConfig(path="")
    return NodeConfig(
        path="",
        tcp_port=reading.port(root, "tcp_port", defaults.tcp_port, at_least=1),
        tcp_port_secure=reading.port(root, "tcp_port_secure", defaults.tcp_port_secure),
        default_replica_path=reading.text(root, "default_replica_path") or defaults.default_replica_path,
        default_replica_name=reading.text(root, "default_replica_name") or defaults.default_replica_name,
        topology=read_topology(root),
        zookeeper=_keeper(root, path),
        queues=read_queues(root),
        graphite=read_graphite(root),
        health=read_health(root),
    )


def _keeper(root: Element, path: Path) -> KeeperSection | None:
    section = read_keeper(root)
    return section and replace(
        section,
        ca_file=_beside(path, section.ca_file),
        certificate_file=_beside(path, section.certificate_file),
        private_key_file=_beside(path, section.private_key_file),
    )


def _path(root: Element, path: Path) -> str:
    """The data directory, without a trailing slash; by default `data` beside the file."""
    return _beside(path, reading.text(root, "path") or "data").rstrip("/") or "/"


def _beside(config: Path, name: str) -> str:
    """A path of the configuration: a relative one begins where the configuration file is."""
    return os.path.normpath(config.parent.absolute() / name) if name else ""


def _listen_host(root: Element, default: str) -> str:
    hosts = [element.text for element in root.all("listen_host") if element.text]
    if len(hosts) > 1:
        logger.warning(
            "config.listen_host_ignored used=%s ignored=%s hint='0.0.0.0 or :: listens everywhere'",
            hosts[0],
            ",".join(hosts[1:]),
        )
    return hosts[0] if hosts else default
