"""docker-compose.yaml as it is: built, started, used, hurt, removed. One stack for the whole file."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.compose.compose_stack import HOSTS, ComposeStack, Node, NodeSaidNo, eventually
from tests.compose.docker_engine import Engine

pytestmark = [pytest.mark.slow, pytest.mark.compose, pytest.mark.timeout(2400)]

SHARDS = (HOSTS[:3], HOSTS[3:])
ZOOKEEPERS = ("zookeeper1", "zookeeper2", "zookeeper3")
ROWS = """
CREATE TABLE faults.rows ON CLUSTER order_cluster (id UInt64, text String)
ENGINE = ReplicatedMergeTree('/clickhouse/tables/{order_shard}/faults/rows', '{replica}') ORDER BY id
"""
ADD_COLUMN = "ALTER TABLE faults.rows ON CLUSTER order_cluster ADD COLUMN IF NOT EXISTS later UInt8 DEFAULT 7"
LATER = "CREATE TABLE IF NOT EXISTS faults.later ON CLUSTER order_cluster (id UInt64) ENGINE = Memory"
PARTS = """
SELECT lower(hex(sipHash64(arraySort(groupArray((name, hash_of_all_files)))))), sum(rows)
FROM system.parts WHERE active AND database = 'faults' AND table = 'rows'
"""
SPARK_JOB = """
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("spark://spark-master:7077").config("spark.log.level", "ERROR")
spark = builder.getOrCreate()
print("rows", spark.range(1000).repartition(2).count())
spark.stop()
"""


@pytest.fixture(scope="module")
def stack(docker_engine: Engine, base: str) -> Iterator[ComposeStack]:
    one = ComposeStack(docker_engine, base, profiles="engine,etcd")
    try:
        one.build("postgres", "node01", "etcd")
        one.up()
        one.wait_healthy()
        yield one
    finally:
        one.down()
    assert one.containers() == {} and one.volumes() == []


def test_every_service_is_healthy_and_published_on_loopback_only(stack: ComposeStack) -> None:
    containers = stack.containers()

    assert set(HOSTS) | set(ZOOKEEPERS) | {"postgres", "etcd", "spark-master", "spark-worker"} < set(
        containers
    )
    healths = {name: one["State"].get("Health", {}).get("Status") for name, one in containers.items()}
    assert {name for name, health in healths.items() if health != "healthy"} == {"airflow-init"}
    bindings = [
        binding
        for one in containers.values()
        for published in one["NetworkSettings"]["Ports"].values()
        for binding in published or ()
    ]
    assert len(bindings) == 15 and {binding["HostIp"] for binding in bindings} == {"127.0.0.1"}


def test_nothing_runs_as_root(stack: ComposeStack) -> None:
    users = {name: one["Config"]["User"] for name, one in stack.containers().items()}

    assert {name for name, user in users.items() if user in ("", "root", "0")} == set()


def test_three_zookeepers_are_an_ensemble(stack: ComposeStack) -> None:
    assert modes(stack) == ["follower", "follower", "leader"]


def test_etcd_answers(stack: ComposeStack) -> None:
    etcdctl = ("exec", "-T", "-e", "ETCDCTL_API=3", "etcd", "etcdctl")
    stack.compose(*etcdctl, "put", "key", "value")

    assert stack.compose(*etcdctl, "get", "key", "--print-value-only").stdout.strip() == "value"


def test_the_demo_migrates_all_six_nodes_through_airflow_and_loads_equal_replicas(
    stack: ComposeStack,
) -> None:
    shown = stack.compose("run", "--rm", "-T", "demo", timeout_s=1500).stdout

    assert "Every migration is applied on every host" in shown
    assert "Schema of order_cluster: the same on 6 hosts" in shown
    # shard, replica, rows, parts, hash of all parts
    contents = re.findall(r"^\s+(\d)\s+(node\d\d)\s+([\d,]+)\s+(\d+)\s+([0-9a-f]{16})\s*$", shown, re.M)
    assert [host for _, host, *_ in contents] == list(HOSTS)
    for shard in ("1", "2"):
        replicas = [content for number, _, *content in contents if number == shard]
        assert replicas == 3 * replicas[:1] and int(replicas[0][0].replace(",", "")) > 100_000
    # The load ran on the worker's container.
    loads = stack.get_json("spark-master", 8080, "/json/")["completedapps"]
    assert [app["state"] for app in loads if app["name"].startswith("load ")] == ["FINISHED"]


def test_the_ledger_is_in_postgresql(stack: ComposeStack) -> None:
    """What the demo before this has written."""
    ask = "SELECT count(DISTINCT host) FROM oncluster_ledger WHERE cluster = 'order_cluster'"
    psql = ("exec", "-T", "postgres", "psql", "-h", "/tmp", "-U", "oncluster", "-Atc")

    assert stack.compose(*psql, ask).stdout.strip() == "6"


def test_spark_has_its_worker_and_runs_a_job_there(stack: ComposeStack) -> None:
    before = stack.get_json("spark-master", 8080, "/json/")
    assert before["aliveworkers"] == 1

    job = stack.compose("exec", "-T", "airflow-scheduler", "python", "-c", SPARK_JOB, timeout_s=600)

    assert "rows 1000" in job.stdout
    after = stack.get_json("spark-master", 8080, "/json/")
    assert len(after["completedapps"]) > len(before["completedapps"])


def test_a_killed_zookeeper_leader_and_a_killed_node_come_back_and_everything_converges(
    stack: ComposeStack,
) -> None:
    nodes = stack.nodes()
    nodes["node01"].ask("CREATE DATABASE faults ON CLUSTER order_cluster")
    nodes["node01"].ask(ROWS)
    nodes["node03"].ask("CREATE TABLE faults.marker (id UInt64) ENGINE = MergeTree ORDER BY id")
    nodes["node03"].ask("INSERT INTO faults.marker VALUES (3)")
    for first in ("node01", "node04"):
        nodes[first].ask("INSERT INTO faults.rows SELECT number, 'before' FROM numbers(1000)")

    # 1. the leader of Keeper and a replica of shard 1 die at the same moment
    leader = next(name for name in ZOOKEEPERS if stack.zookeeper_mode(name) == "leader")
    stack.compose("kill", leader, "node03")
    # 2. without them: rows on both shards, and two statements for all hosts
    for first in ("node01", "node04"):
        eventually("inserted without the leader", lambda node=nodes[first]: insert_once(node))
    eventually("altered", lambda: submit(nodes["node01"], ADD_COLUMN))
    eventually("created", lambda: submit(nodes["node02"], LATER))
    for host in set(HOSTS) - {"node03"}:
        eventually(f"done on {host}", lambda node=nodes[host]: node.ask("EXISTS faults.later") == "1")
    # 3. the server comes back as it was, the node in a new container on its old volume
    stack.compose("rm", "--force", "node03")
    stack.up(leader, "node03")
    stack.wait_healthy()
    # 4. everything is where it belongs
    nodes = stack.nodes()
    assert nodes["node03"].ask("SELECT id FROM faults.marker") == "3"
    for host in HOSTS:
        eventually(f"caught up on {host}", lambda node=nodes[host]: is_caught_up(node))
    for shard in SHARDS:
        eventually("equal", lambda hosts=shard: len({nodes[host].ask(PARTS) for host in hosts}) == 1)
    eventually("an ensemble", lambda: modes(stack) == ["follower", "follower", "leader"])


def modes(stack: ComposeStack) -> list[str]:
    return sorted(map(stack.zookeeper_mode, ZOOKEEPERS))


def insert_once(node: Node) -> bool:
    """A block that was stored although the answer was lost is known by its hash, and not stored again."""
    node.ask("INSERT INTO faults.rows (id, text) SELECT number, 'while away' FROM numbers(1000, 500)")
    return node.ask("SELECT count() FROM faults.rows WHERE text = 'while away'") == "500"


def submit(node: Node, sql: str) -> bool:
    """Put a statement into the queue and wait for nobody."""
    try:
        node.ask(sql, {"distributed_ddl_task_timeout": "0"})
    except NodeSaidNo as answer:
        # 159: it is in the queue, and not every host has done it.
        if "Code: 159" not in str(answer):
            raise
    return True


def is_caught_up(node: Node) -> bool:
    found = node.ask("SELECT count(), sum(later) FROM faults.rows")
    return found == f"1500\t{7 * 1500}" and node.ask("EXISTS faults.later") == "1"
