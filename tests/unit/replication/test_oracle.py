"""ClickHouse as the oracle: what chDB's own replicated tables write into a real ZooKeeper, field by field.

chDB runs in a process of its own, with a `zookeeper` section (which a node never gives it). It is started
once, makes every table of the corpus twice, as Replicated… and as plain MergeTree, and ends.
"""

from __future__ import annotations

import json
import pathlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engine.env import SystemEnv
from engine.errors import MultiFailed, NodeExists, SqlError
from engine.keeper import Keeper, zookeeper
from engine.keeper.base import Create, Op
from engine.keeper.embedded import EmbeddedZooKeeper
from engine.keeper.recipes import create_ancestors
from engine.replication.creation import NewReplica, later_nodes, leader_election_ops, replica_ops, table_ops
from engine.replication.paths import TablePaths
from engine.replication.table_definition import parse_definition
from engine.replication.table_metadata import TableMetadata, check_metadata
from engine.siphash import siphash128
from tests.unit.replicated.chdb import Clickhouse
from tests.unit.replication.graphite_support import COLUMNS, ROLLUPS

pytestmark = pytest.mark.slow

CORPUS = pathlib.Path(__file__).parents[2] / "data" / "replication_definitions.json"
ROWS = json.loads(CORPUS.read_text())["definitions"]
ROOT = "/oracle"


@dataclass
class Oracle:
    keeper: Keeper
    clickhouse: Clickhouse
    other: Clickhouse


@pytest.fixture
async def oracle(tmp_path: Path) -> AsyncIterator[Oracle]:
    async with EmbeddedZooKeeper(tmp_path / "zookeeper", is_durable=False) as server:
        one = Clickhouse(tmp_path / "one", server.config)
        other = Clickhouse(tmp_path / "other", server.config)
        keeper = await zookeeper.connect(server.config, SystemEnv())
        try:
            yield Oracle(keeper, one, other)
        finally:
            await keeper.close()
            one.close()
            other.close()


async def _tree(keeper: Keeper, root: str) -> dict[str, tuple[bytes, int, bool, int]]:
    """Of every node below `root`: data, version, whether it is ephemeral, and which request made it."""
    found: dict[str, tuple[bytes, int, bool, int]] = {}
    waiting = [root]
    while waiting:
        path = waiting.pop()
        node = await keeper.get(path)
        stat = node.stat
        found[path[len(root) :]] = (node.data, stat.version, bool(stat.ephemeral_owner), stat.czxid)
        waiting += [f"{path}/{name}" for name in (await keeper.children(path)).names]
    return found


def _replicated(row: dict[str, str], replica: str, root: str = ROOT) -> str:
    arguments = f"'{root}/{row['name']}', '{replica}'" + (f", {row['arguments']}" if row["arguments"] else "")
    return f"{row['columns']} ENGINE = Replicated{row['engine']}({arguments}) {row['rest']}"


def _create_text(clickhouse: Clickhouse, table: str) -> str:
    return clickhouse.query(f"SELECT create_table_query FROM system.tables WHERE name = '{table}'").rstrip(
        "\n"
    )


def _plain(tree: dict[str, tuple[bytes, int, bool, int]]) -> dict[str, tuple[bytes, int, bool]]:
    return {path: node[:3] for path, node in tree.items()}


async def _create_all(keeper: Keeper, ops: tuple[Create, ...]) -> None:
    for op in ops:
        try:
            await keeper.create(op.path, op.data)
        except NodeExists:
            pass


def _together(tree: dict[str, tuple[bytes, int, bool, int]], ops: tuple[Op, ...], root: str) -> set[int]:
    """The requests that made the nodes of `ops`; one if the oracle made them in one transaction, as we do."""
    paths = {op.path[len(root) :] for op in ops if isinstance(op, Create)} - {"/leader_election"}
    return {tree[path][3] for path in paths}


async def test_rollup_rules_have_the_hash_that_clickhouse_writes(oracle: Oracle) -> None:
    for name, columns in COLUMNS.items():
        first, second = columns.strip("(").split()[0], columns.split(", ")[1].split()[0]
        rest = f"{columns} ENGINE = {{engine}} ORDER BY ({first}, {second})"
        replicated = f"ReplicatedGraphiteMergeTree('{ROOT}/{name}', 'r1', '{name}')"
        oracle.clickhouse.query(f"CREATE TABLE o.{name} {rest.format(engine=replicated)}")
        plain = f"GraphiteMergeTree('{name}')"
        oracle.clickhouse.query(f"CREATE TABLE o.plain_{name} {rest.format(engine=plain)}")
        definition = parse_definition(_create_text(oracle.clickhouse, f"plain_{name}"), rollups=ROLLUPS)
        assert definition.metadata.to_bytes() == (await oracle.keeper.get(f"{ROOT}/{name}/metadata")).data


async def test_tables_of_every_kind_are_made_as_clickhouse_makes_them(oracle: Oracle) -> None:
    keeper, query = oracle.keeper, oracle.clickhouse.query
    for row in ROWS:
        query(f"CREATE TABLE o.`{row['name']}` {_replicated(row, 'r1')}")
        engine = f"{row['engine']}({row['arguments']})"
        query(f"CREATE TABLE o.`plain_{row['name']}` {row['columns']} ENGINE = {engine} {row['rest']}")
    for row in ROWS:
        name = row["name"]
        local = _create_text(oracle.clickhouse, f"plain_{name}")
        table_uuid = query(f"SELECT uuid FROM system.tables WHERE database = 'o' AND name = '{name}'").strip()
        definition = parse_definition(local)
        new = NewReplica(
            definition.metadata.to_bytes(), definition.columns.to_bytes(), table_uuid=uuid.UUID(table_uuid)
        )
        theirs_root, paths = f"{ROOT}/{name}", TablePaths(f"/ours/{name}")
        theirs = await _tree(keeper, theirs_root)
        await create_ancestors(keeper, paths.root)
        await keeper.multi(table_ops(paths, paths.replica("r1"), new))
        await _create_all(keeper, later_nodes(paths, new))
        await keeper.multi(leader_election_ops(paths))
        ours = await _tree(keeper, paths.root)
        assert _plain(ours) == _plain(theirs)
        mine = TablePaths(theirs_root)
        assert len(_together(theirs, table_ops(mine, mine.replica("r1"), new), theirs_root)) == 1


async def test_a_further_replica_is_made_as_clickhouse_makes_it_and_each_accepts_the_others_table(
    oracle: Oracle,
) -> None:
    keeper = oracle.keeper
    row = next(row for row in ROWS if row["name"] == "plain")
    oracle.clickhouse.query(f"CREATE TABLE o.plain {_replicated(row, 'r1')}")
    oracle.other.query(f"CREATE TABLE o.plain {_replicated(row, 'r2')}")
    theirs = await _tree(keeper, f"{ROOT}/plain")

    # Ours joins a table of ClickHouse, and what it makes is what ClickHouse's second replica made.
    paths = TablePaths(f"{ROOT}/plain")
    stored = await keeper.get(paths.metadata)
    definition = parse_definition(row["create_query"])
    check_metadata(
        definition.metadata, TableMetadata.from_bytes(stored.data), table="o.plain", allowed=frozenset()
    )
    creator = theirs["/replicas/r2/creator_info"][0].decode()
    new = NewReplica(
        stored.data,
        definition.columns.to_bytes(),
        table_uuid=uuid.UUID(creator.split("|")[0]),
        metadata_version=stored.stat.version,
    )
    children = await keeper.children(paths.replicas)
    ops = replica_ops(
        paths,
        paths.replica("r3"),
        new,
        replica_count=len(children.names),
        replicas_version=children.stat.version,
    )
    await keeper.multi(ops)
    tree = await _tree(keeper, paths.root)

    def replica(name: str) -> dict[str, tuple[bytes, int, bool]]:
        prefix = f"/replicas/{name}"
        return {path[len(prefix) :]: node[:3] for path, node in tree.items() if path.startswith(prefix)}

    assert replica("r3") == replica("r2")
    mine = tuple(replace(op, path=op.path.replace("/r3", "/r2")) for op in ops if isinstance(op, Create))
    assert len(_together(theirs, mine, paths.root)) == 1
    with pytest.raises(MultiFailed):
        await keeper.multi(ops)

    # ClickHouse joins a table of ours.
    own = TablePaths("/ours/joined")
    await create_ancestors(keeper, own.root)
    await keeper.multi(table_ops(own, own.replica("r1"), new))
    await _create_all(keeper, later_nodes(own, new))
    oracle.other.query(f"CREATE TABLE o.joined {_replicated(row, 'r2').replace(f'{ROOT}/plain', own.root)}")
    assert (await keeper.children(own.replicas)).names == ("r1", "r2")


ID_COLUMNS = "(d Date, id UInt64, v String DEFAULT 'x')"
REFUSED = (
    (ID_COLUMNS.replace("UInt64", "UInt32"), "PARTITION BY toYYYYMM(d) ORDER BY (d, id)", 122),
    (ID_COLUMNS, "PARTITION BY d ORDER BY (d, id)", 342),
    (ID_COLUMNS, "PARTITION BY toYYYYMM(d) ORDER BY id", 342),
    (ID_COLUMNS, "PARTITION BY toYYYYMM(d) ORDER BY (d, id) SETTINGS index_granularity = 77", 342),
    (ID_COLUMNS, "PARTITION BY toYYYYMM(d) ORDER BY (d, id) TTL d + INTERVAL 1 DAY", 342),
)


async def test_a_replica_that_clickhouse_refuses_is_refused_with_the_same_code(oracle: Oracle) -> None:
    row = next(row for row in ROWS if row["name"] == "plain")
    oracle.clickhouse.query(f"CREATE TABLE o.plain {_replicated(row, 'r1')}")
    stored = TableMetadata.from_bytes((await oracle.keeper.get(f"{ROOT}/plain/metadata")).data)
    stored_columns = parse_definition(row["create_query"]).columns
    for number, (columns, rest, code) in enumerate(REFUSED):
        engine = f"ReplicatedMergeTree('{ROOT}/plain', 'r2')"
        refusal = oracle.other.refusal(f"CREATE TABLE o.plain {columns} ENGINE = {engine} {rest}")
        assert refusal.startswith(f"Code: {code}."), refusal
        oracle.other.query(f"CREATE TABLE o.local{number} {columns} ENGINE = MergeTree {rest}")
        local = parse_definition(_create_text(oracle.other, f"local{number}"))
        with pytest.raises(SqlError) as refused:
            local.columns.check_same(stored_columns, where=f"{ROOT}/plain/columns")
            check_metadata(local.metadata, stored, table="o.plain", allowed=frozenset())
        assert refused.value.code == code


async def test_hashes_are_those_of_clickhouse(oracle: Oracle) -> None:
    for size in (0, 1, 7, 8, 9, 15, 16, 17, 64, 255, 256, 257, 1000):
        text = "x" * size
        low, high = siphash128(text.encode())
        expected = oracle.clickhouse.query(f"SELECT lower(hex(sipHash128('{text}')))")
        assert (low.to_bytes(8, "little") + high.to_bytes(8, "little")).hex() == expected.strip()
