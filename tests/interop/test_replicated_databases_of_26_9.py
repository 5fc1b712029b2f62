"""A node and ClickHouse 26.9 as replicas of one Replicated database: whoever is asked, both do it."""

from __future__ import annotations

import http.client
import json
import random
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from engine.databases.digest import digest_of
from tests.few import few_first
from tests.interop.replica_in_chdb import ReplicaInChdb, replica_in_chdb
from tests.node.replicated_pair import Pair, eventually, running_pair
from tests.simulation.seeds import chosen_seeds

pytestmark = [pytest.mark.slow, pytest.mark.extended]

STATEMENTS = 80
MOMENTS_S = (0.0, 0.003, 0.01, 0.03, 0.1)
"""Behind the begin of a statement."""
COLUMNS = "(k UInt64, n Int32 DEFAULT 5, v LowCardinality(String), d DateTime)"
ENGINES = (
    "MergeTree ORDER BY k",
    "MergeTree PARTITION BY k % 2 ORDER BY (k, n) TTL d + INTERVAL 9 YEAR",
    "ReplicatedMergeTree ORDER BY k",
    "ReplicatedReplacingMergeTree(n) ORDER BY k",
    "ReplicatedMergeTree PARTITION BY toYYYYMM(d) ORDER BY k SETTINGS min_bytes_for_wide_part = 0",
    "Memory",
    "Log",
)
SOURCE = "CLICKHOUSE(TABLE '{t}' DB 'd')"
STATEMENT = """
CREATE TABLE d.{t} {columns} ENGINE = {engine}
CREATE TABLE d.{t} {columns} ENGINE = {engine}
CREATE TABLE d.{t} {columns} ENGINE = {engine}
CREATE TABLE IF NOT EXISTS d.{t} {columns} ENGINE = {engine}
CREATE OR REPLACE TABLE d.{t} {columns} ENGINE = {engine}
REPLACE TABLE d.{t} {columns} ENGINE = {engine}
CREATE TABLE d.{t} AS d.{u}
CREATE TABLE d.{t} ENGINE = MergeTree ORDER BY k AS SELECT k, n FROM d.{u}
CREATE TABLE d.all_{t} AS d.{t} ENGINE = Distributed('all', 'd', '{t}', k)
DROP TABLE d.all_{t}
DROP TABLE d.{t}
DROP TABLE IF EXISTS d.{t} SYNC
DETACH TABLE d.{t}
DETACH TABLE d.{t} PERMANENTLY
ATTACH TABLE d.{t}
RENAME TABLE d.{t} TO d.{u}
RENAME TABLE d.{t} TO d.w, d.w TO d.{u}
EXCHANGE TABLES d.{t} AND d.{u}
ALTER TABLE d.{t} ADD COLUMN c{number} UInt8 DEFAULT {number}
ALTER TABLE d.{t} ADD COLUMN c{number} UInt8 DEFAULT {number}
ALTER TABLE d.{t} MODIFY COLUMN n Int64 DEFAULT {number}
ALTER TABLE d.{t} ADD INDEX i{number} n TYPE minmax GRANULARITY 1, ADD COLUMN e{number} String
ALTER TABLE d.{t} ADD CONSTRAINT l{number} CHECK k < 1000000
ALTER TABLE d.{t} RENAME COLUMN v TO w
ALTER TABLE d.{t} DROP COLUMN n
ALTER TABLE d.{t} MODIFY SETTING merge_max_block_size = {number}
ALTER TABLE d.{t} MODIFY COMMENT 'of {number}'
ALTER TABLE d.{t} UPDATE n = 1 WHERE k = 2
ALTER TABLE d.{t} DROP PARTITION 0
DELETE FROM d.{t} WHERE k = 1
CREATE INDEX j{number} ON d.{t} (n) TYPE minmax
INSERT INTO d.{t} (k) SELECT number FROM numbers(10)
TRUNCATE TABLE d.{t}
OPTIMIZE TABLE d.{t} FINAL
CREATE VIEW d.v_{t} AS SELECT k, n + {number} AS x FROM d.{t}
CREATE OR REPLACE VIEW d.v_{t} AS SELECT k FROM d.{t}
DROP VIEW d.v_{t}
CREATE MATERIALIZED VIEW d.m_{t} ENGINE = MergeTree ORDER BY k AS SELECT k, count() AS c FROM d.{t} GROUP BY k
CREATE MATERIALIZED VIEW d.r_{t} ENGINE = ReplicatedSummingMergeTree ORDER BY k AS SELECT k, n FROM d.{t}
CREATE MATERIALIZED VIEW d.to_{t} TO d.{u} AS SELECT k, n FROM d.{t}
DROP TABLE d.m_{t}
DROP TABLE d.r_{t}
DROP TABLE d.to_{t}
CREATE DICTIONARY d.d_{t} (k UInt64, n Int32) PRIMARY KEY k SOURCE({source}) LAYOUT(FLAT()) LIFETIME(300)
DROP DICTIONARY d.d_{t}
""".strip().splitlines()
TABLES = (
    "name, uuid, create_table_query FROM system.tables WHERE database = 'd' AND name NOT LIKE '.inner%' "
    "ORDER BY name"
)


@dataclass
class Shared:
    """Database `d` of both, with what Keeper has of it."""

    pair: Pair
    real: ReplicaInChdb

    def on_node(self, sql: str) -> tuple[int, str]:
        reply = self.pair.n1.post(sql, alter_sync="2", mutations_sync="2", distributed_ddl_task_timeout="60")
        return reply.code, reply.text

    @property
    def sides(self) -> list[tuple[str, Callable[[str], tuple[int, str]]]]:
        return [("node", self.on_node), ("real", self.real.run)]

    def create(self, rng: random.Random) -> None:
        for name, ask in rng.sample(self.sides, 2):
            assert ask(f"CREATE DATABASE d ENGINE = Replicated('/databases/d', 's', '{name}')") == (0, "")

    def kill(self, name: str) -> None:
        """And start it again."""
        if name == "node":
            self.pair.kill9("n1")
        else:
            self.real.kill9()

    def in_keeper(self, path: str) -> dict[str, str]:
        sql = f"SELECT name, value FROM system.zookeeper WHERE path = '{path}' FORMAT JSONEachRow"
        rows = map(json.loads, self.pair.n1.query(sql).splitlines())
        return {urllib.parse.unquote(row["name"]): row["value"] for row in rows}

    def differing(self) -> list[str]:
        """Both have come to the last entry and have Keeper's definitions, and the node has their digest. That
        of 26.9 may be another one behind CREATE OR REPLACE, until the next statement."""
        newest = self.in_keeper("/databases/d")["max_log_ptr"]
        replicas = {name: self.in_keeper(f"/databases/d/replicas/s|{name}") for name in ("node", "real")}
        found = [
            f"{name} is at {each['log_ptr']} of {newest}"
            for name, each in replicas.items()
            if each["log_ptr"] != newest
        ]
        definitions = self.in_keeper("/databases/d/metadata")
        if replicas["node"]["digest"] != str(digest_of(definitions)):
            found.append("the node's digest is not that of the definitions in Keeper")
        (_, here), (_, there) = (ask(f"SELECT {TABLES} FORMAT TSV") for ask in (self.on_node, self.real.run))
        if here != there:
            found.append(f"{here}---\n{there}")
        shown = sorted(name for name in definitions if not name.startswith(".inner"))
        if [line.partition("\t")[0] for line in here.splitlines()] != shown:
            found.append(f"Keeper has {shown}")
        return found

    def compare(self, told: list[str]) -> None:
        try:
            eventually(self.differing, [], within_s=60)
        except AssertionError as error:
            pytest.fail("\n".join([*told[:1], *told[-12:], str(error).replace("\\n", "\n")]))


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    directory = tmp_path_factory.mktemp("with_26_9")
    more = "<macros><shard>01</shard><replica>real</replica></macros>"
    with running_pair(directory) as pair:
        assert pair.zookeeper is not None
        with replica_in_chdb(directory / "real", pair.zookeeper.config, more=more) as real:
            real.set({"alter_sync": "2", "mutations_sync": "2", "distributed_ddl_task_timeout": "60"})
            pair.n1.query("DROP DATABASE d ON CLUSTER all")
            yield Shared(pair, real)


@pytest.mark.parametrize("seed", few_first(chosen_seeds(1, 2), few=2))
def test_statements_on_either_are_carried_out_by_both(shared: Shared, seed: int) -> None:
    rng = random.Random(seed)
    shared.create(rng)
    told, done = [f"seed {seed}"], 0
    for number in range(1, STATEMENTS + 1):
        name, ask = rng.choice(shared.sides)
        sql = some_statement(rng, number)
        code, text = ask(sql)
        told.append(f"{name}: {sql}    {code} {text[:300]}")
        done += not code
        shared.compare(told)
    assert done > STATEMENTS // 5


@pytest.mark.parametrize("killed", ["node", "26.9"])
@pytest.mark.parametrize("seed", few_first(chosen_seeds(1, 1), few=1))
def test_who_is_killed_at_any_moment_has_carried_it_out_in_the_end(
    shared: Shared, seed: int, killed: str
) -> None:
    rng = random.Random(seed)
    shared.create(rng)
    told = [f"seed {seed}"]
    for number in range(1, STATEMENTS + 1):
        name, ask = rng.choice(shared.sides)
        sql = some_statement(rng, number)
        if sql.startswith("DETACH") and "PERMANENTLY" not in sql:
            continue  # the next start attaches it
        killing = threading.Timer(rng.choice(MOMENTS_S), shared.kill, [killed])
        if is_killed := rng.random() < 0.15:
            killing.start()
        try:
            code, text = ask(sql)
        except (OSError, http.client.HTTPException) as error:
            code, text = -1, str(error)
        if is_killed:
            killing.join()
        told.append(f"{f'{killed} killed, ' * is_killed}{name}: {sql}    {code} {text[:300]}")
        shared.compare(told)


def some_statement(rng: random.Random, number: int) -> str:
    t, u = (f"t{rng.randrange(4)}" for _ in range(2))
    words = {"columns": COLUMNS, "engine": rng.choice(ENGINES), "source": SOURCE.format(t=t)}
    return rng.choice(STATEMENT).format(t=t, u=u, number=number, **words)
