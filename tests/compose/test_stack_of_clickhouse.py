"""The profile `clickhouse`: six real servers in place of our nodes, migrated through the same Airflow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compose.compose_stack import HOSTS, ComposeStack, eventually
from tests.compose.docker_engine import Engine

pytestmark = [pytest.mark.slow, pytest.mark.compose, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def stack(docker_engine: Engine, base: str) -> Iterator[ComposeStack]:
    one = ComposeStack(docker_engine, base, profiles="clickhouse", MIGRATIONS="compose/migrations")
    try:
        one.build("postgres", "zookeeper1", "clickhouse01")
        one.up()
        one.wait_healthy()
        yield one
    finally:
        one.down()
    assert one.containers() == {} and one.volumes() == []


def test_airflow_migrates_six_real_servers_and_their_replicas_agree(stack: ComposeStack) -> None:
    shown = stack.compose("run", "--rm", "-T", "demo", timeout_s=900).stdout

    assert "Every migration is applied on every host." in shown
    assert "Schema of order_cluster: the same on 6 hosts" in shown
    servers = stack.nodes("clickhouse")
    assert list(servers) == list(HOSTS)
    assert {server.ask("SELECT version()").split(".")[0] for server in servers.values()} == {"18"}
    servers["node02"].ask("""
        INSERT INTO sales.orders_all SELECT number, toDate('2020-01-01'), 'somebody', 100 FROM numbers(1000)
    """)
    for server in servers.values():
        eventually("all rows", lambda one=server: one.ask("SELECT count() FROM sales.orders_all") == "1000")
    rows = "SELECT count(), sum(cityHash64(id)) FROM sales.orders"
    for shard in (HOSTS[:3], HOSTS[3:]):
        eventually("equal", lambda hosts=shard: len({servers[host].ask(rows) for host in hosts}) == 1)
