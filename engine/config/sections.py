"""`zookeeper` or `etcd`, `distributed_ddl`, `interserver_http_credentials`, `backups`, the openSSL files, and
what of a server's file has no effect."""

from __future__ import annotations

import logging
import re
from typing import TypedDict

from engine.config import reading
from engine.config.element import Element
from engine.config.model import DistributedDdl, Etcd, InterserverAccess, KeeperSection, ZooKeeper
from engine.errors import Code, ConfigError

log = logging.getLogger(__name__)

_WITHOUT_EFFECT = ("merge_tree", "replicated_merge_tree")
_DDL_ELEMENTS = frozenset(
    {
        "name",
        "path",
        "replicas_path",
        "profile",
        "pool_size",
        "task_max_lifetime",
        "cleanup_delay_period",
        "max_tasks_in_queue",
        "host_name",
        "clusters",
        "cluster",
    }
)


def note_without_effect(root: Element) -> None:
    """Say in the log which sections change a server's tables and not a node's."""
    for name in _WITHOUT_EFFECT:
        section = root.first(name)
        if section is not None and section.children:
            log.warning(
                "config.section_ignored section=%s at=%s hint='Tables of a node have ClickHouse's defaults: "
                "say it in the SETTINGS of CREATE TABLE, or by ALTER TABLE … MODIFY SETTING.'",
                name,
                section.source,
            )


def read_keeper(root: Element) -> KeeperSection | None:
    """The `zookeeper` or the `etcd` section; None without any. Raises ConfigError."""
    zookeeper, etcd = (_section_with_text(root, name) for name in ("zookeeper", "etcd"))
    if zookeeper is not None and etcd is not None:
        raise ConfigError(
            f"{etcd.source}: there is an <etcd> section, and a <zookeeper> section, too",
            hint="The tree is kept in one place: leave one of them out.",
        )
    if etcd is not None:
        return _etcd(root, etcd)
    return None if zookeeper is None else _zookeeper(root, zookeeper)


def _section_with_text(root: Element, name: str) -> Element | None:
    section = root.first(name)
    return section if section is not None and (section.children or section.text) else None


def _servers(section: Element, default_port: int) -> tuple[tuple[tuple[str, int], ...], bool]:
    """The servers of a section, and whether they are reached over TLS."""
    nodes = [child for child in section.children if child.name.startswith("node")]
    if not nodes:
        raise ConfigError(
            f"{section.source}: <{section.name}> names no server",
            hint=f"Add <node><host>…</host><port>{default_port}</port></node>.",
        )
    secure = {reading.boolean(node, "secure", False) for node in nodes}
    if len(secure) > 1:
        raise ConfigError(
            f"{section.source}: <secure> is set for some servers of <{section.name}> and not for others",
            hint="One session may move between all of them: set it for every <node> or for none.",
        )
    hosts = tuple(
        (_bare(reading.required_text(node, "host")), reading.port(node, "port", default_port, at_least=1))
        for node in nodes
    )
    return hosts, True in secure


def _bare(host: str) -> str:
    """`[::1]` is how ClickHouse needs an address of IPv6 written before a port."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


class _Connection(TypedDict):
    """What both sections have."""

    hosts: tuple[tuple[str, int], ...]
    session_timeout_ms: int
    operation_timeout_ms: int
    root: str
    identity: str
    secure: bool
    ca_file: str
    certificate_file: str
    private_key_file: str


def _connection(root: Element, section: Element, default_port: int) -> _Connection:
    hosts, is_secure = _servers(section, default_port)
    ca_file, certificate_file, private_key_file = _client_tls_files(root)
    chroot = reading.text(section, "root").rstrip("/")
    _require_absolute(section, "root", chroot)
    identity = reading.text(section, "identity")
    if identity and ":" not in identity:
        raise ConfigError(f"{section.source}: <identity> has to be user:password")
    return _Connection(
        hosts=hosts,
        session_timeout_ms=reading.integer(section, "session_timeout_ms", 30_000, at_least=1),
        operation_timeout_ms=reading.integer(section, "operation_timeout_ms", 10_000, at_least=1),
        root=chroot,
        identity=identity,
        secure=is_secure,
        ca_file=ca_file,
        certificate_file=certificate_file,
        private_key_file=private_key_file,
    )


def _etcd(root: Element, section: Element) -> Etcd:
    return Etcd(
        **_connection(root, section, 2379),
        user=reading.text(section, "user"),
        password=reading.text(section, "password"),
        key_prefix=reading.text(section, "key_prefix") or "oncluster/",
        max_txn_ops=reading.integer(section, "max_txn_ops", 128, at_least=16),
    )


def _zookeeper(root: Element, section: Element) -> ZooKeeper:
    return ZooKeeper(**_connection(root, section, 2181))


def read_queues(root: Element) -> tuple[DistributedDdl, ...]:
    """Every `distributed_ddl` section: one section is one queue. Raises ConfigError.

    With several, each needs a `name` of its own and a path of its own; `clusters` says whose statements go
    through it, and at most one section may leave it out, which then serves all other clusters.
    """
    sections = [s for s in root.all("distributed_ddl") if s.children or s.text or not s.attributes]
    queues: list[DistributedDdl] = []
    for section in sections:
        queue = _queue(section, number=len(queues) + 1)
        for other in queues:
            _refuse_conflict(section, queue, other)
        queues.append(queue)
    return tuple(queues)


def _queue(section: Element, *, number: int) -> DistributedDdl:
    reading.refuse_unknown(section, _DDL_ELEMENTS)
    defaults = DistributedDdl()
    pool_size = section.first("pool_size")
    if pool_size is not None and re.fullmatch(r"0+|-[0-9]+", pool_size.text):
        raise ConfigError(
            f"{pool_size.source}: <pool_size> should be greater than 0", code=Code.ARGUMENT_OUT_OF_BOUND
        )
    path = reading.text(section, "path") or defaults.path
    replicas_path = reading.text(section, "replicas_path") or defaults.replicas_path
    _require_absolute(section, "path", path)
    _require_absolute(section, "replicas_path", replicas_path)
    return DistributedDdl(
        name=reading.text(section, "name") or (defaults.name if number == 1 else f"queue{number}"),
        path=path.rstrip("/"),
        replicas_path=replicas_path.rstrip("/"),
        profile=reading.text(section, "profile"),
        pool_size=reading.integer(section, "pool_size", defaults.pool_size, at_least=1),
        task_max_lifetime_s=reading.integer(section, "task_max_lifetime", defaults.task_max_lifetime_s),
        cleanup_delay_period_s=reading.integer(
            section, "cleanup_delay_period", defaults.cleanup_delay_period_s
        ),
        # ClickHouse raises smaller values to 1.
        max_tasks_in_queue=max(
            1, reading.integer(section, "max_tasks_in_queue", defaults.max_tasks_in_queue)
        ),
        host_name=reading.text(section, "host_name"),
        clusters=_cluster_names(section),
    )


def _cluster_names(section: Element) -> tuple[str, ...]:
    """`<clusters>a, b</clusters>`, the element repeated, or `<cluster>` within or without it."""
    names: list[str] = []
    for element in section.children:
        if element.name in ("clusters", "cluster"):
            names.extend(re.findall(r"[^\s,]+", element.text))
            names.extend(child.text or child.name for child in element.children)
    return tuple(dict.fromkeys(names))


def _require_absolute(section: Element, name: str, path: str) -> None:
    if path and not re.fullmatch(r"(/[^/]+)+/?", path):
        raise ConfigError(
            f"{section.source}: <{name}> of <{section.name}> is '{path}'",
            hint="Write an absolute path such as /clickhouse/task_queue/ddl.",
        )


def _refuse_conflict(section: Element, queue: DistributedDdl, other: DistributedDdl) -> None:
    shared = sorted({*queue.clusters} & {*other.clusters})
    if queue.name == other.name:
        trouble = f"two queues are called '{queue.name}'"
    elif queue.path == other.path:
        trouble = f"queues '{other.name}' and '{queue.name}' have the same path {queue.path}"
    elif shared:
        trouble = f"cluster '{shared[0]}' belongs to the queues '{other.name}' and '{queue.name}'"
    elif not queue.clusters and not other.clusters:
        trouble = f"queues '{other.name}' and '{queue.name}' both name no clusters"
    else:
        return
    raise ConfigError(
        f"{section.source}: {trouble}",
        hint="Each <distributed_ddl> needs its own <name> and <path>; all but one need <clusters>.",
    )


_ACCESS_ELEMENTS = frozenset({"user", "password", "allow_empty", "old"})


def read_interserver_access(root: Element) -> InterserverAccess | None:
    """The `interserver_http_credentials`; None without them. Raises ConfigError."""
    section = root.first("interserver_http_credentials")
    if section is None:
        return None
    reading.refuse_unknown(section, _ACCESS_ELEMENTS)
    return InterserverAccess(
        user=reading.required_text(section, "user"),
        password=reading.text(section, "password"),
        old=tuple(
            (reading.required_text(old, "user"), reading.text(old, "password")) for old in section.all("old")
        ),
        allow_empty=reading.boolean(section, "allow_empty", False),
    )


def read_ca_file(root: Element) -> str:
    """`openSSL/client/caConfig`."""
    return _client_tls_files(root)[0]


def read_tls_files(root: Element) -> tuple[str, str]:
    """Certificate and private key of `openSSL/server`; both or neither. Raises ConfigError."""
    section = _open_ssl(root, "server")
    return ("", "") if section is None else _key_pair(section)


def _client_tls_files(root: Element) -> tuple[str, str, str]:
    """`caConfig`, certificate and private key of `openSSL/client`, for connections that this node opens."""
    section = _open_ssl(root, "client")
    if section is None:
        return "", "", ""
    return reading.text(section, "caConfig"), *_key_pair(section)


def _open_ssl(root: Element, side: str) -> Element | None:
    ssl = root.first("openSSL")
    return None if ssl is None else ssl.first(side)


def _key_pair(section: Element) -> tuple[str, str]:
    certificate = reading.text(section, "certificateFile")
    key = reading.text(section, "privateKeyFile")
    if bool(certificate) != bool(key):
        missing = "privateKeyFile" if certificate else "certificateFile"
        raise ConfigError(f"{section.source}: <openSSL><{section.name}> lacks <{missing}>")
    return certificate, key


def read_trusted_backups(root: Element) -> tuple[str, ...]:
    """`<backups><restore_from>`: up to a slash, since other addresses may begin with the same letters. Raises
    ConfigError."""
    found = [child for section in root.all("backups") for child in section.all("restore_from")]
    for child in found:
        if not re.fullmatch(r"[a-z0-9]+://[^/@]+/(?:.*/)?", child.text):
            raise ConfigError(
                f"{child.source}: <restore_from> is '{child.text}'",
                hint="Write an address that ends with a slash, such as https://bucket.example.com/backups/.",
            )
    return tuple(child.text for child in found)
