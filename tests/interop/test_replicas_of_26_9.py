"""A node and ClickHouse 26.9 as replicas of one table: whoever is asked, both have the same in the end."""

from __future__ import annotations

import http.client
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import pytest

from tests.few import few_first
from tests.interop.replica_in_chdb import ReplicaInChdb, replica_in_chdb
from tests.node.http_client import HttpAt
from tests.node.random_statements import SETTINGS, TABLES, statement
from tests.node.replicated_pair import Pair, eventually, running_pair
from tests.simulation.seeds import chosen_seeds

pytestmark = [pytest.mark.slow, pytest.mark.extended]

Ask = Callable[[str], tuple[int, str]]

STATEMENTS = 25
MOMENTS_S = (0.0, 0.003, 0.01, 0.03, 0.1)
"""Behind the begin of a statement."""
OF_BOTH = {
    "alter_sync": "2",
    "mutations_sync": "2",
    "lightweight_deletes_sync": "2",
    "receive_timeout": "60",
    "allow_suspicious_codecs": "1",
    "allow_suspicious_ttl_expressions": "1",
}
NAMES_ARE_LOCAL = ("EXCHANGE", "RENAME", "DETACH", "DROP TABLE", "CREATE TABLE")
"""Statements about names concern the server that is asked: both are asked, so that they stay alike."""
LOOKS = {
    "parts": "name, rows, hash_of_all_files FROM system.parts WHERE {} AND active ORDER BY name",
    "columns": (
        "name, type, default_kind, default_expression, compression_codec FROM system.columns WHERE {} "
        "ORDER BY position"
    ),
    "indexes": "name, expr, type, granularity FROM system.data_skipping_indices WHERE {} ORDER BY name",
    "mutations": "mutation_id, is_done FROM system.mutations WHERE {} ORDER BY mutation_id",
}
"""Comments are left out: 26.9 keeps those that an ALTER changes alone to the server that was asked."""


@dataclass
class Both:
    """The same table on a node and on ClickHouse."""

    pair: Pair
    real: ReplicaInChdb

    @property
    def node(self) -> HttpAt:
        return self.pair.n1

    def on_node(self, database: str, sql: str) -> tuple[int, str]:
        reply = self.node.post(sql, database=database, **OF_BOTH)
        return reply.code, reply.text

    def on_real(self, database: str, sql: str) -> tuple[int, str]:
        self.real.query(f"USE {database}")
        return self.real.run(sql)

    def kill(self, name: str) -> None:
        """And start it again."""
        if name == "node":
            self.pair.kill9("n1")
        else:
            self.real.kill9()

    def looks(self, database: str, *, on_node: bool) -> dict[str, str]:
        """What is seen of both tables once all that is known is done."""
        ask = partial(self.on_node if on_node else self.on_real, database)
        found: dict[str, str] = {}
        for table in ("t", "u"):
            found[f"{table} synced"] = str(ask(f"SYSTEM SYNC REPLICA {table}")[0])
            where = f"database = '{database}' AND table = '{table}'"
            for what, sql in LOOKS.items():
                found[f"{table} {what}"] = ask(f"SELECT {sql.format(where)} FORMAT TSV")[1]
            code, rows = ask(f"SELECT * FROM {table} ORDER BY ALL FORMAT TSV")
            found[f"{table} rows"] = str(code or rows)
        return found

    def compare(self, database: str, told: list[str]) -> None:
        def differing() -> list[str]:
            here, there = (self.looks(database, on_node=on_node) for on_node in (True, False))
            return [f"{what}:\n{here[what]}---\n{there[what]}" for what in here if here[what] != there[what]]

        try:
            eventually(differing, [], within_s=60)
        except AssertionError as error:
            pytest.fail("\n".join([*told[:1], *told[-8:], str(error).replace("\\n", "\n")]))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(tmp_path_factory.mktemp("with_26_9")) as pair:
        yield pair


@pytest.fixture(scope="module")
def both(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    assert pair.zookeeper is not None
    with replica_in_chdb(tmp_path_factory.mktemp("chdb") / "real", pair.zookeeper.config) as real:
        real.set(OF_BOTH)
        yield Both(pair, real)


def tables(both: Both, rng: random.Random, database: str, settings: str) -> tuple[str, Mapping[str, Ask]]:
    """Makes `t` and `u` on both, in any order; what they are, and whom to ask."""
    engine, arguments, columns, keys = rng.choice(TABLES)
    if own := rng.choice(SETTINGS):
        settings += f", {own}"
    both.node.query(f"CREATE DATABASE {database}")
    both.real.query(f"CREATE DATABASE {database}")
    sides = {"node": partial(both.on_node, database), "26.9": partial(both.on_real, database)}
    for table in ("t", "u"):
        for name, ask in rng.sample(sorted(sides.items()), 2):
            place = f"'/{database}/{table}', '{name}'" + (f", {arguments}" if arguments else "")
            create = f"CREATE TABLE {table} ({columns}) ENGINE = Replicated{engine}({place})"
            assert ask(f"{create} PARTITION BY toYYYYMM(d) {keys} SETTINGS {settings}") == (0, "")
    return f"{engine}({arguments}) ({columns}) {keys} {settings}", sides


def some_statement(both: Both, rng: random.Random, database: str) -> str:
    names = f"SELECT name FROM system.columns WHERE database = '{database}' AND table = 't'"
    return statement(rng, both.real.query(names).split("\n")[:-1])


def drop(database: str, sides: Mapping[str, Ask]) -> None:
    for ask in sides.values():
        assert ask(f"DROP DATABASE {database} SYNC")[0] == 0


@pytest.mark.parametrize("seed", few_first(chosen_seeds(1, 6), few=6))
def test_statements_on_either_reach_the_other(both: Both, seed: int) -> None:
    rng, database = random.Random(seed), f"seed{seed}"
    settings = "max_bytes_to_merge_at_max_space_in_pool = 1, allow_nullable_key = 1"
    what, sides = tables(both, rng, database, settings)
    told, done = [f"seed {seed}: {what}"], 0
    for _ in range(STATEMENTS):
        sql = some_statement(both, rng, database)
        asked = sorted(sides) if sql.startswith(NAMES_ARE_LOCAL) else [rng.choice(sorted(sides))]
        for name in asked:
            for one in sql.split("; "):
                code, text = sides[name](one)
                told.append(f"{name}: {one}    {code} {text[:300]}")
                done += not code
        both.compare(database, told)
    assert done > STATEMENTS // 4
    drop(database, sides)


@pytest.mark.parametrize("killed", ["node", "26.9"])
@pytest.mark.parametrize("seed", few_first(chosen_seeds(1, 2), few=2))
def test_who_is_killed_at_any_moment_agrees_in_the_end(both: Both, seed: int, killed: str) -> None:
    rng, database = random.Random(seed), f"killed{seed}_{len(killed)}"
    what, sides = tables(both, rng, database, "allow_nullable_key = 1")
    told = [f"seed {seed}: {what}"]
    for _ in range(STATEMENTS):
        sql = some_statement(both, rng, database)
        if sql.startswith(NAMES_ARE_LOCAL):
            continue
        name, is_killed = rng.choice(sorted(sides)), rng.random() < 0.3
        killing = threading.Timer(rng.choice(MOMENTS_S), both.kill, [killed])
        if is_killed:
            killing.start()
        try:
            code, text = sides[name](sql)
        except (OSError, http.client.HTTPException) as error:
            code, text = -1, str(error)
        if is_killed:
            killing.join()
        told.append(f"{'killed, ' * is_killed}{name}: {sql}    {code} {text[:200]}")
    for table in ("t", "u"):  # those that fail for ever
        both.real.run(f"KILL MUTATION WHERE database = '{database}' AND table = '{table}' AND NOT is_done")
    both.compare(database, told)
    drop(database, sides)


def test_a_patch_of_a_lightweight_update_is_waited_for(both: Both) -> None:
    node, real = partial(both.on_node, "d"), partial(both.on_real, "d")
    both.real.query("CREATE DATABASE d")
    for name, ask in (("node", node), ("26.9", real)):
        engine = f"ReplicatedMergeTree('/with/p', '{name}') ORDER BY k"
        settings = "enable_block_number_column = 1, enable_block_offset_column = 1"
        create = f"CREATE TABLE p (k UInt64, v String) ENGINE = {engine} SETTINGS {settings}"
        assert ask(create) == (0, "")
    assert real("INSERT INTO p VALUES (1, 'a'), (2, 'b')") == node("SYSTEM SYNC REPLICA p") == (0, "")
    # 1. A patch is made, which the node cannot apply.
    assert real("UPDATE p SET v = 'c' WHERE k = 1") == (0, "")
    reason = (
        "SELECT last_exception LIKE '%lightweight UPDATE%' FROM system.replication_queue WHERE table = 'p'"
    )
    eventually(lambda: node(reason), (0, "1\n"))
    # 2. A mutation is made by who has it, also if the node is asked.
    assert node("ALTER TABLE p UPDATE v = concat(v, '!') WHERE k < 9") == (0, "")
    rows = "SELECT k, v FROM p ORDER BY k FORMAT TSV"
    assert node(rows) == real(rows) == (0, "1\tc!\n2\tb!\n")
    # 3. What has been applied goes, and the node has caught up.
    assert real("OPTIMIZE TABLE p FINAL") == (0, "")
    eventually(lambda: node("SELECT count() FROM system.replication_queue WHERE table = 'p'"), (0, "0\n"))
    assert node(rows) == real(rows) == (0, "1\tc!\n2\tb!\n")
