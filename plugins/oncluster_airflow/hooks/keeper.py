"""The Airflow connection to ZooKeeper, ClickHouse Keeper or an etcd, as a session.

    Connection type   zookeeper
    Host, Port        one server, or several as `a:2181,b:2181` in Host
    Login, Password   identity for digest authentication, optional
    Extra             {"root": "/chroot", "session_timeout_ms": 30000, "operation_timeout_ms": 10000,
                       "secure": true, "ca_file": "…", "certificate_file": "…", "private_key_file": "…"}

An etcd is named by its Host: `etcd://a:2379,b:2379`, behind which the chroot may stand (`etcd://a,b/chroot`).
Login and Password are etcd's own then, and Extra may have `identity`, `key_prefix` and `max_txn_ops`.

Triggers share one session per event loop and connection: hundreds of waiting tasks cost one TCP connection. A
session that is over is replaced when the next trigger asks; who held the old one learns it by SessionExpired.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk import BaseHook, Connection

from engine.config.model import Etcd, KeeperSection, ZooKeeper
from engine.env import SystemEnv
from engine.errors import ConfigError, Unavailable
from engine.keeper import opening
from engine.keeper.base import Keeper
from oncluster_airflow.hooks.extra import extra_of, flag, port_number, text, whole_number
from oncluster_airflow.hooks.missing import afind_connection, find_connection
from oncluster_airflow.settings import KEEPER_CONN_ID

_DEFAULT_PORT = 2181
_DEFAULT_ETCD_PORT = 2379
_ETCD_SCHEME = "etcd://"
_ETCD_FIELDS = ("identity", "key_prefix", "max_txn_ops")
_FILES = ("ca_file", "certificate_file", "private_key_file")
_EXTRA_FIELDS = ("hosts", "root", "session_timeout_ms", "operation_timeout_ms", "secure", *_FILES)


class KeeperHook(BaseHook):
    """Sessions with the Keeper of an Airflow connection."""

    conn_name_attr = "keeper_conn_id"
    default_conn_name = KEEPER_CONN_ID
    conn_type = "zookeeper"
    hook_name = "ZooKeeper / ClickHouse Keeper"

    def __init__(self, keeper_conn_id: str = KEEPER_CONN_ID) -> None:
        super().__init__()
        self.keeper_conn_id = keeper_conn_id
        self._latest: KeeperSection | None = None

    # --- configuration --------------------------------------------------------------------------------------

    def config(self) -> KeeperSection:
        """The connection's fields, in a task. Raises ConfigError, and Unavailable where Airflow cannot say
        them."""
        return config_of(find_connection(self.keeper_conn_id))

    async def aconfig(self) -> KeeperSection:
        """The same on an event loop, in a trigger."""
        return config_of(await afind_connection(self.keeper_conn_id))

    async def latest_config(self) -> KeeperSection:
        """The same for a wait that outlives its session: the connection as it is by now, since it may be
        corrected while the wait is in vain, else as it was."""
        try:
            self._latest = await self.aconfig()
        except (ConfigError, Unavailable):
            if self._latest is None:
                raise
        return self._latest

    def remember(self, config: KeeperSection) -> None:
        """A session was opened with this."""
        self._latest = config

    # --- sessions -------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Keeper]:
        """A session of one's own, closed at the end. Raises Unavailable."""
        async with open_session(await self.aconfig()) as keeper:
            yield keeper

    @contextlib.asynccontextmanager
    async def shared_session(self) -> AsyncIterator[Keeper]:
        """The session of this event loop and connection; the last user closes it. Raises
        KeeperUnavailable."""
        sessions = _sessions_of_this_loop()
        shared = await sessions.acquire(self)
        try:
            yield shared.keeper
        finally:
            await sessions.release(shared)

    def test_connection(self) -> tuple[bool, str]:
        """Airflow's "Test" button."""

        async def look() -> str:
            async with self.session() as keeper:
                names = (await keeper.children("/")).names
                return f"Connected, session {keeper.session_id:#x}; nodes: {', '.join(names)}"

        try:
            return True, asyncio.run(look())
        except Exception as error:  # noqa: BLE001 - the button shows whatever went wrong
            return False, str(error)

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        return {
            "hidden_fields": ["schema"],
            "relabeling": {"login": "Digest user", "password": "Digest password"},
            "placeholders": {
                "host": "zk1:2181,zk2:2181,zk3:2181",
                "port": str(_DEFAULT_PORT),
                "extra": '{"root": "", "session_timeout_ms": 30000}',
            },
        }


@contextlib.asynccontextmanager
async def open_session(config: KeeperSection) -> AsyncIterator[Keeper]:
    """A session, closed at the end. Raises KeeperUnavailable."""
    keeper = await opening.connect(config, SystemEnv())
    try:
        yield keeper
    finally:
        await keeper.close()


def config_of(connection: Connection) -> KeeperSection:
    """What an Airflow connection of type `zookeeper` says. Raises ConfigError that names the field.

    A host that begins with `etcd://` is an etcd: login and password are those of etcd then."""
    extra = extra_of(connection)
    where = f"Airflow connection {connection.conn_id!r}"
    host = str(extra.get("hosts") or connection.host or "").strip()
    is_etcd = host.startswith(_ETCD_SCHEME)
    known = (*_EXTRA_FIELDS, *_ETCD_FIELDS) if is_etcd else _EXTRA_FIELDS
    if unknown := sorted(set(extra) - set(known)):
        raise ConfigError(
            f"{where}: unknown field in extra: {', '.join(unknown)}.",
            hint=f"There are {', '.join(known)}.",
        )
    try:
        default_port = port_number(connection.port, _DEFAULT_ETCD_PORT if is_etcd else _DEFAULT_PORT)
        servers, root = _etcd_servers(host, where) if is_etcd else (host, "")
        hosts = tuple(
            _host_and_port(part.strip(), default_port) for part in servers.split(",") if part.strip()
        )
        if not hosts:
            raise ConfigError(f"{where}: no host.", hint="Give Host as `name`, or as `a:2181,b:2181`.")
        own_root = text(extra, "root").rstrip("/")
        if root and "root" in extra:
            raise ConfigError(f"{where} names its root twice: behind the hosts, and in extra.")
        if own_root and not own_root.startswith("/"):
            raise ValueError(f"root is {own_root!r}, and does not start with /")
        both: dict[str, Any] = {
            "hosts": hosts,
            "session_timeout_ms": whole_number(extra, "session_timeout_ms", 30_000),
            "operation_timeout_ms": whole_number(extra, "operation_timeout_ms", 10_000),
            "root": root or own_root,
            "secure": flag(extra, "secure"),
            **{name: text(extra, name) for name in _FILES},
        }
        if is_etcd:
            return Etcd(
                **both,
                identity=text(extra, "identity"),
                user=connection.login or "",
                password=connection.password or "",
                key_prefix=text(extra, "key_prefix", "oncluster/"),
                max_txn_ops=whole_number(extra, "max_txn_ops", 128),
            )
        identity = f"{connection.login}:{connection.password or ''}" if connection.login else ""
        return ZooKeeper(**both, identity=identity)
    except ValueError as error:
        raise ConfigError(
            f"{where}: {error}.",
            hint="Host is `name`, or `a:2181,b:2181`; ports and times are whole numbers; `secure` is true or "
            "false.",
        ) from error


def _etcd_servers(host: str, where: str) -> tuple[str, str]:
    """The servers of `etcd://a,b/chroot`, each with the scheme or without, and the chroot. Raises
    ConfigError."""
    parts = [part.strip().removeprefix(_ETCD_SCHEME).partition("/") for part in host.split(",")]
    roots = {path.rstrip("/") for _, _, path in parts} - {""}
    if len(roots) > 1 or (roots and not parts[-1][2]):
        raise ConfigError(
            f"{where}: a path stands behind a server that is not the last.",
            hint="Write etcd://a,b/chroot.",
        )
    return ",".join(server for server, _, _ in parts), "".join(f"/{root}" for root in roots)


def _host_and_port(server: str, default_port: int) -> tuple[str, int]:
    if "://" in server:
        raise ValueError(f"Host has {server.partition('://')[0]!r} before a server's name")
    host, colon, port = server.rpartition(":")
    is_ipv6_alone = ":" in host and not host.endswith("]")
    if not colon or server.endswith("]") or is_ipv6_alone:
        return server.strip("[]"), default_port
    return host.strip("[]"), port_number(port, default_port)


# --- one session per loop -----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Shared:
    conn_id: str
    config: KeeperSection
    keeper: Keeper
    users: int = 0


@dataclass(slots=True, eq=False)
class _Sessions:
    """The sessions of one event loop, by connection id. Each has a lock of its own: a Keeper that does not
    answer keeps nobody waiting who wants another one."""

    locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    current: dict[str, _Shared] = field(default_factory=dict)

    async def acquire(self, hook: KeeperHook) -> _Shared:
        conn_id = hook.keeper_conn_id
        async with self._lock(conn_id):
            shared = self.current.get(conn_id)
            if shared is None or shared.keeper.is_expired:
                config = await hook.latest_config()
                keeper = await opening.connect(config, SystemEnv())
                shared = self.current[conn_id] = _Shared(conn_id, config, keeper)
            hook.remember(shared.config)
            shared.users += 1
            return shared

    async def release(self, shared: _Shared) -> None:
        async with self._lock(shared.conn_id):
            shared.users -= 1
            if shared.users:
                return
            if self.current.get(shared.conn_id) is shared:
                del self.current[shared.conn_id]
            await shared.keeper.close()

    def _lock(self, conn_id: str) -> asyncio.Lock:
        return self.locks.setdefault(conn_id, asyncio.Lock())


# Keyed by the loop itself: a session belongs to the loop that opened it, and a forked child has none.
_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Sessions] = weakref.WeakKeyDictionary()


def _sessions_of_this_loop() -> _Sessions:
    loop = asyncio.get_running_loop()
    if loop not in _by_loop:
        _by_loop[loop] = _Sessions()
    return _by_loop[loop]
