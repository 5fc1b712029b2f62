"""Two nodes and ClickHouse 26.9 in one DDL queue: whoever initiates, all execute it, and all agree."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from engine.testing.cluster_files import clusters_xml
from tests.few import few_first
from tests.interop.replica_in_chdb import QUEUE, ReplicaInChdb, replica_in_chdb
from tests.node.http_client import HttpAt
from tests.node.replicated_pair import Pair, eventually, running_pair
from tests.simulation.seeds import chosen_seeds

pytestmark = [pytest.mark.slow, pytest.mark.extended]

STATEMENTS = 60
REAL = "localhost:9001"
CLUSTERS = {"mixed": [["n1", "n2", REAL]], "sharded": [["n1", REAL], ["n2"]], "real": [[REAL]]}
SERVER = "<tcp_port>9001</tcp_port><macros><shard>01</shard><replica>real</replica></macros>"
COLUMNS = "(k UInt64, n Int32 DEFAULT 5, v LowCardinality(String), d DateTime)"
ENGINES = (
    "MergeTree ORDER BY k",
    "MergeTree PARTITION BY k % 2 ORDER BY (k, n) TTL d + INTERVAL 9 YEAR",
    "ReplicatedMergeTree ORDER BY k",
    "ReplicatedMergeTree ORDER BY k",
    "ReplicatedReplacingMergeTree(n) ORDER BY k",
    "ReplicatedMergeTree('/own/{shard}/{uuid}', '{replica}') PARTITION BY toYYYYMM(d) ORDER BY k",
    "Memory",
    "Log",
)
STATEMENT = """
CREATE TABLE d.{t} {on} {columns} ENGINE = {engine}
CREATE TABLE d.{t} {on} {columns} ENGINE = {engine}
CREATE TABLE d.{t} {on} {columns} ENGINE = {engine}
CREATE TABLE IF NOT EXISTS d.{t} {on} {columns} ENGINE = {engine}
CREATE OR REPLACE TABLE d.{t} {on} {columns} ENGINE = MergeTree ORDER BY k
CREATE TABLE d.{t} {on} AS d.{u}
CREATE TABLE d.all_{t} {on} AS d.{t} ENGINE = Distributed('mixed', 'd', '{t}', k)
DROP TABLE d.all_{t} {on}
DROP TABLE d.{t} {on}
DROP TABLE IF EXISTS d.{t} {on} SYNC
DETACH TABLE d.{t} {on}
DETACH TABLE d.{t} {on} PERMANENTLY
ATTACH TABLE d.{t} {on}
RENAME TABLE d.{t} TO d.{u} {on}
RENAME TABLE d.{t} TO d.w, d.w TO d.{u} {on}
EXCHANGE TABLES d.{t} AND d.{u} {on}
ALTER TABLE d.{t} {on} ADD COLUMN c{number} UInt8 DEFAULT {number}
ALTER TABLE d.{t} {on} ADD COLUMN IF NOT EXISTS c UInt8 DEFAULT {number}
ALTER TABLE d.{t} {on} MODIFY COLUMN n Int64 DEFAULT {number}
ALTER TABLE d.{t} {on} ADD INDEX i{number} n TYPE minmax GRANULARITY 1, ADD COLUMN e{number} String
ALTER TABLE d.{t} {on} ADD CONSTRAINT l{number} CHECK k < 1000000
ALTER TABLE d.{t} {on} RENAME COLUMN v TO w
ALTER TABLE d.{t} {on} DROP COLUMN n
ALTER TABLE d.{t} {on} MODIFY SETTING merge_max_block_size = {number}
ALTER TABLE d.{t} {on} MODIFY COMMENT 'of {number}'
ALTER TABLE d.{t} {on} UPDATE n = 1 WHERE k = 2
ALTER TABLE d.{t} {on} DROP PARTITION 0
DELETE FROM d.{t} {on} WHERE k = 1
CREATE INDEX j{number} ON d.{t} {on} (n) TYPE minmax
TRUNCATE TABLE d.{t} {on}
OPTIMIZE TABLE d.{t} {on} FINAL
CREATE VIEW d.v_{t} {on} AS SELECT k, n + {number} AS x FROM d.{t}
CREATE OR REPLACE VIEW d.v_{t} {on} AS SELECT k FROM d.{t}
DROP VIEW d.v_{t} {on}
CREATE MATERIALIZED VIEW d.to_{t} {on} TO d.{u} AS SELECT k, n FROM d.{t}
DROP TABLE d.to_{t} {on}
CREATE DATABASE IF NOT EXISTS d {on}
CREATE USER IF NOT EXISTS u{number} {on}
SYSTEM FLUSH LOGS {on}
INSERT INTO d.{t} (k) SELECT number FROM numbers(10)
""".strip().splitlines()
TABLES = "name, uuid, create_table_query FROM system.tables WHERE database = 'd' ORDER BY name"


@dataclass
class Shared:
    """One queue."""

    pair: Pair
    real: ReplicaInChdb

    def on_node(self, node: HttpAt, sql: str) -> tuple[int, str]:
        reply = node.post(sql, alter_sync="2", mutations_sync="2", distributed_ddl_task_timeout="60")
        return reply.code, reply.text

    def in_keeper(self, path: str) -> dict[str, str]:
        sql = f"SELECT name, value FROM system.zookeeper WHERE path = '{path}' FORMAT JSONEachRow"
        rows = map(json.loads, self.pair.n1.query(sql).splitlines())
        return {row["name"]: row["value"] for row in rows}

    def outcomes(self) -> dict[str, dict[str, int]]:
        """Entry → host → code."""
        found = {}
        for entry in sorted(self.in_keeper(QUEUE.root)):
            if entry.startswith("query-"):
                finished = self.in_keeper(f"{QUEUE.root}/{entry}/finished")
                found[entry] = {host: int(text.partition("\n")[0]) for host, text in finished.items()}
        return found

    def differing(self) -> list[str]:
        """What is seen of the tables."""
        (_, first), (_, second) = (
            self.on_node(node, f"SELECT {TABLES} FORMAT TSV") for node in self.pair.both
        )
        _, third = self.real.run(f"SELECT {TABLES} FORMAT TSV")
        return [] if first == second == third else [first, second, third]


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    directory = tmp_path_factory.mktemp("with_26_9")
    clusters = clusters_xml(CLUSTERS).partition("<clickhouse>")[2].rpartition("</clickhouse>")[0]
    with running_pair(directory, more=CLUSTERS) as pair:
        assert pair.zookeeper is not None
        with replica_in_chdb(directory / "real", pair.zookeeper.config, more=SERVER + clusters) as real:
            for setting in ("alter_sync = 2", "mutations_sync = 2", "distributed_ddl_task_timeout = 60"):
                real.query(f"SET {setting}")
            pair.n1.query("DROP DATABASE d ON CLUSTER all")
            assert real.run("CREATE DATABASE d ON CLUSTER mixed")[0] == 0
            yield Shared(pair, real)


@pytest.mark.parametrize("seed", few_first(chosen_seeds(1, 2), few=2))
def test_whoever_initiates_all_execute_it(shared: Shared, seed: int) -> None:
    rng = random.Random(seed)
    sides: list[tuple[str, Callable[[str], tuple[int, str]]]] = [
        ("n1", lambda sql: shared.on_node(shared.pair.n1, sql)),
        ("n2", lambda sql: shared.on_node(shared.pair.n2, sql)),
        ("real", shared.real.run),
        ("real", shared.real.run),
    ]
    told, done = [f"seed {seed}"], 0
    for number in range(1, STATEMENTS + 1):
        name, ask = rng.choice(sides)
        t, u = (f"t{rng.randrange(4)}" for _ in range(2))
        on = "ON CLUSTER mixed"
        sql = rng.choice(STATEMENT).format(
            t=t, u=u, on=on, number=number, columns=COLUMNS, engine=rng.choice(ENGINES)
        )
        before = set(shared.outcomes())
        code, text = ask(sql)
        told.append(f"{name}: {sql}    {code} {text[:400]}")
        done += not code
        codes = {entry: hosts for entry, hosts in shared.outcomes().items() if entry not in before}
        for entry, hosts in codes.items():
            if len(hosts) != 3 or len(set(hosts.values())) != 1:
                told.append(f"  {entry} {hosts}")
        print(told[-2:] if told[-1].startswith("  ") else told[-1])
        try:
            eventually(shared.differing, [], within_s=20)
        except AssertionError as error:
            pytest.fail("\n".join([*told[:1], *told[-12:], str(error).replace("\\n", "\n")]))
    assert done > STATEMENTS // 5
