"""Reading a configuration: files, their merge directories, inclusions and the environment, once, here.

A file `config.xml` is read as ClickHouse reads it: on top of it come, by their full names, the files in
`conf.d` and `config.d` beside it and in the directory called like the file with `.d` for its suffix; then
`include_from` gives the text for `incl=`, and the environment the text for `from_env=`. `users_config` names
one more file, which has merge directories too. XML and YAML may be mixed freely.

Elements this project has no use for (`logger`, `mark_cache_size`, …) are ignored. Wrong values raise
ConfigError with the file, the line, the element, and what would be right.

A node needs all of it. Commands and DAGs get their file from a server, and must not fail over what concerns
that server alone, so they have a reading of their own: clusters, Keeper and queues, but no users.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from engine.config import reading
from engine.config.clusters import read_topology
from engine.config.element import XML_SUFFIXES, YAML_SUFFIXES, Element, parse_file
from engine.config.graphite import SECTION, read_graphite
from engine.config.health import read_health
from engine.config.merge import merge, substitute, substitute_one
from engine.config.model import KeeperSection, NodeConfig, Topology
from engine.config.profiles import read_profiles
from engine.config.sections import (
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

_NO_OVERRIDES: Mapping[str, str] = MappingProxyType({})
USUAL_INCLUDE = Path("/etc/metrika.xml")
"""What ClickHouse includes from when the configuration does not say."""
_READ_BY_ALL = frozenset(
    {
        *("zookeeper", "etcd", "remote_servers", "macros", "distributed_ddl", "http_addresses", "openSSL"),
        *("oncluster", "tcp_port", "tcp_port_secure", "default_replica_path", "default_replica_name"),
        SECTION,
    }
)
_READ_BY_NODES = _READ_BY_ALL | {
    *("path", "listen_host", "host_name", "http_port", "https_port", "max_connections"),
    *("interserver_http_host", "interserver_http_port", "interserver_https_port"),
    *("interserver_listen_host", "interserver_http_credentials"),
    *("users_config", "user_directories", "users", "profiles", "default_profile", "umask", "backups"),
    "distributed_ddl_use_initial_user_and_roles",
}


def load_node_config(
    path: Path, *, overrides: Mapping[str, str] = _NO_OVERRIDES, environ: Mapping[str, str] | None = None
) -> NodeConfig:
    """Read everything one node needs.

    `overrides` maps elements, as `http_port` or `distributed_ddl/path`, to texts that win over the files.
    `environ` is what `from_env` sees, the process's environment by default. Raises ConfigError.
    """
    return _node_config(_read(path, overrides, environ).root, path)


def load_client_config(path: Path, *, environ: Mapping[str, str] | None = None) -> NodeConfig:
    """Read what somebody needs who is no node: clusters, macros, Keeper, queues, limits of health checks.

    The file may be that of a server with users, certificates and keys that mean nothing here; its users' file
    is not opened. Everything that only a node has is at its default. Raises ConfigError.
    """
    read = _Read(os.environ if environ is None else environ)
    root = _main(read, path, _NO_OVERRIDES, _READ_BY_ALL)
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


def load_topology(
    path: Path, *, overrides: Mapping[str, str] = _NO_OVERRIDES, environ: Mapping[str, str] | None = None
) -> Topology:
    """Read clusters and macros only. Raises ConfigError."""
    read = _Read(os.environ if environ is None else environ)
    return read_topology(_main(read, path, overrides, _READ_BY_ALL))


class ConfigFile:
    """One node's configuration while it runs: read once, its clusters and macros re-read on change.

    `node` is as it was at the start, but for its topology; what else changes in the files needs a restart,
    and that is said in the log once per change.
    """

    def __init__(
        self,
        path: Path,
        *,
        overrides: Mapping[str, str] = _NO_OVERRIDES,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self._overrides = overrides
        self._environ = environ
        read = _read(path, overrides, environ)
        self._node = _node_config(read.root, path)
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
        read = _read(self.path, self._overrides, self._environ)
        fresh = _node_config(read.root, self.path)
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


# --- from files to one tree ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Read:
    """One reading: the merged tree, and the contents it was made of."""

    environ: Mapping[str, str]
    root: Element = field(default_factory=lambda: Element("clickhouse"))
    contents: dict[Path, bytes] = field(default_factory=dict)
    listings: dict[Path, list[Path]] = field(default_factory=dict)

    @property
    def is_up_to_date(self) -> bool:
        """Whether another reading would find the same, which is told without parsing anything."""
        try:
            return all(_files_in(place) == files for place, files in self.listings.items()) and all(
                path.read_bytes() == content for path, content in self.contents.items()
            )
        except OSError:
            return False

    def file(self, path: Path) -> Element:
        """The tree of one file alone."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
        self.contents[path] = content
        return parse_file(path, content)

    def files_in(self, place: Path) -> list[Path]:
        """The configuration files of a directory, sorted; of a file itself; of nothing if it is not there.
        Raises ConfigError."""
        try:
            self.listings[place] = _files_in(place)
        except OSError as error:
            raise ConfigError(f"{place}: cannot be read: {error.strerror or error}") from error
        return self.listings[place]

    def merged(self, path: Path, directories: tuple[str, ...]) -> Element:
        """The tree of a file with its merge directories on top."""
        root = self.file(path)
        extras = [file for name in dict.fromkeys(directories) for file in self.files_in(path.parent / name)]
        for extra in sorted(extras):
            merge(root, self.file(extra))
        return root


def _files_in(place: Path) -> list[Path]:
    files = place.iterdir() if place.is_dir() else [place]
    return sorted(
        file
        for file in files
        if file.suffix in XML_SUFFIXES + YAML_SUFFIXES and not file.name.startswith(".") and file.is_file()
    )


def _read(path: Path, overrides: Mapping[str, str], environ: Mapping[str, str] | None) -> _Read:
    read = _Read(os.environ if environ is None else environ)
    root = _main(read, path, overrides, _READ_BY_NODES)
    users_file = _users_file(root)
    if users_file is not None:
        users = read.merged(path.parent / users_file, (f"{Path(users_file).stem}.d", "conf.d"))
        _resolve(read, users, path, _READ_BY_NODES)
        root.children = [c for c in root.children if c.name not in _OF_USERS]
        root.children.extend(c for c in users.children if c.name in _OF_USERS)
    read.root = root
    return read


_OF_USERS = ("users", "profiles")


def _main(read: _Read, path: Path, overrides: Mapping[str, str], names: Collection[str]) -> Element:
    """The main file with all that belongs to it; of its elements those in `names` will be read."""
    root = read.merged(path, ("config.d", f"{path.stem}.d", "conf.d"))
    for place, value in overrides.items():
        _override(root, place, value)
    _resolve(read, root, path, names)
    return root


def _resolve(read: _Read, root: Element, path: Path, names: Collection[str]) -> None:
    """Do the inclusions and the environment; relative files are beside the main one."""
    included: Element | None = None
    place = root.first("include_from")
    if place is not None:
        substitute_one(place, environ=read.environ)
        included = read.file(path.parent / place.text)
    elif read.files_in(USUAL_INCLUDE):
        included = read.file(USUAL_INCLUDE)
    substitute(root, included=included, environ=read.environ, read=names)


def _users_file(root: Element) -> str | None:
    name = reading.text(root, "users_config")
    directories = root.first("user_directories")
    users_xml = directories.first("users_xml") if directories is not None else None
    return name or (reading.text(users_xml, "path") if users_xml is not None else "") or None


def _override(root: Element, place: str, value: str) -> None:
    element = root
    for name in place.split("/"):
        child = element.first(name)
        if child is None:
            child = Element(name, source=f"override {place}")
            element.children.append(child)
        element = child
    element.text = value
    element.source = f"override {place}"
    element.attributes.pop("from_env", None)


# --- from the tree to values --------------------------------------------------------------------------------


def _node_config(root: Element, path: Path) -> NodeConfig:
    defaults = NodeConfig(path="")
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
        certificate_file=_beside(path, certificate),
        private_key_file=_beside(path, key),
        ca_file=_beside(path, read_ca_file(root)),
        umask=reading.file_mode(root, "umask", defaults.umask),
        trusted_backups=read_trusted_backups(root),
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
