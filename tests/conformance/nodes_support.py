"""Node processes that keep their tree in a Keeper of the test's choice, and a client for them."""

from __future__ import annotations

import contextlib
import sys
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from engine.env import SystemEnv
from engine.keeper.embedded import EmbeddedZooKeeper
from engine.keeper.etcd.embedded import EmbeddedEtcd
from engine.ports import free_ports
from engine.testing.local_cluster import answers_ping
from engine.testing.processes import ChildProcess
from tests.warm import warm

PATIENCE_S = 90.0


def ask(port: int, sql: str, *, timeout_s: float = PATIENCE_S) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", data=sql.encode())
    with urllib.request.urlopen(request, timeout=timeout_s) as reply:
        return reply.read().decode()


@contextlib.asynccontextmanager
async def nodes_of(
    directory: Path,
    server: EmbeddedEtcd | EmbeddedZooKeeper,
    names: Sequence[str],
    *,
    session_timeout_ms: int = 30_000,
) -> AsyncIterator[list[int]]:
    """Nodes of one shard of the cluster `all`; the ports of their HTTP. `<name>.xml` is a node's
    configuration, `<name>.log` what it says."""
    env = SystemEnv()
    ports = free_ports(2 * len(names), env=env)
    replicas = "".join(f"<replica><host>{name}</host><port>9000</port></replica>" for name in names)
    section = "etcd" if isinstance(server, EmbeddedEtcd) else "zookeeper"
    async with contextlib.AsyncExitStack() as stack:
        nodes = []
        for name, http_port, interserver_port in zip(names, ports, ports[len(names) :], strict=False):
            config = directory / f"{name}.xml"
            config.write_text(
                f"<clickhouse><path>{directory / name}</path><host_name>{name}</host_name>"
                f"<http_port>{http_port}</http_port>"
                f"<interserver_http_host>127.0.0.1</interserver_http_host>"
                f"<interserver_http_port>{interserver_port}</interserver_http_port>"
                f"<macros><shard>1</shard><replica>{name}</replica></macros>"
                f"<{section}><node><host>127.0.0.1</host><port>{server.client_port}</port></node>"
                f"<session_timeout_ms>{session_timeout_ms}</session_timeout_ms></{section}>"
                f"<distributed_ddl><path>/nodes/ddl</path></distributed_ddl>"
                f"<remote_servers><all><shard><internal_replication>true</internal_replication>"
                f"{replicas}</shard></all></remote_servers></clickhouse>"
            )
            command = [sys.executable, "-m", "engine.cli", "node", "--config", config]
            node = ChildProcess(name, command, log_file=directory / f"{name}.log", launch=warm)
            node.start()
            stack.push_async_callback(node.stop)
            nodes.append(node)
        for node, port in zip(nodes, ports, strict=False):
            while not await answers_ping("127.0.0.1", port):
                assert node.is_running, node.log_tail(20)
                await env.sleep(0.05)
        yield ports[: len(names)]
