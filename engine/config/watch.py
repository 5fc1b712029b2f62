"""One node's configuration while it runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from engine.config.files import NO_OVERRIDES, read_for_node
from engine.config.model import NodeConfig, Topology
from engine.config.node_config import node_config
from engine.errors import ConfigError

logger = logging.getLogger(__name__)


class ConfigFile:
    """One node's configuration while it runs: read once, its clusters and macros re-read on change.

    `node` is as it was at the start, but for its topology; what else changes in the files needs a restart,
    and that is said in the log once per change.
    """

    def __init__(
        self,
        path: Path,
        *,
        overrides: Mapping[str, str] = NO_OVERRIDES,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.path = path
        self._overrides = overrides
        self._environ = environ
        read = read_for_node(path, overrides, environ)
        self._node = node_config(read.root, path)
        self._seen = self._node
        self._read = read
        self._complaint = ""
        self._with_secret: frozenset[str] = frozenset()
        self._note_secrets()
        self._note_limits()

    @property
    def node(self) -> NodeConfig:
        """The configuration with the latest topology."""
        return self._node

    @property
    def topology(self) -> Topology:
        """Clusters and macros as last read without an error."""
        return self._node.topology

    def reload(self) -> bool:
        """As `reload_or_raise`, but what cannot be read is only logged, once."""
        try:
            return self.reload_or_raise()
        except ConfigError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                logger.error(
                    "config.reload_failed file=%s kept='the clusters as they were' error=%s", self.path, error
                )
            return False

    def reload_or_raise(self) -> bool:
        """Look at the files again; True if the topology has changed.

        Contents count, not times: every file is read. Raises ConfigError for a configuration that cannot be
        read, and leaves everything as it was.
        """
        if self._read.is_up_to_date:
            self._complaint = ""
            return False
        read = read_for_node(self.path, self._overrides, self._environ)
        fresh = node_config(read.root, self.path)
        self._complaint = ""
        self._read = read
        self._report_unapplied(fresh)
        if fresh.topology == self._node.topology:
            return False
        self._node = _with_topology(self._node, fresh.topology)
        self._note_secrets()
        logger.info(
            "config.reloaded file=%s clusters=%s macros=%d",
            self.path,
            ",".join(fresh.topology.clusters),
            len(fresh.topology.macros),
        )
        return True

    def _note_secrets(self) -> None:
        """Once for each cluster: somebody relies on it."""
        found = frozenset(name for name, cluster in self.topology.clusters.items() if cluster.secret)
        for name in sorted(found - self._with_secret):
            logger.warning(
                "config.secret_ignored file=%s cluster=%s consequence='nodes log in with <user> "
                "and <password> of each <replica>, and queries run there with the rights of that user' "
                "hint='Give every <replica> a <user> and a <password>. <secret> may stay for real servers.'",
                self.path,
                name,
            )
        self._with_secret |= found

    def _note_limits(self) -> None:
        for user in self._node.users.values():
            for limit in user.limits_not_kept:
                logger.warning(
                    "config.limit_ignored file=%s user=%s limit='%s' "
                    "consequence='nodes do not keep it: the user may do what it forbids'",
                    self.path,
                    user.name,
                    limit,
                )

    def _report_unapplied(self, fresh: NodeConfig) -> None:
        for name in _FIELDS_THAT_NEED_A_RESTART:
            if getattr(fresh, name) != getattr(self._seen, name):
                logger.warning("config.needs_restart file=%s changed=%s", self.path, name)
        self._seen = fresh


_FIELDS_THAT_NEED_A_RESTART = tuple(
    name for name in NodeConfig.__dataclass_fields__ if name not in ("topology", "health")
)


def _with_topology(node: NodeConfig, topology: Topology) -> NodeConfig:
    return replace(node, topology=topology)
