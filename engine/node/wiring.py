"""Everything that a node serves with, put together around a chDB that is open.

Order: the replicated tables, Distributed tables, the HTTP server, then the queues in the background. Whatever
needs Keeper waits for it in the background; what clients ask meanwhile is answered with Keeper's absence.
What is started here is stopped by the stack that was given, in the opposite order.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.config.model import KeeperSection, NodeConfig, Topology
from engine.config.watch import ConfigFile
from engine.ddl import NodeIdentity, SqliteIntentStore, SystemResolver
from engine.env import Env
from engine.errors import Busy, Code, ConfigError
from engine.keeper import opening
from engine.keeper.base import KeeperFactory
from engine.keeper.recipes import SessionHolder
from engine.names import HostId
from engine.node.config_reload import ConfigReload
from engine.node.databases.assembly import DatabasesNode
from engine.node.databases.at_start import TextsAtStart, texts_at_start
from engine.node.databases.queue_executor import DatabasesExecutor
from engine.node.databases.running import ReplicatedDatabases
from engine.node.directory import NodeDirectory
from engine.node.distributed.assembly import DistributedNode
from engine.node.distributed.executor import DistributedExecutor
from engine.node.http.http_config import HttpConfig
from engine.node.http.server import HttpServer
from engine.node.queues import NodeQueues, NoQueues
from engine.node.quotas import Quotas
from engine.node.replicated.assembly import ReplicatedNode
from engine.node.resolver import BoundedResolver
from engine.node.statements.node_commands import NodeCommands
from engine.node.statements.node_statements import NodeStatements
from engine.node.statements.on_cluster import ClusterStatements
from engine.node.statements.queue_executor import QueueExecutor
from engine.node.statements.router import StatementRouter
from engine.node.system.cluster_tables import ClustersTable, MacrosTable, QueueTable
from engine.node.system.metrics import AsynchronousMetricsTable, MetricsView
from engine.node.system.quota_tables import QuotasUsageTable, QuotaUsageTable
from engine.node.system.system_tables import SystemTables
from engine.node.system.zookeeper_connection_table import ZooKeeperConnectionTable
from engine.node.system.zookeeper_table import ZooKeeperTable
from engine.sql import Statement
from engine.storage import ChdbPool
from engine.storage.setting_rules import SettingRules

STATEMENT_GRACE_S = 10.0
QUEUE_GRACE_S = 30.0


@dataclass(frozen=True, slots=True)
class _WithKeeper:
    """What only a node with Keeper has."""

    factory: KeeperFactory
    holder: SessionHolder
    replicated: ReplicatedNode
    as_started: TextsAtStart


class Wiring:
    """`start` it once; `stack` is closed by the caller, also when that fails."""

    def __init__(
        self,
        config_file: ConfigFile,
        *,
        env: Env,
        directory: NodeDirectory,
        pool: ChdbPool,
        stack: contextlib.AsyncExitStack,
    ) -> None:
        self._config_file = config_file
        self._config: NodeConfig = config_file.node
        self._env = env
        self._directory = directory
        self._pool = pool
        self._stack = stack
        self._identity = NodeIdentity(
            host_name=self._config.host_name,
            tcp_port=self._config.tcp_port,
            server_uuid=directory.server_uuid(env),
            tcp_port_secure=self._config.tcp_port_secure,
            interserver_http_host=self._config.interserver_http_host,
        )
        self._queues: NodeQueues | None = None
        self._tables: SystemTables | None = None
        self._statements = NodeStatements(env)
        self._quotas = Quotas(env)
        self._databases: ReplicatedDatabases | None = None
        self._config_reload = ConfigReload(config_file, env=env, on_change=self._topology_changed)
        self._commands = NodeCommands(self._config_reload)

    async def start(self) -> HttpServer:
        """The server that listens. Raises ConfigError, Busy for a port in use, SqlError from chDB."""
        keeper = None
        if self._config.zookeeper is not None:
            keeper = await self._start_replicated(self._config.zookeeper)
        replicated = None if keeper is None else keeper.replicated
        distributed = await self._start_distributed(replicated)
        queues, databases = None, None
        if keeper is not None:
            databases = await self._load_databases(keeper, distributed)
            queues = self._open_queues(keeper, distributed, databases)
        tables = self._system_tables(keeper, distributed, databases, queues)
        router = StatementRouter(
            tables=tables,
            run_on_cluster=self._cluster_statements(queues).run,
            commands=self._commands,
            replicated=replicated,
            distributed=distributed,
            statements=self._statements,
            databases=None if databases is None else databases.statements,
            trusted_backups=self._config.trusted_backups,
        )
        distributed.deliver_here_with(router)
        http = await self._listen(router, _no_replicas if replicated is None else replicated.replicas_status)
        if queues is not None:
            queues.start()
        if databases is not None:
            databases.start(router.run_here)
            self._stack.push_async_callback(databases.stop, grace_s=QUEUE_GRACE_S)
        self._config_reload.start()
        self._stack.push_async_callback(self._config_reload.stop)
        return http

    async def _start_replicated(self, section: KeeperSection) -> _WithKeeper:
        factory = opening.factory(section, self._env)
        holder = SessionHolder(factory, self._env, where=section.connect_string)
        self._stack.push_async_callback(holder.close)
        replicated = ReplicatedNode(
            self._config,
            env=self._env,
            pool=self._pool,
            holder=holder,
            identity=self._identity,
            topology=self._topology,
        )
        self._stack.push_async_callback(replicated.stop)
        as_started = texts_at_start(self._pool.path)
        await replicated.start()
        return _WithKeeper(factory, holder, replicated, as_started)

    async def _start_distributed(self, replicated: ReplicatedNode | None) -> DistributedNode:
        distributed = DistributedNode(
            self._config,
            env=self._env,
            pool=self._pool,
            topology=self._topology,
            is_local=self._is_local,
            run_other=None if replicated is None else replicated.run_insert,
            views=None if replicated is None else replicated.views,
            is_replicated=lambda name: replicated is not None and replicated.tables.find(name) is not None,
        )
        if replicated is not None:
            replicated.into_distributed = distributed.run_insert
        self._stack.push_async_callback(distributed.stop)
        await distributed.start()
        return distributed

    async def _load_databases(self, keeper: _WithKeeper, distributed: DistributedNode) -> DatabasesNode:
        databases = DatabasesNode(
            env=self._env,
            pool=self._pool,
            holder=keeper.holder,
            identity=self._identity,
            topology=lambda: self._config_file.topology,
            replicated=keeper.replicated,
            distributed=distributed,
            profile=self._config.settings_of_log(),
            as_started=keeper.as_started,
        )
        await databases.load()
        self._databases = databases.databases
        return databases

    def _open_queues(
        self, keeper: _WithKeeper, distributed: DistributedNode, databases: DatabasesNode
    ) -> NodeQueues:
        config, pool = self._config, self._pool
        executor = QueueExecutor(
            pool,
            lanes=sum(queue.pool_size for queue in config.queues) or 1,
            check=self._check_kept,
            statements=self._statements,
        )
        self._stack.push_async_callback(executor.close)
        intents = SqliteIntentStore(self._directory.intents_file, spare=pool.disk_reserve.lent)
        self._stack.push_async_callback(intents.close)
        self._queues = NodeQueues(
            config,
            factory=keeper.factory,
            holder=keeper.holder,
            env=self._env,
            executor=DatabasesExecutor(
                DistributedExecutor(
                    keeper.replicated.executor(executor, self._statements),
                    node=distributed,
                    new_session=executor.new_session,
                    commands=self._commands,
                ),
                statements=databases.statements,
                new_session=executor.new_session,
            ),
            intents=intents,
            identity=self._identity,
            resolver=BoundedResolver(SystemResolver(), self._env),
            topology=self._topology,
        )
        self._stack.push_async_callback(self._queues.stop, grace_s=QUEUE_GRACE_S)
        return self._queues

    def _cluster_statements(self, queues: NodeQueues | None) -> ClusterStatements:
        return ClusterStatements(
            queues,
            env=self._env,
            topology=self._topology,
            initiator=self._identity.host_id,
            is_one_statement=self._pool.is_one_statement,
            commands=self._commands,
            names_user=self._config.uses_initial_user,
        )

    def _system_tables(
        self,
        keeper: _WithKeeper | None,
        distributed: DistributedNode,
        databases: DatabasesNode | None,
        queues: NodeQueues | None,
    ) -> SystemTables:
        replicated = None if keeper is None else keeper.replicated
        own_tables = [] if replicated is None else replicated.system_tables()
        shown_tables = next((table for table in own_tables if table.name == "tables"), None)
        zookeeper_table = ZooKeeperTable(None if queues is None else queues.holder)
        measured = AsynchronousMetricsTable([] if replicated is None else [replicated.measures])
        self._tables = SystemTables(
            [
                ClustersTable(
                    self._topology,
                    self._is_local,
                    distributed.failures_of,
                    None if databases is None else databases.cluster_facts,
                ),
                MacrosTable(self._topology),
                QueueTable(queues or NoQueues()),
                zookeeper_table,
                MetricsView(_gauges(replicated, distributed, queues)),
                measured,
                QuotaUsageTable(),
                QuotasUsageTable(self._quotas.uses),
                self._statements,
                *([] if keeper is None else [ZooKeeperConnectionTable(keeper.holder, self._env)]),
                *own_tables,
                *distributed.system_tables(shown_tables),
                *([] if databases is None else databases.system_tables()),
            ]
        )
        zookeeper_table.provide = measured.provide = self._tables.provide
        return self._tables

    async def _listen(
        self, router: StatementRouter, replicas_status: Callable[[], Awaitable[str]]
    ) -> HttpServer:
        config = self._config
        timezone = (await self._pool.query("SELECT timezone()", format="TSVRaw")).text.strip()
        http = HttpServer(
            _http_config(config, timezone, self._directory.reads_secret(self._env)),
            pool=self._pool,
            router=router,
            env=self._env,
            replicas_status=replicas_status,
            rules=await SettingRules.open(self._pool, config.constraints, config.profiles),
            statements=self._statements,
            quotas=self._quotas,
        )
        try:
            await http.start()
        except OSError as error:
            raise Busy(
                f"Cannot listen on {config.listen_host}, HTTP port {config.http_port}: "
                f"{(error.strerror or str(error)).lower()}.",
                holder="another process",
                code=Code.NETWORK_ERROR,
                hint="Stop what uses the port, or set another <http_port>.",
            ) from error
        self._stack.push_async_callback(http.stop, grace_s=STATEMENT_GRACE_S)
        return http

    def _is_local(self, host: HostId) -> bool:
        names = (self._identity.host_name, "localhost", "127.0.0.1")
        return host.port in self._identity.ports and host.host in names

    def _topology(self) -> Topology:
        """The configuration's, with the Replicated databases as clusters of their replicas."""
        topology = self._config_file.topology
        own = {} if self._databases is None else self._databases.clusters()
        return replace(topology, clusters={**own, **topology.clusters}) if own else topology

    def _check_kept(self, sql: str, statement: Statement) -> None:
        if self._tables is not None:
            self._tables.check(sql, statement, database="")

    def _topology_changed(self) -> None:
        if self._queues is not None:
            self._queues.topology_changed()


def _gauges(
    replicated: ReplicatedNode | None, distributed: DistributedNode, queues: NodeQueues | None
) -> Sequence[Callable[[], Awaitable[Mapping[str, int]]]]:
    gauges = [distributed.gauges]
    if replicated is not None:
        gauges.append(replicated.gauges)
    if queues is not None:
        gauges.append(queues.gauges)
    return gauges


async def _no_replicas() -> str:
    """Nothing can be behind."""
    return ""


def _http_config(config: NodeConfig, timezone: str, reads_secret: bytes) -> HttpConfig:
    tls = None
    if config.https_port:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            tls.load_cert_chain(config.certificate_file, config.private_key_file or None)
        except OSError as error:
            raise ConfigError(f"The certificate {config.certificate_file} cannot be used: {error}") from error
    return HttpConfig(
        listen_host=config.listen_host,
        http_port=config.http_port,
        https_port=config.https_port,
        tls=tls,
        display_name=config.host_name,
        timezone=timezone,
        users=config.users,
        profiles=config.profiles,
        reads_secret=reads_secret,
        max_concurrent_queries=config.max_concurrent_queries,
    )
