"""One real node process per test module, more by `start_node`; two that replicate by `pair`, three with
Replicated databases by `three`."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from engine.ports import free_ports
from engine.testing.processes import ChildProcess
from tests.node.http_client import Http
from tests.node.latch import Latch
from tests.node.replicated_database import Three, running_three
from tests.node.replicated_pair import Pair, running_pair
from tests.warm import warm

USERS = """
  <users>
    <default><password></password></default>
    <alice><password_sha256_hex>{alice}</password_sha256_hex></alice>
    <reader><password>read</password><profile>readonly</profile></reader>
    <nobody_here><password>x</password><networks><ip>10.1.2.3</ip></networks></nobody_here>
    <bound><password>b</password><profile>bound</profile></bound>
    <few><password>f</password><quota>few</quota></few>
    <no_ddl><password>x</password><allow_distributed_ddl>0</allow_distributed_ddl></no_ddl>
  </users>
  <quotas><few><keyed/><interval>
    <duration>31536000</duration><query_inserts>1</query_inserts><result_rows>10</result_rows><errors>3</errors>
  </interval></few></quotas>
  <profiles>
    <default><max_threads>2</max_threads></default>
    <readonly><readonly>1</readonly></readonly>
    <bound><max_block_size>500</max_block_size><constraints>
      <max_block_size><min>10</min><max>1000</max></max_block_size>
      <distributed_foreground_insert><const/></distributed_foreground_insert>
      <merge_tree_merge_max_block_size><min>512</min><max>8192</max></merge_tree_merge_max_block_size>
      <max_query_size><max>300000</max></max_query_size>
      <max_execution_time><disallowed>7</disallowed></max_execution_time>
    </constraints></bound>
  </profiles>
"""


@dataclass
class RunningNode(Http):
    """A node process and a client of it."""

    directory: Path
    http_port: int
    extra: str = ""
    process: ChildProcess = field(init=False)

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.http_port}"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.config = self.directory / "config.xml"
        self.config.write_text(
            "<clickhouse>"
            f"<path>{escape(str(self.directory / 'data'))}</path><host_name>node01</host_name>"
            f"<http_port>{self.http_port}</http_port><tcp_port>9000</tcp_port>{self.extra}</clickhouse>"
        )
        self.process = ChildProcess(
            "node",
            [sys.executable, "-m", "engine.cli", "node", "--config", self.config],
            log_file=self.directory / "node.log",
            launch=warm,
        )

    def start(self) -> None:
        self.process.start()
        deadline = time.monotonic() + 60
        while True:
            try:
                if self.get("/ping").status == 200:
                    return
            except OSError:
                pass
            assert self.process.is_running, self.process.log_tail(20)
            assert time.monotonic() < deadline, self.process.log_tail(20)
            time.sleep(0.05)

    def wait(self) -> int:
        """Until the process has ended; its exit code."""
        return asyncio.run(asyncio.wait_for(self.process.wait(), 60))

    def stop(self) -> int:
        self.process.signal(15)
        return self.wait()

    def kill9(self) -> None:
        self.process.signal(9)
        self.wait()

    def announced(self) -> dict[str, object]:
        facts: dict[str, object] = json.loads((self.directory / "data" / "node.json").read_text())
        return facts


StartNode = Callable[..., RunningNode]


@pytest.fixture(scope="module")
def start_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartNode]:
    """Makes nodes that are stopped at the end of the module."""
    nodes: list[RunningNode] = []

    def start(*, extra: str = "", run: bool = True) -> RunningNode:
        [port] = free_ports(1)
        node = RunningNode(tmp_path_factory.mktemp("node"), port, extra)
        nodes.append(node)
        if run:
            node.start()
        return node

    yield start
    for node in nodes:
        if node.process.is_running:
            node.kill9()


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> RunningNode:
    """A node with users and macros, without Keeper."""
    users = USERS.format(alice=hashlib.sha256(b"secret").hexdigest())
    macros = "<macros><shard>01</shard><replica>node01</replica></macros>"
    return start_node(extra=users + macros)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two nodes for replicated tables, and a ZooKeeper."""
    with running_pair(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    """Three nodes for Replicated databases, and a ZooKeeper."""
    with running_three(tmp_path_factory.mktemp("three")) as three:
        yield three


@pytest.fixture
def latch() -> Iterator[Latch]:
    one = Latch()
    yield one
    one.close()
