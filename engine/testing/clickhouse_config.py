"""Configuration files for the real ClickHouse servers of `engine.testing.clickhouse_server`.

As few keys as 18.16.1 starts with, which later versions accept, too: the root element `yandex` (the only name
up to 21.x), everything below the server's own directory, nothing heard outside of this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from engine.config.model import Cluster, DistributedDdl, ZooKeeper
from engine.names import HostId

LISTEN_HOST = "127.0.0.1"
_Tree = dict[str, "_Tree | list[_Tree] | str | int | Path"]


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server to be started: its name (display name and directory), ports and macros."""

    name: str
    tcp_port: int
    http_port: int
    interserver_http_port: int
    macros: Mapping[str, str] = field(default_factory=dict)

    @property
    def host_id(self) -> HostId:
        return HostId(LISTEN_HOST, self.tcp_port)

    @property
    def url(self) -> str:
        return f"http://{LISTEN_HOST}:{self.http_port}/"


@dataclass(frozen=True, slots=True)
class ClickHouseConfig:
    """What the servers of one RealCluster share, and how it is written for one of them."""

    clusters: tuple[Cluster, ...]
    zookeeper: ZooKeeper
    queue: DistributedDdl
    log_level: str

    def write(self, spec: ServerSpec, directory: Path) -> None:
        for name in ("data", "tmp", "user_files", "format_schemas"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        _write_xml(directory / "config.xml", self._server(spec, directory))
        _write_xml(directory / "users.xml", _users())

    def _server(self, spec: ServerSpec, directory: Path) -> _Tree:
        return {
            "logger": {
                "level": self.log_level,
                "log": directory / "server.log",
                "errorlog": directory / "server.err.log",
            },
            "display_name": spec.name,
            "listen_host": LISTEN_HOST,
            "tcp_port": spec.tcp_port,
            "http_port": spec.http_port,
            "interserver_http_host": LISTEN_HOST,
            "interserver_http_port": spec.interserver_http_port,
            "max_connections": 256,
            "mark_cache_size": 64 << 20,
            "uncompressed_cache_size": 16 << 20,
            "mlock_executable": "false",
            "timezone": "UTC",
            "path": f"{directory / 'data'}/",
            "tmp_path": f"{directory / 'tmp'}/",
            "user_files_path": f"{directory / 'user_files'}/",
            "format_schema_path": f"{directory / 'format_schemas'}/",
            "users_config": directory / "users.xml",
            "default_profile": "default",
            "default_database": "default",
            "zookeeper": {
                "node": [{"host": host, "port": port} for host, port in self.zookeeper.hosts],
                "session_timeout_ms": self.zookeeper.session_timeout_ms,
                **({"root": self.zookeeper.root} if self.zookeeper.root else {}),
                **({"identity": self.zookeeper.identity} if self.zookeeper.identity else {}),
            },
            "distributed_ddl": {
                "path": self.queue.path,
                "cleanup_delay_period": self.queue.cleanup_delay_period_s,
                "task_max_lifetime": self.queue.task_max_lifetime_s,
                "max_tasks_in_queue": self.queue.max_tasks_in_queue,
            },
            "macros": dict(spec.macros),
            "remote_servers": {cluster.name: _cluster(cluster) for cluster in self.clusters},
        }


def _cluster(cluster: Cluster) -> _Tree:
    return {
        "shard": [
            {
                "weight": shard.weight,
                "internal_replication": "true" if shard.internal_replication else "false",
                "replica": [{"host": replica.host, "port": replica.port} for replica in shard.replicas],
            }
            for shard in cluster.shards
        ]
    }


def _users() -> _Tree:
    quota_of_none = {"duration": 3600, "queries": 0, "errors": 0, "result_rows": 0, "read_rows": 0}
    return {
        "profiles": {
            "default": {
                "load_balancing": "in_order",
                # The default of 16 threads is for a machine that the server has to itself.
                "background_pool_size": 4,
            }
        },
        "quotas": {"default": {"interval": {**quota_of_none, "execution_time": 0}}},
        "users": {
            "default": {
                "password": "",
                "networks": {"ip": LISTEN_HOST},
                "profile": "default",
                "quota": "default",
            }
        },
    }


def _write_xml(file: Path, content: _Tree) -> None:
    """Replace the file at once: a running server may be reading it."""
    root = ElementTree.Element("yandex")
    _append(root, content)
    ElementTree.indent(root)
    draft = file.with_suffix(".tmp")
    ElementTree.ElementTree(root).write(draft, encoding="utf-8", xml_declaration=True)
    draft.replace(file)


def _append(parent: ElementTree.Element, content: _Tree) -> None:
    for name, value in content.items():
        for item in value if isinstance(value, list) else [value]:
            child = ElementTree.SubElement(parent, name)
            if isinstance(item, dict):
                _append(child, item)
            else:
                child.text = str(item)
