"""Reading a configuration: files and environment, once, here.

Elements this project has no use for (`logger`, `mark_cache_size`, …) are ignored. Wrong values raise
ConfigError with the file, the line, the element, and what would be right.

A node needs all of it. Commands and DAGs get their file from a server, and must not fail over what concerns
that server alone, so they have a reading of their own: clusters, Keeper and queues, but no users.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from engine.config.clusters import read_topology
from engine.config.files import NO_OVERRIDES, read_for_all, read_for_node
from engine.config.model import NodeConfig, Topology
from engine.config.node_config import client_config, node_config


def load_node_config(
    path: Path, *, overrides: Mapping[str, str] = NO_OVERRIDES, environ: Mapping[str, str] = os.environ
) -> NodeConfig:
    """Read everything one node needs.

    `overrides` maps elements, as `http_port` or `distributed_ddl/path`, to texts that win over the files.
    `environ` is what `from_env` sees. Raises ConfigError.
    """
    return node_config(read_for_node(path, overrides, environ).root, path)


def load_client_config(path: Path, *, environ: Mapping[str, str] = os.environ) -> NodeConfig:
    """Read what somebody needs who is no node: clusters, macros, Keeper, queues, limits of health checks.

    The file may be that of a server with users, certificates and keys that mean nothing here; its users' file
    is not opened. Everything that only a node has is at its default. Raises ConfigError.
    """
    return client_config(read_for_all(path, NO_OVERRIDES, environ), path)


def load_topology(
    path: Path, *, overrides: Mapping[str, str] = NO_OVERRIDES, environ: Mapping[str, str] = os.environ
) -> Topology:
    """Read clusters and macros only. Raises ConfigError."""
    return read_topology(read_for_all(path, overrides, environ))
