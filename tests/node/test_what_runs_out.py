"""Nodes whose chDB finds no memory now and then, and nodes without descriptors: nothing is lost, called
broken or done twice, and all goes on when there is enough again."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import resource
import socket
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Code
from engine.testing.cluster_files import clusters_xml
from engine.testing.failing_chdb import FAILED, Faults, Knob, failing
from engine.testing.launch import Launched, Program, cold
from engine.testing.local_cluster import LocalCluster, blocking_cluster
from engine.testing.processes import ChildProcess
from tests.node.conftest import StartNode
from tests.node.http_client import HttpAt
from tests.node.replicated_pair import eventually
from tests.warm import warm

pytestmark = pytest.mark.slow

HOSTS = ("n1", "n2")
ROUNDS = 24
TRANSIENT = {0, 241, 242, 319, 341, 636, 999}
"""What a client may be told while memory lacks; 636 where chDB finds none to read the structure that `values`
is given for the rows of an answer, and makes do without."""


@contextlib.contextmanager
def forgetful_pair(directory: Path) -> Iterator[tuple[LocalCluster, Any, Knob]]:
    file = directory / "given.xml"
    text = clusters_xml({"all": [list(HOSTS)], "each": [[host] for host in HOSTS]})
    macros = "".join(f"<macros_{h}><shard>s</shard><replica>{h}</replica></macros_{h}>" for h in HOSTS)
    file.write_text(text.replace("</clickhouse>", f"{macros}</clickhouse>"))
    knob = Knob(directory / "knob")
    options = {"cluster_file": file, "hosts": HOSTS, "session_timeout_ms": 6000}
    with blocking_cluster(directory / "run", **options, launch=failing(knob, warm)) as (local, call):
        yield local, call, knob


def statements() -> Iterator[str]:
    """Each shows a second effect, or none, by its outcome or that of the next."""
    yield "CREATE TABLE p0 ON CLUSTER each (a UInt8) ENGINE = MergeTree ORDER BY a"
    for n in range(ROUNDS):
        yield f"ALTER TABLE p{n} ON CLUSTER each ADD COLUMN c{n} UInt8"
        yield f"RENAME TABLE p{n} TO p{n + 1} ON CLUSTER each"
        yield f"CREATE DATABASE d{n} ON CLUSTER each"
        yield f"CREATE VIEW d{n}.v ON CLUSTER each AS SELECT {n} AS x"
        yield f"ALTER TABLE r ON CLUSTER all ADD COLUMN c{n} UInt8"
        yield f"CREATE TABLE r{n} ON CLUSTER all (a UInt8) ENGINE = ReplicatedMergeTree ORDER BY a"
        yield f"DROP TABLE r{n} ON CLUSTER all SYNC"


def outcomes(node: HttpAt, sql: str, token: str) -> set[int]:
    """Of the hosts; asked again as long as only the asking fails."""
    settings = {"distributed_ddl_output_mode": "never_throw", "oncluster_token": token}
    while (reply := node.post(sql, default_format="JSONCompactEachRow", **settings)).status != 200:
        assert reply.code in TRANSIENT, reply.text
    return {json.loads(line)[2] for line in reply.text.splitlines()}


def test_memory_that_fails_at_random_costs_time_and_nothing_else(tmp_path: Path) -> None:
    rng = random.Random(1)
    with forgetful_pair(tmp_path) as (local, call, knob):
        nodes = [HttpAt(local.node(host).url) for host in HOSTS]
        place = "ReplicatedMergeTree('/t/{table}', '{replica}')"
        for table in ("r", "counted"):
            nodes[0].query(
                f"CREATE TABLE {table} ON CLUSTER all (k UInt64, n UInt64) ENGINE = {place} ORDER BY k"
            )
        nodes[0].query("INSERT INTO counted VALUES (1, 0)", insert_quorum="2")
        knob.write(Faults(rate=0.04))
        asked = list(statements())[: 4 * ROUNDS]
        inserted, tried, counted = set(), 0, 0
        for number, sql in enumerate(asked):
            attempts = itertools.count()
            while (told := outcomes(rng.choice(nodes), sql, f"token-{number}-{next(attempts)}")) != {0}:
                # Four attempts of a shard found no memory. Had one of them had an effect, another would fail.
                assert told == {Code.UNFINISHED} and sql.startswith("ALTER TABLE r "), (sql, told)
            values = f"INSERT INTO r (k, n) VALUES ({number}, 0)"
            while (reply := rng.choice(nodes).post(values, insert_deduplication_token=f"i{number}")).code:
                assert reply.code in TRANSIENT, reply.text
            inserted.add(number)
            if number % 4 == 0:
                tried += 1
                reply = rng.choice(nodes).post("ALTER TABLE counted UPDATE n = n + 1 WHERE 1")
                assert reply.code in TRANSIENT, reply.text
                counted += reply.code == 0
                reply = rng.choice(nodes).post("OPTIMIZE TABLE r FINAL", optimize_throw_if_noop="0")
                assert reply.code in {*TRANSIENT, Code.CANNOT_ASSIGN_OPTIMIZE}, reply.text
                reply = rng.choice(nodes).post("CHECK TABLE r")
                assert reply.code in TRANSIENT, reply.text
                assert reply.code or all(line.split("\t")[1] == "1" for line in reply.text.splitlines())
        knob.write(None)
        for host in HOSTS:
            assert local.node(host).process.log_file.read_text().count(FAILED) > 10
        for node in nodes:
            for table in ("r", "counted"):
                node.query(f"SYSTEM SYNC REPLICA {table}")
            assert node.query("SELECT k FROM r ORDER BY k").split() == [str(k) for k in sorted(inserted)]
            undone = "SELECT count() FROM system.mutations WHERE NOT is_done AND database = 'default'"
            eventually(partial(node.query, undone), "0\n")
            assert counted <= int(node.query("SELECT n FROM counted")) <= tried
            assert (
                node.query("SELECT table, name FROM system.detached_parts WHERE database = 'default'") == ""
            )
            assert node.query("SELECT countIf(is_readonly), sum(queue_size) FROM system.replicas") == "0\t0\n"
        parts = (
            "SELECT table, name, hash_of_all_files FROM system.parts WHERE active AND database = 'default' {}"
        )
        shared = parts.format("AND table IN ('r', 'counted') ORDER BY ALL")
        eventually(lambda: nodes[0].query(shared) == nodes[1].query(shared), True)
        made = "SELECT database, name FROM system.tables WHERE database LIKE 'd%' ORDER BY ALL"
        assert nodes[0].query(made) == nodes[1].query(made)
        # What lacked memory to be dropped is dropped in the end, or was for a use that may come.
        call(local.node("n1").restart())
        scratch = tmp_path / "run/nodes/n1/data/data/_oncluster"
        assert not list(scratch.glob("distributed_*")) and not list(scratch.glob("stage_*"))


def with_few_descriptors(soft: int, hard: int, program: Program, output: int) -> Launched:
    limit = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))"
    become = "os.execv(sys.argv[1], sys.argv[1:])"
    argv = (sys.executable, "-S", "-E", "-c", f"{limit}; {become}", *program.argv)
    return cold(Program(argv, program.environ, program.cwd), output)


def test_a_node_without_descriptors_says_so_and_goes_on_when_its_clients_are_gone(
    start_node: StartNode,
) -> None:
    node = start_node(run=False)
    hard = 300
    node.process = ChildProcess(
        "node",
        node.process.argv,
        log_file=node.process.log_file,
        launch=partial(with_few_descriptors, 150, hard),
    )
    node.start()
    node.query("CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a")
    pid = node.process.pid
    assert pid is not None
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (hard, hard)
    log = node.process.log_file
    assert f"node.few_descriptors limit={hard}" in log.read_text()

    # 1. Clients come until the node cannot accept the next one, and say nothing.
    silent: list[socket.socket] = []
    while "node.not_accepted" not in log.read_text():
        if len(silent) < hard:
            silent.append(socket.create_connection(("127.0.0.1", node.http_port)))
        time.sleep(0.005)
    # 2. It says so, with what to do, once for each look.
    said = log.read_text()
    assert said.count("node.not_accepted") < 50 and "Traceback" not in said and "LimitNOFILE" in said
    # 3. They go.
    for client in silent:
        client.close()
    eventually(lambda: node.post("INSERT INTO t VALUES (1)").code, 0)
    assert node.query("SELECT a FROM t") == "1\n"
    assert node.stop() == 0
