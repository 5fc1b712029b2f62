"""Everything that a node serves with, put together around a chDB that is open.

Order: the replicated tables, Distributed tables, the HTTP server, then the queues in the background. Whatever
needs Keeper waits for it in the background; what clients ask meanwhile is answered with Keeper's absence.
What is started here is stopped by the stack that was given, in the opposite order.
"""

from __future__ import annotations

import contextlib
import ssl
from dataclasses import replace

from engine.config.load import ConfigFile
from engine.config.model import NodeConfig, Topology
from engine.ddl import NodeIdentity, SqliteIntentStore, SystemResolver
from engine.env import Env
from engine.errors import Busy, Code, ConfigError
from engine.keeper import opening
from engine.keeper.base import KeeperFactory
from engine.keeper.recipes import SessionHolder
from engine.names import HostId
from engine.node.cluster_tables import ClustersTable, MacrosTable, QueueTable
from engine.node.cluster_waits import ClusterWaits
from engine.node.config_reload import ConfigReload
from engine.node.databases.assembly import DatabasesNode
from engine.node.databases.queue_executor import DatabasesExecutor
from engine.node.databases.running import ReplicatedDatabases
from engine.node.directory import NodeDirectory
from engine.node.distributed.assembly import DistributedNode
from engine.node.distributed.executor import DistributedExecutor
from engine.node.http.server import HttpConfig, HttpServer
from engine.node.node_commands import NodeCommands
from engine.node.on_cluster import ClusterStatements
from engine.node.queue_executor import QueueExecutor
from engine.node.queues import NodeQueues, NoQueues
from engine.node.replicated.assembly import ReplicatedNode
from engine.node.resolver import BoundedResolver
from engine.node.router import StatementRouter
from engine.node.system_tables import SystemTables
from engine.node.zookeeper_table import ZooKeeperTable
from engine.sql import Statement
from engine.storage import ChdbPool

STATEMENT_GRACE_S = 10.0
QUEUE_GRACE_S = 30.0


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
        self._queues: NodeQueues | None = None
        self._tables: SystemTables | None = None
        self._waits = ClusterWaits(env)
        self._databases: ReplicatedDatabases | None = None
        self._config_reload = ConfigReload(config_file, env=env, on_change=self._topology_changed)
        self._commands = NodeCommands(self._config_reload)

    async def start(self) -> HttpServer:
        """The server that listens. Raises ConfigError, Busy for a port in use, SqlError from chDB."""
        config, env, directory, pool = self._config, self._env, self._directory, self._pool
        identity = NodeIdentity(
            host_name=config.host_name,
            tcp_port=config.tcp_port,
            server_uuid=directory.server_uuid(env),
            tcp_port_secure=config.tcp_port_secure,
            interserver_http_host=config.interserver_http_host,
        )
        replicated, queues = None, None
        if config.zookeeper is not None:
            factory = opening.factory(config.zookeeper, env)
            holder = SessionHolder(factory, env)
            self._stack.push_async_callback(holder.close)
            replicated = ReplicatedNode(
                config, env=env, pool=pool, holder=holder, identity=identity, topology=self._topology
            )
            self._stack.push_async_callback(replicated.stop)
            await replicated.start()
        distributed = DistributedNode(
            config,
            env=env,
            pool=pool,
            topology=self._topology,
            is_local=lambda host: _is_local(identity, host),
            run_other=None if replicated is None else replicated.run_insert,
            views=None if replicated is None else replicated.views,
            is_replicated=lambda name: replicated is not None and replicated.tables.find(name) is not None,
        )
        if replicated is not None:
            replicated.into_distributed = distributed.run_insert
        self._stack.push_async_callback(distributed.stop)
        await distributed.start()
        databases = None
        if config.zookeeper is not None and replicated is not None:
            databases = DatabasesNode(
                env=env,
                pool=pool,
                holder=holder,
                identity=identity,
                topology=lambda: self._config_file.topology,
                replicated=replicated,
                distributed=distributed,
            )
            await databases.load()
            self._databases = databases.databases
            queues = await self._open_queues(
                directory, pool, identity, factory, holder, replicated, distributed, databases
            )
            self._stack.push_async_callback(queues.stop, grace_s=QUEUE_GRACE_S)
            self._queues = queues
        statements = ClusterStatements(
            queues,
            env=env,
            topology=self._topology,
            initiator=identity.host_id,
            is_one_statement=pool.is_one_statement,
            commands=self._commands,
            names_user=config.uses_initial_user,
        )
        own_tables = [] if replicated is None else replicated.system_tables()
        shown_tables = next((table for table in own_tables if table.name == "tables"), None)
        waits = self._waits
        zookeeper_table = ZooKeeperTable(None if queues is None else queues.holder)
        tables = SystemTables(
            [
                ClustersTable(
                    self._topology,
                    lambda host: _is_local(identity, host),
                    distributed.failures_of,
                    None if databases is None else databases.cluster_facts,
                ),
                MacrosTable(self._topology),
                QueueTable(queues or NoQueues()),
                zookeeper_table,
                waits,
                *own_tables,
                *distributed.system_tables(shown_tables),
                *([] if databases is None else databases.system_tables()),
            ]
        )
        zookeeper_table.provide = tables.provide
        self._tables = tables
        router = StatementRouter(
            tables=tables,
            run_on_cluster=statements.run,
            commands=self._commands,
            replicated=replicated,
            distributed=distributed,
            waits=waits,
            databases=None if databases is None else databases.statements,
        )
        distributed.deliver_here_with(router)
        timezone = (await pool.query("SELECT timezone()", format="TSVRaw")).text.strip()
        http = HttpServer(
            _http_config(config, timezone),
            pool=pool,
            router=router,
            env=env,
            replicas_status=_no_replicas if replicated is None else replicated.replicas_status,
            waits=waits,
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
        if queues is not None:
            queues.start()
        if databases is not None:
            databases.start(router.run_here)
            self._stack.push_async_callback(databases.stop, grace_s=QUEUE_GRACE_S)
        self._config_reload.start()
        self._stack.push_async_callback(self._config_reload.stop)
        return http

    async def _open_queues(
        self,
        directory: NodeDirectory,
        pool: ChdbPool,
        identity: NodeIdentity,
        factory: KeeperFactory,
        holder: SessionHolder,
        replicated: ReplicatedNode,
        distributed: DistributedNode,
        databases: DatabasesNode,
    ) -> NodeQueues:
        config = self._config
        executor = QueueExecutor(
            pool,
            lanes=sum(queue.pool_size for queue in config.queues) or 1,
            check=self._check_kept,
            waits=self._waits,
        )
        self._stack.push_async_callback(executor.close)
        intents = SqliteIntentStore(directory.intents_file, spare=pool.disk_reserve.lent)
        self._stack.push_async_callback(intents.close)
        return NodeQueues(
            config,
            factory=factory,
            holder=holder,
            env=self._env,
            executor=DatabasesExecutor(
                DistributedExecutor(
                    replicated.executor(executor),
                    node=distributed,
                    new_session=executor.new_session,
                    commands=self._commands,
                ),
                statements=databases.statements,
                new_session=executor.new_session,
            ),
            intents=intents,
            identity=identity,
            resolver=BoundedResolver(SystemResolver(), self._env),
            topology=self._topology,
        )

    def _topology(self) -> Topology:
        """The configuration's, with the Replicated databases as clusters of their replicas."""
        topology = self._config_file.topology
        own = {} if self._databases is None else self._databases.clusters()
        return replace(topology, clusters={**own, **topology.clusters}) if own else topology

    def _check_kept(self, sql: str, statement: Statement) -> None:
        if self._tables is not None:
            self._tables.check_kept(sql, statement, database="")

    def _topology_changed(self) -> None:
        if self._queues is not None:
            self._queues.topology_changed()


async def _no_replicas() -> str:
    """Nothing can be behind."""
    return ""


def _is_local(identity: NodeIdentity, host: HostId) -> bool:
    return host.port in identity.ports and host.host in (identity.host_name, "localhost", "127.0.0.1")


def _http_config(config: NodeConfig, timezone: str) -> HttpConfig:
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
    )
