"""From configuration files to one tree: merge directories, inclusions, the environment, overrides.

A file `config.xml` is read as ClickHouse reads it: on top of it come, by their full names, the files in
`conf.d` and `config.d` beside it and in the directory called like the file with `.d` for its suffix; then
`include_from` gives the text for `incl=`, and the environment the text for `from_env=`. `users_config` names
one more file, which has merge directories too. XML and YAML may be mixed freely.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from engine.config import reading
from engine.config.element import XML_SUFFIXES, YAML_SUFFIXES, Element, parse_file
from engine.config.graphite import SECTION
from engine.config.merge import merge, substitute, substitute_one
from engine.errors import ConfigError

NO_OVERRIDES: Mapping[str, str] = MappingProxyType({})
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
    "max_concurrent_queries",
    *("interserver_http_host", "interserver_http_port", "interserver_https_port"),
    *("interserver_listen_host", "interserver_http_credentials"),
    *("users_config", "user_directories", "users", "profiles", "quotas", "default_profile"),
    *("umask", "backups", "distributed_ddl_use_initial_user_and_roles"),
}
_OF_USERS = ("users", "profiles", "quotas")


@dataclass(slots=True)
class Reading:
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


def read_for_node(path: Path, overrides: Mapping[str, str], environ: Mapping[str, str]) -> Reading:
    """All that a node needs. `overrides` maps places, as `distributed_ddl/path`, to texts that win over the
    files. Raises ConfigError."""
    read = Reading(environ)
    root = _main(read, path, overrides, _READ_BY_NODES)
    users_file = _users_file(root)
    if users_file is not None:
        users = read.merged(path.parent / users_file, (f"{Path(users_file).stem}.d", "conf.d"))
        _resolve(read, users, path, _READ_BY_NODES)
        root.children = [c for c in root.children if c.name not in _OF_USERS]
        root.children.extend(c for c in users.children if c.name in _OF_USERS)
    read.root = root
    return read


def read_for_all(path: Path, overrides: Mapping[str, str], environ: Mapping[str, str]) -> Element:
    """What means something also to somebody who is no node; no users' file is opened. Raises ConfigError."""
    return _main(Reading(environ), path, overrides, _READ_BY_ALL)


def _main(read: Reading, path: Path, overrides: Mapping[str, str], names: Collection[str]) -> Element:
    """The main file with all that belongs to it; of its elements those in `names` will be read."""
    root = read.merged(path, ("config.d", f"{path.stem}.d", "conf.d"))
    for place, value in overrides.items():
        _override(root, place, value)
    _resolve(read, root, path, names)
    return root


def _files_in(place: Path) -> list[Path]:
    files = place.iterdir() if place.is_dir() else [place]
    return sorted(
        file
        for file in files
        if file.suffix in XML_SUFFIXES + YAML_SUFFIXES and not file.name.startswith(".") and file.is_file()
    )


def _resolve(read: Reading, root: Element, path: Path, names: Collection[str]) -> None:
    """Do the inclusions and the environment; relative files are beside the main one."""
    included: Element | None = None
    place = root.first("include_from")
    if place is not None:
        substitute_one(place, environ=read.environ)
        if place.text:
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
